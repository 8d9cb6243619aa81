//! Jobs: Pods that are counted once they have ended, and what their ends mean.

use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::stage::Stage;
use crate::world::{World, controller, is_active, is_ready, is_terminating, number, text};

cases!("job": one_completion, many_completions, work_queue, failures, no_failure_allowed, restarts_in_place, deadline,
    suspended, indexed, limit_per_index, too_many_failed_indexes, failure_policy, ignored_failure, success_policy,
    deleted_pod, replaced_once_failed, less_parallel, time_to_live, adoption, deletion_background, deletion_foreground,
    deletion_orphan);

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

fn manifest(spec: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: pi}}
spec:
  template:
    metadata: {{labels: {{app: pi}}}}
    spec: {{restartPolicy: Never, containers: [{{name: pi, image: pi}}]}}
{spec}"
    )
}

/// The end of a Pod, long enough ago that nobody waits before replacing it.
fn ended(phase: &str, code: i64) -> Value {
    let terminated = json!({ "exitCode": code, "finishedAt": "2020-01-01T00:00:00Z", "startedAt": "2020-01-01T00:00:00Z" });
    json!({ "phase": phase, "containerStatuses": [{
        "name": "pi", "image": "pi", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": terminated },
    }] })
}

fn is_tracked(pod: &Value) -> bool {
    pod["metadata"]["finalizers"].as_array().into_iter().flatten().any(|one| one == FINALIZER)
}

/// Whether the Job reports exactly what is there and holds no Pod that has ended, and Events tell of it.
fn is_at_rest(world: &World) -> bool {
    let decided = |job: &Value| {
        let conditions = job["status"]["conditions"].as_array();
        let mut kinds = conditions.into_iter().flatten().map(|one| text(one, "/type"));
        kinds.any(|kind| matches!(kind, "SuccessCriteriaMet" | "FailureTarget"))
    };
    let job_is_at_rest = |job: &Value| {
        let uid = text(job, "/metadata/uid");
        let own: Vec<&Value> = world.all("Pod").filter(|pod| controller(pod) == Some(uid)).collect();
        let count = |of: fn(&Value) -> bool| own.iter().filter(|pod| of(pod)).count() as i64;
        let same = |field: &str, count: i64| number(job, &format!("/status/{field}")) == count;
        // Once its end is decided, a Job holds no Pod at all.
        let over = |pod: &Value| decided(job) || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        let uncounted = &job["status"]["uncountedTerminatedPods"];
        same("active", count(is_active))
            && same("ready", count(|pod| is_active(pod) && is_ready(pod)))
            && same("terminating", count(is_terminating))
            && own.iter().all(|pod| !over(pod) || !is_tracked(pod))
            && uncounted.as_object().is_some_and(serde_json::Map::is_empty)
            && told(world, uid)
    };
    world.all("Job").all(job_is_at_rest)
}

/// Whether every Pod that was made has its Event.
fn told(world: &World, uid: &str) -> bool {
    let about = |event: &&Value| {
        text(event, "/involvedObject/uid") == uid && text(event, "/reason") == "SuccessfulCreate"
    };
    let events: i64 = world.all("Event").filter(about).map(|event| number(event, "/count")).sum();
    events >= world.pods.values().filter(|(_, owner)| owner.as_deref() == Some(uid)).count() as i64
}

/// How many Events of this reason there are.
fn events(world: &World, reason: &str) -> i64 {
    let about = |event: &&Value| text(event, "/reason") == reason;
    world.all("Event").filter(about).map(|event| number(event, "/count")).sum()
}

/// So many Pods were told to end by the Job and are on their way, and none is at work.
fn going(count: usize) -> impl Fn(&World) -> bool {
    rest(move |world| {
        world.pods_where(is_active).is_empty()
            && world.pods_where(is_terminating).len() == count
            && events(world, "SuccessfulDelete") == count as i64
    })
}

fn rest(holds: impl Fn(&World) -> bool) -> impl Fn(&World) -> bool {
    move |world| is_at_rest(world) && holds(world)
}

/// So many Pods are at work.
fn active(count: usize) -> impl Fn(&World) -> bool {
    rest(move |world| world.pods_where(is_active).len() == count && world.all("Job").count() == 1)
}

/// So many Pods were counted as succeeded and as failed.
fn counted(succeeded: i64, failed: i64) -> impl Fn(&World) -> bool {
    rest(move |world| {
        let count = |field: &str| world.number("Job", "pi", &format!("/status/{field}"));
        (count("succeeded"), count("failed")) == (succeeded, failed)
    })
}

/// The Job has this condition, and an Event of this reason.
fn is(condition: &'static str, reason: &'static str) -> impl Fn(&World) -> bool {
    rest(move |world| {
        !world.reason("Job", "pi", condition).is_empty()
            && world.all("Event").any(|event| text(event, "/reason") == reason)
    })
}

/// The active Pods, in the order of their indexes.
fn at_work(stage: &Stage) -> Vec<String> {
    stage.world().pods_where(is_active)
}

async fn end(stage: &mut Stage, pod: &str, phase: &str, code: i64) -> Result {
    stage.report(pod, ended(phase, code)).await
}

async fn one_completion(stage: &mut Stage) -> Result {
    stage.apply(&manifest("")).await?;
    stage.record("a Pod is made", active(1)).await?;
    stage.start_all().await?;
    stage.record("it is ready", rest(|world| world.number("Job", "pi", "/status/ready") == 1)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Succeeded", 0).await?;
    stage.record("the Job is complete", is("Complete", "Completed")).await
}

async fn many_completions(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  completions: 5\n  parallelism: 2\n")).await?;
    stage.record("two Pods are made", active(2)).await?;
    for done in 1..=5 {
        let pod = at_work(stage).remove(0);
        end(stage, &pod, "Succeeded", 0).await?;
        let left = (5 - usize::try_from(done)?).min(2);
        stage
            .until("it is counted and replaced", move |world| counted(done, 0)(world) && active(left)(world))
            .await?;
    }
    stage.record("all five have succeeded", is("Complete", "Completed")).await
}

async fn work_queue(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  parallelism: 2\n")).await?;
    stage.until("two Pods are made", active(2)).await?;
    let pods = at_work(stage);
    end(stage, &pods[0], "Succeeded", 0).await?;
    stage.record("no more are made after a success", counted(1, 0)).await?;
    end(stage, &pods[1], "Succeeded", 0).await?;
    stage.record("the Job is complete once all have ended", is("Complete", "Completed")).await
}

async fn failures(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  backoffLimit: 1\n")).await?;
    stage.until("a Pod is made", active(1)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Failed", 1).await?;
    stage.record("another is made", |world| active(1)(world) && counted(0, 1)(world)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Failed", 1).await?;
    stage.record("the Job has failed", is("Failed", "BackoffLimitExceeded")).await
}

async fn no_failure_allowed(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  backoffLimit: 0\n  completions: 2\n  parallelism: 2\n")).await?;
    stage.until("two Pods are made", active(2)).await?;
    stage.start_all().await?;
    stage.until("both run", rest(|world| world.number("Job", "pi", "/status/ready") == 2)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Failed", 1).await?;
    stage.record("the other is told to end", going(1)).await?;
    stage.finish_all().await?;
    stage.record("the Job has failed", is("Failed", "BackoffLimitExceeded")).await
}

async fn restarts_in_place(stage: &mut Stage) -> Result {
    let manifest =
        manifest("  backoffLimit: 2\n").replace("restartPolicy: Never", "restartPolicy: OnFailure");
    stage.apply(&manifest).await?;
    stage.until("a Pod is made", active(1)).await?;
    let pod = at_work(stage).remove(0);
    stage.start(&pod, true).await?;
    let status = json!({ "phase": "Running", "containerStatuses": [{
        "name": "pi", "image": "pi", "imageID": "", "ready": false, "restartCount": 2,
    }] });
    stage.report(&pod, status).await?;
    stage.until("it is told to end", |world| world.pods_where(is_terminating).len() == 1).await?;
    stage.finish_all().await?;
    stage.record("the Job has failed", is("Failed", "BackoffLimitExceeded")).await
}

async fn deadline(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  activeDeadlineSeconds: 10\n")).await?;
    stage.until("a Pod is made", |world| world.pods_where(is_active).len() == 1).await?;
    stage.start_all().await?;
    stage.record("the Pod is told to end", going(1)).await?;
    stage.finish_all().await?;
    stage.record("the Job has failed", is("Failed", "DeadlineExceeded")).await
}

async fn suspended(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  suspend: true\n")).await?;
    let told = |reason: &'static str| {
        move |world: &World| world.all("Event").any(|event| text(event, "/reason") == reason)
    };
    stage.record("nothing is made", |world| is("Suspended", "Suspended")(world)).await?;
    stage.kubectl("patch job pi -p {\"spec\":{\"suspend\":false}}").await?;
    stage.record("it is resumed", move |world| active(1)(world) && told("Resumed")(world)).await?;
    stage.start_all().await?;
    stage.until("the Pod runs", rest(|world| world.number("Job", "pi", "/status/ready") == 1)).await?;
    stage.kubectl("patch job pi -p {\"spec\":{\"suspend\":true}}").await?;
    stage
        .record("the Pod is told to end", |world| going(1)(world) && events(world, "Suspended") == 2)
        .await?;
    stage.finish_all().await?;
    stage.record("it is not counted", counted(0, 0)).await
}

async fn indexed(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  completionMode: Indexed\n  completions: 4\n  parallelism: 3\n")).await?;
    stage.record("Pods with indexes are made", active(3)).await?;
    let pods = at_work(stage);
    end(stage, &pods[0], "Succeeded", 0).await?;
    stage.until("it is counted", |world| counted(1, 0)(world) && active(3)(world)).await?;
    end(stage, &pods[2], "Succeeded", 0).await?;
    stage.record("two indexes are done", |world| counted(2, 0)(world) && active(2)(world)).await?;
    end(stage, &pods[1], "Failed", 1).await?;
    stage.record("an index is tried again", |world| counted(2, 1)(world) && active(2)(world)).await?;
    for pod in at_work(stage) {
        end(stage, &pod, "Succeeded", 0).await?;
    }
    stage.record("all indexes are done", is("Complete", "Completed")).await
}

async fn limit_per_index(stage: &mut Stage) -> Result {
    stage
        .apply(&manifest(
            "  completionMode: Indexed\n  completions: 2\n  parallelism: 2\n  backoffLimitPerIndex: 1\n",
        ))
        .await?;
    stage.record("Pods with counts of failures are made", active(2)).await?;
    let pods = at_work(stage);
    end(stage, &pods[0], "Failed", 1).await?;
    stage.record("an index is tried again", |world| counted(0, 1)(world) && active(2)(world)).await?;
    let again = at_work(stage).into_iter().find(|pod| !pods.contains(pod)).unwrap_or_default();
    end(stage, &again, "Failed", 1).await?;
    stage.record("an index has failed", |world| counted(0, 2)(world) && active(1)(world)).await?;
    end(stage, &pods[1], "Succeeded", 0).await?;
    stage.record("the Job has failed", is("Failed", "FailedIndexes")).await
}

async fn too_many_failed_indexes(stage: &mut Stage) -> Result {
    let spec = "  completionMode: Indexed\n  completions: 3\n  parallelism: 3\n  backoffLimitPerIndex: 0\n  maxFailedIndexes: 1\n";
    stage.apply(&manifest(spec)).await?;
    stage.until("three Pods are made", active(3)).await?;
    let pods = at_work(stage);
    end(stage, &pods[0], "Failed", 1).await?;
    stage.record("one index has failed", counted(0, 1)).await?;
    end(stage, &pods[1], "Failed", 1).await?;
    stage.record("the Job has failed", is("Failed", "MaxFailedIndexesExceeded")).await
}

fn policy(action: &str) -> String {
    manifest(&format!(
        "  podFailurePolicy: {{rules: [{{action: {action}, onExitCodes: {{operator: In, values: [42]}}}}]}}\n"
    ))
}

async fn failure_policy(stage: &mut Stage) -> Result {
    stage.apply(&policy("FailJob")).await?;
    stage.until("a Pod is made", active(1)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Failed", 42).await?;
    stage.record("the Job has failed", is("Failed", "PodFailurePolicy")).await
}

async fn ignored_failure(stage: &mut Stage) -> Result {
    stage.apply(&policy("Ignore")).await?;
    stage.until("a Pod is made", active(1)).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Failed", 42).await?;
    stage
        .record("another is made, and nothing counted", |world| active(1)(world) && world.pods.len() == 2)
        .await
}

async fn success_policy(stage: &mut Stage) -> Result {
    let spec = "  completionMode: Indexed\n  completions: 3\n  parallelism: 3\n  successPolicy: {rules: [{succeededIndexes: \"1-2\", succeededCount: 1}]}\n";
    stage.apply(&manifest(spec)).await?;
    stage.until("three Pods are made", active(3)).await?;
    stage.start_all().await?;
    stage.until("all run", rest(|world| world.number("Job", "pi", "/status/ready") == 3)).await?;
    let pods = at_work(stage);
    end(stage, &pods[1], "Succeeded", 0).await?;
    stage.record("the others are told to end", going(2)).await?;
    stage.finish_all().await?;
    stage.record("the Job is complete", is("Complete", "Completed")).await
}

async fn deleted_pod(stage: &mut Stage) -> Result {
    stage.apply(&manifest("")).await?;
    stage.until("a Pod is made", active(1)).await?;
    stage.start_all().await?;
    stage.until("it runs", rest(|world| world.number("Job", "pi", "/status/ready") == 1)).await?;
    let pod = at_work(stage).remove(0);
    stage.kubectl(&format!("delete pod {pod} --wait=false")).await?;
    stage
        .record("it counts as failed, and another is made", |world| counted(0, 1)(world) && active(1)(world))
        .await
}

async fn replaced_once_failed(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  podReplacementPolicy: Failed\n")).await?;
    stage.until("a Pod is made", active(1)).await?;
    stage.start_all().await?;
    stage.until("it runs", rest(|world| world.number("Job", "pi", "/status/ready") == 1)).await?;
    let pod = at_work(stage).remove(0);
    stage.kubectl(&format!("delete pod {pod} --wait=false")).await?;
    stage.record("no other is made while it ends", |world| counted(0, 0)(world) && active(0)(world)).await?;
    end(stage, &pod, "Failed", 1).await?;
    stage.record("another is made", |world| counted(0, 1)(world) && active(1)(world)).await
}

async fn less_parallel(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  completions: 3\n  parallelism: 3\n")).await?;
    stage.until("three Pods are made", active(3)).await?;
    let pod = at_work(stage).remove(1);
    stage.start(&pod, true).await?;
    stage.kubectl("patch job pi -p {\"spec\":{\"parallelism\":1}}").await?;
    stage
        .record("the one that runs is left", |world| {
            active(1)(world)
                && world.pods_where(|_| true).len() == 1
                && events(world, "SuccessfulDelete") == 2
        })
        .await
}

async fn time_to_live(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  ttlSecondsAfterFinished: 1\n")).await?;
    stage.until("a Pod is made", |world| world.pods_where(is_active).len() == 1).await?;
    let pod = at_work(stage).remove(0);
    end(stage, &pod, "Succeeded", 0).await?;
    stage
        .record("nothing is left", |world| {
            world.all("Job").count() == 0
                && world.pods_where(|_| true).is_empty()
                && world.all("Event").any(|event| text(event, "/reason") == "Completed")
        })
        .await
}

async fn adoption(stage: &mut Stage) -> Result {
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: stray, labels: {app: pi}}
spec: {restartPolicy: Never, containers: [{name: pi, image: other}]}
";
    stage.apply(pod).await?;
    stage.apply(&manifest("  manualSelector: true\n  selector: {matchLabels: {app: pi}}\n")).await?;
    stage.record("the Pod is taken in", active(1)).await?;
    end(stage, "stray", "Succeeded", 0).await?;
    stage.record("it completes the Job", is("Complete", "Completed")).await
}

async fn two_run(stage: &mut Stage) -> Result {
    stage.apply(&manifest("  completions: 2\n  parallelism: 2\n")).await?;
    stage.until("two Pods are made", active(2)).await?;
    stage.start_all().await?;
    stage.until("both run", rest(|world| world.number("Job", "pi", "/status/ready") == 2)).await
}

async fn deletion_background(stage: &mut Stage) -> Result {
    two_run(stage).await?;
    stage.kubectl("delete job/pi --wait=false").await?;
    let let_go = |pod: &Value| is_terminating(pod) && !is_tracked(pod);
    stage
        .record("the Pods are told to end, and let go", move |world| {
            world.get("Job", "pi").is_none() && world.pods_where(let_go).len() == 2
        })
        .await?;
    stage.finish_all().await?;
    stage.record("nothing is left", |world| world.pods_where(|_| true).is_empty()).await
}

async fn deletion_foreground(stage: &mut Stage) -> Result {
    two_run(stage).await?;
    stage.kubectl("delete job/pi --cascade=foreground --wait=false").await?;
    let let_go = |pod: &Value| is_terminating(pod) && !is_tracked(pod);
    stage.until("the Job waits for its Pods", move |world| world.pods_where(let_go).len() == 2).await?;
    stage.finish_all().await?;
    stage
        .record("nothing is left", |world| {
            world.get("Job", "pi").is_none() && world.pods_where(|_| true).is_empty()
        })
        .await
}

async fn deletion_orphan(stage: &mut Stage) -> Result {
    two_run(stage).await?;
    stage.kubectl("delete job/pi --cascade=orphan").await?;
    stage
        .record("the Pods are left, and nobody holds them", |world| {
            world.get("Job", "pi").is_none()
                && world
                    .pods_where(|pod| pod["metadata"]["ownerReferences"].is_null() && !is_tracked(pod))
                    .len()
                    == 2
        })
        .await
}
