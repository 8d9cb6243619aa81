//! A node that nobody runs: whole clusters take Pods away whose node is unknown or silent. Who plays its kubelet says of its
//! Pods that they run.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;

use crate::http_client::{HttpClient, Request};
use crate::tape::MERGE_PATCH;

/// With the node's name; nothing gets there that does not ask for it.
pub const LABEL: &str = "agentcube.io/pretended-node";
const NODES: &str = "/api/v1/nodes";
const HEARTBEATS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// A node counts as silent after forty seconds.
const EVERY: Duration = Duration::from_secs(10);

/// The node is there, and goes on saying so.
pub async fn keep(http: &HttpClient, name: &str) -> Result<()> {
    loop {
        beat(http, name).await?;
        tokio::time::sleep(EVERY).await;
    }
}

/// Says once that the node is there and ready; makes it if it is not.
pub async fn beat(http: &HttpClient, name: &str) -> Result<()> {
    let resources = json!({ "cpu": "1000", "memory": "1000Gi", "pods": "5000" });
    let now = jiff::Timestamp::now();
    let conditions = json!([{ "type": "Ready", "status": "True", "reason": "Said", "message": "it is said",
        "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() }]);
    let status =
        json!({ "status": { "capacity": resources, "allocatable": resources, "conditions": conditions } });
    let status =
        Request::new(Method::PATCH, format!("{NODES}/{name}/status")).body(MERGE_PATCH, status.to_string());
    let mut said = http.send(status.clone()).await?;
    if said.status == 404 {
        let node = json!({ "metadata": { "name": name, "labels": { LABEL: name } },
            "spec": { "taints": [{ "key": LABEL, "effect": "NoSchedule" }] } });
        let made = http.send(Request::new(Method::POST, NODES).json(&node)).await?;
        ensure!(made.is_success(), "{}", made.value());
        said = http.send(status).await?;
    }
    ensure!(said.is_success(), "{}", said.value());
    let renewed = json!({ "spec": { "holderIdentity": name, "leaseDurationSeconds": 40,
        "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string() } });
    let patch = Request::new(Method::PATCH, format!("{HEARTBEATS}/{name}"));
    if http.send(patch.body(MERGE_PATCH, renewed.to_string())).await?.status == 404 {
        let mut lease = renewed;
        lease["metadata"] = json!({ "name": name });
        let made = http.send(Request::new(Method::POST, HEARTBEATS).json(&lease)).await?;
        ensure!(made.is_success(), "{}", made.value());
    }
    Ok(())
}
