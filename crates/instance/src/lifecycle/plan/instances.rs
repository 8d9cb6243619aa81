//! Instances as such: those that nobody needs go, those that are missing are started.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{Planner, Step, after};
use crate::identity::Kind;
use crate::lifecycle::operation::{Condition, Confirm, Operation, Reason};
use crate::lifecycle::routers::Seen;
use crate::lifecycle::view::{SeenInstance, Wanted, place};
use crate::record::{Hold, Life, lease_name};
use crate::revision::Form;

/// How little an idle instance is worth, the least first: one that cannot serve, one that cannot serve yet, one that
/// was never used, the one that is idle for longest, the one in the highest slot. Those that the routers were asked
/// about stay first, so that an answer is not asked for in vain.
type Worth = (bool, u8, bool, Timestamp, Reverse<u32>);

impl<'a> Planner<'a> {
    pub(super) fn instances(&mut self) {
        let view = self.view;
        let mut idle = Vec::new();
        let mut kept = 0;
        for instance in view.instances.values() {
            match instance.record.life {
                _ if self.touched.contains_key(&instance.record.id.uid) => {}
                Life::Dead => self.dead(instance),
                Life::Terminating => {}
                _ if self.wanted().is_none() => self.without_task(instance),
                _ => match instance.record.hold {
                    Hold::Free => self.free(instance, &mut idle),
                    Hold::Held { .. } => self.held(instance),
                    Hold::Spoilt => self.spoilt(instance),
                },
            }
            kept += u32::from(self.counts(instance));
        }
        if let Some(task) = self.wanted() {
            self.excess(task, idle, kept);
            self.missing(task, kept);
        }
    }

    /// Whether an instance is one of those that the minimum asks for. A dead one counts until it is removed: what
    /// dies again and again is not replaced at once.
    fn counts(&self, instance: &SeenInstance) -> bool {
        let Some(task) = self.wanted() else { return false };
        let deleted = self.touched.get(&instance.record.id.uid) == Some(&true);
        instance.record.life != Life::Terminating
            && !deleted
            && !self.is_spent(instance)
            && is_in_place(task, instance)
    }

    /// Whether a Sandbox had the one request that it is for.
    fn is_spent(&self, instance: &SeenInstance) -> bool {
        let once = self.wanted().is_some_and(|task| task.once);
        once && instance.record.slot.is_some() && instance.record.last_active.is_some()
    }

    fn delete(&mut self, instance: &SeenInstance, reason: Reason, condition: Condition, confirm: Confirm) {
        let pod = instance.reference();
        self.push(Operation::DeleteInstance { pod, reason, condition, confirm });
    }

    /// A dead instance takes up a slot. The Pods of a Job are the Job's.
    fn dead(&mut self, instance: &SeenInstance) {
        if self.is_spent(instance) {
            return self.delete(instance, Reason::InstanceSpent, Condition::Uid, Confirm::Nothing);
        }
        let delay = self.view.deaths.delay(self.now.instant, &self.rules.limits);
        if instance.record.slot.is_some() && self.is_past(instance.life_since + delay) {
            self.delete(instance, Reason::InstanceDead, Condition::Uid, Confirm::Nothing);
        }
    }

    fn without_task(&mut self, instance: &SeenInstance) {
        if !self.is_spoken_for(instance) {
            self.delete(instance, Reason::TaskDeleted, Condition::Version, self.task_is_gone());
        }
    }

    /// An instance that says that it is held: for good, or as a leftover of what went wrong half way.
    fn held(&mut self, instance: &SeenInstance) {
        if self.is_spoken_for(instance) {
            self.unmark(instance);
            return;
        }
        let Hold::Held { key, reservation } = &instance.record.hold else { return };
        let lease = self.leases.get(&*reservation.lease);
        let since = lease.map_or(instance.since, |lease| lease.since.max(instance.since));
        if instance.mark.is_some() || self.is_past(since + self.rules.timing.grace) {
            let name = lease_name(&instance.record.task_uid, key);
            self.dismiss(instance, Reason::OrphanRemoved, Confirm::NotHeldBy(name.into()));
        }
    }

    fn spoilt(&mut self, instance: &SeenInstance) {
        if instance.mark.is_some() || self.is_past(instance.since + self.rules.timing.grace) {
            self.dismiss(instance, Reason::InstanceSpoilt, Confirm::Nothing);
        }
    }

    fn free<'i>(&mut self, instance: &'i SeenInstance, idle: &mut Vec<&'i SeenInstance>) {
        let Some(task) = self.wanted() else { return };
        if self.named.contains(&*instance.record.id.uid) {
            // Somebody is about to take it.
            self.unmark(instance);
        } else if self.is_expired(instance) {
            self.delete(instance, Reason::InstanceExpired, Condition::Version, Confirm::Nothing);
        } else if self.is_spent(instance) {
            if self.is_due(after(instance.idle_since(), self.rules.timing.grace)) {
                self.dismiss(instance, Reason::InstanceSpent, Confirm::Nothing);
            }
        } else if instance.record.slot.is_none() {
            // Of a Job, which is looked at as a whole. But one that had its request is of no more use: it ends by
            // itself, or here, when no router has the request in flight any more.
            let spent = instance.record.last_active.is_some();
            if spent && self.is_due(after(instance.idle_since(), self.rules.timing.grace * 2)) {
                self.dismiss(instance, Reason::InstanceSpent, Confirm::Nothing);
            }
        } else if task.current.is_some() && !task.is_current(&instance.record.spec_id) {
            self.dismiss(instance, Reason::RevisionDrained, Confirm::Nothing);
        } else if self.is_lost(instance) {
            self.dismiss(instance, Reason::InstanceLost, Confirm::Nothing);
        } else if instance.record.slot.is_some_and(|slot| slot >= task.max) {
            self.dismiss(instance, Reason::InstanceExcess, Confirm::Nothing);
        } else {
            idle.push(instance);
        }
    }

    /// Whether it is a Sandbox that cannot serve for so long that it is replaced: nobody else does that, as for a Pod.
    fn is_lost(&mut self, instance: &SeenInstance) -> bool {
        let record = &instance.record;
        record.id.kind == Kind::Sandbox
            && record.life == Life::Unready
            && self.is_past(instance.life_since + self.rules.timing.grace)
    }

    /// Of the idle instances in their place, those beyond the minimum go when they have been idle for long enough.
    fn excess(&mut self, task: &Wanted, mut idle: Vec<&SeenInstance>, kept: u32) {
        let surplus = kept.saturating_sub(task.min) as usize;
        if surplus == 0 || task.current.is_none() {
            idle.into_iter().for_each(|instance| self.unmark(instance));
            return;
        }
        let (mut due, fresh): (Vec<_>, Vec<_>) =
            idle.drain(..).partition(|instance| self.is_idle_for_long(task, instance));
        due.sort_by_key(|instance| worth(instance));
        let stay = due.split_off(surplus.min(due.len()));
        due.into_iter().for_each(|one| self.dismiss(one, Reason::InstanceExcess, Confirm::Nothing));
        stay.into_iter().chain(fresh).for_each(|instance| self.unmark(instance));
    }

    fn is_idle_for_long(&mut self, task: &Wanted, instance: &SeenInstance) -> bool {
        let wanted = task.idle.unwrap_or(self.rules.limits.idle);
        if instance.record.created_for.is_some() && instance.record.last_active.is_none() {
            // The router that started it is about to take it, as soon as it is ready.
            return match instance.record.life {
                Life::Starting => {
                    let limit = wanted.max(self.rules.limits.idle);
                    self.is_due(after(instance.record.created, limit))
                }
                _ => {
                    self.is_past(instance.life_since + self.rules.timing.grace * 2)
                        && self.is_due(after(instance.record.created, wanted))
                }
            };
        }
        task.fixed || self.is_due(after(instance.idle_since(), wanted))
    }

    /// Lets an instance go that nobody is known to use, with the routers' consent.
    pub(super) fn dismiss(&mut self, instance: &SeenInstance, reason: Reason, confirm: Confirm) {
        let pod = instance.reference();
        let marked = instance.mark.as_ref().map(|_| instance.since);
        match self.ask(&pod.id.uid, marked, Seen::Instance(pod.id.kind, pod.version)) {
            Step::Mark => self.push(Operation::MarkInstance { pod, reason, confirm }),
            Step::Go => self.delete(instance, reason, Condition::Version, confirm),
            Step::Withdraw => self.push(Operation::UnmarkInstance { pod }),
            Step::Wait => {}
        }
    }

    pub(super) fn unmark(&mut self, instance: &SeenInstance) {
        if instance.mark.is_some() {
            self.push(Operation::UnmarkInstance { pod: instance.reference() });
        }
    }

    /// Starts what is missing to the minimum, in the lowest free slots.
    fn missing(&mut self, task: &Wanted, kept: u32) {
        let Some(spec) =
            task.current.as_ref().filter(|_| self.view.form.is_some_and(|form| form != Form::Job))
        else {
            return;
        };
        let missing = task.min.saturating_sub(kept);
        if missing == 0 {
            return;
        }
        let view = self.view;
        let taken = |slot: &u32| {
            let name = crate::revision::slot_name(&task.id.name, *slot);
            let there = |kind| view.instances.contains_key(&place(kind, &name));
            view.blocked.contains(slot) || there(Kind::Pod) || there(Kind::Sandbox)
        };
        let free = (0..task.max).filter(|slot| !taken(slot)).take(missing as usize);
        for slot in free {
            self.push(Operation::StartInstance { spec: spec.clone(), slot });
        }
    }
}

/// Whether an instance is of the current revision and in a slot that the maximum allows.
fn is_in_place(task: &Wanted, instance: &SeenInstance) -> bool {
    task.is_current(&instance.record.spec_id) && instance.record.slot.is_some_and(|slot| slot < task.max)
}

fn worth(instance: &SeenInstance) -> Worth {
    let life = match instance.record.life {
        Life::Unready => 0,
        Life::Starting => 1,
        _ => 2,
    };
    (
        instance.mark.is_none(),
        life,
        instance.record.last_active.is_some(),
        instance.idle_since(),
        Reverse(instance.record.slot.unwrap_or(0)),
    )
}
