//! How a session gets its instance: from memory, by binding, by a cold start, after a crash, and after a loss.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use agentcube_api::labels;
use agentcube_instance::provider::{Path, ReserveError};
use futures_util::future::join_all;
use kube::ResourceExt;
use serde_json::json;

use crate::world::{World, annotation, until};

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
    assert!(router.reserver.lookup(&task, &crate::world::key("user-1")).is_some());
    assert!(router.reserver.lookup(&task, &crate::world::key("user-2")).is_none());
    assert_eq!(router.traffic.take(), [""; 0]);
    assert_eq!(router.reserver.counts().requests(Path::Reused), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_revision_is_waited_for_a_little() {
    let world = World::new().await;
    let task = world.new_task("agent", json!({})).await;
    let oneshot = world
        .new_task(
            "other",
            json!({ "routing": { "routePolicy": "Oneshot", "sessionIdentifier": null },
 "scaling": { "instanceLifecycle": { "reusePolicy": "Always" } } }),
        )
        .await;
    let router = world.router("a").await;
    let never = router.reserve(&task, "user-1").await;
    assert!(
        matches!(&never, Err(ReserveError::NotReady(why)) if why.contains("first revision")),
        "{never:?}"
    );

    let later = async {
        tokio::task::yield_now().await;
        world.revision(&task, "agent-1").await;
        world.revision(&oneshot, "other-1").await;
    };
    let both =
        async { tokio::join!(router.reserve(&task, "user-1"), router.reserve_for(&oneshot, None, None)) };
    let ((session, request), ()) = tokio::join!(both, later);
    assert_eq!(session.unwrap().path, Path::Waited);
    assert_eq!(request.unwrap().path, Path::Waited);
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
    let instances: HashSet<_> =
        reserved.iter().map(|reserved| &reserved.as_ref().unwrap().instance).collect();
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
        let of_key: HashSet<_> =
            reserved[3 * n..3 * n + 3].iter().map(|reserved| &reserved.instance).collect();
        assert_eq!(of_key.len(), 1, "{}", keys[n]);
    }
    let instances: HashSet<_> = reserved.iter().map(|reserved| &reserved.instance).collect();
    assert_eq!(instances.len(), 12);
    assert_eq!(world.all_pods().await.len(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_maximum_is_kept_and_waiting_ends() {
    let world = World::new().await;
    let spec = json!({ "scaling": { "maxInstances": 2 }, "routing": { "reserveTimeout": "5s" } });
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_that_is_cancelled_leaves_nothing() {
    let world = World::new().await;
    world.kubelet_works.store(false, Ordering::SeqCst);
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    {
        let waiting = router.reserve(&task, "user-1");
        let seen = async {
            let lease = until("a session waits", async || world.session(&task, "user-1").await).await;
            // Whoever stops waiting before that may have nothing started.
            until("a Pod was started", async || (world.all_pods().await.len() == 1).then_some(())).await;
            lease
        };
        tokio::select! {
            _ = waiting => panic!("nothing is ready"),
            lease = seen => assert_eq!(lease.spec.unwrap().holder_identity, None),
        }
    }
    until("the Lease is gone", async || world.sessions().await.is_empty().then_some(())).await;
    // What was started becomes idle, and the next one gets it at once.
    world.kubelet_works.store(true, Ordering::SeqCst);
    world.annotate("agent-0", json!({ "touched": "yes" })).await;
    router.knows(&task, 1).await;
    let reserved = router.reserve(&task, "user-2").await.unwrap();
    assert_eq!((reserved.path, &*reserved.instance.name), (Path::Bound, "agent-0"));
}

/// Kills a router in each of its writes in turn; another one finishes what was begun.
async fn a_binder_dies_in_write(number: usize, idle: bool) {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scaling": { "maxInstances": 1 } })).await;
    if idle {
        world.instance(&task, 0).await;
    }
    let (first, second) = (world.router("a").await, world.router("b").await);
    if idle {
        first.knows(&task, 1).await;
        second.knows(&task, 1).await;
    }
    first.traffic.die_in_write(number);
    let dying = async {
        let _ = first.reserve(&task, "user-1").await;
    };
    tokio::select! {
        () = dying => panic!("it was to die first"),
        () = until("the first router is dead", async || first.traffic.is_dead().then_some(())) => {}
    }
    let reserved = second.reserve(&task, "user-1").await.unwrap();
    assert_eq!(&*reserved.instance.name, "agent-0");
    let lease = world.session(&task, "user-1").await.unwrap();
    let pod = world.pods().get("agent-0").await.unwrap();
    let transitions = lease.spec.clone().unwrap().lease_transitions.unwrap();
    assert_eq!(annotation(&pod, labels::RESERVATION), format!("{}.{transitions}", lease.uid().unwrap()));
    assert_eq!(world.all_pods().await.len(), 1);
    assert_eq!(world.sessions().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binder_that_dies_after_creating_the_lease_is_replaced() {
    a_binder_dies_in_write(1, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binder_that_dies_after_taking_the_instance_needs_no_replacement() {
    a_binder_dies_in_write(2, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binder_that_dies_before_it_starts_an_instance_is_replaced() {
    a_binder_dies_in_write(1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binder_that_dies_after_starting_an_instance_is_replaced() {
    a_binder_dies_in_write(2, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binder_that_dies_after_pointing_the_lease_is_replaced() {
    a_binder_dies_in_write(3, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_instance_is_replaced_at_the_next_request() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let routers = [world.router("a").await, world.router("b").await];
    let old = routers[0].reserve(&task, "user-1").await.unwrap().instance;
    world.set_status(&old.name, json!({ "phase": "Failed" })).await;
    for router in &routers {
        router.misses(&task, "user-1").await;
    }
    let new = join_all(routers.iter().map(|router| router.reserve(&task, "user-1"))).await;
    let new: Vec<_> = new.into_iter().map(Result::unwrap).collect();
    assert_eq!(new[0].instance, new[1].instance);
    assert_ne!(new[0].instance, old);
    let rebound: u64 = routers.iter().map(|router| router.reserver.counts().requests(Path::Rebound)).sum();
    assert!(rebound >= 1);
    let lease = world.session(&task, "user-1").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity, Some(new[0].instance.to_string()));
    assert_eq!(lease.metadata.finalizers, Some(vec![labels::SESSION_FINALIZER.to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unready_instance_ends_before_its_session_goes_elsewhere() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    let old = router.reserve(&task, "user-1").await.unwrap().instance;
    world.kubelet_works.store(false, Ordering::SeqCst);
    let unready = json!({ "conditions": [{ "type": "Ready", "status": "False" }] });
    world.set_status(&old.name, unready).await;
    router.misses(&task, "user-1").await;
    let next = router.reserve(&task, "user-1");
    let ending = until("the old instance is being deleted", async || {
        world.pods().get(&old.name).await.unwrap().metadata.deletion_timestamp
    });
    let mut next = std::pin::pin!(next);
    tokio::select! {
        _ = &mut next => panic!("the old instance may still run"),
        _ = ending => {}
    }
    // It still runs, and the session still names it.
    let lease = world.session(&task, "user-1").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity, Some(old.to_string()));
    world.kubelet_works.store(true, Ordering::SeqCst);
    world.annotate(&old.name, json!({ "touched": "yes" })).await;
    let new = next.await.unwrap();
    assert_eq!(new.path, Path::Rebound);
    assert_ne!(new.instance.uid, old.uid);
}
