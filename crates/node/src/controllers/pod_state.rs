//! What a Pod's own object says about it, in the words that the workload controllers use. Pure; never asks a clock.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// The phase that the node reported; a Pod that the API server holds always has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

pub(super) fn phase(pod: &Pod) -> Phase {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        Some("Unknown") => Phase::Unknown,
        _ => Phase::Pending,
    }
}

pub(super) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), Phase::Succeeded | Phase::Failed)
}

/// Told to go, and not yet gone.
pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither finished nor told to go.
pub(super) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

pub(super) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// When a ready Pod will have been ready for `min_ready_seconds`; `None` if it is not ready, or does not say since when.
pub(super) fn available_at(pod: &Pod, min_ready_seconds: i32) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    if min_ready_seconds <= 0 {
        return Some(Timestamp::MIN);
    }
    let since = ready.last_transition_time.as_ref()?.0;
    since.checked_add(SignedDuration::from_secs(i64::from(min_ready_seconds))).ok()
}

pub(super) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_at(pod, min_ready_seconds).is_some_and(|at| at <= now)
}

/// The most restarts that a container of the Pod has seen.
pub(super) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
}

/// The reference to whoever controls an object.
pub(super) fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.as_ref()?.iter().find(|reference| reference.controller == Some(true))
}
