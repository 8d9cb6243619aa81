//! Which Pods a ReplicaSet can best do without.
//!
//! The order is that of Kubernetes, made total: within one power of two of age, the restarts decide before the
//! uid does, where Kubernetes lets the uid decide for times that differ at all.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::super::pods::{is_active, is_ready, phase, ready_since};

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The Pods, those first that can be missed most.
pub(super) fn ranked(mut pods: Vec<Arc<Pod>>, related: &[Arc<Pod>], now: Timestamp) -> Vec<Arc<Pod>> {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *on_node.entry(node(pod)).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| {
        (
            !node(pod).is_empty(),
            phase_rank(pod),
            is_ready(pod),
            deletion_cost(pod),
            Reverse(on_node.get(node(pod)).copied().unwrap_or(0)),
            magnitude(ready_since(pod), now),
            Reverse(restarts(pod)),
            magnitude(pod.metadata.creation_timestamp.as_ref().map(|time| time.0), now),
            pod.uid(),
        )
    });
    pods
}

fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn phase_rank(pod: &Pod) -> u8 {
    match phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let cost = pod.annotations().get(DELETION_COST);
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// The power of two of the nanoseconds since then; missing times come first.
fn magnitude(then: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    let passed = now.duration_since(then?).as_nanos();
    Some(u128::try_from(passed).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from))
}

/// The most restarts of a container, and of a sidecar.
fn restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else { return (0, 0) };
    let containers = status.container_statuses.iter().flatten();
    let sidecars: Vec<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let inits = status.init_container_statuses.iter().flatten();
    let inits = inits.filter(|container| sidecars.contains(&container.name.as_str()));
    (
        containers.map(|container| container.restart_count).max().unwrap_or(0),
        inits.map(|container| container.restart_count).max().unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    /// A running, ready, assigned Pod, with changes.
    fn pod(name: &str, changes: &Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": { "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "node", "containers": [] },
            "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        merge(&mut pod, changes);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }

    #[test]
    fn every_rule_decides_before_those_after_it() {
        let ready = |status: &str, since: &str| {
            json!({ "status": { "conditions": [
            { "type": "Ready", "status": status, "lastTransitionTime": since }] } })
        };
        // Each is missed less than the plain Pod of the last line, by a later rule than the one before.
        let table = [
            pod("unassigned", &json!({ "spec": { "nodeName": null } })),
            pod("pending", &json!({ "status": { "phase": "Pending" } })),
            pod("unknown", &json!({ "status": { "phase": "Unknown" } })),
            pod("not-ready", &ready("False", "2026-01-01T00:00:00Z")),
            pod("cheap", &json!({ "metadata": { "annotations": { DELETION_COST: "-5" } } })),
            pod("crowded", &json!({ "spec": { "nodeName": "crowded" } })),
            pod("just-ready", &ready("True", "2026-01-01T23:59:00Z")),
            pod(
                "restarted",
                &json!({ "status": { "containerStatuses": [
                { "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 3 }] } }),
            ),
            pod("young", &json!({ "metadata": { "creationTimestamp": "2026-01-01T23:59:00Z" } })),
            pod("plain", &json!({})),
        ];
        let mut related = table.to_vec();
        related.extend((0..20).map(|_| pod("more", &json!({ "spec": { "nodeName": "crowded" } }))));
        let mut shuffled = table.to_vec();
        shuffled.reverse();
        shuffled.swap(2, 5);
        let names: Vec<String> = ranked(shuffled, &related, now()).iter().map(|pod| pod.name_any()).collect();
        let expected: Vec<String> = table.iter().map(|pod| pod.name_any()).collect();
        assert_eq!(names, expected);
    }
}
