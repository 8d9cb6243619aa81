//! What the controllers of Pods ask of a Pod, and how they make one from a template. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether the Pod has ended, one way or the other.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the Pod runs or may still run, and nobody has asked for its end.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether the Pod has been told to end but has not.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && pod.metadata.deletion_timestamp.is_some()
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Since when a ready Pod is ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let condition = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether a Pod counts as available: ready for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Available,
    /// Ready, and available after this time if it stays so.
    After(Duration),
    NotReady,
}

pub fn availability(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Availability {
    if !is_ready(pod) {
        return Availability::NotReady;
    }
    let Ok(needed @ 1..) = u64::try_from(min_ready_seconds) else { return Availability::Available };
    let needed = Duration::from_secs(needed);
    let Some(since) = ready_since(pod) else { return Availability::After(needed) };
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    match needed.checked_sub(passed) {
        None | Some(Duration::ZERO) => Availability::Available,
        Some(rest) => Availability::After(rest),
    }
}

/// A Pod of a template for its controller, with a name that the server completes.
pub fn from_template(template: &PodTemplateSpec, owner: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(name_prefix(&owner.name)),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// What generated names of Pods begin with. The dash is left out where it makes no valid name.
fn name_prefix(owner: &str) -> String {
    let label = |part: &str| !part.is_empty() && !part.starts_with('-');
    match owner.len() < 253 && owner.split('.').all(label) {
        true => format!("{owner}-"),
        false => owner.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn availability_waits_for_the_minimum() {
        let pod = |ready: &str| -> Pod {
            serde_json::from_value(serde_json::json!({ "metadata": {}, "status": { "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
            .unwrap()
        };
        let at = |second: i64| {
            "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second)
        };
        let rest = |seconds| Availability::After(Duration::from_secs(seconds));
        for (ready, minimum, second, expected) in [
            ("False", 0, 5, Availability::NotReady),
            ("True", 0, 0, Availability::Available),
            ("True", 10, 4, rest(6)),
            ("True", 10, 10, Availability::Available),
            // The clock that set the condition may be ahead of ours.
            ("True", 10, -5, rest(10)),
        ] {
            assert_eq!(
                availability(&pod(ready), minimum, at(second)),
                expected,
                "{ready} {minimum} {second}"
            );
        }
    }
}
