//! The taints of a Node on the embedded API server: they follow its conditions and `kubectl cordon`.

mod parts;

use agentcube_node::controllers::{Caches, nodes};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use parts::{Cluster, create, object, until};

fn keys(node: &Node) -> Vec<&str> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| taint.key.as_str()).collect()
}

fn ready(status: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": status}]}})
}

#[tokio::test]
async fn taints_follow_the_node() {
    let cluster = Cluster::bare().await;
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let caches = Caches::start(&cluster.client, &mut tasks, &shutdown);
    tasks.spawn(nodes::run(cluster.client.clone(), caches, shutdown.clone()));
    let api = cluster.all::<Node>();
    let change = PatchParams::default();

    let new = create(&api, &object(json!({"metadata": {"name": "n"}}))).await;
    assert_eq!(keys(&new), ["node.kubernetes.io/not-ready"], "as the real server admits a Node");
    let own = json!({"spec": {"taints": [{"key": "own", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}});
    api.patch("n", &change, &Patch::Merge(own)).await.unwrap();

    api.patch_status("n", &change, &Patch::Merge(ready("True"))).await.unwrap();
    until(&api, "n", "free of the taint that it came with", |node| keys(node) == ["own"]).await;
    api.patch("n", &change, &Patch::Merge(json!({"spec": {"unschedulable": true}}))).await.unwrap();
    let cordoned = ["own", "node.kubernetes.io/unschedulable"];
    until(&api, "n", "tainted as cordoned", |node| keys(node) == cordoned).await;
    api.patch("n", &change, &Patch::Merge(json!({"spec": {"unschedulable": null}}))).await.unwrap();
    until(&api, "n", "uncordoned", |node| keys(node) == ["own"]).await;
    api.patch_status("n", &change, &Patch::Merge(ready("False"))).await.unwrap();
    until(&api, "n", "not ready", |node| keys(node) == ["own", "node.kubernetes.io/not-ready"]).await;

    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
    cluster.stop().await;
}
