//! What a ReplicaSet reports of itself. Foreign conditions are left alone.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use kube::ResourceExt;

use super::super::pods::{Availability, availability, is_ready};
use super::super::{counted, time};
use super::observe::Observed;
use super::plan::{active, terminating};
use agentcube_operator::controller::Requeue;

const FAILURE: &str = "ReplicaFailure";

/// The reason and the message of what failed.
type Failure = (&'static str, String);

pub(super) struct Next {
    /// The status to write, if it differs from the one that is there.
    pub(super) status: Option<ReplicaSetStatus>,
    /// When a Pod becomes available by the passing of time alone.
    pub(super) requeue: Requeue,
}

pub(super) fn next(observed: &Observed, failure: Option<Failure>, now: Timestamp) -> Next {
    let pods = active(observed);
    let before = observed.set.status.clone().unwrap_or_default();
    let labels = observed.template().and_then(|template| template.metadata.as_ref()?.labels.as_ref());
    let fully_labeled = pods.iter().filter(|pod| {
        labels.is_none_or(|labels| labels.iter().all(|(key, value)| pod.labels().get(key) == Some(value)))
    });
    let availabilities: Vec<Availability> =
        pods.iter().map(|pod| availability(pod, observed.min_ready_seconds(), now)).collect();
    let available = availabilities.iter().filter(|one| **one == Availability::Available).count();
    let status = ReplicaSetStatus {
        replicas: i32::try_from(pods.len()).unwrap_or(i32::MAX),
        fully_labeled_replicas: counted(fully_labeled.count()),
        ready_replicas: counted(pods.iter().filter(|pod| is_ready(pod)).count()),
        available_replicas: counted(available),
        terminating_replicas: Some(i32::try_from(terminating(observed)).unwrap_or(i32::MAX)),
        observed_generation: observed.set.metadata.generation,
        conditions: conditions(&before, failure, now),
    };
    let waits = availabilities.iter().filter_map(|one| match one {
        Availability::After(rest) => Some(*rest),
        Availability::Available | Availability::NotReady => None,
    });
    Next {
        status: (status != before).then_some(status),
        requeue: waits.min().map_or(Requeue::No, Requeue::After),
    }
}

fn conditions(
    before: &ReplicaSetStatus,
    failure: Option<Failure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let there = conditions.iter().any(|condition| condition.type_ == FAILURE);
    match failure {
        Some((reason, message)) if !there => conditions.push(ReplicaSetCondition {
            type_: FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(time(now)),
        }),
        Some(_) => {}
        None => conditions.retain(|condition| condition.type_ != FAILURE),
    }
    (!conditions.is_empty()).then_some(conditions)
}
