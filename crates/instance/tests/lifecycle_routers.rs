//! The lifecycle manager together with real routers: what is in use stays, what is idle ends, and no two sessions ever
//! meet on an instance that is handed on.

#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code, reason = "shared with the tests of reserving, which use more of it")]
#[path = "reserve/world.rs"]
mod world;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_instance::lifecycle::{Limits, Manager, Options, Reason, Reclaimed};
use agentcube_instance::provider::Path;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use world::{SYSTEM, World, annotation, timing, until};

fn manage(world: &World) -> (Reclaimed, DropGuard) {
    let limits = Limits { rest: Duration::from_millis(100), ..Limits::default() };
    let options = Options { namespace: SYSTEM.into(), timing: timing(), limits };
    let manager = Manager::new(world.client.clone(), options);
    let (reclaimed, shutdown) = (manager.reclaimed(), CancellationToken::new());
    tokio::spawn(manager.run(shutdown.clone()));
    (reclaimed, shutdown.drop_guard())
}

fn lifecycle(reuse: &str, idle: &str, max: u32) -> Value {
    json!({ "scaling": { "maxInstances": max, "instanceLifecycle": { "reusePolicy": reuse, "idleTimeout": idle } } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_in_flight_keeps_its_session_and_silence_ends_it() {
    let world = World::new().await;
    let task = world.task("agent", lifecycle("Always", "1s", 10)).await;
    let (a, b) = (world.router("a").await, world.router("b").await);
    let (reclaimed, _stop) = manage(&world);
    let in_flight = a.reserve(&task, "user-1").await.unwrap();
    let brief = b.reserve(&task, "user-2").await.unwrap();
    let (kept, idle) = (in_flight.instance.clone(), brief.instance.clone());
    assert_ne!(kept, idle);
    drop(brief);
    until("the silent session ends", async || world.session(&task, "user-2").await.is_none().then_some(()))
        .await;
    // The other one began earlier, and has been idle for no time at all.
    let still = world.session(&task, "user-1").await.unwrap();
    assert!(still.metadata.deletion_timestamp.is_none());
    assert!(a.hits(&task, "user-1"));
    drop(in_flight);
    until("then that one ends", async || world.session(&task, "user-1").await.is_none().then_some(())).await;
    // It is counted when the server has answered, and others may see the end before.
    until("both are counted", async || (reclaimed.of(Reason::SessionIdle) == 2).then_some(())).await;
    let pod = world.pods().get(&kept.name).await.unwrap();
    assert_eq!(
        (pod.uid().as_deref(), annotation(&pod, labels::RESERVATION).as_str()),
        (Some(&*kept.uid), "")
    );
    // The next session gets one of them, at once.
    let next = b.reserve(&task, "user-3").await.unwrap();
    assert_eq!(next.path, Path::Bound);
    assert!([kept, idle].contains(&next.instance));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_deleted_by_hand_under_a_request_never_shares_its_instance() {
    let world = World::new().await;
    let task = world.task("agent", lifecycle("Always", "300s", 10)).await;
    let (a, b) = (world.router("a").await, world.router("b").await);
    let (_reclaimed, _stop) = manage(&world);
    let in_flight = a.reserve(&task, "user-1").await.unwrap();
    let lease = world.session(&task, "user-1").await.unwrap();
    world.leases().delete(&lease.name_any(), &Default::default()).await.unwrap();
    until("the session ends", async || {
        world.session(&task, "user-1").await.is_none_or(|now| now.uid() != lease.uid()).then_some(())
    })
    .await;
    let others = world.all_pods().await;
    assert!(others.iter().all(|pod| pod.uid().as_deref() != Some(&*in_flight.instance.uid)), "it was in use");
    let again = b.reserve(&task, "user-1").await.unwrap();
    assert_ne!(again.instance, in_flight.instance);
}

/// Which key uses each instance, and which instance each key, with how many requests.
#[derive(Default)]
struct Uses {
    instances: HashMap<String, (String, u32)>,
    keys: HashMap<String, (String, u32)>,
}

impl Uses {
    fn begin(&mut self, key: &str, instance: &str) {
        for (uses, one, other) in [(&mut self.instances, instance, key), (&mut self.keys, key, instance)] {
            let (user, count) = uses.entry(one.into()).or_insert_with(|| (other.into(), 0));
            assert!(*count == 0 || user == other, "{one} is shared by {user} and {other}");
            (*user, *count) = (other.into(), *count + 1);
        }
    }

    fn end(&mut self, key: &str, instance: &str) {
        self.instances.get_mut(instance).expect("it was begun").1 -= 1;
        self.keys.get_mut(key).expect("it was begun").1 -= 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_sessions_than_instances_take_turns_and_never_meet() {
    let world = World::new().await;
    let task = world.task("agent", lifecycle("Always", "300ms", 3)).await;
    let routers = [Arc::new(world.router("a").await), Arc::new(world.router("b").await)];
    let (reclaimed, _stop) = manage(&world);
    let uses = Arc::new(Mutex::new(Uses::default()));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let (routers, task, uses) = (routers.clone(), task.clone(), uses.clone());
        clients.spawn(async move {
            let key = format!("user-{client}");
            for request in 0..3 {
                let router = &routers[(client + request) % 2];
                let reserved = router.reserve(&task, &key).await.expect("its turn comes");
                let instance = reserved.instance.uid.to_string();
                uses.lock().begin(&key, &instance);
                tokio::task::yield_now().await;
                uses.lock().end(&key, &instance);
                drop(reserved);
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert!(world.all_pods().await.len() <= 3);
    // Eight sessions on three instances. The last ones are counted after their clients were served.
    for reason in [Reason::SessionIdle, Reason::InstanceReused] {
        until("five ends are counted", async || (reclaimed.of(reason) >= 5).then_some(())).await;
    }
}
