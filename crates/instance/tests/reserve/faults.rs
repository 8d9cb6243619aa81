//! Many keys through three routers while the API server refuses, delays, loses answers and cuts watches: a key has one
//! instance, an instance has one key, and nothing is left half made.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use agentcube_api::labels;
use agentcube_apiserver::faults::Plan;
use agentcube_instance::record::{Instance, Session};
use futures_util::future::join_all;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::world::{World, until};

fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        conflict: 0.05,
        throttle: 0.02,
        internal: 0.03,
        unavailable: 0.03,
        lost_reply: 0.1,
        delay: 0.1,
        delay_for: Duration::from_millis(10),
        drop_watch: 0.1,
        lag_watch: 0.2,
        lag_for: Duration::from_millis(20),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_one_instance_whatever_goes_wrong() {
    let world = World::new().await;
    let task = world
        .task("agent", json!({ "scaling": { "maxInstances": 40 }, "routing": { "reserveTimeout": "25s" } }))
        .await;
    let routers = [world.router("a").await, world.router("b").await, world.router("c").await];
    let keys: Vec<String> = (0..24).map(|n| format!("user-{n}")).collect();
    let found = Mutex::new(HashMap::<&str, HashSet<String>>::new());
    world.server.api().faults().set(plan(11));
    let ask = async |n: usize| {
        let key = keys[n / 3].as_str();
        for _ in 0..3 {
            let reserved = routers[n % 3].reserve(&task, key).await.unwrap();
            found.lock().entry(key).or_default().insert(reserved.instance.to_string());
        }
    };
    join_all((0..72).map(ask)).await;
    world.server.api().faults().clear();

    let found = found.into_inner();
    let several: BTreeMap<_, _> = found.iter().filter(|(_, instances)| instances.len() != 1).collect();
    assert_eq!(several, BTreeMap::new(), "keys with several instances");
    let instances: HashSet<_> = found.values().flatten().collect();
    assert_eq!(instances.len(), 24, "instances of several keys");
    let pods = world.all_pods().await;
    assert!(pods.len() <= 40, "{} Pods", pods.len());
    let sessions = world.sessions().await;
    assert_eq!(sessions.len(), 24);
    for lease in &sessions {
        let session = Session::read(lease).unwrap();
        let of_session = pods.iter().filter_map(Instance::read).filter(|pod| pod.is_bound_to(&session));
        assert_eq!(of_session.count(), 1, "{}", session.key);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_come_and_go_never_share_an_instance() {
    let world = World::new().await;
    let reuse = json!({ "scaling": { "maxInstances": 4 }, "routing": { "reserveTimeout": "25s" } });
    let task = world.task("agent", reuse).await;
    let routers = [world.router("a").await, world.router("b").await];
    // Who uses which instance just now, by the instance.
    let users = Mutex::new(HashMap::<String, &str>::new());
    let keys: Vec<String> = (0..4).map(|n| format!("user-{n}")).collect();
    world.server.api().faults().set(plan(12));
    let live = async |n: usize| {
        let key = keys[n].as_str();
        for round in 0..4 {
            let reserved = routers[(n + round) % 2].reserve(&task, key).await.unwrap();
            let instance = reserved.instance.to_string();
            let former = users.lock().insert(instance.clone(), key);
            assert!(former.is_none_or(|former| former == key), "{instance} is used by {former:?} and {key}");
            tokio::task::yield_now().await;
            users.lock().remove(&instance);
            drop(reserved);
            end(&world, &task, key, &routers).await;
        }
    };
    join_all((0..4).map(live)).await;
    world.server.api().faults().clear();
    assert!(world.all_pods().await.len() <= 4);
}

/// Ends a session as the lifecycle manager does, and frees its instance for the next one.
async fn end(world: &World, task: &agentcube_instance::TaskId, key: &str, routers: &[crate::world::Router]) {
    let name = agentcube_instance::record::lease_name(&task.uid, &crate::world::key(key));
    let deletion = async || world.leases().delete(&name, &DeleteParams::default()).await.ok();
    until("the Lease can be deleted", deletion).await;
    let lease = until("the Lease can be read", async || world.leases().get(&name).await.ok()).await;
    let version: u64 = lease.resource_version().unwrap().parse().unwrap();
    for router in routers {
        until("the routers have seen it", async || {
            let seen = router.try_seen(world).await?;
            (seen.seen_leases >= version).then_some(())
        })
        .await;
    }
    let session = Session::read(&lease).unwrap();
    let holder = session.holder.clone().unwrap();
    let free = json!({ "metadata": { "annotations": {
        labels::RESERVE_KEY: "", labels::RESERVATION: "", labels::RELEASING: null } } });
    let (parameters, free) = (PatchParams::default(), Patch::Merge(free));
    until("the Pod can be freed", async || world.pods().patch(&holder.name, &parameters, &free).await.ok())
        .await;
    let finished = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    until("the Lease goes", async || match world.leases().patch(&name, &parameters, &finished).await {
        Ok(_) => Some(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Some(()),
        Err(_) => None,
    })
    .await;
}
