//! The scheduler on the embedded API server, without a kubelet: what it writes, and that it gets there through faults.

mod parts;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use parts::{Cluster, create, gone, insist, list, object, until};

fn pod(name: &str, cpu: &str, more: Value) -> Pod {
    let mut spec = json!({"containers": [{"name": "c", "image": "host", "resources": {"requests": {"cpu": cpu}}}],
        "terminationGracePeriodSeconds": 0});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    object(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some("n"))
}

fn scheduled(pod: &Pod) -> Option<(String, Option<String>, Option<String>)> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == "PodScheduled")?;
    Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
}

#[tokio::test]
async fn a_pod_waits_with_a_reason_until_there_is_room() {
    let cluster = Cluster::start().await;
    let pods = cluster.own::<Pod>();
    create(&pods, &pod("p", "2", json!({}))).await;
    let says = |message: &'static str| {
        move |pod: &Pod| {
            scheduled(pod) == Some(("False".into(), Some("Unschedulable".into()), Some(message.into())))
        }
    };
    until(&pods, "p", "told that there is no node", says("no nodes available to schedule pods")).await;
    cluster.node("1").await;
    let short = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption \
                 victims found for incoming pod.";
    until(&pods, "p", "told that there is no room", says(short)).await;
    assert_eq!(cluster.event("p", "FailedScheduling").await, "no nodes available to schedule pods");
    let grown = Patch::Merge(json!({"status": {"allocatable": {"cpu": "2"}}}));
    cluster.all::<Node>().patch_status("n", &PatchParams::default(), &grown).await.unwrap();
    let bound = until(&pods, "p", "bound", is_bound).await;
    assert_eq!(scheduled(&bound), Some(("True".into(), None, None)));
    assert_eq!(cluster.event("p", "Scheduled").await, "Successfully assigned default/p to n");
    cluster.stop().await;
}

#[tokio::test]
async fn room_that_becomes_free_is_used() {
    let cluster = Cluster::start().await;
    cluster.node("1").await;
    let pods = cluster.own::<Pod>();
    create(&pods, &pod("first", "1", json!({}))).await;
    until(&pods, "first", "bound", is_bound).await;
    create(&pods, &pod("second", "1", json!({}))).await;
    create(&pods, &pod("gated", "1", json!({"schedulingGates": [{"name": "example.com/g"}]}))).await;
    until(&pods, "second", "refused", |pod| scheduled(pod).is_some()).await;
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status("first", &PatchParams::default(), &ended).await.unwrap();
    until(&pods, "second", "bound", is_bound).await;
    pods.delete("second", &DeleteParams::default().grace_period(0)).await.unwrap();
    let gated = pods.get("gated").await.unwrap();
    assert_eq!(scheduled(&gated).unwrap().1.as_deref(), Some("SchedulingGated"));
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    pods.patch("gated", &PatchParams::default(), &open).await.unwrap();
    until(&pods, "gated", "bound", is_bound).await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_less_important_make_way() {
    let cluster = Cluster::start().await;
    cluster.node("2").await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    create(&cluster.all(), &object::<k8s_openapi::api::scheduling::v1::PriorityClass>(class)).await;
    let pods = cluster.own::<Pod>();
    create(&pods, &pod("low", "2", json!({"terminationGracePeriodSeconds": 30}))).await;
    until(&pods, "low", "bound", is_bound).await;
    create(&pods, &pod("urgent", "1", json!({"priorityClassName": "high"}))).await;
    let leaving = until(&pods, "low", "evicted", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let conditions = leaving.status.unwrap().conditions.unwrap();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("PreemptionByScheduler"));
    let nominated = |pod: &Pod| {
        pod.status.as_ref().is_some_and(|status| status.nominated_node_name.as_deref() == Some("n"))
    };
    until(&pods, "urgent", "nominated", nominated).await;
    // The kubelet's part.
    pods.delete("low", &DeleteParams::default().grace_period(0)).await.unwrap();
    gone(&pods, "low").await;
    until(&pods, "urgent", "bound", is_bound).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_claim_that_waits_for_its_consumer_gets_a_node_first() {
    let cluster = Cluster::start().await;
    cluster.node("2").await;
    let class = json!({"metadata": {"name": "later"}, "provisioner": "agentcube.io/local",
        "volumeBindingMode": "WaitForFirstConsumer"});
    create(&cluster.all(), &object::<StorageClass>(class)).await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let claim = json!({"metadata": {"name": "c"}, "spec": {"storageClassName": "later",
        "accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}}});
    create(&claims, &object(claim)).await;
    let message = cluster.event("c", "WaitForFirstConsumer").await;
    assert_eq!(message, "waiting for first consumer to be created before binding");
    let using = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
    let pods = cluster.own::<Pod>();
    create(&pods, &pod("p", "1", using.clone())).await;
    until(&pods, "p", "bound", is_bound).await;
    let claim = claims.get("c").await.unwrap();
    assert_eq!(claim.metadata.annotations.unwrap()["volume.kubernetes.io/selected-node"], "n");
    assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Bound"));
    // It is for one Pod at a time.
    create(&pods, &pod("q", "1", using)).await;
    let in_use = |pod: &Pod| {
        scheduled(pod).is_some_and(|(_, _, message)| message.unwrap().contains("ReadWriteOncePod"))
    };
    until(&pods, "q", "refused", in_use).await;
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    until(&pods, "q", "bound", is_bound).await;
    cluster.stop().await;
}

#[tokio::test]
async fn two_hundred_at_once() {
    let cluster = Cluster::start().await;
    cluster.node("100").await;
    let pods = cluster.own::<Pod>();
    let names: Vec<String> = (0..200).map(|index| format!("p{index}")).collect();
    join_all(names.iter().map(|name| async { create(&pods, &pod(name, "100m", json!({}))).await })).await;
    for name in &names {
        until(&pods, name, "bound", is_bound).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn faults_neither_lose_a_pod_nor_overcommit_the_node() {
    for seed in 0..3 {
        let cluster = Cluster::start().await;
        cluster.node("30").await;
        let pods = cluster.own::<Pod>();
        let names: Vec<String> = (0..40).map(|index| format!("p{index}")).collect();
        cluster.trouble(seed);
        join_all(names.iter().map(|name| async { insist(&pods, &pod(name, "1", json!({}))).await })).await;
        cluster.calm();
        for name in &names {
            until(&pods, name, "answered", |pod| scheduled(pod).is_some()).await;
        }
        let bound = list(&pods).await.iter().filter(|pod| is_bound(pod)).count();
        assert_eq!(bound, 30, "seed {seed}");
        cluster.stop().await;
    }
}
