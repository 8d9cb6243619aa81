//! StatefulSets: ordinals in order, updates from the top, claims that stay or go.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cases::{Result, cases};
use crate::stage::Stage;
use crate::world::{World, controller, is_active, is_ready, is_terminating, number, text};

cases!("statefulset": create_and_scale, parallel, first_ordinal, rolling_update, partition, on_delete, back_and_forth,
    history_limit, replacement, adoption_and_release, min_ready, claims_are_kept, claims_are_deleted,
    deletion_background, deletion_foreground, deletion_orphan);

fn manifest(replicas: u32, image: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: web, annotations: {{note: kept}}}}
spec:
  serviceName: peers
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web, tier: front}}}}
    spec: {{containers: [{{name: web, image: {image}}}]}}
{more}"
    )
}

fn claim_template(policy: &str) -> String {
    format!(
        "  volumeClaimTemplates:
  - metadata: {{name: data, labels: {{kind: data}}}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
  persistentVolumeClaimRetentionPolicy: {{{policy}}}
"
    )
}

/// Whether the set reports exactly what is there, and Events tell of it.
fn is_at_rest(world: &World) -> bool {
    let set_is_at_rest = |set: &Value| {
        let uid = text(set, "/metadata/uid");
        let own: Vec<&Value> = world.all("Pod").filter(|pod| controller(pod) == Some(uid)).collect();
        let count = |of: &dyn Fn(&Value) -> bool| own.iter().filter(|pod| of(pod)).count() as i64;
        let at = |pod: &Value, revision: &str| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && pod["metadata"]["labels"]["controller-revision-hash"] == set["status"][revision]
        };
        let same = |field: &str, count: i64| number(set, &format!("/status/{field}")) == count;
        number(set, "/status/observedGeneration") == number(set, "/metadata/generation")
            && same("replicas", count(&|_| true))
            && same("readyReplicas", count(&is_ready))
            && same("currentReplicas", count(&|pod| at(pod, "currentRevision")))
            && same("updatedReplicas", count(&|pod| at(pod, "updateRevision")))
            && told(world, uid)
    };
    world.all("StatefulSet").all(set_is_at_rest)
}

/// Whether every Pod that was made has its Event.
fn told(world: &World, uid: &str) -> bool {
    let mut own = world.made.iter().filter(|((_, owner), _)| owner == uid);
    own.all(|((name, _), count)| events(world, uid, &format!("Create Pod {name} ")) >= *count)
}

/// How often Events about an object of this uid (or of any, if empty) tell something that begins so.
fn events(world: &World, uid: &str, message: &str) -> i64 {
    let about = |event: &&Value| {
        (uid.is_empty() || text(event, "/involvedObject/uid") == uid)
            && text(event, "/message").starts_with(message)
    };
    world.all("Event").filter(about).map(|event| number(event, "/count")).sum()
}

/// At rest, and something holds besides.
fn rest(holds: impl Fn(&World) -> bool) -> impl Fn(&World) -> bool {
    move |world| is_at_rest(world) && holds(world)
}

fn has(count: usize) -> impl Fn(&World) -> bool {
    rest(move |world| world.pods_where(|_| true).len() == count)
}

fn ready(count: i64) -> impl Fn(&World) -> bool {
    rest(move |world| world.number("StatefulSet", "web", "/status/readyReplicas") == count)
}

/// So many are on their way, and so many were told to go by the set so far.
fn going(count: usize, told: i64) -> impl Fn(&World) -> bool {
    rest(move |world| world.pods_where(is_terminating).len() == count && deleted(world) == told)
}

/// Each Pod once for each time that it was made: a controller that has not seen yet that a Pod is leaving tells it to go again.
fn deleted(world: &World) -> i64 {
    let names: BTreeSet<&str> = world.made.keys().map(|(name, _)| &**name).collect();
    let told = |name: &&str| events(world, "", &format!("Delete Pod {name} ")).min(world.times_made(name));
    names.iter().map(told).sum()
}

/// Has Pods run as they come until so many are ready.
async fn run_up_to(stage: &mut Stage, count: i64) -> Result {
    let first = stage.world().pods_where(is_ready).len();
    for number in first..usize::try_from(count)? {
        stage.until("the next Pod is there", move |world| world.pods_where(is_active).len() > number).await?;
        stage.start_all().await?;
    }
    stage.until("all are ready", ready(count)).await
}

/// Has Pods end and run as they are told until all are at the update revision.
async fn follow_update(stage: &mut Stage, count: usize) -> Result {
    for _ in 0..count {
        stage
            .until("the next Pod is told to go", |world| !world.pods_where(is_terminating).is_empty())
            .await?;
        stage.finish_all().await?;
        stage.until("it is made anew", |world| world.pods_where(|pod| !is_ready(pod)).len() == 1).await?;
        stage.start_all().await?;
    }
    Ok(())
}

fn is_updated(world: &World) -> bool {
    let Some(set) = world.get("StatefulSet", "web") else { return false };
    set["status"]["currentRevision"] == set["status"]["updateRevision"]
}

async fn create_and_scale(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", "")).await?;
    stage.record("the first is made", has(1)).await?;
    stage.start("web-0", false).await?;
    stage.record("it runs but is not ready", has(1)).await?;
    stage.start("web-0", true).await?;
    stage.record("the second is made once the first is ready", has(2)).await?;
    stage.start("web-1", true).await?;
    stage.record("both are ready", ready(2)).await?;
    stage.kubectl("scale statefulset/web --replicas=3").await?;
    stage.until("the third is made", has(3)).await?;
    stage.start("web-2", true).await?;
    stage.until("it is ready", ready(3)).await?;
    stage.kubectl("scale statefulset/web --replicas=1").await?;
    stage.record("the highest goes first", going(1, 1)).await?;
    stage.finish_all().await?;
    stage.record("the next goes once it is gone", |world| going(1, 2)(world) && has(2)(world)).await?;
    stage.finish_all().await?;
    stage.record("one is left", has(1)).await
}

async fn parallel(stage: &mut Stage) -> Result {
    stage.apply(&manifest(3, "web", "  podManagementPolicy: Parallel\n")).await?;
    stage.record("all are made at once", has(3)).await?;
    stage.start_all().await?;
    stage.until("all are ready", ready(3)).await?;
    stage.kubectl("scale statefulset/web --replicas=1").await?;
    stage.record("two go at once", going(2, 2)).await?;
    stage.finish_all().await?;
    stage.record("one is left", has(1)).await
}

async fn first_ordinal(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", "  ordinals: {start: 3}\n")).await?;
    run_up_to(stage, 2).await?;
    stage.record("the first is number three", ready(2)).await?;
    stage.apply(&manifest(2, "web", "  ordinals: {start: 4}\n")).await?;
    stage.until("number five is made", has(3)).await?;
    stage.start_all().await?;
    stage.record("number three goes", going(1, 1)).await
}

async fn rolling_update(stage: &mut Stage) -> Result {
    stage.apply(&manifest(3, "web", "")).await?;
    run_up_to(stage, 3).await?;
    stage.kubectl("set image statefulset/web web=newer").await?;
    stage.record("the highest goes first", going(1, 1)).await?;
    stage.finish_all().await?;
    stage
        .record("it is made anew", |world| has(3)(world) && world.pods_where(is_terminating).is_empty())
        .await?;
    stage.start_all().await?;
    stage.record("the next goes once it is ready", going(1, 2)).await?;
    follow_update(stage, 2).await?;
    stage.record("all are new", |world| ready(3)(world) && is_updated(world)).await
}

async fn partition(stage: &mut Stage) -> Result {
    let strategy = "  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}\n";
    stage.apply(&manifest(2, "web", strategy)).await?;
    run_up_to(stage, 2).await?;
    stage.apply(&manifest(2, "newer", strategy)).await?;
    follow_update(stage, 1).await?;
    stage.record("only the upper one is new", ready(2)).await?;
    stage.kubectl("delete pod web-0 --wait=false").await?;
    stage.until("the lower one goes", |world| world.pods_where(is_terminating).len() == 1).await?;
    stage.finish_all().await?;
    stage
        .record("the lower one comes back as it was", |world| {
            has(2)(world) && world.pods_where(is_terminating).is_empty()
        })
        .await?;
    stage.start_all().await?;
    stage.until("both are ready", ready(2)).await?;
    stage
        .apply(&manifest(
            2,
            "newer",
            "  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}}\n",
        ))
        .await?;
    follow_update(stage, 1).await?;
    stage.record("both are new", |world| ready(2)(world) && is_updated(world)).await
}

async fn on_delete(stage: &mut Stage) -> Result {
    let strategy = "  updateStrategy: {type: OnDelete}\n";
    stage.apply(&manifest(2, "web", strategy)).await?;
    run_up_to(stage, 2).await?;
    stage.apply(&manifest(2, "newer", strategy)).await?;
    let seen = |world: &World| {
        let Some(set) = world.get("StatefulSet", "web") else { return false };
        set["status"]["currentRevision"] != set["status"]["updateRevision"]
    };
    stage.record("nothing is replaced", move |world| is_at_rest(world) && seen(world)).await?;
    stage.kubectl("delete pod web-1 --wait=false").await?;
    stage.until("it goes", |world| world.pods_where(is_terminating).len() == 1).await?;
    stage.finish_all().await?;
    stage.until("it is made anew", |world| world.pods_where(|pod| !is_ready(pod)).len() == 1).await?;
    stage.start_all().await?;
    stage.record("what the user deleted is new", ready(2)).await
}

async fn back_and_forth(stage: &mut Stage) -> Result {
    stage.apply(&manifest(1, "web", "")).await?;
    run_up_to(stage, 1).await?;
    for image in ["newer", "web"] {
        stage.kubectl(&format!("set image statefulset/web web={image}")).await?;
        follow_update(stage, 1).await?;
        let when = format!("the image is {image}");
        stage.record(&when, |world| ready(1)(world) && is_updated(world)).await?;
    }
    Ok(())
}

async fn history_limit(stage: &mut Stage) -> Result {
    stage.apply(&manifest(1, "web", "  revisionHistoryLimit: 1\n")).await?;
    run_up_to(stage, 1).await?;
    for image in ["second", "third", "fourth"] {
        stage.kubectl(&format!("set image statefulset/web web={image}")).await?;
        follow_update(stage, 1).await?;
        stage.until("the update is over", |world| ready(1)(world) && is_updated(world)).await?;
    }
    stage.record("one old revision is kept", rest(|world| world.all("ControllerRevision").count() == 2)).await
}

async fn replacement(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", "")).await?;
    run_up_to(stage, 2).await?;
    let anew = |world: &World| {
        has(2)(world) && world.pods_where(|pod| text(pod, "/status/phase") == "Pending").len() == 1
    };
    for phase in ["Failed", "Succeeded"] {
        stage.end("web-0", phase).await?;
        stage.record(&format!("after it was {phase} it is made anew"), anew).await?;
        stage.start_all().await?;
        stage.until("both are ready", ready(2)).await?;
    }
    Ok(())
}

async fn adoption_and_release(stage: &mut Stage) -> Result {
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec: {containers: [{name: web, image: other}]}
";
    stage.apply(pod).await?;
    stage.until("the Pod is there", |world| world.get("Pod", "web-0").is_some()).await?;
    stage.start("web-0", true).await?;
    stage.apply(&manifest(1, "web", "")).await?;
    let adopted = |world: &World| {
        let pod = world.get("Pod", "web-0");
        pod.is_some_and(|pod| {
            controller(pod).is_some() && !pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"].is_null()
        })
    };
    stage
        .until("the Pod is taken in, and goes for the update", |world| adopted(world) && going(1, 1)(world))
        .await?;
    stage.finish_all().await?;
    stage.until("it is made anew", |world| world.pods_where(|pod| !is_ready(pod)).len() == 1).await?;
    stage.start_all().await?;
    stage.record("the set has its own", |world| ready(1)(world) && is_updated(world)).await?;
    stage.kubectl("label pod web-0 app=else --overwrite").await?;
    stage
        .until("the Pod is let go", |world| {
            world.get("Pod", "web-0").is_some_and(|pod| controller(pod).is_none())
        })
        .await
}

async fn min_ready(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", "  minReadySeconds: 3\n")).await?;
    stage.until("the first is made", has(1)).await?;
    stage.start_all().await?;
    stage
        .until("it is ready but not available", |world| {
            ready(1)(world) && world.number("StatefulSet", "web", "/status/availableReplicas") == 0
        })
        .await?;
    stage
        .record("the second is made once the first is available", |world| {
            has(2)(world) && world.number("StatefulSet", "web", "/status/availableReplicas") == 1
        })
        .await
}

async fn claims_are_kept(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", &claim_template("whenScaled: Retain, whenDeleted: Retain"))).await?;
    run_up_to(stage, 2).await?;
    stage.record("every Pod has a claim", ready(2)).await?;
    stage.kubectl("scale statefulset/web --replicas=1").await?;
    stage.until("one goes", going(1, 1)).await?;
    stage.finish_all().await?;
    stage.record("its claim stays", has(1)).await?;
    stage.kubectl("scale statefulset/web --replicas=2").await?;
    stage.record("and is taken up again", has(2)).await
}

async fn claims_are_deleted(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", &claim_template("whenScaled: Delete, whenDeleted: Delete"))).await?;
    run_up_to(stage, 2).await?;
    stage.record("the set owns the claims", ready(2)).await?;
    stage.kubectl("scale statefulset/web --replicas=1").await?;
    stage.record("the Pod that goes owns its claim", going(1, 1)).await?;
    stage.finish_all().await?;
    stage
        .record("the claim goes with it", |world| {
            has(1)(world) && world.all("PersistentVolumeClaim").count() == 1
        })
        .await
}

async fn two_ready(stage: &mut Stage) -> Result {
    stage.apply(&manifest(2, "web", "")).await?;
    run_up_to(stage, 2).await
}

async fn deletion_background(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete statefulset/web --wait=false").await?;
    stage
        .record("the Pods are told to end", |world| {
            world.get("StatefulSet", "web").is_none()
                && world.pods_where(is_terminating).len() == 2
                && world.all("ControllerRevision").count() == 0
        })
        .await?;
    stage.finish_all().await?;
    stage.record("nothing is left", |world| world.pods_where(|_| true).is_empty()).await
}

async fn deletion_foreground(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete statefulset/web --cascade=foreground --wait=false").await?;
    stage.until("the set waits for its Pods", going(2, 0)).await?;
    stage.finish_all().await?;
    stage
        .record("nothing is left", |world| {
            world.get("StatefulSet", "web").is_none()
                && world.pods_where(|_| true).is_empty()
                && world.all("ControllerRevision").count() == 0
        })
        .await
}

async fn deletion_orphan(stage: &mut Stage) -> Result {
    two_ready(stage).await?;
    stage.kubectl("delete statefulset/web --cascade=orphan").await?;
    let nobodys = |object: &Value| object["metadata"]["ownerReferences"].is_null();
    stage
        .record("the Pods and the revision are left, and nobody's", move |world| {
            world.get("StatefulSet", "web").is_none()
                && world.pods_where(nobodys).len() == 2
                && world.all("ControllerRevision").all(nobodys)
        })
        .await?;
    stage.apply(&manifest(2, "web", "")).await?;
    stage.record("a new set adopts them", |world| ready(2)(world) && is_updated(world)).await
}
