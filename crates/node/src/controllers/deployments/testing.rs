//! A Deployment with ReplicaSets that do at once what they are told, for tests of its planner.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetStatus};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::ownership::controller_reference;
use super::observe::{Observed, available, size};
use super::plan::Operation;
use super::revision::REVISION;
use super::status::Next;

pub(super) fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}

pub(super) fn template(image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "web", "image": image }] } })
}

/// A Deployment of the image `new`, with changes to its spec.
pub(super) fn deployment(replicas: i32, changes: &Value) -> Deployment {
    let mut spec = json!({
        "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template("new"),
        "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
        "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
    });
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let meta = json!({ "namespace": "ns", "name": "web", "uid": "deployment", "generation": 1 });
    serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
}

/// A ReplicaSet of the Deployment, scaled for its present size, with so many Pods of which so many are available.
pub(super) fn set(
    deployment: &Deployment,
    image: &str,
    revision: i64,
    replicas: i32,
    available: i32,
) -> Arc<ReplicaSet> {
    let mut template = template(image);
    template["metadata"]["labels"]["pod-template-hash"] = format!("h{revision}").into();
    let labels = template["metadata"]["labels"].clone();
    let mut set: ReplicaSet = serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": format!("web-h{revision}"), "uid": format!("set-{revision}"),
            "generation": 1, "labels": labels, "creationTimestamp": format!("2026-01-01T00:00:{revision:02}Z"),
            "annotations": { REVISION: revision.to_string() } },
        "spec": { "replicas": replicas, "selector": { "matchLabels": labels }, "template": template },
        "status": { "replicas": replicas, "availableReplicas": available, "readyReplicas": available,
            "observedGeneration": 1, "terminatingReplicas": 0 },
    }))
    .unwrap();
    // The server leaves zeros out.
    if let Some(status) = set.status.as_mut().filter(|_| available == 0) {
        (status.available_replicas, status.ready_replicas) = (None, None);
    }
    set.metadata.owner_references = Some(vec![controller_reference(deployment)]);
    set.annotations_mut().extend(super::revision::sizes(deployment));
    Arc::new(set)
}

pub(super) fn observed(deployment: Deployment, sets: Vec<Arc<ReplicaSet>>) -> Observed {
    let selector = [("app".to_owned(), "web".to_owned())].into_iter().collect();
    Observed { deployment: Arc::new(deployment), selector, sets, pods: Vec::new() }
}

/// The world after the operations, if all of them succeed; the ReplicaSets have not acted on them yet.
pub(super) fn applied(mut observed: Observed, operations: &[Operation]) -> Observed {
    let reference = controller_reference(&*observed.deployment);
    let count = observed.sets.len();
    let find = |sets: &mut Vec<Arc<ReplicaSet>>, set: &ReplicaSet| -> usize {
        sets.iter().position(|held| held.uid() == set.uid()).unwrap()
    };
    for operation in operations {
        match operation {
            Operation::Adopt(set) => {
                let index = find(&mut observed.sets, set);
                let owners = Some(vec![reference.clone()]);
                Arc::make_mut(&mut observed.sets[index]).metadata.owner_references = owners;
            }
            Operation::Release(set) => {
                let index = find(&mut observed.sets, set);
                Arc::make_mut(&mut observed.sets[index]).metadata.owner_references = None;
            }
            Operation::Create(set) => {
                let mut set = (**set).clone();
                set.metadata.uid = Some(format!("created-{count}"));
                set.metadata.generation = Some(1);
                set.metadata.creation_timestamp = Some(super::super::time(now()));
                observed.sets.push(Arc::new(set));
            }
            Operation::Annotate { set, annotations, min_ready_seconds } => {
                let index = find(&mut observed.sets, set);
                let held = Arc::make_mut(&mut observed.sets[index]);
                held.metadata.annotations = Some(annotations.clone());
                held.spec.as_mut().unwrap().min_ready_seconds = Some(*min_ready_seconds);
            }
            Operation::Scale { set, to, annotations } => {
                let index = find(&mut observed.sets, set);
                let held = Arc::make_mut(&mut observed.sets[index]);
                held.annotations_mut().extend(annotations.iter().cloned());
                if size(held) != *to {
                    held.metadata.generation = held.metadata.generation.map(|generation| generation + 1);
                }
                held.spec.as_mut().unwrap().replicas = Some(*to);
            }
            Operation::Delete(set) => {
                let index = find(&mut observed.sets, set);
                observed.sets.remove(index);
            }
        }
    }
    observed
}

/// Writes the status.
pub(super) fn reported(mut observed: Observed, next: &Next) -> Observed {
    let deployment = Arc::make_mut(&mut observed.deployment);
    deployment.status = Some(next.status.clone());
    if let Some(revision) = &next.revision {
        deployment.annotations_mut().insert(REVISION.to_owned(), revision.clone());
    }
    observed
}

/// Has every ReplicaSet come to its size; Pods that go are first those that are not available.
pub(super) fn settled(mut observed: Observed, new_pods_become_available: bool) -> Observed {
    for set in &mut observed.sets {
        let (size, before) = (size(set), available(set));
        let available = if new_pods_become_available { size } else { before.min(size) };
        let set = Arc::make_mut(set);
        set.status = Some(ReplicaSetStatus {
            replicas: size,
            available_replicas: (available > 0).then_some(available),
            ready_replicas: (available > 0).then_some(available),
            observed_generation: set.metadata.generation,
            terminating_replicas: Some(0),
            ..ReplicaSetStatus::default()
        });
    }
    observed
}
