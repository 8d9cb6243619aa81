//! How a router takes part in the ending of sessions and instances: it objects, rescues, says what it has seen, and
//! stops in order.

use std::sync::atomic::Ordering;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_instance::provider::{Path, ReserveError};
use agentcube_instance::record::lease_name;
use agentcube_instance::timing::Timing;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::{Router, World, annotation, timing, until};

fn version(lease: &Lease) -> u64 {
    lease.resource_version().unwrap().parse().unwrap()
}

fn is_releasing(lease: &Lease) -> bool {
    lease.annotations().contains_key(labels::RELEASING)
}

async fn has_seen_lease(world: &World, router: &Router, version: u64) {
    until("the router has seen it", async || {
        router.seen(world).await.filter(|seen| seen.seen_leases >= version).map(|_| ())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_use_is_not_released() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (user, other) = (world.router("a").await, world.router("b").await);
    let request = user.reserve(&task, "user-1").await.unwrap();
    let marked = world.annotate_session(&task, "user-1", json!({ labels::RELEASING: "idle" })).await;
    // The router that uses it removes the mark before it says that it has seen it.
    has_seen_lease(&world, &user, version(&marked)).await;
    let lease = world.session(&task, "user-1").await.unwrap();
    assert!(!is_releasing(&lease) && version(&lease) > version(&marked));
    assert!(lease.spec.unwrap().renew_time.unwrap().0 > marked.spec.clone().unwrap().renew_time.unwrap().0);
    has_seen_lease(&world, &other, version(&marked)).await;
    until("it is served again", async || (user.hits(&task, "user-1")).then_some(())).await;
    drop(request);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_is_released_unless_a_request_rescues_it() {
    let world = World::new().await;
    let task =
        world.task("agent", json!({ "scaling": { "instanceLifecycle": { "idleTimeout": "1s" } } })).await;
    let router = world.router("a").await;
    let first = router.reserve(&task, "user-1").await.unwrap();
    let instance = first.instance.clone();
    let before = world.session(&task, "user-1").await.unwrap();
    drop(first);
    // All activity has been written.
    until("the activity is written", async || {
        let lease = world.session(&task, "user-1").await.unwrap();
        (version(&lease) > version(&before)).then_some(())
    })
    .await;
    until("nothing is left to write", async || {
        let marked = world.annotate_session(&task, "user-1", json!({ labels::RELEASING: "idle" })).await;
        has_seen_lease(&world, &router, version(&marked)).await;
        world.session(&task, "user-1").await.filter(is_releasing)
    })
    .await;
    assert!(!router.hits(&task, "user-1"), "a router that has seen the mark does not serve");
    let rescued = router.reserve(&task, "user-1").await.unwrap();
    assert_eq!(rescued.instance, instance);
    assert!(!is_releasing(&world.session(&task, "user-1").await.unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_router_may_not_know_of_is_not_released() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (user, unsure) = (world.router("a").await, world.router("b").await);
    drop(user.reserve(&task, "user-1").await.unwrap());
    unsure.reserver.set_unsure(true);
    let marked = world.annotate_session(&task, "user-1", json!({ labels::RELEASING: "idle" })).await;
    has_seen_lease(&world, &unsure, version(&marked)).await;
    let lease = world.session(&task, "user-1").await.unwrap();
    assert!(!is_releasing(&lease), "a router without any request of it objects");
    assert!(lease.spec.unwrap().renew_time.unwrap().0 > marked.spec.clone().unwrap().renew_time.unwrap().0);
    unsure.reserver.set_unsure(false);
    until("the mark stays", async || {
        let marked = world.annotate_session(&task, "user-1", json!({ labels::RELEASING: "idle" })).await;
        has_seen_lease(&world, &user, version(&marked)).await;
        has_seen_lease(&world, &unsure, version(&marked)).await;
        world.session(&task, "user-1").await.filter(is_releasing)
    })
    .await;
    unsure.reserver.set_unsure(true);
    let name = lease_name(&task.uid, &crate::world::key("user-1"));
    world.leases().delete(&name, &DeleteParams::default()).await.unwrap();
    let ending = world.session(&task, "user-1").await.unwrap();
    has_seen_lease(&world, &unsure, version(&ending)).await;
    let lease = world.session(&task, "user-1").await.unwrap();
    assert!(lease.annotations().contains_key(labels::INTERRUPTED), "there may have been a request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_is_waited_for_and_says_what_it_cut_short() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let (user, other) = (world.router("a").await, world.router("b").await);
    let request = user.reserve(&task, "user-1").await.unwrap();
    let name = lease_name(&task.uid, &crate::world::key("user-1"));
    world.leases().delete(&name, &DeleteParams::default()).await.unwrap();
    user.misses(&task, "user-1").await;
    let ending = world.session(&task, "user-1").await.unwrap();
    has_seen_lease(&world, &user, version(&ending)).await;
    has_seen_lease(&world, &other, version(&ending)).await;
    let lease = world.session(&task, "user-1").await.unwrap();
    assert!(lease.annotations().contains_key(labels::INTERRUPTED));

    let mut next = std::pin::pin!(other.reserve(&task, "user-1"));
    let gives_back = async {
        // As the lifecycle manager does.
        world.pods().delete(&request.instance.name, &DeleteParams::default()).await.unwrap();
        until("the old instance is gone", async || {
            world.pods().get_opt(&request.instance.name).await.unwrap().is_none().then_some(())
        })
        .await;
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        world.leases().patch(&name, &PatchParams::default(), &patch).await.unwrap();
    };
    tokio::select! {
        _ = &mut next => panic!("the old session has not ended"),
        () = gives_back => {}
    }
    let next = next.await.unwrap();
    assert_ne!(next.instance.uid, request.instance.uid);
    assert_ne!(world.session(&task, "user-1").await.unwrap().uid(), ending.uid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_says_what_it_has_seen_and_takes_its_leave() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let mut router = world.router("a").await;
    let reserved = router.reserve(&task, "user-1").await.unwrap();
    let lease = world.session(&task, "user-1").await.unwrap();
    has_seen_lease(&world, &router, version(&lease)).await;
    let pod = world.pods().get(&reserved.instance.name).await.unwrap();
    until("Pods are seen too", async || {
        let seen = router.seen(&world).await?;
        (seen.seen_pods >= pod.resource_version().unwrap().parse().unwrap()).then_some(())
    })
    .await;
    drop(reserved);
    router.shutdown.cancel();
    (&mut router.running).await.unwrap();
    assert_eq!(router.seen(&world).await, None);
    assert_eq!(router.reserve(&task, "user-1").await.unwrap_err(), ReserveError::ShuttingDown);
    assert!(!router.hits(&task, "user-1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_is_out_of_touch_serves_nothing_and_comes_back() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let timing = Timing { out_of_touch: Duration::from_secs(3), ..timing() };
    let router = world.router_with("a", timing).await;
    let request = router.reserve(&task, "user-1").await.unwrap();
    router.traffic.cut(true);
    // Bound sessions go on for a while without the API server.
    assert!(router.hits(&task, "user-1"));
    tokio::time::timeout(crate::world::LONG, request.in_use.revoked())
        .await
        .expect("what is in flight has to end");
    assert!(!router.hits(&task, "user-1"));
    assert_eq!(router.reserve(&task, "user-1").await.unwrap_err(), ReserveError::OutOfTouch);
    router.traffic.cut(false);
    let again = until("it serves again", async || router.reserve(&task, "user-1").await.ok()).await;
    assert_eq!(again.instance, request.instance);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_instance_that_is_to_go_is_not_given_to_a_session() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    world.instance(&task, 0).await;
    world.instance(&task, 1).await;
    let router = world.router("a").await;
    router.knows(&task, 2).await;
    let marked = world.annotate("agent-0", json!({ labels::RELEASING: "excess" })).await;
    until("the router has seen it", async || {
        let seen = router.seen(&world).await?;
        (seen.seen_pods >= marked.resource_version().unwrap().parse().unwrap()).then_some(())
    })
    .await;
    let reserved = router.reserve(&task, "user-1").await.unwrap();
    assert_eq!((reserved.path, &*reserved.instance.name), (Path::Bound, "agent-1"));
    let pod = world.pods().get("agent-0").await.unwrap();
    assert_eq!(annotation(&pod, labels::RELEASING), "excess");
    world.kubelet_works.store(true, Ordering::SeqCst);
}
