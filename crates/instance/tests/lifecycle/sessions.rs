//! How sessions end, and what becomes of their instances.

use agentcube_api::labels;
use agentcube_instance::lifecycle::Reason;
use kube::api::{Api, DeleteParams};
use serde_json::json;

use super::world::{Behaviour, World, annotation, options, run};

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
    let api: Api<k8s_openapi::api::coordination::v1::Lease> = world.api();
    api.delete(lease.metadata.name.as_ref().unwrap(), &DeleteParams::default()).await.unwrap();
    world.until("the end of the session", |world| world.now(&lease).is_none()).await;
    world.until("the end of the instance", |world| world.pod("agent-0").is_none()).await;
    world.until("an Event", |world| world.told("Task", "agent", "SessionDeleted")).await;
    running.stop().await;
}
