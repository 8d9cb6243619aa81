//! Reservation over the embedded API server, with Tasks made by hand and a tiny kubelet.

#[path = "reserve/world.rs"]
mod world;

use std::collections::HashSet;

use agentcube_api::labels;
use agentcube_instance::provider::{Path, ReserveError};
use futures_util::future::join_all;
use kube::ResourceExt;
use serde_json::json;

use world::{World, annotation, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_instance_is_bound_in_two_writes_and_then_found_without_a_call() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let pod = world.instance(&task, 0).await;
    let router = world.router("a").await;
    router.knows(&task, 1).await;
    router.traffic.take();

    let first = router.reserve(&task, "user-1").await.unwrap();
    assert_eq!((first.path, &*first.instance.name), (Path::Bound, "agent-0"));
    assert_eq!(router.traffic.take(), ["POST leases", "PATCH pods"]);
    assert_eq!(first.endpoint.to_string(), format!("{}:8080", pod.status.unwrap().pod_ip.unwrap()));
    let pod = world.pods().get("agent-0").await.unwrap();
    assert_eq!(annotation(&pod, labels::RESERVE_KEY), "user-1");
    let lease = world.session(&task, "user-1").await.unwrap();
    assert_eq!(annotation(&pod, labels::RESERVATION), format!("{}.1", lease.uid().unwrap()));
    assert_eq!(lease.finalizers(), [labels::SESSION_FINALIZER]);
    assert_eq!(lease.owner_references()[0].uid, *task.uid);

    let again = router.reserve(&task, "user-1").await.unwrap();
    assert_eq!((again.path, &again.instance), (Path::Reused, &first.instance));
    assert!(router.reserver.lookup(&task, &world::key("user-1")).is_some());
    assert!(router.reserver.lookup(&task, &world::key("user-2")).is_none());
    assert_eq!(router.traffic.take(), [""; 0]);
    assert_eq!(router.reserver.counts().requests(Path::Reused), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_gives_every_key_an_instance_of_its_own() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    let keys: Vec<String> = (0..8).map(|n| format!("user-{n}")).collect();
    let reserved = join_all(keys.iter().map(|key| router.reserve(&task, key))).await;
    let reserved: Vec<_> = reserved.into_iter().map(Result::unwrap).collect();
    let instances: HashSet<_> = reserved.iter().map(|reserved| reserved.instance.uid.clone()).collect();
    assert_eq!(instances.len(), 8);
    assert!(reserved.iter().all(|reserved| reserved.path == Path::Waited));
    assert_eq!(world.all_pods().await.len(), 8);
    assert_eq!(router.reserver.counts().starts(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_through_three_routers_gets_one_instance() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let routers = [world.router("a").await, world.router("b").await, world.router("c").await];
    let requests = (0..12).map(|n| routers[n % 3].reserve(&task, "user-1"));
    let reserved = join_all(requests).await;
    let instances: HashSet<_> = reserved.iter().map(|reserved| &reserved.as_ref().unwrap().instance).collect();
    assert_eq!(instances.len(), 1);
    assert_eq!(world.all_pods().await.len(), 1);
    assert_eq!(world.sessions().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_through_three_routers_get_as_many_instances() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scaling": { "maxInstances": 50 } })).await;
    let routers = [world.router("a").await, world.router("b").await, world.router("c").await];
    let keys: Vec<String> = (0..12).map(|n| format!("user-{n}")).collect();
    let requests = (0..36).map(|n| routers[n % 3].reserve(&task, &keys[n / 3]));
    let reserved: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
    for n in 0..12 {
        let of_key: HashSet<_> = reserved[3 * n..3 * n + 3].iter().map(|reserved| &reserved.instance).collect();
        assert_eq!(of_key.len(), 1, "{}", keys[n]);
    }
    let instances: HashSet<_> = reserved.iter().map(|reserved| &reserved.instance).collect();
    assert_eq!(instances.len(), 12);
    assert_eq!(world.all_pods().await.len(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_maximum_is_kept_and_waiting_ends() {
    let world = World::new().await;
    let spec = json!({ "scaling": { "maxInstances": 2 }, "routing": { "reserveTimeout": "1s" } });
    let task = world.task("agent", spec).await;
    let routers = [world.router("a").await, world.router("b").await];
    let keys: Vec<String> = (0..6).map(|n| format!("user-{n}")).collect();
    let reserved = join_all(keys.iter().enumerate().map(|(n, key)| routers[n % 2].reserve(&task, key))).await;
    let (served, refused): (Vec<_>, Vec<_>) = reserved.into_iter().partition(Result::is_ok);
    assert_eq!((served.len(), refused.len()), (2, 4));
    assert_eq!(world.all_pods().await.len(), 2);
    for error in refused.into_iter().map(Result::unwrap_err) {
        let ReserveError::Timeout { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains("at most 2 instances"), "{reason}");
        assert!(error.retry_after().is_some());
    }
    // Those who were refused leave nothing behind.
    until("only two sessions are left", async || (world.sessions().await.len() == 2).then_some(())).await;
}
