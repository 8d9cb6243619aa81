//! Which Pod is next. Never more are down than allowed, whoever leads is last, and does not lead any more when its turn
//! comes, if anybody else can.
//!
//! Controllers die, also when they have stopped the middleware in a Pod and not yet deleted it. Probes take their time to see
//! that. So a Pod is marked before, and whoever comes next ends that first; whoever is silent while others answer is taken for
//! down; and nobody goes while it is not known who else has to.

use agentcube_api::middleware::component::Operation as Course;
use agentcube_api::middleware::group::RollingUpdate;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::lead::elects;
use super::observe::{Observed, Pod};
use super::plan::{Operation, Question, Work};
use super::revision::Revision;
use crate::app::machine::later;

/// Whether a Pod has to be made anew for a revision.
pub(super) fn is_outdated(observed: &Observed<'_>, target: &Revision, pod: &Pod) -> bool {
    let partition =
        observed.policies.rolling_update.as_ref().and_then(|update| update.partition).unwrap_or(0);
    pod.ordinal < target.replicas && pod.ordinal >= partition && pod.revision != target.pods
}

/// Whether a Pod leads: as it says itself, or did last, if nobody else says so now.
pub(super) fn leads(observed: &Observed<'_>, name: &str) -> bool {
    match observed.answers.roles.get(name) {
        Some(role) => role.leader,
        None if observed.answers.roles.values().any(|role| role.leader) => false,
        None => {
            let status = observed.group.status.as_ref();
            status.is_some_and(|status| status.pods.iter().any(|pod| pod.name == name && pod.leader))
        }
    }
}

/// Pods that are new and ready.
pub(super) fn updated(observed: &Observed<'_>, target: &Revision) -> i32 {
    let new = observed.pods.iter().filter(|pod| {
        pod.ready && !pod.terminating && pod.ordinal < target.replicas && !is_outdated(observed, target, pod)
    });
    i32::try_from(new.count()).unwrap_or(i32::MAX)
}

/// Whether somebody has begun to take a Pod down for this revision. One that leads since is kept: it goes last, and by a switchover.
fn is_taken(observed: &Observed<'_>, target: &Revision, pod: &Pod) -> bool {
    pod.taken_for.as_ref() == Some(&target.name) && !leads(observed, &pod.name)
}

/// Whether a Pod is there for clients, as far as it takes to let another one go: its probe and its agent say so, and nobody has begun
/// to take it down. One that is silent while others answer may have been stopped. If nobody answers, nobody could have been told
/// to stop either.
fn serves(observed: &Observed<'_>, target: &Revision, pod: &Pod) -> bool {
    let roles = &observed.answers.roles;
    let heard = roles.is_empty() || roles.contains_key(&pod.name);
    pod.ready && !pod.terminating && heard && !is_taken(observed, target, pod)
}

/// How many Pods of a revision are not there for clients, those among them that are not there at all.
fn down(observed: &Observed<'_>, target: &Revision) -> i32 {
    let up =
        observed.pods.iter().filter(|pod| pod.ordinal < target.replicas && serves(observed, target, pod));
    target.replicas - i32::try_from(up.count()).unwrap_or(0)
}

/// Whether a Pod may be taken down by what was planned on Pods as they were `before`, now that they are so, with some `taken`
/// down since: it is still there, and if it was free to go because it was down, it still is; and nobody else is down who was not.
pub(super) fn may_still_go(uid: &str, taken: &[String], before: &[&Pod], now: &[Pod]) -> bool {
    let is_up = |pod: &Pod| pod.shown_ready && !pod.terminating;
    before.iter().all(|was| {
        let is = now.iter().find(|pod| pod.uid == was.uid);
        match is {
            _ if taken.contains(&was.uid) => true,
            Some(is) if was.uid == uid => !is.terminating && (is_up(was) || !is_up(is)),
            is => !is_up(was) || is.is_some_and(is_up),
        }
    })
}

/// How many Pods may be down at once. A StatefulSet cannot have more Pods than it has, so it is never none.
pub(super) fn allowed(update: Option<&RollingUpdate>, replicas: i32) -> i32 {
    let most = match update.and_then(|update| update.max_unavailable.as_ref()) {
        None => 1,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => match text.strip_suffix('%').map(str::parse::<i64>) {
            Some(Ok(percent)) => {
                i32::try_from(i64::from(replicas).saturating_mul(percent) / 100).unwrap_or(i32::MAX)
            }
            _ => text.parse().unwrap_or(1),
        },
    };
    most.max(1)
}

impl Work<'_> {
    /// Brings Pods to a revision.
    pub(super) fn roll(&mut self, target: &Revision, course: &Course) -> Result<(), Question> {
        let observed = self.observed;
        let mut due: Vec<&Pod> = Vec::new();
        let mut unknown = false;
        for pod in observed.pods.iter().filter(|pod| !pod.terminating && pod.ordinal < target.replicas) {
            match is_outdated(observed, target, pod) || is_taken(observed, target, pod) {
                true => due.push(pod),
                false => match self.needs_restart(target, course, pod)? {
                    Some(true) => due.push(pod),
                    Some(false) => {}
                    None => unknown = true,
                },
            }
        }
        let limit = match course.concurrent {
            true => allowed(observed.policies.rolling_update.as_ref(), target.replicas),
            false => 1,
        };
        let mut room = limit - down(observed, target);
        // Who is down anyway, for everybody, can be made anew at once; but whoever answers has data that others may lack.
        let (lame, others): (Vec<&Pod>, Vec<&Pod>) = due.into_iter().partition(|pod| self.is_lame(pod));
        let (ready, broken): (Vec<&Pod>, Vec<&Pod>) = others.into_iter().partition(|pod| pod.shown_ready);
        broken.iter().for_each(|pod| self.restart(target, pod));
        // Whoever was broken may have led: then somebody else does soon, and nobody knows who.
        let turning =
            self.somebody_turns() || ready.iter().chain(&lame).any(|pod| self.is_turning(target, pod));
        if !broken.is_empty() || unknown || turning || self.is_between_leaders() {
            return Ok(());
        }
        if let Some(first) = lame.iter().find(|pod| !leads(observed, &pod.name)) {
            // One at a time: each has to come back before the next.
            let there = |pod: &&Pod| !pod.terminating && (pod.ready || self.is_lame(pod));
            let there = observed.pods.iter().filter(there).count();
            let free = !first.shown_ready || room >= 0;
            if free && i32::try_from(there).is_ok_and(|there| there >= target.replicas) {
                self.restart(target, first);
            }
            return Ok(());
        }
        if ready.is_empty() && lame.is_empty() {
            return Ok(());
        }
        let ready: Vec<&Pod> = ready.into_iter().chain(lame).collect();
        let rested = course.progressed_at.as_ref().map(|at| later(at.0, observed.pause));
        if let Some(rested) = rested.filter(|rested| *rested > observed.now) {
            self.look_again(rested);
            return Ok(());
        }
        let place = |pod: &Pod| course.order.iter().position(|name| *name == pod.name).unwrap_or(usize::MAX);
        let mut followers: Vec<&&Pod> = ready.iter().filter(|pod| !leads(observed, &pod.name)).collect();
        // Whoever does not serve comes first: somebody may have begun with it.
        followers.sort_by_key(|pod| (serves(observed, target, pod), place(pod)));
        if followers.is_empty() {
            // Whoever is left leads; all others are new. It goes alone, when all others are up.
            if down(observed, target) == 0
                && let Some(leader) = ready.first()
            {
                self.replace_leader(target, leader);
            }
            return Ok(());
        }
        for pod in followers {
            let takes = i32::from(serves(observed, target, pod));
            if room < takes {
                break;
            }
            self.restart(target, pod);
            room -= takes;
        }
        Ok(())
    }

    /// Not ready, but it answers: where controllers choose the leader, it may be one who has what others have not.
    fn is_lame(&self, pod: &Pod) -> bool {
        let led = self.observed.group.status.as_ref().is_some_and(|status| status.leader.is_some());
        !pod.ready && led && elects(self.observed) && self.observed.answers.roles.contains_key(&pod.name)
    }

    /// It is about to follow somebody else, and does not answer meanwhile: that is not interrupted, unless everything goes back.
    fn is_turning(&self, target: &Revision, pod: &Pod) -> bool {
        let back = self.observed.group.status.as_ref().is_some_and(|status| status.failure.is_some());
        let silent = !self.observed.answers.roles.contains_key(&pod.name);
        let begun = is_taken(self.observed, target, pod);
        elects(self.observed) && !back && !begun && (silent || self.told.contains(&pod.name))
    }

    /// Somebody is being told to follow another: until it does, whom it follows now is not taken away.
    fn somebody_turns(&self) -> bool {
        let back = self.observed.group.status.as_ref().is_some_and(|status| status.failure.is_some());
        elects(self.observed) && !back && !self.told.is_empty()
    }

    /// Whether somebody led, and nobody does now as far as Pods say. On the way back from a failure nobody waits for that.
    fn is_between_leaders(&self) -> bool {
        let status = self.observed.group.status.as_ref();
        let led =
            status.is_some_and(|status| status.failure.is_none() && status.pods.iter().any(|pod| pod.leader));
        let roles = &self.observed.answers.roles;
        led && !roles.is_empty() && !roles.values().any(|role| role.leader)
    }

    fn restart(&mut self, target: &Revision, pod: &Pod) {
        let (pod, uid) = (pod.name.clone(), pod.uid.clone());
        self.operations.push(Operation::Restart { pod, uid, revision: target.name.clone() });
    }

    fn replace_leader(&mut self, target: &Revision, leader: &Pod) {
        let observed = self.observed;
        let heir = observed.pods.iter().find(|pod| {
            pod.name != leader.name
                && serves(observed, target, pod)
                && pod.ordinal < target.replicas
                && !is_outdated(observed, target, pod)
        });
        match heir.filter(|_| observed.failover) {
            Some(heir) => {
                self.operations.push(Operation::Failover { from: leader.name.clone(), to: heir.name.clone() })
            }
            None => self.restart(target, leader),
        }
    }

    /// Has a Pod take a new configuration; whether it can do so only by a restart, if that is known. One that was made after the
    /// change began has read it already. One that is down is asked when it is up again, and counts as down until then.
    fn needs_restart(
        &mut self,
        target: &Revision,
        course: &Course,
        pod: &Pod,
    ) -> Result<Option<bool>, Question> {
        if target.configuration.is_empty() || pod.configuration == target.configuration || !pod.ready {
            return Ok(Some(false));
        }
        let fresh = course.started_at.as_ref().is_some_and(|began| pod.created > began.0);
        let restart = match (fresh, self.observed.answers.reloaded.get(&pod.uid)) {
            (true, _) => false,
            (false, Some(Ok(restart))) => *restart,
            // Asked again later.
            (false, Some(Err(_))) => return Ok(None),
            (false, None) => {
                let (pod, uid) = (pod.name.clone(), pod.uid.clone());
                return Err(Question::Reload { pod, uid, files: target.files() });
            }
        };
        if !restart {
            let configuration = target.configuration.clone();
            self.operations.push(Operation::MarkConfiguration { pod: pod.name.clone(), configuration });
        }
        Ok(Some(restart))
    }
}
