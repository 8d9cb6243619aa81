//! ReplicaSets without a Deployment.

use serde_json::json;

use crate::cases::{Result, cases};
use crate::stage::Stage;
use crate::world::{World, is_active, is_terminating};

cases!("replicaset": create_and_scale, ranking, adoption_and_release, replacement, refused_pods, min_ready,
    deletion_background, deletion_foreground, deletion_orphan);

fn manifest(replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web, tier: front}}}}
    spec: {{containers: [{{name: web, image: web}}]}}
"
    )
}

fn pod(name: &str, labels: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec: {{containers: [{{name: web, image: other}}]}}
"
    )
}

fn ready(count: i64) -> impl Fn(&World) -> bool {
    move |world| world.number("ReplicaSet", "web", "/status/readyReplicas") == count
}

fn has(count: i64) -> impl Fn(&World) -> bool {
    move |world| world.number("ReplicaSet", "web", "/status/replicas") == count
}

async fn create_and_scale(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2)).await?;
    stage.record("two Pods are made", has(2)).await?;
    stage.start_all().await?;
    stage.record("both are ready", ready(2)).await?;
    stage.kubectl("scale replicaset/web --replicas=4").await?;
    stage.record("there are four", has(4)).await?;
    stage.start_all().await?;
    stage.until("all are ready", ready(4)).await?;
    stage.kubectl("scale replicaset/web --replicas=1").await?;
    stage
        .record("three are told to end", |world| has(1)(world) && world.pods_where(is_terminating).len() == 3)
        .await?;
    stage.finish_all().await?;
    stage.record("three are gone", |world| world.pods_where(|_| true).len() == 1).await?;
    stage.kubectl("scale replicaset/web --replicas=0").await?;
    stage.until("the last is told to end", |world| world.pods_where(is_terminating).len() == 1).await?;
    stage.finish_all().await?;
    stage.record("none is left", |world| world.pods_where(|_| true).is_empty()).await
}

/// Which Pods go first: those without a node, then pending, then not ready, then cheap ones.
async fn ranking(stage: &mut Stage) -> Result {
    stage.apply(&manifest(6)).await?;
    stage.until("six Pods are made", has(6)).await?;
    let pods = stage.world().pods_where(is_active);
    stage.kubectl(&format!("label pod {} order=1-unassigned", pods[0])).await?;
    stage.kubectl(&format!("label pod {} order=2-pending", pods[1])).await?;
    stage.assign(&pods[1]).await?;
    stage.kubectl(&format!("label pod {} order=3-not-ready", pods[2])).await?;
    stage.start(&pods[2], false).await?;
    stage.kubectl(&format!("label pod {} order=4-cheap", pods[3])).await?;
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    stage.kubectl(&format!("annotate pod {} {cost}=-10", pods[3])).await?;
    stage.start(&pods[3], true).await?;
    stage.kubectl(&format!("label pod {} order=5-plain", pods[4])).await?;
    stage.start(&pods[4], true).await?;
    stage.kubectl(&format!("label pod {} order=6-dear", pods[5])).await?;
    stage.kubectl(&format!("annotate pod {} {cost}=10", pods[5])).await?;
    stage.start(&pods[5], true).await?;
    stage
        .record("three of six are ready", |world| {
            ready(3)(world)
                && world.pods_where(|pod| !pod["metadata"]["labels"]["order"].is_null()).len() == 6
        })
        .await?;
    for left in (1..6).rev() {
        stage.kubectl(&format!("scale replicaset/web --replicas={left}")).await?;
        stage.until("one less is active", has(left)).await?;
        stage.finish_all().await?;
        let total = usize::try_from(left)?;
        stage.record(&format!("{left} are left"), |world| world.pods_where(|_| true).len() == total).await?;
    }
    Ok(())
}

async fn adoption_and_release(stage: &mut Stage) -> Result {
    stage.apply(&pod("stray", "app: web")).await?;
    stage.apply(&manifest(2)).await?;
    stage.record("the stray Pod is adopted and one is made", has(2)).await?;
    stage.kubectl("label pod stray app=else --overwrite").await?;
    stage
        .record("the Pod is let go and another is made", |world| {
            has(2)(world) && world.pods_where(|_| true).len() == 3
        })
        .await?;
    stage.start_all().await?;
    stage.until("both are ready", ready(2)).await?;
    stage.apply(&pod("late", "app: web")).await?;
    stage
        .record("a Pod that is one too many is adopted, and one deleted", |world| {
            has(2)(world) && world.pods.len() == 4 && world.pods_where(|_| true).len() == 3
        })
        .await
}

async fn replacement(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2)).await?;
    stage.until("two Pods are made", has(2)).await?;
    stage.start_all().await?;
    stage.until("both are ready", ready(2)).await?;
    let pods = stage.world().pods_where(is_active);
    stage.end(&pods[0], "Failed").await?;
    stage.record("a failed Pod is replaced", |world| has(2)(world) && world.pods.len() == 3).await?;
    stage.end(&pods[1], "Succeeded").await?;
    stage.record("a Pod that has ended is replaced", |world| has(2)(world) && world.pods.len() == 4).await?;
    let pods = stage.world().pods_where(is_active);
    stage.delete_pod(&pods[0]).await?;
    stage.record("a deleted Pod is replaced", |world| has(2)(world) && world.pods.len() == 5).await
}

/// Pods that the server refuses.
async fn refused_pods(stage: &mut Stage) -> Result {
    let manifest = manifest(3).replace("image: web}]", "image: web}], priorityClassName: missing");
    stage.apply(&manifest).await?;
    let failing = |world: &World| world.reason("ReplicaSet", "web", "ReplicaFailure") == "FailedCreate";
    let told = |world: &World| world.all("Event").any(|event| event["reason"] == "FailedCreate");
    stage.until("the failure is reported", |world| failing(world) && told(world)).await?;
    stage.note("the failure is reported", |world| {
        let condition = world.get("ReplicaSet", "web").map(|set| &set["status"]["conditions"][0]);
        let event = world.all("Event").next().map(|event| &event["message"]);
        json!({ "reason": condition.map(|one| &one["reason"]),
            "message": condition.map(|one| &one["message"]), "event": event })
    });
    stage.kubectl("scale replicaset/web --replicas=0").await?;
    stage
        .until("nothing is wrong with no Pods", |world| {
            world.is_at_rest() && world.reason("ReplicaSet", "web", "ReplicaFailure").is_empty()
        })
        .await
}

async fn min_ready(stage: &mut Stage) -> Result {
    stage.apply(&manifest(1).replace("replicas: 1", "replicas: 1\n  minReadySeconds: 3")).await?;
    stage.until("a Pod is made", has(1)).await?;
    stage.start_all().await?;
    stage
        .until("it is ready but not available", |world| {
            ready(1)(world) && world.number("ReplicaSet", "web", "/status/availableReplicas") == 0
        })
        .await?;
    stage
        .record("it is available after a while", |world| {
            world.number("ReplicaSet", "web", "/status/availableReplicas") == 1
        })
        .await
}

async fn two_ready(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2)).await?;
    stage.until("two Pods are made", has(2)).await?;
    stage.start_all().await?;
    stage.until("both are ready", |world| world.is_at_rest() && ready(2)(world)).await
}

async fn deletion_background(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete replicaset/web --wait=false").await?;
    stage
        .record("the Pods are told to end", |world| {
            world.get("ReplicaSet", "web").is_none() && world.pods_where(is_terminating).len() == 2
        })
        .await?;
    stage.finish_all().await?;
    stage.record("nothing is left", |world| world.pods_where(|_| true).is_empty()).await
}

async fn deletion_foreground(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete replicaset/web --cascade=foreground --wait=false").await?;
    stage
        .record("the ReplicaSet waits for its Pods", |world| world.pods_where(is_terminating).len() == 2)
        .await?;
    stage.finish_all().await?;
    stage
        .record("nothing is left", |world| {
            world.get("ReplicaSet", "web").is_none() && world.pods_where(|_| true).is_empty()
        })
        .await
}

async fn deletion_orphan(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete replicaset/web --cascade=orphan").await?;
    stage
        .record("the Pods are left, and nobody's", |world| {
            world.get("ReplicaSet", "web").is_none()
                && world.pods_where(|pod| pod["metadata"]["ownerReferences"].is_null()).len() == 2
        })
        .await?;
    stage.apply(&manifest(2)).await?;
    stage.record("a new ReplicaSet adopts them", ready(2)).await
}
