//! Deployments and their ReplicaSets.

use serde_json::Value;

use crate::cases::{Result, cases};
use crate::stage::Stage;
use crate::world::{World, is_active, is_ready, is_terminating, text};

cases!("deployment": create_and_scale, rolling_update, rolling_without_surge, stuck_rollout_and_undo,
    scaling_in_a_rollout, pause_and_resume, recreate, history_limit, adoption_and_release, same_template_again,
    name_collision, deletion_background, deletion_foreground, deletion_orphan);

fn manifest(replicas: u32, image: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, annotations: {{note: first}}}}
spec:
  replicas: {replicas}
{more}  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: web, image: {image}}}]}}
"
    )
}

const LIMITS: &str = "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}\n";

fn status(field: &'static str, count: i64) -> impl Fn(&World) -> bool {
    move |world| world.number("Deployment", "web", &format!("/status/{field}")) == count
}

fn complete(world: &World) -> bool {
    let wanted = world.number("Deployment", "web", "/spec/replicas");
    world.is_at_rest()
        && world.pods_where(|_| true).len() as i64 == wanted
        && ["replicas", "updatedReplicas", "availableReplicas"]
            .into_iter()
            .all(|field| world.number("Deployment", "web", &format!("/status/{field}")) == wanted)
}

/// A Deployment whose Pods are all ready.
async fn rolled_out(stage: &mut Stage, manifest: &str) -> Result {
    stage.apply(manifest).await?;
    let made = |world: &World| {
        world.is_at_rest() && {
            let wanted = world.number("Deployment", "web", "/spec/replicas");
            world.number("Deployment", "web", "/status/replicas") == wanted
        }
    };
    stage.until("the Pods are made", made).await?;
    stage.start_all().await?;
    stage.until("the rollout is complete", complete).await
}

/// Plays the kubelet, one Pod at a time, until the rollout is complete; records where it waits in between.
async fn roll_on(stage: &mut Stage, record: bool) -> Result {
    let waits = |pod: &Value| is_active(pod) && !is_ready(pod);
    for step in 1..40 {
        // At rest alone proves nothing: the controllers may be about to take the next step.
        stage
            .until("the rollout is complete or waits for its Pods", |world| {
                let pods = world.pods_where(|pod| waits(pod) || is_terminating(pod));
                complete(world) || world.is_at_rest() && !pods.is_empty()
            })
            .await?;
        if !stage.world().pods_where(is_terminating).is_empty() {
            stage.finish_all().await?;
        } else {
            let waiting = stage.world().pods_where(waits);
            let Some(pod) = waiting.first() else { break };
            if record {
                stage.record(&format!("it waits at step {step}"), |_| true).await?;
            }
            let available = stage.world().number("Deployment", "web", "/status/availableReplicas");
            stage.start(pod, true).await?;
            let pod = pod.clone();
            // The Pod may be told to end right after it was counted, so its own state is no witness.
            stage
                .until("the Pod is counted", |world| {
                    world.number("Deployment", "web", "/status/availableReplicas") > available
                        || !world.get("Pod", &pod).is_some_and(is_active)
                        || !world.pods_where(is_terminating).is_empty()
                })
                .await?;
        }
    }
    stage.until("the rollout is complete", complete).await
}

async fn create_and_scale(stage: &mut Stage) -> Result {
    stage.apply(&manifest(3, "one", "")).await?;
    stage.record("three Pods are made", status("updatedReplicas", 3)).await?;
    stage.start_all().await?;
    stage.record("the rollout is complete", complete).await?;
    stage.kubectl("scale deployment/web --replicas=5").await?;
    stage.record("two more are made", status("replicas", 5)).await?;
    stage.start_all().await?;
    stage.until("all are available", complete).await?;
    stage.kubectl("scale deployment/web --replicas=2").await?;
    stage.until("three are told to end", |world| world.pods_where(is_terminating).len() == 3).await?;
    stage.finish_all().await?;
    stage.record("two are left", complete).await
}

async fn rolling_update(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(4, "one", LIMITS)).await?;
    stage.kubectl("set image deployment/web web=two").await?;
    stage.until("the rollout has begun", status("updatedReplicas", 2)).await?;
    roll_on(stage, true).await?;
    stage.record("the rollout is complete", complete).await
}

async fn rolling_without_surge(stage: &mut Stage) -> Result {
    let limits = "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 50%}}\n";
    rolled_out(stage, &manifest(3, "one", limits)).await?;
    stage.kubectl("set image deployment/web web=two").await?;
    stage.until("the rollout has begun", |world| !world.pods_where(is_terminating).is_empty()).await?;
    roll_on(stage, true).await?;
    stage.record("the rollout is complete", complete).await
}

async fn stuck_rollout_and_undo(stage: &mut Stage) -> Result {
    let more = format!("{LIMITS}  progressDeadlineSeconds: 2\n  minReadySeconds: 0\n");
    rolled_out(stage, &manifest(3, "good", &more)).await?;
    stage.kubectl("set image deployment/web web=bad").await?;
    let stuck =
        |world: &World| world.reason("Deployment", "web", "Progressing") == "ProgressDeadlineExceeded";
    stage.until("an old Pod is told to end", |world| !world.pods_where(is_terminating).is_empty()).await?;
    stage.finish_all().await?;
    stage.record("the rollout is stuck", stuck).await?;
    stage.kubectl("rollout undo deployment/web").await?;
    stage
        .until("the new Pods are gone", |world| {
            world.is_at_rest()
                && world.pods_where(|pod| text(pod, "/spec/containers/0/image") == "bad").is_empty()
        })
        .await?;
    roll_on(stage, false).await?;
    stage.record("the old template is back", complete).await
}

async fn scaling_in_a_rollout(stage: &mut Stage) -> Result {
    let limits = "  strategy: {rollingUpdate: {maxSurge: 3, maxUnavailable: 2}}\n";
    rolled_out(stage, &manifest(10, "one", limits)).await?;
    stage.kubectl("set image deployment/web web=two").await?;
    stage.until("old Pods are told to end", |world| world.pods_where(is_terminating).len() == 2).await?;
    stage.finish_all().await?;
    stage.record("the rollout waits", status("updatedReplicas", 5)).await?;
    stage.kubectl("scale deployment/web --replicas=20").await?;
    stage.record("both ReplicaSets have grown", status("replicas", 23)).await?;
    stage.kubectl("scale deployment/web --replicas=5").await?;
    stage.until("Pods are told to end", |world| world.is_at_rest() && status("replicas", 8)(world)).await?;
    stage.finish_all().await?;
    stage.record("both ReplicaSets have shrunk", status("replicas", 8)).await
}

async fn pause_and_resume(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(2, "one", "")).await?;
    stage.kubectl("rollout pause deployment/web").await?;
    stage
        .record("it is paused", |world| {
            world.reason("Deployment", "web", "Progressing") == "DeploymentPaused"
        })
        .await?;
    stage.kubectl("set image deployment/web web=two").await?;
    stage.kubectl("scale deployment/web --replicas=3").await?;
    stage.record("it scales but does not roll out", status("replicas", 3)).await?;
    stage.kubectl("rollout resume deployment/web").await?;
    stage
        .until("the rollout has begun", |world| status("updatedReplicas", 1)(world) && world.is_at_rest())
        .await?;
    roll_on(stage, false).await?;
    stage.record("the rollout is complete", complete).await
}

async fn recreate(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(2, "one", "  strategy: {type: Recreate}\n")).await?;
    stage.kubectl("set image deployment/web web=two").await?;
    stage
        .record("all are told to end and none is made", |world| world.pods_where(is_terminating).len() == 2)
        .await?;
    stage.finish_all().await?;
    stage.record("new ones are made", status("updatedReplicas", 2)).await?;
    stage.start_all().await?;
    stage.record("the rollout is complete", complete).await
}

async fn history_limit(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(1, "one", "  revisionHistoryLimit: 1\n")).await?;
    for (image, sets) in [("two", 2), ("three", 2), ("four", 2)] {
        stage.kubectl(&format!("set image deployment/web web={image}")).await?;
        let named = image.to_owned();
        stage
            .until("the rollout has begun", move |world| {
                world.is_at_rest()
                    && !world.pods_where(|pod| text(pod, "/spec/containers/0/image") == named).is_empty()
            })
            .await?;
        roll_on(stage, false).await?;
        stage.until("what is not kept is gone", |world| world.all("ReplicaSet").count() == sets).await?;
    }
    stage.record("one old ReplicaSet is kept", complete).await
}

async fn adoption_and_release(stage: &mut Stage) -> Result {
    let set = "apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: stray, labels: {app: web}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web, part: stray}}
  template:
    metadata: {labels: {app: web, part: stray}}
    spec: {containers: [{name: web, image: old}]}
";
    stage.apply(set).await?;
    stage.until("it has its Pod", |world| world.is_at_rest() && world.pods.len() == 1).await?;
    stage.start_all().await?;
    stage.apply(&manifest(1, "new", "")).await?;
    let made = |world: &World| world.is_at_rest() && status("updatedReplicas", 1)(world);
    stage.record("the ReplicaSet is adopted as an old one", made).await?;
    roll_on(stage, false).await?;
    stage.record("the rollout is complete", complete).await?;
    stage.kubectl("label replicaset stray app=else --overwrite").await?;
    stage
        .record("the ReplicaSet is let go", |world| {
            world.get("ReplicaSet", "stray").is_some_and(|set| set["metadata"]["ownerReferences"].is_null())
        })
        .await
}

/// Going back to a former template by hand uses its ReplicaSet again; annotations follow.
async fn same_template_again(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(1, "one", "")).await?;
    for image in ["two", "one"] {
        stage.apply(&manifest(1, image, "").replace("note: first", &format!("note: to-{image}"))).await?;
        stage
            .until("the rollout has begun", |world| {
                world.is_at_rest() && world.pods_where(|pod| !is_ready(pod)).len() == 1
            })
            .await?;
        roll_on(stage, false).await?;
        stage.record(&format!("image {image} runs"), complete).await?;
    }
    Ok(())
}

/// The name of the new ReplicaSet is taken: another one is found.
async fn name_collision(stage: &mut Stage) -> Result {
    stage.apply(&manifest(1, "one", "")).await?;
    stage
        .until("there is a ReplicaSet", |world| world.is_at_rest() && world.all("ReplicaSet").count() == 1)
        .await?;
    let name = stage.world().all("ReplicaSet").map(|set| text(set, "/metadata/name").to_owned()).next();
    let name = name.unwrap_or_default();
    stage.kubectl("delete deployment/web --wait=false").await?;
    stage
        .until("the ReplicaSet is gone, and its Pod, which no kubelet has", |world| {
            world.all("ReplicaSet").count() == 0 && world.pods_where(|_| true).is_empty()
        })
        .await?;
    stage
        .apply(&format!(
            "apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: {name}, labels: {{app: else}}}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: else}}}}
  template:
    metadata: {{labels: {{app: else}}}}
    spec: {{containers: [{{name: web, image: else}}]}}
"
        ))
        .await?;
    stage.apply(&manifest(1, "one", "")).await?;
    stage.record("another name is found", status("updatedReplicas", 1)).await
}

async fn deletion_background(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(2, "one", "")).await?;
    stage.kubectl("delete deployment/web --wait=false").await?;
    stage
        .record("the ReplicaSet is gone and the Pods are told to end", |world| {
            world.all("ReplicaSet").count() == 0 && world.pods_where(is_terminating).len() == 2
        })
        .await?;
    stage.finish_all().await?;
    stage.record("nothing is left", |world| world.pods_where(|_| true).is_empty()).await
}

async fn deletion_foreground(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(2, "one", "")).await?;
    stage.kubectl("delete deployment/web --cascade=foreground --wait=false").await?;
    stage
        .record("owners wait for what they own", |world| world.pods_where(is_terminating).len() == 2)
        .await?;
    stage.finish_all().await?;
    stage
        .record("nothing is left", |world| {
            world.get("Deployment", "web").is_none() && world.pods_where(|_| true).is_empty()
        })
        .await
}

async fn deletion_orphan(stage: &mut Stage) -> Result {
    rolled_out(stage, &manifest(2, "one", "")).await?;
    stage.kubectl("delete deployment/web --cascade=orphan").await?;
    stage
        .record("the ReplicaSet goes on alone", |world| {
            world.get("Deployment", "web").is_none()
                && world.all("ReplicaSet").all(|set| set["metadata"]["ownerReferences"].is_null())
        })
        .await?;
    stage.apply(&manifest(2, "one", "")).await?;
    stage.record("a new Deployment adopts it", complete).await
}
