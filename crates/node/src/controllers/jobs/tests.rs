//! Tables and properties over `plan`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ContainerStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::Operation;
use super::worker;
use super::world::{World, job};
use crate::controllers::pods;

/// What becomes of the status, without times and without what is zero.
fn counts(world: &World) -> Value {
    let status = world.status();
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    assert_eq!((uncounted.succeeded, uncounted.failed), (None, None));
    json!([
        status.active.unwrap_or(0),
        status.succeeded.unwrap_or(0),
        status.failed.unwrap_or(0),
        status.terminating.unwrap_or(0)
    ])
}

fn told(operations: &[Operation]) -> Vec<&'static str> {
    operations
        .iter()
        .map(|operation| match operation {
            Operation::AdoptPod { .. } => "adopt",
            Operation::ReleasePod { .. } => "release",
            Operation::CreatePod(_) => "create",
            Operation::DeletePod { .. } => "delete",
            Operation::RemoveFinalizer { .. } => "unhold",
            Operation::WriteStatus { .. } => "status",
            Operation::DeleteJob { .. } => "delete job",
        })
        .collect()
}

fn step(world: &mut World) -> Vec<&'static str> {
    told(&world.step())
}

fn nothing() -> Vec<&'static str> {
    Vec::new()
}

#[test]
fn runs_one_pod_to_completion() {
    let mut world = World::new(job(json!({})));
    assert_eq!(step(&mut world), ["create", "status"]);
    assert_eq!(counts(&world), json!([1, 0, 0, 0]));
    assert!(world.status().start_time.is_some());
    assert_eq!(step(&mut world), nothing());
    let pod = world.active().remove(0);
    world.finish(&pod, "Succeeded", 0);
    // The end is recorded, then the Pod is let go, then it is counted.
    assert_eq!(step(&mut world), ["status", "unhold", "status"]);
    assert_eq!(counts(&world), json!([0, 1, 0, 0]));
    assert_eq!(
        world.conditions(),
        ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"]
    );
    assert!(world.status().completion_time.is_some());
    assert_eq!(world.notes.iter().map(|note| note.reason.as_str()).collect::<Vec<_>>(), ["Completed"]);
    assert_eq!(step(&mut world), nothing());
}

#[test]
fn keeps_to_parallelism_and_completions() {
    let mut world = World::new(job(json!({"completions": 3, "parallelism": 2})));
    world.step();
    for (finished, active) in [(1, 2), (2, 1), (3, 0)] {
        let pod = world.active().remove(0);
        world.finish(&pod, "Succeeded", 0);
        world.step();
        assert_eq!(counts(&world), json!([active, finished, 0, 0]));
    }
    assert_eq!(world.conditions().len(), 2);
}

#[test]
fn a_work_queue_makes_no_more_after_the_first_success() {
    let mut world = World::new(job(json!({"completions": null, "parallelism": 2})));
    world.step();
    let pods = world.active();
    world.finish(&pods[0], "Succeeded", 0);
    world.step();
    assert_eq!((world.active().len(), world.conditions().len()), (1, 0));
    world.finish(&pods[1], "Succeeded", 0);
    world.step();
    assert_eq!(counts(&world), json!([0, 2, 0, 0]));
    assert_eq!(world.conditions().len(), 2);
}

#[test]
fn waits_longer_after_every_failure_and_gives_up() {
    let mut world = World::new(job(json!({"backoffLimit": 2})));
    world.step();
    for wait in [10, 20] {
        let pod = world.active().remove(0);
        world.finish(&pod, "Failed", 1);
        assert_eq!(step(&mut world), ["status", "unhold", "status"]);
        assert_eq!(world.plan().requeue.map(|wait| wait.as_secs()), Some(wait));
        world.wait(i64::try_from(wait).expect("short") - 1);
        assert_eq!(step(&mut world), nothing());
        world.wait(1);
        assert_eq!(step(&mut world), ["create", "status"]);
    }
    let pod = world.active().remove(0);
    world.finish(&pod, "Failed", 1);
    world.step();
    assert_eq!(counts(&world), json!([0, 0, 3, 0]));
    assert_eq!(
        world.conditions(),
        ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"]
    );
    assert_eq!(world.notes[0].message, "Job has reached the specified backoff limit");
    assert_eq!(step(&mut world), nothing());
}

#[test]
fn back_off_survives_a_restart() {
    let mut world = World::new(job(json!({})));
    world.step();
    let pod = world.active().remove(0);
    world.finish(&pod, "Failed", 1);
    world.step();
    world.observed.backoff = None;
    assert_eq!(world.plan().requeue.map(|wait| wait.as_secs()), Some(10));
}

#[test]
fn failing_stops_those_still_at_work_and_counts_them() {
    let mut world = World::new(job(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0})));
    world.step();
    let pods = world.active();
    world.finish(&pods[0], "Failed", 1);
    assert_eq!(step(&mut world), ["delete", "status", "unhold", "unhold", "status"]);
    assert_eq!(counts(&world), json!([0, 0, 2, 1]));
    // Not over before the last has stopped.
    assert_eq!(world.conditions(), ["FailureTarget=True BackoffLimitExceeded"]);
    world.stop(&pods[1]);
    assert_eq!(step(&mut world), ["status"]);
    assert_eq!(world.conditions().len(), 2);
}

#[test]
fn restarts_in_place_count_towards_the_limit() {
    let template = json!({
        "metadata": {"labels": {"batch.kubernetes.io/controller-uid": "job-uid"}},
        "spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]},
    });
    let mut world = World::new(job(json!({"backoffLimit": 2, "template": template})));
    world.step();
    let pod = world.active().remove(0);
    for (restarts, over) in [(1, false), (2, true)] {
        world.change(&pod, |pod| {
            let status = ContainerStatus { restart_count: restarts, ..ContainerStatus::default() };
            pod.status.get_or_insert_default().container_statuses = Some(vec![status]);
        });
        world.step();
        assert_eq!(!world.conditions().is_empty(), over, "{restarts}");
    }
}

#[test]
fn a_deadline_ends_the_job() {
    let mut world = World::new(job(json!({"activeDeadlineSeconds": 5})));
    world.step();
    assert_eq!(world.plan().requeue.map(|wait| wait.as_secs()), Some(5));
    world.wait(5);
    assert_eq!(step(&mut world), ["delete", "status", "unhold", "status"]);
    assert_eq!(world.conditions(), ["FailureTarget=True DeadlineExceeded"]);
}

#[test]
fn suspending_stops_the_clock_and_counts_nothing() {
    let mut world = World::new(job(json!({"suspend": true, "activeDeadlineSeconds": 5})));
    assert_eq!(step(&mut world), ["status"]);
    assert_eq!(
        (world.status().start_time, world.conditions()),
        (None, vec!["Suspended=True JobSuspended".into()])
    );
    world.wait(60);
    world.edit(|spec| spec.suspend = Some(false));
    assert_eq!(step(&mut world), ["create", "status"]);
    assert_eq!(world.conditions(), ["Suspended=False JobResumed"]);
    assert_eq!(world.status().start_time, Some(Time(world.now)));
    let pod = world.active().remove(0);
    world.edit(|spec| spec.suspend = Some(true));
    assert_eq!(step(&mut world), ["unhold", "delete", "status"]);
    assert_eq!((counts(&world), world.status().start_time), (json!([0, 0, 0, 1]), None));
    world.stop(&pod);
    world.step();
    assert_eq!(counts(&world), json!([0, 0, 0, 0]));
    let reasons: Vec<&str> = world.notes.iter().map(|note| note.reason.as_str()).collect();
    assert_eq!(reasons, ["Suspended", "Resumed", "Suspended"]);
}

#[test]
fn goes_when_its_time_has_come() {
    let mut world = World::new(job(json!({"ttlSecondsAfterFinished": 30})));
    world.step();
    let pod = world.active().remove(0);
    world.finish(&pod, "Succeeded", 0);
    world.step();
    assert_eq!(world.plan().requeue.map(|wait| wait.as_secs()), Some(30));
    world.wait(30);
    assert_eq!(step(&mut world), ["delete job"]);
}

#[test]
fn indexed_pods_know_their_index() {
    let mut world = World::new(job(json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed"})));
    world.step();
    let pods = world.active();
    assert!(pods[0].starts_with("pi-0-") && pods[1].starts_with("pi-1-"), "{pods:?}");
    let pod = world.pod(&pods[1]).expect("a Pod");
    assert_eq!((pod.annotations()[worker::INDEX].as_str(), pod.labels()[worker::INDEX].as_str()), ("1", "1"));
    let spec = serde_json::to_value(&pod.spec).expect("a spec");
    assert_eq!(spec["hostname"], "pi-1");
    assert_eq!(
        spec["containers"][0]["env"][0],
        json!({
            "name": "JOB_COMPLETION_INDEX",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}},
        })
    );
    world.finish(&pods[1], "Succeeded", 0);
    world.step();
    assert_eq!(world.status().completed_indexes.as_deref(), Some("1"));
    assert!(world.active().iter().any(|pod| pod.starts_with("pi-2-")));
    for pod in world.active() {
        world.finish(&pod, "Succeeded", 0);
    }
    world.step();
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0-2"));
    assert_eq!(counts(&world), json!([0, 3, 0, 0]));
}

#[test]
fn an_index_has_its_own_limit() {
    let mut world = World::new(job(json!({
        "completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "backoffLimit": 2147483647,
    })));
    world.step();
    let pods = world.active();
    world.finish(&pods[0], "Failed", 1);
    // The failed Pod is kept until its replacement has learnt from it.
    assert_eq!(step(&mut world), ["status"]);
    world.wait(10);
    assert_eq!(step(&mut world), ["create", "status"]);
    assert_eq!(step(&mut world), ["status", "unhold", "status"]);
    let again = world.active().into_iter().find(|pod| pod.starts_with("pi-0-")).expect("replaced");
    assert_eq!(world.pod(&again).expect("a Pod").annotations()[worker::FAILURES], "1");
    world.finish(&again, "Failed", 1);
    world.step();
    assert_eq!(world.status().failed_indexes.as_deref(), Some("0"));
    assert!(world.conditions().is_empty());
    world.finish(&pods[1], "Succeeded", 0);
    world.step();
    assert_eq!(world.conditions(), ["FailureTarget=True FailedIndexes", "Failed=True FailedIndexes"]);
    assert_eq!(counts(&world), json!([0, 1, 2, 0]));
}

#[test]
fn too_many_failed_indexes_end_the_job() {
    let mut world = World::new(job(json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 0, "backoffLimit": 2147483647,
    })));
    world.step();
    let pod = world.active().remove(0);
    world.finish(&pod, "Failed", 1);
    world.step();
    assert_eq!(world.conditions(), ["FailureTarget=True MaxFailedIndexesExceeded"]);
}

#[test]
fn the_failure_policy_has_its_say() {
    let policy = |action: &str| {
        json!({
            "podFailurePolicy": {"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]},
            "podReplacementPolicy": "Failed",
        })
    };
    for (action, failed, message) in [
        ("Ignore", 0, None),
        ("Count", 1, None),
        (
            "FailJob",
            1,
            Some("Container c for pod here/pi-001 failed with exit code 42 matching FailJob rule at index 0"),
        ),
    ] {
        let mut world = World::new(job(policy(action)));
        world.step();
        let pod = world.active().remove(0);
        world.finish(&pod, "Failed", 42);
        world.step();
        assert_eq!(counts(&world)[2], json!(failed), "{action}");
        let said = world.status().conditions.and_then(|mut all| all.remove(0).message);
        assert_eq!(said.as_deref(), message, "{action}");
    }
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let mut world = World::new(job(json!({
        "completions": 3, "parallelism": 3, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]},
    })));
    world.step();
    let pods = world.active();
    world.finish(&pods[1], "Succeeded", 0);
    world.step();
    assert_eq!(world.conditions(), ["SuccessCriteriaMet=True SuccessPolicy"]);
    world.stop(&pods[0]);
    world.stop(&pods[2]);
    world.step();
    assert_eq!((counts(&world), world.conditions().len()), (json!([0, 1, 0, 0]), 2));
}

#[test]
fn replaces_at_once_or_only_what_has_failed() {
    for (policy, failed, made) in [("TerminatingOrFailed", 1, 2), ("Failed", 0, 1)] {
        let mut world = World::new(job(json!({"podReplacementPolicy": policy})));
        world.step();
        let pod = world.active().remove(0);
        world.delete(&pod);
        world.step();
        world.wait(10);
        world.step();
        assert_eq!(
            (world.observed.pods.len(), world.status().failed.unwrap_or(0)),
            (made, failed),
            "{policy}"
        );
    }
}

#[test]
fn fewer_at_work_means_the_least_advanced_go() {
    let mut world = World::new(job(json!({"completions": 3, "parallelism": 3})));
    world.step();
    let pods = world.active();
    world.change(&pods[1], |pod| pod.spec.get_or_insert_default().node_name = Some("node".into()));
    world.edit(|spec| spec.parallelism = Some(1));
    world.step();
    assert_eq!((world.active(), counts(&world)), (vec![pods[1].clone()], json!([1, 0, 0, 2])));
}

#[test]
fn takes_in_orphans_and_lets_strays_go() {
    let mut world = World::new(job(json!({})));
    world.step();
    let mut orphan = (*world.observed.pods.remove(0)).clone();
    orphan.metadata.finalizers = None;
    world.observed.strays = vec![Arc::new(orphan.clone())];
    world.observed.orphans = vec![Arc::new(orphan)];
    assert_eq!(step(&mut world), ["adopt", "release"]);
    assert!(world.observed.pods.iter().all(|pod| worker::is_tracked(pod)));
}

#[test]
fn leaves_jobs_of_other_controllers_alone() {
    let mut world = World::new(job(json!({"managedBy": "example.com/other"})));
    assert_eq!(step(&mut world), nothing());
}

#[test]
fn a_job_on_its_way_out_holds_no_pod() {
    let mut world = World::new(job(json!({})));
    world.step();
    world.observed.job.metadata.deletion_timestamp = Some(Time(world.now));
    assert_eq!(step(&mut world), ["unhold"]);
}

#[derive(Debug, Clone)]
enum Act {
    /// Plan, and crash after this many writes.
    Step(usize),
    Succeed(usize),
    Fail(usize),
    Delete(usize),
    Stop(usize),
    Wait(i64),
    Suspend(bool),
    Parallelism(i32),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => prop_oneof![0..5_usize, Just(usize::MAX)].prop_map(Act::Step),
        4 => (0..4_usize).prop_map(Act::Succeed),
        2 => (0..4_usize).prop_map(Act::Fail),
        1 => (0..4_usize).prop_map(Act::Delete),
        2 => (0..8_usize).prop_map(Act::Stop),
        3 => (1..40_i64).prop_map(Act::Wait),
        1 => any::<bool>().prop_map(Act::Suspend),
        1 => (0..4).prop_map(Act::Parallelism),
    ];
    prop::collection::vec(act, 1..60)
}

fn jobs() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"completions": 4, "parallelism": 2})),
        Just(json!({"completions": null, "parallelism": 2})),
        Just(json!({"completions": 3, "parallelism": 3, "podReplacementPolicy": "Failed"})),
        Just(json!({"completions": 4, "parallelism": 3, "completionMode": "Indexed"})),
        Just(
            json!({"completions": 4, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
                    "backoffLimit": 2147483647})
        ),
    ]
}

/// Acts; what a deleted Pod comes to is left out of the exact counts.
fn perform(world: &mut World, act: &Act, deleted: &mut bool) {
    let running = |world: &World, n: usize| world.active().get(n).cloned();
    match act {
        Act::Step(writes) => world.step_partly(*writes),
        Act::Succeed(n) => running(world, *n).into_iter().for_each(|pod| world.finish(&pod, "Succeeded", 0)),
        Act::Fail(n) => running(world, *n).into_iter().for_each(|pod| world.finish(&pod, "Failed", 1)),
        Act::Delete(n) => {
            *deleted = true;
            running(world, *n).into_iter().for_each(|pod| world.delete(&pod));
        }
        Act::Stop(n) => {
            let name = world.observed.pods.get(*n).map(|pod| pod.name_any());
            if let Some(name) = name {
                world.stop(&name);
            }
        }
        Act::Wait(seconds) => world.wait(*seconds),
        Act::Suspend(suspend) => {
            *deleted |= *suspend;
            world.edit(|spec| spec.suspend = Some(*suspend));
        }
        Act::Parallelism(n) => {
            *deleted = true;
            world.edit(|spec| spec.parallelism = Some(*n));
        }
    }
}

/// Follows the Job to its end: every Pod succeeds, and what is told to go goes.
fn drive(world: &mut World) {
    world.edit(|spec| {
        spec.suspend = Some(false);
        spec.parallelism = Some(2);
    });
    for _ in 0..200 {
        world.step();
        for pod in world.active() {
            world.finish(&pod, "Succeeded", 0);
        }
        let names: Vec<String> = world.observed.pods.iter().map(|pod| pod.name_any()).collect();
        names.iter().for_each(|name| world.stop(name));
        world.wait(600);
        if super::status::ended_at(&world.observed.job).is_some() {
            return;
        }
    }
    unreachable!("the Job never ends: {:?}", world.status());
}

/// What is counted and what is recorded never comes to more than what happened.
fn no_end_twice(world: &World) -> Result<(), TestCaseError> {
    let status = world.status();
    let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
    let total = |counted: Option<i32>, uids: Option<Vec<String>>| {
        usize::try_from(counted.unwrap_or(0)).unwrap_or(0) + uids.map_or(0, |uids| uids.len())
    };
    prop_assert!(total(status.succeeded, uncounted.succeeded) <= world.succeeded.len());
    prop_assert!(total(status.failed, uncounted.failed) <= world.failed.union(&world.told).count());
    Ok(())
}

proptest! {
    /// Whatever is cut short: never more at work than allowed, and every end is counted exactly once.
    #[test]
    fn counts_every_end_once(spec in jobs(), acts in acts()) {
        let mut world = World::new(job(spec.clone()));
        let mut deleted = false;
        for act in &acts {
            let before = world.active().len();
            perform(&mut world, act, &mut deleted);
            let most = world.observed.job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(0);
            let made = world.active().len();
            prop_assert!(made <= before || i32::try_from(made).unwrap_or(i32::MAX) <= most, "{made} at work");
            no_end_twice(&world)?;
        }
        drive(&mut world);
        no_end_twice(&world)?;
        let status = world.status();
        let (succeeded, failed) = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
        let indexed = spec["completionMode"] == "Indexed";
        let happened = i32::try_from(world.succeeded.len()).unwrap_or(i32::MAX);
        if indexed {
            prop_assert!(succeeded <= happened);
        } else if !deleted {
            prop_assert_eq!(succeeded, happened);
        }
        let failures = i32::try_from(world.failed.len()).unwrap_or(i32::MAX);
        let complete = world.conditions().iter().any(|one| one.starts_with("Complete"));
        if !deleted && complete {
            prop_assert_eq!(failed, failures);
        }
        prop_assert!(world.observed.pods.iter().all(|pod| !worker::is_tracked(pod) || !pods::is_finished(pod)));
    }

    /// A plan that was carried out leaves nothing to do until something happens. The one exception: what a
    /// replacement has learnt from is let go in the next.
    #[test]
    fn a_done_plan_is_done(spec in jobs(), acts in acts()) {
        let mut world = World::new(job(spec.clone()));
        for act in &acts {
            perform(&mut world, act, &mut false);
        }
        world.step();
        if !spec["backoffLimitPerIndex"].is_null() {
            world.step();
        }
        prop_assert_eq!(world.plan().operations, vec![]);
    }
}
