//! Which instances are started, and which go.

use agentcube_api::{Task, labels};
use agentcube_instance::lifecycle::Reason;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use super::world::{Behaviour, Made, World, on_a_node, options, remove, run};

#[tokio::test]
async fn the_minimum_is_kept_and_what_dies_is_replaced() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "minInstances": 2, "maxInstances": 3 })).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.until("two instances", |world| world.names() == ["agent-0", "agent-1"]).await;
    let first = world.pod("agent-0").unwrap();
    assert_eq!(first.labels()[labels::SPEC_ID], "agent-1");
    assert!(!first.annotations().contains_key(labels::CREATED_FOR));
    world.until("an Event", |world| world.told("Task", "agent", "MinimumKept")).await;
    world.status("agent-0", json!({ "status": { "phase": "Failed" } })).await;
    let replaced = |world: &World| {
        world.names().len() == 2 && world.pod("agent-0").is_none_or(|pod| pod.uid() != first.uid())
    };
    world.until("another one in its place", replaced).await;
    assert_eq!(running.reclaimed.of(Reason::InstanceDead), 1);
    world.scale(&task, json!({ "minInstances": 3 })).await;
    world.until("three instances", |world| world.names().len() == 3).await;
    running.stop().await;
}

#[tokio::test]
async fn a_slot_that_something_else_has_taken_is_left_out() {
    let world = World::new().await;
    let foreign = json!({ "metadata": { "name": "agent-0" },
        "spec": { "containers": [{ "name": "other", "image": "other:1" }] } });
    let foreign: Pod = serde_json::from_value(foreign).unwrap();
    let foreign = world.api::<Pod>().create(&PostParams::default(), &foreign).await.unwrap();
    let _task = world.task("agent", json!({ "minInstances": 1, "maxInstances": 3 })).await;
    let running = run(world.client.clone(), options());
    world.until("an instance", |world| world.pod("agent-1").is_some()).await;
    assert_eq!(world.pod("agent-0").unwrap().uid(), foreign.uid());
    running.stop().await;
}

/// A Task without a minimum, and instances that were last used so many seconds ago.
async fn used(world: &World, ago: &[u64]) -> Made {
    let lifecycle = json!({ "reusePolicy": "Always", "idleTimeout": "300s" });
    let scaling = json!({ "scalingMode": "OnDemand", "minInstances": 3, "instanceLifecycle": lifecycle });
    let task = world.task("agent", scaling).await;
    for (slot, ago) in (0..).zip(ago) {
        let pod = world.instance(&task, 1, slot).await;
        let at = jiff::Timestamp::now() - std::time::Duration::from_secs(*ago);
        world.annotate(&pod.name_any(), json!({ labels::LAST_ACTIVE: at.to_string() })).await;
    }
    task
}

#[tokio::test]
async fn excess_goes_by_and_by_the_longest_idle_first() {
    let world = World::new().await;
    let task = used(&world, &[1000, 5000, 400]).await;
    // An instance counts as idle since its creation at the earliest.
    world.scale(&task, json!({ "instanceLifecycle": { "idleTimeout": "1ms" } })).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    let lowered = |min| json!({ "minInstances": min });
    world.scale(&task, lowered(2)).await;
    world.until("one to go", |world| world.names().len() == 2).await;
    world.scale(&task, lowered(0)).await;
    world.until("all to go", |world| world.names().is_empty()).await;
    world.until("an Event", |world| world.told("Task", "agent", "InstanceExcess")).await;
    assert_eq!(running.reclaimed.of(Reason::InstanceExcess), 3);
    running.stop().await;
}

#[tokio::test]
async fn an_instance_in_use_stays() {
    let world = World::new().await;
    let task = used(&world, &[1000]).await;
    world.scale(&task, json!({ "minInstances": 0, "instanceLifecycle": { "idleTimeout": "1ms" } })).await;
    let router = world.router("a", Behaviour::Objects).await;
    let running = run(world.client.clone(), options());
    let mut objections = router.objections.clone();
    objections.wait_for(|objections| *objections >= 2).await.unwrap();
    assert_eq!(world.names(), ["agent-0"]);
    running.stop().await;
}

#[tokio::test]
async fn an_old_revision_is_drained() {
    let world = World::new().await;
    let lifecycle = json!({ "reusePolicy": "Always", "idleTimeout": "300s" });
    let scaling = json!({ "scalingMode": "OnDemand", "minInstances": 1, "instanceLifecycle": lifecycle });
    let task = world.task("agent", scaling).await;
    let held = world.instance(&task, 1, 0).await;
    world.instance(&task, 1, 1).await;
    let lease = world.session(&task, "user-1", &held, 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.revision(&task, 2, "slots").await;
    let of = |world: &World, spec: &str| -> Vec<String> {
        let pods = world.pods.list(Some("default"));
        pods.iter().filter(|pod| pod.labels()[labels::SPEC_ID] == spec).map(|pod| pod.name_any()).collect()
    };
    world.until("the idle one to go", |world| of(world, "agent-1") == ["agent-0"]).await;
    world.until("a new one", |world| of(world, "agent-2").len() == 1).await;
    assert!(world.now(&lease).is_some());
    // The held one goes with its session, though it could be used again.
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = world.api();
    leases.delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
    world.until("the held one to go", |world| of(world, "agent-1").is_empty()).await;
    assert_eq!(running.reclaimed.of(Reason::RevisionDrained), 1);
    running.stop().await;
}

#[tokio::test]
async fn leftovers_are_cleared_away() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scalingMode": "OnDemand" })).await;
    // Held for a session that does not exist; spoilt; half bound and abandoned; waiting and abandoned; bound.
    for slot in 0..4 {
        world.instance(&task, 1, slot).await;
    }
    let held = json!({ labels::RESERVE_KEY: "user-0", labels::RESERVATION: "no-such-lease.0" });
    world.annotate("agent-0", held).await;
    world
        .annotate("agent-1", json!({ labels::RESERVE_KEY: "user-1", labels::RESERVATION: "nonsense" }))
        .await;
    let half = world.pod("agent-2").unwrap();
    let half = world.lease(&task, "user-2", &format!("agent-2/{}", half.uid().unwrap()), 0).await;
    let waiting = world.lease(&task, "user-4", "", 0).await;
    let bound = world.session(&task, "user-3", &world.pod("agent-3").unwrap(), 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.until("the leftovers to go", |world| world.names() == ["agent-2", "agent-3"]).await;
    world
        .until("the bindings to go", |world| [&half, &waiting].iter().all(|lease| world.now(lease).is_none()))
        .await;
    for reason in ["OrphanRemoved", "InstanceSpoilt", "BindingAbandoned"] {
        world.until(reason, |world| world.told("Task", "agent", reason)).await;
    }
    world.until("an Event on the Pod", |world| world.told("Pod", "agent-1", "InstanceSpoilt")).await;
    assert!(world.now(&bound).is_some());
    running.stop().await;
}

#[tokio::test]
async fn what_a_task_left_behind_is_cleared_away() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scalingMode": "OnDemand" })).await;
    let pod = world.instance_with(&task, 1, 0, on_a_node).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    // Nobody is at work while the Task goes, so that its Lease is left with its finalizer.
    world.api::<Task>().delete("agent", &DeleteParams::default()).await.unwrap();
    world
        .until("the garbage collector", |world| {
            world.now(&lease).is_some_and(|lease| lease.metadata.deletion_timestamp.is_some())
        })
        .await;
    let running = run(world.client.clone(), options());
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    remove(&world, "agent-0").await;
    running.stop().await;
}

#[tokio::test]
async fn a_job_keeps_its_minimum_and_shrinks_when_all_are_idle() {
    let world = World::new().await;
    let lifecycle = json!({ "idleTimeout": "1ms" });
    let scaling = json!({ "scalingMode": "OnDemand", "minInstances": 1, "instanceLifecycle": lifecycle });
    let task = world.task("agent", scaling).await;
    let spec = world.revision(&task, 2, "job").await;
    let job = world.job(&task, &spec, 0).await;
    let router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    let parallelism = |world: &World| -> Option<i32> {
        world.jobs.get("default", &job.name_any())?.spec.as_ref()?.parallelism
    };
    world.until("the minimum", |world| parallelism(world) == Some(1)).await;
    running.stop().await;
    // A router has asked for more.
    let jobs: Api<Job> = world.api();
    let more = kube::api::Patch::Merge(json!({ "spec": { "parallelism": 3 } }));
    jobs.patch(&job.name_any(), &kube::api::PatchParams::default(), &more).await.unwrap();
    for number in 0..3 {
        world.pod_of_job(&job, number).await;
    }
    let running = run(world.client.clone(), options());
    world.until("the minimum", |world| parallelism(world) == Some(1)).await;
    let marked = |world: &World| {
        let pods = world.pods.list(Some("default"));
        pods.iter().filter(|pod| pod.annotations().contains_key(labels::RELEASING)).count()
    };
    assert_eq!(marked(&world), 3);
    // The Job ends two of them, as it likes.
    for number in [0, 2] {
        world
            .api::<Pod>()
            .delete(&format!("{}-{number}", job.name_any()), &DeleteParams::default())
            .await
            .unwrap();
    }
    world.until("the last one to be of use again", |world| marked(world) == 0).await;
    drop(router);
    running.stop().await;
}

#[tokio::test]
async fn what_was_spoilt_by_hand_is_put_right() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scalingMode": "OnDemand" })).await;
    let mut sessions = Vec::new();
    for slot in 0..3 {
        let pod = world.instance(&task, 1, slot).await;
        sessions.push(world.session(&task, &format!("user-{slot}"), &pod, 0).await);
    }
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = world.api();
    let spoil = async |number: usize, change: serde_json::Value| {
        let name = sessions[number].name_any();
        let change = kube::api::Patch::Merge(json!({ "metadata": change }));
        leases.patch(&name, &kube::api::PatchParams::default(), &change).await.unwrap();
    };
    // Another key, another Task, and no label at all.
    spoil(0, json!({ "annotations": { labels::RESERVE_KEY: "another" } })).await;
    spoil(1, json!({ "labels": { labels::TASK_UID: "another" } })).await;
    spoil(2, json!({ "labels": { labels::LEASE: null } })).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    let ended = |world: &World| sessions[..2].iter().all(|lease| world.now(lease).is_none());
    world.until("the spoilt sessions to end", ended).await;
    world.until("their instances to go", |world| world.names() == ["agent-2"]).await;
    let labelled = |world: &World| {
        world.now(&sessions[2]).is_some_and(|lease| lease.labels().contains_key(labels::LEASE))
    };
    world.until("the label to be back", labelled).await;
    running.stop().await;
}
