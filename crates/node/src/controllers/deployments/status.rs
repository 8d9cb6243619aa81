//! What a Deployment reports of itself, and when it is to be looked at again. Foreign conditions are left alone.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::{reason_of, time};
use super::apply;
use super::limits::max_unavailable;
use super::observe::{Observed, actual, available, size, wanted};
use super::plan::Sets;
use super::revision::REVISION;
use agentcube_operator::controller::Requeue;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const FAILURE: &str = "ReplicaFailure";

/// Reasons of the condition that tells of progress.
const FOUND: &str = "FoundNewReplicaSet";
const CREATED: &str = "NewReplicaSetCreated";
pub(super) const CREATE_ERROR: &str = "ReplicaSetCreateError";
const UPDATED: &str = "ReplicaSetUpdated";
const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";

/// The status that a Deployment comes to, and its number, which is an annotation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Next {
    pub(super) status: DeploymentStatus,
    pub(super) revision: Option<String>,
}

impl Next {
    /// As it is.
    pub(super) fn of(deployment: &Deployment) -> Next {
        Next {
            status: deployment.status.clone().unwrap_or_default(),
            revision: deployment.annotations().get(REVISION).cloned(),
        }
    }

    pub(super) fn differs(&self, deployment: &Deployment) -> bool {
        *self != Next::of(deployment)
    }

    /// Tells of a pause and of its end, so that a pause is not taken for a lack of progress.
    pub(super) fn note_pause(&mut self, deployment: &Deployment, now: Timestamp) {
        let reason = self.condition(PROGRESSING).and_then(|condition| condition.reason.as_deref());
        if progress_deadline(deployment).is_none() || reason == Some(TIMED_OUT) {
            return;
        }
        let paused = deployment.spec.as_ref().is_some_and(|spec| spec.paused == Some(true));
        match (paused, reason == Some(PAUSED)) {
            (true, false) => self.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused", now),
            (false, true) => self.set(PROGRESSING, "Unknown", RESUMED, "Deployment is resumed", now),
            _ => {}
        }
    }

    /// Takes over the number of the new ReplicaSet.
    pub(super) fn note_new(&mut self, deployment: &Deployment, new: &ReplicaSet, now: Timestamp) {
        self.revision = new.annotations().get(REVISION).cloned().or(self.revision.take());
        if progress_deadline(deployment).is_some() && self.condition(PROGRESSING).is_none() {
            let message = format!("Found new replica set {:?}", new.name_any());
            self.set(PROGRESSING, "True", FOUND, &message, now);
        }
    }

    pub(super) fn note_created(&mut self, deployment: &Deployment, new: &ReplicaSet, now: Timestamp) {
        self.revision = new.annotations().get(REVISION).cloned();
        if progress_deadline(deployment).is_some() {
            let message = format!("Created new replica set {:?}", new.name_any());
            self.set(PROGRESSING, "True", CREATED, &message, now);
        }
    }

    /// Sums up what the ReplicaSets report.
    pub(super) fn count(&mut self, deployment: &Deployment, sets: &Sets, now: Timestamp) {
        let sum = |of: fn(&ReplicaSet) -> i32| sets.all().map(|set| of(set)).fold(0, i32::saturating_add);
        let shown = |count: i32| (count > 0).then_some(count);
        let ready = |set: &ReplicaSet| set.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
        let all_available = sum(available);
        self.status.observed_generation = deployment.metadata.generation;
        self.status.replicas = shown(sum(actual));
        self.status.updated_replicas = shown(sets.new.as_ref().map_or(0, |new| actual(new)));
        self.status.ready_replicas = shown(sum(ready));
        self.status.available_replicas = shown(all_available);
        self.status.unavailable_replicas = shown(sum(size).saturating_sub(all_available));
        self.status.terminating_replicas = terminating(sets);
        if all_available >= wanted(deployment) - max_unavailable(deployment) {
            let message = "Deployment has minimum availability.";
            self.set(AVAILABLE, "True", "MinimumReplicasAvailable", message, now);
        } else {
            let message = "Deployment does not have minimum availability.";
            self.set(AVAILABLE, "False", "MinimumReplicasUnavailable", message, now);
        }
    }

    /// Judges how the rollout goes, by what has changed since the last status and by the deadline.
    pub(super) fn note_progress(&mut self, deployment: &Deployment, sets: &Sets, now: Timestamp) {
        match progress_deadline(deployment) {
            None => self.remove(PROGRESSING),
            Some(deadline) => self.judge(deployment, sets, deadline, now),
        }
        let failures = sets.new.iter().chain(&sets.old).filter_map(|set| failure_of(set));
        match failures.into_iter().next() {
            Some(failure) => self.put(failure),
            None => self.remove(FAILURE),
        }
    }

    fn judge(&mut self, deployment: &Deployment, sets: &Sets, deadline: Duration, now: Timestamp) {
        let before = deployment.status.clone().unwrap_or_default();
        let current = self.condition(PROGRESSING).cloned();
        let reason = current.as_ref().and_then(|condition| condition.reason.as_deref());
        if self.status.replicas == self.status.updated_replicas && reason == Some(COMPLETE) {
            return;
        }
        let subject = match &sets.new {
            Some(new) => format!("ReplicaSet {:?}", new.name_any()),
            None => format!("Deployment {:?}", deployment.name_any()),
        };
        if is_complete(deployment, &self.status) {
            self.set(PROGRESSING, "True", COMPLETE, &format!("{subject} has successfully progressed."), now);
        } else if has_progressed(&before, &self.status) {
            // Also with the reason that is there already: the time of the last progress counts.
            self.remove(PROGRESSING);
            self.set(PROGRESSING, "True", UPDATED, &format!("{subject} is progressing."), now);
            if let Some(current) = current.filter(|current| current.status == "True") {
                self.since(PROGRESSING, current.last_transition_time);
            }
        } else if is_late(current.as_ref(), deadline, now) {
            self.set(PROGRESSING, "False", TIMED_OUT, &format!("{subject} has timed out progressing."), now);
        }
    }

    fn condition(&self, kind: &str) -> Option<&DeploymentCondition> {
        self.status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
    }

    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) {
        self.put(DeploymentCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_update_time: Some(time(now)),
            last_transition_time: Some(time(now)),
        });
    }

    /// Puts a condition last, unless one of the same status and reason is there.
    fn put(&mut self, mut condition: DeploymentCondition) {
        if let Some(current) = self.condition(&condition.type_)
            && current.status == condition.status
        {
            if current.reason == condition.reason {
                return;
            }
            condition.last_transition_time = current.last_transition_time.clone();
        }
        self.remove(&condition.type_);
        self.status.conditions.get_or_insert_default().push(condition);
    }

    fn since(&mut self, kind: &str, time: Option<Time>) {
        let conditions = self.status.conditions.iter_mut().flatten();
        conditions.filter(|condition| condition.type_ == kind).for_each(|condition| {
            condition.last_transition_time = time.clone();
        });
    }

    fn remove(&mut self, kind: &str) {
        let mut conditions = self.status.conditions.take().unwrap_or_default();
        conditions.retain(|condition| condition.type_ != kind);
        self.status.conditions = (!conditions.is_empty()).then_some(conditions);
    }
}

/// How long a rollout may go without progress; nothing if for ever.
fn progress_deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.as_ref().and_then(|spec| spec.progress_deadline_seconds);
    let seconds = seconds.filter(|seconds| *seconds != i32::MAX)?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Nothing if a ReplicaSet was reconciled by someone who does not count those Pods.
fn terminating(sets: &Sets) -> Option<i32> {
    let of = |set: &ReplicaSet| match &set.status {
        Some(status) if status.observed_generation.is_some() => status.terminating_replicas,
        status => Some(status.as_ref().and_then(|status| status.terminating_replicas).unwrap_or(0)),
    };
    sets.all().map(|set| of(set)).sum()
}

/// Whether all Pods are of the new template and available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let all = (wanted(deployment) > 0).then_some(wanted(deployment));
    status.updated_replicas == all
        && status.replicas == all
        && status.available_replicas == all
        && status.observed_generation >= deployment.metadata.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
    after.updated_replicas > before.updated_replicas
        || old(after) < old(before)
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

fn is_late(progressing: Option<&DeploymentCondition>, deadline: Duration, now: Timestamp) -> bool {
    let Some(condition) = progressing else { return false };
    match condition.reason.as_deref() {
        Some(COMPLETE) => false,
        Some(TIMED_OUT) => true,
        _ => condition.last_update_time.as_ref().is_some_and(|time| time.0 + deadline < now),
    }
}

/// The failure that a ReplicaSet reports, as the Deployment reports it.
fn failure_of(set: &ReplicaSet) -> Option<DeploymentCondition> {
    let condition = set.status.as_ref()?.conditions.iter().flatten().find(|one| one.type_ == FAILURE)?;
    Some(DeploymentCondition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: condition.last_transition_time.clone(),
        last_update_time: condition.last_transition_time.clone(),
    })
}

/// When the lack of progress is to be judged again.
pub(super) fn deadline(deployment: &Deployment, next: &Next, now: Timestamp) -> Requeue {
    let (Some(deadline), Some(condition)) = (progress_deadline(deployment), next.condition(PROGRESSING))
    else {
        return Requeue::No;
    };
    if is_complete(deployment, &next.status) || condition.reason.as_deref() == Some(TIMED_OUT) {
        return Requeue::No;
    }
    let Some(updated) = &condition.last_update_time else { return Requeue::No };
    let left = Duration::try_from((updated.0 + deadline).duration_since(now)).unwrap_or_default();
    // Times in conditions are whole seconds.
    Requeue::After(left + Duration::from_secs(1))
}

/// What a Deployment reports when a step of it failed, if that is to be reported.
pub(super) fn after_failure(observed: &Observed, error: &apply::Error, now: Timestamp) -> Option<Next> {
    let mut next = Next::of(&observed.deployment);
    match error {
        apply::Error::Collision { .. } => {
            let count = next.status.collision_count.unwrap_or(0);
            next.status.collision_count = Some(count.saturating_add(1));
            Some(next)
        }
        apply::Error::Create { name, source } if progress_deadline(&observed.deployment).is_some() => {
            let message = create_message(name, source);
            next.set(PROGRESSING, "False", CREATE_ERROR, &message, now);
            Some(next)
        }
        _ => None,
    }
}

pub(super) fn create_message(name: &str, error: &kube::Error) -> String {
    format!("Failed to create new replica set {name:?}: {}", reason_of(error))
}
