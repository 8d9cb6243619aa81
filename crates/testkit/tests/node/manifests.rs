//! The objects of the campaigns. Every container carries the place's path in its environment, so that its processes can
//! be told from all others on the machine.

use agentcube_testkit::cluster::up::Place;
use serde_json::{Value, json};

/// The variable that marks a container's processes.
pub(crate) const MARK: &str = "NODE_SUITE";

/// Runs until it is told to stop, and then ends at once.
const SERVE: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

fn container(place: &Place, script: &str) -> Value {
    json!({
        "name": "main", "image": "host", "command": ["/bin/sh", "-c", script],
        "env": [{"name": MARK, "value": place.path()}],
    })
}

fn labelled(name: &str) -> Value {
    json!({"labels": {"app": name}})
}

pub(crate) fn pod(place: &Place, name: &str) -> Value {
    let mut container = container(place, SERVE);
    container["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"campaign": "bare"}},
        "spec": {"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]},
    })
}

pub(crate) fn deployment(place: &Place, name: &str, replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": labelled(name), "spec": {"containers": [container(place, SERVE)]}},
        },
    })
}

pub(crate) fn job(place: &Place, name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "completions": 3, "parallelism": 2, "backoffLimit": 100,
            "template": {"spec": {
                "restartPolicy": "Never", "containers": [container(place, "echo done")],
            }},
        },
    })
}

/// Each start of a Pod adds a line to its claim.
pub(crate) fn stateful_set(place: &Place, name: &str, replicas: u64) -> Value {
    let mut container = container(place, &format!("echo start >>/data/starts; {SERVE}"));
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": labelled(name), "spec": {"containers": [container]}},
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }],
        },
    })
}
