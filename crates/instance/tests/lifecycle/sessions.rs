//! How sessions end, and what becomes of their instances.

use std::time::{Duration, Instant};

use agentcube_api::{Task, labels};
use agentcube_instance::lifecycle::{Options, Reason};
use agentcube_instance::timing::Timing;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::json;

use super::world::{Behaviour, SYSTEM, World, annotation, on_a_node, options, remove, run, timing};

fn scaling(reuse: &str) -> serde_json::Value {
    json!({ "scalingMode": "OnDemand", "instanceLifecycle": { "reusePolicy": reuse, "idleTimeout": "300s" } })
}

#[tokio::test]
async fn an_idle_session_ends_and_its_instance_is_deleted() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 3600).await;
    let busy = world.instance(&task, 1, 1).await;
    let active = world.session(&task, "user-2", &busy, 0).await;
    let _routers = (world.router("a", Behaviour::Agrees).await, world.router("b", Behaviour::Agrees).await);
    let running = run(world.client.clone(), options());
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    world.until("the end of the instance", |world| world.pod("agent-0").is_none()).await;
    world.until("an Event", |world| world.told("Task", "agent", "SessionIdle")).await;
    assert!(world.now(&active).is_some());
    assert!(world.pod("agent-1").is_some());
    assert_eq!(running.reclaimed.of(Reason::SessionIdle), 1);
    running.stop().await;
}

#[tokio::test]
async fn with_reuse_the_instance_is_free_again() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Always")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 3600).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    let freed = world.pod("agent-0").expect("the instance is kept");
    for name in [labels::RESERVE_KEY, labels::RESERVATION, labels::RELEASING] {
        assert_eq!(annotation(&freed, name), "", "{name}");
    }
    assert!(annotation(&freed, labels::LAST_ACTIVE).parse::<jiff::Timestamp>().is_ok());
    assert_eq!(freed.metadata.uid, pod.metadata.uid);
    running.stop().await;
}

#[tokio::test]
async fn a_lease_deleted_by_hand_ends_the_session() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    let api: Api<Lease> = world.api();
    api.delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    world.until("the end of the instance", |world| world.pod("agent-0").is_none()).await;
    world.until("an Event", |world| world.told("Task", "agent", "SessionDeleted")).await;
    running.stop().await;
}

#[tokio::test]
async fn an_instance_that_is_too_old_ends_its_session_in_use_or_not() {
    let world = World::new().await;
    let lifecycle = json!({ "reusePolicy": "Always", "ttl": "1s" });
    let task =
        world.task("agent", json!({ "scalingMode": "OnDemand", "instanceLifecycle": lifecycle })).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let _router = world.router("a", Behaviour::Objects).await;
    let running = run(world.client.clone(), options());
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    world.until("the end of the instance", |world| world.pod("agent-0").is_none()).await;
    world.until("an Event", |world| world.told("Task", "agent", "SessionExpired")).await;
    running.stop().await;
}

#[tokio::test]
async fn a_router_that_uses_a_session_keeps_it() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 3600).await;
    let routers = (world.router("a", Behaviour::Agrees).await, world.router("b", Behaviour::Objects).await);
    let running = run(world.client.clone(), options());
    // Asked three times, and taken back three times.
    let mut objections = routers.1.objections.clone();
    objections.wait_for(|objections| *objections >= 3).await.unwrap();
    assert!(world.now(&lease).unwrap().metadata.deletion_timestamp.is_none());
    assert!(world.now(&lease).is_some());
    drop(routers);
    running.stop().await;
}

#[tokio::test]
async fn a_silent_router_holds_back_the_end_of_idle_sessions_until_it_counts_as_dead() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 3600).await;
    let alive = world.router("a", Behaviour::Agrees).await;
    let silent = world.router("b", Behaviour::Silent).await;
    let out_of_touch = Duration::from_secs(2);
    // The other router is heard of with every step that is taken, or else counts as dead too: no harm.
    let timing = Timing { silent: Duration::from_millis(300), out_of_touch, ..timing() };
    let begun = Instant::now();
    let running = run(world.client.clone(), Options { timing, ..options() });
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    assert!(begun.elapsed() >= out_of_touch);
    let of_router = |world: &World, name: &str| world.leases.get(SYSTEM, name).is_some();
    world.until("the end of the router", |world| !of_router(world, &silent.name)).await;
    world.until("the end of the instance", |world| world.pod("agent-0").is_none()).await;
    drop(alive);
    running.stop().await;
}

#[tokio::test]
async fn a_request_in_flight_at_a_hard_end_costs_the_instance() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Always")).await;
    let pod = world.instance_with(&task, 1, 0, on_a_node).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let _routers = (world.router("a", Behaviour::Agrees).await, world.router("b", Behaviour::IsCut).await);
    let running = run(world.client.clone(), options());
    let api: Api<Lease> = world.api();
    api.delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
    let going =
        |world: &World| world.pod("agent-0").is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    world.until("the deletion of the instance", going).await;
    // The key is not free while the processes may run.
    assert!(world.now(&lease).is_some());
    remove(&world, "agent-0").await;
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    running.stop().await;
}

#[tokio::test]
async fn without_requests_in_flight_the_key_is_free_while_the_instance_stops() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance_with(&task, 1, 0, on_a_node).await;
    let lease = world.session(&task, "user-1", &pod, 3600).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    assert!(world.pod("agent-0").expect("it stops").metadata.deletion_timestamp.is_some());
    running.stop().await;
}

#[tokio::test]
async fn a_router_that_just_started_is_asked_too() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Never")).await;
    let pod = world.instance(&task, 1, 0).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    world.until("a full cache", |world| world.leases.list(Some(SYSTEM)).len() == 1).await;
    // It has seen nothing yet, and the end of the session is decided at the same time.
    let late = world.router("late", Behaviour::Silent).await;
    let api: Api<Lease> = world.api();
    api.delete(&lease.name_any(), &DeleteParams::default()).await.unwrap();
    // Something else that is done in the meantime, after the deletion was seen.
    world.scale(&task, json!({ "scalingMode": "OnDemand", "minInstances": 2 })).await;
    world.until("another instance", |world| world.names().len() == 2).await;
    assert!(world.now(&lease).is_some());
    assert!(world.pod("agent-0").expect("it is kept").metadata.deletion_timestamp.is_none());
    let routers: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
    routers.delete(&late.name, &DeleteParams::default()).await.unwrap();
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    running.stop().await;
}

#[tokio::test]
async fn a_deleted_task_ends_its_sessions() {
    let world = World::new().await;
    let task = world.task("agent", scaling("Always")).await;
    let pod = world.instance(&task, 1, 0).await;
    let idle = world.instance(&task, 1, 1).await;
    let lease = world.session(&task, "user-1", &pod, 0).await;
    let unbound = world.lease(&task, "user-2", "", 0).await;
    let _router = world.router("a", Behaviour::Agrees).await;
    let running = run(world.client.clone(), options());
    let tasks: Api<Task> = world.api();
    tasks.delete("agent", &DeleteParams::default()).await.unwrap();
    world
        .until("the end of the sessions", |world| {
            [&lease, &unbound].iter().all(|lease| world.now(lease).is_none())
        })
        .await;
    world.until("the end of the instances", |world| world.names().is_empty()).await;
    drop(idle);
    running.stop().await;
}
