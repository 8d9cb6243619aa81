//! Subresources of built-in kinds: status, scale, binding, eviction, log.

use agentcube_testkit::Tape;
use agentcube_testkit::tape::{JSON_PATCH, MERGE_PATCH};
use serde_json::json;

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, PODS, deployment, pod};

cases!("subresource":
    deployment_status, status_ignores_spec, deployment_scale, scale_conflict, scale_refused, pod_status,
    pod_binding, pod_binding_twice, pod_eviction, pod_log_of_unscheduled, status_conflict, job_status,
    scale_of_missing, status_put_without_version, pod_binding_preconditions, pod_binding_metadata,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

async fn deployment_status(t: &mut Tape) -> Result {
    let mut object = t.post(DEPLOYMENTS, deployment("a")).await?.value();
    object["status"] = json!({"observedGeneration": 1, "replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
    t.put(&at(DEPLOYMENTS, "a/status"), object).await?;
    t.get(&at(DEPLOYMENTS, "a/status")).await?;
    Ok(())
}

async fn status_ignores_spec(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a/status"), json!({"spec": {"replicas": 7}, "status": {"replicas": 2}, "metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}}})).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a"), json!({"status": {"replicas": 9}})).await?;
    Ok(())
}

async fn deployment_scale(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let mut scale = t.get(&at(DEPLOYMENTS, "a/scale")).await?.value();
    scale["spec"]["replicas"] = json!(5);
    t.put(&at(DEPLOYMENTS, "a/scale"), scale).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a/scale"), json!({"spec": {"replicas": 6}})).await?;
    t.patch(
        JSON_PATCH,
        &at(DEPLOYMENTS, "a/scale"),
        json!([{"op": "replace", "path": "/spec/replicas", "value": 0}]),
    )
    .await?;
    t.get(&at(DEPLOYMENTS, "a")).await?;
    Ok(())
}

async fn scale_conflict(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let scale = t.get(&at(DEPLOYMENTS, "a/scale")).await?.value();
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a/scale"), json!({"spec": {"replicas": 6}})).await?;
    t.put(&at(DEPLOYMENTS, "a/scale"), scale).await?;
    Ok(())
}

async fn scale_refused(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a/scale"), json!({"spec": {"replicas": -1}})).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a/scale"), json!({"spec": {"replicas": "x"}})).await?;
    t.post(&at(DEPLOYMENTS, "a/scale"), json!({})).await?;
    Ok(())
}

async fn scale_of_missing(t: &mut Tape) -> Result {
    t.get(&at(DEPLOYMENTS, "none/scale")).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "none/scale"), json!({"spec": {"replicas": 1}})).await?;
    t.get(&at(CM, "none/scale")).await?;
    Ok(())
}

async fn pod_status(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    let status = json!({"status": {"phase": "Running", "podIP": "192.0.2.7", "podIPs": [{"ip": "192.0.2.7"}], "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": true, "restartCount": 1, "image": "busybox:1", "imageID": "x", "state": {"running": {"startedAt": "2001-02-03T04:05:06Z"}}}]}});
    t.patch(MERGE_PATCH, &at(PODS, "a/status"), status).await?;
    Ok(())
}

async fn status_conflict(t: &mut Tape) -> Result {
    let object = t.post(PODS, pod("a")).await?.value();
    t.patch(MERGE_PATCH, &at(PODS, "a/status"), json!({"status": {"phase": "Running"}})).await?;
    t.put(&at(PODS, "a/status"), object).await?;
    Ok(())
}

async fn status_put_without_version(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    let mut body = pod("a");
    body["status"] = json!({"phase": "Failed", "reason": "Because"});
    t.put(&at(PODS, "a/status"), body).await?;
    Ok(())
}

fn binding(node: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
}

async fn pod_binding(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    t.post(&at(PODS, "a/binding"), binding("node-1")).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn pod_binding_twice(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    t.post(&at(PODS, "a/binding"), binding("node-1")).await?;
    t.post(&at(PODS, "a/binding"), binding("node-2")).await?;
    t.post(&at(PODS, "none/binding"), binding("node-2")).await?;
    Ok(())
}

/// A Binding may say which Pod of that name it is for.
async fn pod_binding_preconditions(t: &mut Tape) -> Result {
    let pod = t.post(PODS, pod("a")).await?;
    let meaning = |key: &str, value: &str| {
        let mut binding = binding("node-1");
        binding["metadata"][key] = json!(value);
        binding
    };
    let other = meaning("uid", "00000000-0000-0000-0000-000000000000");
    t.post(&at(PODS, "a/binding"), other.clone()).await?;
    t.patch(MERGE_PATCH, &at(PODS, "a"), json!({"metadata": {"labels": {"k": "v"}}})).await?;
    let outdated = meaning("resourceVersion", &pod.text("/metadata/resourceVersion")?);
    t.post(&at(PODS, "a/binding"), outdated).await?;
    t.post(&at(PODS, "a/binding"), meaning("uid", &pod.text("/metadata/uid")?)).await?;
    t.post(&at(PODS, "a/binding"), other).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn pod_binding_metadata(t: &mut Tape) -> Result {
    let mut labelled = pod("a");
    labelled["metadata"]["labels"] = json!({"k": "old", "own": "kept"});
    t.setup(PODS, labelled).await?;
    t.patch(MERGE_PATCH, &at(PODS, "a/status"), json!({"status": {"nominatedNodeName": "node-2"}})).await?;
    let mut body = binding("node-1");
    body["metadata"] = json!({});
    t.post(&at(PODS, "a/binding"), body.clone()).await?;
    body["metadata"] = json!({"name": "a", "labels": {"k": "new"}, "annotations": {"n": "1"}});
    t.post(&at(PODS, "a/binding"), body).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn pod_eviction(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "{ns}"}});
    t.post(&at(PODS, "a/eviction"), body.clone()).await?;
    t.get(&at(PODS, "a")).await?;
    t.post(&at(PODS, "a/eviction"), body).await?;
    Ok(())
}

async fn pod_log_of_unscheduled(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    t.get(&at(PODS, "a/log")).await?;
    t.get(&at(PODS, "a/log?container=none")).await?;
    t.get(&at(PODS, "none/log")).await?;
    Ok(())
}

async fn job_status(t: &mut Tape) -> Result {
    let jobs = "/apis/batch/v1/namespaces/{ns}/jobs";
    let body = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i:1"}]}}}});
    t.setup(jobs, body).await?;
    t.patch(
        MERGE_PATCH,
        &at(jobs, "a/status"),
        json!({"status": {"active": 1, "startTime": "2001-02-03T04:05:06Z"}}),
    )
    .await?;
    Ok(())
}
