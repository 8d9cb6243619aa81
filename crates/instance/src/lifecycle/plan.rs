//! Decides what is to be done for one Task: pure, so that every decision can be tested as a row of a table. Planning
//! again on the result of a plan yields nothing that was planned before.
//!
//! Whatever may be in use is ended in steps: it is marked, every router says that it has seen the mark (one that uses
//! it removes the mark first), and then it goes, on condition that nothing has changed. The state of this is all in
//! the objects themselves, so whoever leads next goes on from there.

mod instances;
mod jobs;
mod sessions;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::operation::Operation;
use super::routers::{Routers, Seen};
use super::view::{Now, Rules, SeenInstance, SeenLease, View, Wanted};
use crate::record::Hold;

/// What is to be done, and when to look again if nothing happens.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) operations: Vec<Operation>,
    pub(super) again: Option<Duration>,
    /// A change of a router's Lease can make the next plan another one.
    pub(super) waits_for_routers: bool,
}

pub(super) fn plan(view: &View, routers: &Routers, rules: &Rules, now: Now) -> Plan {
    let mut planner = Planner {
        view,
        routers,
        rules,
        now,
        leases: view.sessions.values().map(|lease| (&*lease.reference.uid, lease)).collect(),
        named: named(view),
        touched: HashMap::new(),
        plan: Plan::default(),
    };
    planner.sessions();
    planner.instances();
    planner.jobs();
    planner.plan
}

fn named(view: &View) -> HashSet<&str> {
    let living = view.sessions.values().filter(|lease| !lease.ending);
    living.filter_map(|lease| Some(&*lease.holder.as_ref()?.uid)).collect()
}

/// How far the question whether something may go has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is to be asked.
    Mark,
    /// Everybody agreed.
    Go,
    /// It is to be taken back.
    Withdraw,
    /// Not now.
    Wait,
}

struct Planner<'a> {
    view: &'a View,
    routers: &'a Routers,
    rules: &'a Rules,
    now: Now,
    /// By UID.
    leases: HashMap<&'a str, &'a SeenLease>,
    /// UIDs of the instances that a session names which does not end.
    named: HashSet<&'a str>,
    /// UIDs of the instances that this plan has an operation for, and whether it deletes them: one is enough.
    touched: HashMap<Arc<str>, bool>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    fn push(&mut self, operation: Operation) {
        if let Some(pod) = operation.pod() {
            self.touched.insert(pod.id.uid.clone(), matches!(operation, Operation::DeleteInstance { .. }));
        }
        self.plan.operations.push(operation);
    }

    /// The Task, if it is there to stay.
    fn wanted(&self) -> Option<&'a Wanted> {
        self.view.task.as_ref().filter(|task| !task.deleted)
    }

    /// Whether this time has come by the wall; if not, it is looked at again then.
    fn is_due(&mut self, at: Timestamp) -> bool {
        let left = at.duration_since(self.now.wall);
        if !left.is_positive() {
            return true;
        }
        self.look_again(left.unsigned_abs());
        false
    }

    /// Whether this moment has come on our own clock; if not, it is looked at again then.
    fn is_past(&mut self, at: Instant) -> bool {
        let left = at.saturating_duration_since(self.now.instant);
        if left.is_zero() {
            return true;
        }
        self.look_again(left);
        false
    }

    fn look_again(&mut self, after: Duration) {
        let again = &mut self.plan.again;
        *again = Some(again.map_or(after, |before| before.min(after)));
    }

    /// Whether every router that may be serving has seen this; if not, it is looked at again when one says more, or
    /// counts as dead.
    fn is_seen(&mut self, seen: Seen) -> bool {
        let timing = &self.rules.timing;
        let all = self.routers.all_have(seen, timing, self.now.instant);
        if !all {
            self.wait_for_routers();
        }
        all
    }

    fn wait_for_routers(&mut self) {
        self.plan.waits_for_routers = true;
        if let Some(death) = self.routers.next_death(&self.rules.timing, self.now.instant) {
            self.is_past(death);
        }
    }

    /// The next step in asking whether something may go, given whether (since when) it is marked.
    fn ask(&mut self, uid: &str, marked: Option<Instant>, seen: Seen) -> Step {
        let timing = &self.rules.timing;
        if self.routers.any_silent(timing, self.now.instant) {
            self.wait_for_routers();
            return if marked.is_some() { Step::Withdraw } else { Step::Wait };
        }
        let Some(since) = marked else {
            let rested = self.view.rests.get(uid).is_none_or(|until| self.is_past(*until));
            return if rested { Step::Mark } else { Step::Wait };
        };
        if self.is_seen(seen) {
            return Step::Go;
        }
        // Requests wait while the mark is there, so it does not stay for ever.
        if self.is_past(since + timing.silent) { Step::Withdraw } else { Step::Wait }
    }

    /// Whether an instance has lived for longer than it may.
    fn is_expired(&mut self, instance: &SeenInstance) -> bool {
        let ttl = self.wanted().and_then(|task| task.ttl);
        ttl.is_some_and(|ttl| self.is_due(after(instance.record.created, ttl)))
    }

    /// Whether an instance is being deleted for so long that it has to be taken for lost.
    fn is_stuck(&mut self, instance: &SeenInstance) -> bool {
        let Some(doomed) = instance.doomed else { return false };
        let stuck = self.rules.limits.stuck;
        self.is_past(instance.life_since + stuck) && self.is_due(after(doomed, stuck))
    }

    /// Whether a session that does not end is bound to this instance, or its end is under way.
    fn is_spoken_for(&self, instance: &SeenInstance) -> bool {
        let Hold::Held { reservation, .. } = &instance.record.hold else { return false };
        let Some(lease) = self.leases.get(&*reservation.lease) else { return false };
        match &lease.session {
            Some(session) if !lease.ending => instance.record.is_bound_to(session),
            _ => true,
        }
    }
}

/// A time that is later by so much, or the latest there is.
fn after(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}
