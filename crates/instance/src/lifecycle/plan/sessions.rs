//! How sessions end, and how their instances are given back.

use agentcube_api::agentcube::task::ReusePolicy;

use super::{Planner, Step, after};
use crate::identity::Kind;
use crate::lifecycle::operation::{Condition, Confirm, Given, Operation, Reason};
use crate::lifecycle::routers::Seen;
use crate::lifecycle::view::{SeenInstance, SeenLease, is_held_for};
use crate::record::{Hold, Life, Session};

/// How a session stands that does not end.
enum Bond<'a> {
    /// Its binder waits for an instance, or has not taken it yet.
    Unfinished,
    /// It has its instance.
    Bound(&'a SeenInstance),
    /// It had an instance that is gone or of no use.
    Lost,
}

impl<'a> Planner<'a> {
    pub(super) fn sessions(&mut self) {
        let view = self.view;
        for lease in view.sessions.values() {
            match &lease.session {
                _ if lease.ending => self.finish(lease),
                _ if self.wanted().is_none() => self.end(lease, Reason::TaskDeleted, self.task_is_gone()),
                None => {
                    if self.is_past(lease.since + self.rules.timing.grace) {
                        self.end(lease, Reason::SessionSpoilt, Confirm::Nothing);
                    }
                }
                Some(session) => self.session(lease, session),
            }
        }
    }

    /// What has to be confirmed before something is done because the Task is gone.
    pub(super) fn task_is_gone(&self) -> Confirm {
        match (&self.view.task, self.view.owner()) {
            (None, Some(name)) => Confirm::TaskGone(name),
            _ => Confirm::Nothing,
        }
    }

    fn end(&mut self, lease: &SeenLease, reason: Reason, confirm: Confirm) {
        let (lease, kept) = (lease.reference.clone(), lease.finalizer);
        self.push(Operation::EndSession { lease, kept, reason, confirm });
    }

    fn session(&mut self, lease: &'a SeenLease, session: &'a Session) {
        match self.bond(lease, session) {
            Bond::Unfinished => {
                // Twice the grace: a router that has requests for the key takes over after once.
                if self.is_past(lease.since + self.rules.timing.grace * 2) {
                    let confirm = lease.holder.clone().map_or(Confirm::Nothing, Confirm::NotBound);
                    self.end(lease, Reason::BindingAbandoned, confirm);
                }
            }
            Bond::Bound(instance) if self.is_expired(instance) => {
                self.end(lease, Reason::SessionExpired, Confirm::Nothing);
            }
            Bond::Bound(instance) if instance.record.life == Life::Terminating => {
                if self.is_stuck(instance) {
                    self.end(lease, Reason::InstanceStuck, Confirm::Nothing);
                }
            }
            Bond::Bound(instance) if instance.is_alive() => {
                let idle = self.wanted().and_then(|task| task.idle);
                let pauses = self.wanted().is_some_and(|task| task.pauses);
                match session.rests {
                    Some(number) if pauses => self.rest(lease, instance, number),
                    None if pauses && instance.record.id.kind == Kind::Sandbox => {
                        self.idle(lease, session, idle, Reason::SessionPaused);
                    }
                    _ => self.idle(lease, session, idle, Reason::SessionIdle),
                }
            }
            Bond::Bound(_) | Bond::Lost => {
                let idle = self.wanted().and_then(|task| task.idle).unwrap_or(self.rules.limits.idle);
                self.idle(lease, session, Some(idle), Reason::SessionLost);
            }
        }
    }

    fn bond(&self, lease: &'a SeenLease, session: &Session) -> Bond<'a> {
        let Some(holder) = &lease.holder else { return Bond::Unfinished };
        match self.view.instance(holder) {
            None => Bond::Lost,
            Some(instance) if instance.record.is_bound_to(session) => Bond::Bound(instance),
            // It goes, and the session gets another one.
            Some(instance) if instance.record.hold == Hold::Spoilt => Bond::Lost,
            Some(_) => Bond::Unfinished,
        }
    }

    /// Ends a session that has been idle for too long, with the routers' consent.
    fn idle(
        &mut self,
        lease: &SeenLease,
        session: &Session,
        idle: Option<std::time::Duration>,
        reason: Reason,
    ) {
        let due = idle.is_some_and(|idle| self.is_due(after(session.renewed, idle)));
        let reference = lease.reference.clone();
        let marked = lease.mark.as_ref().map(|_| lease.since);
        if !due {
            if marked.is_some() {
                self.push(Operation::UnmarkSession { lease: reference });
            }
            return;
        }
        match self.ask(&reference.uid, marked, Seen::Lease(reference.version)) {
            Step::Mark => self.push(Operation::MarkSession { lease: reference, reason }),
            Step::Go if reason == Reason::SessionPaused => {
                self.push(Operation::RestSession { lease: reference })
            }
            Step::Go => self.end(lease, reason, Confirm::Nothing),
            Step::Withdraw => self.push(Operation::UnmarkSession { lease: reference }),
            Step::Wait => {}
        }
    }

    /// Keeps the instance of a session paused that rests. No router serves such a session before it has woken the
    /// instance under the number of the rest, and under that number, or an earlier one, it is not paused again.
    fn rest(&mut self, lease: &SeenLease, instance: &SeenInstance, number: u64) {
        let record = &instance.record;
        // One that was woken under a later number was woken since what is known here of the session.
        if record.woken < Some(number) {
            if !record.paused && matches!(record.life, Life::Ready | Life::Paused) {
                self.push(Operation::PauseInstance { pod: instance.reference() });
            }
            return;
        }
        // Somebody was about to serve it. If nothing came of that, it rests under another number.
        if self.is_past(lease.since.max(instance.since) + self.rules.timing.grace * 2) {
            self.push(Operation::RestSession { lease: lease.reference.clone() });
        }
    }

    /// Gives back the instance of a session that ends, and lets go of its name when that is done.
    fn finish(&mut self, lease: &'a SeenLease) {
        if !lease.finalizer || !self.is_seen(Seen::Lease(lease.reference.version)) {
            return;
        }
        let view = self.view;
        let holder = lease.holder.as_ref();
        let is_its = |instance: &&SeenInstance| {
            let spoilt = instance.record.hold == Hold::Spoilt && holder == Some(&instance.record.id);
            spoilt || is_held_for(&instance.record, &lease.reference.uid)
        };
        let its: Vec<&SeenInstance> = match holder {
            // The usual case, without a search: the holder is all that it ever had.
            Some(holder) if lease.session.as_ref().is_some_and(|session| session.binding <= 1) => {
                view.instance(holder).into_iter().filter(is_its).collect()
            }
            _ => view.instances.values().filter(is_its).collect(),
        };
        let interrupted = is_interrupted(lease);
        let lost = interrupted && its.iter().any(|instance| self.is_stuck(instance));
        let reason = self.reason_of(lease, &its);
        let mut given_back = true;
        for instance in its {
            given_back &= self.give_back(instance, lease);
        }
        if given_back {
            let given = match interrupted {
                false => Given::Back,
                true if lost => Given::Lost,
                true => Given::Gone,
            };
            let (lease, holder) = (lease.reference.clone(), lease.holder.clone());
            self.push(Operation::FinishSession { lease, holder, given, reason });
        }
    }

    /// Why a session ends of which only that is known that its Lease is being deleted.
    fn reason_of(&mut self, lease: &SeenLease, its: &[&SeenInstance]) -> Reason {
        let known = self.view.ends.get(&lease.reference.uid).copied();
        match known.or_else(|| Reason::parse(lease.mark.as_ref()?)) {
            // It was about to be paused when somebody deleted it.
            Some(reason) if reason != Reason::SessionPaused => reason,
            _ if self.wanted().is_none() => Reason::TaskDeleted,
            _ if lease.session.is_none() => Reason::SessionSpoilt,
            _ if its.iter().any(|instance| self.is_stuck(instance)) => Reason::InstanceStuck,
            _ if its.iter().any(|instance| self.is_expired(instance)) => Reason::SessionExpired,
            _ => Reason::SessionDeleted,
        }
    }

    /// Whether the instance was given back; begins with that if not.
    fn give_back(&mut self, instance: &SeenInstance, lease: &SeenLease) -> bool {
        let pod = instance.reference();
        match (&instance.record.hold, instance.record.life) {
            (_, Life::Dead) => return true,
            (_, Life::Terminating) => return !is_interrupted(lease) || self.is_stuck(instance),
            (Hold::Held { reservation, .. }, _) if !is_interrupted(lease) && self.is_of_use(instance) => {
                let reservation = reservation.clone();
                self.push(Operation::FreeInstance { pod, reservation });
            }
            _ => {
                let (reason, condition) = (Reason::SessionEnded, Condition::Version);
                self.push(Operation::DeleteInstance { pod, reason, condition, confirm: Confirm::Nothing });
            }
        }
        false
    }

    /// Whether the next session may have the instance.
    fn is_of_use(&mut self, instance: &SeenInstance) -> bool {
        let Some(task) = self.wanted() else { return false };
        task.reuse == ReusePolicy::Always
            && task.is_current(&instance.record.spec_id)
            && instance.record.slot.is_some_and(|slot| slot < task.max)
            && matches!(instance.record.life, Life::Starting | Life::Ready)
            && !self.is_expired(instance)
    }
}

/// Whether requests may still run at the instance of a session that ends. Of a Lease that cannot be read routers say
/// nothing.
fn is_interrupted(lease: &SeenLease) -> bool {
    lease.interrupted || lease.session.is_none()
}
