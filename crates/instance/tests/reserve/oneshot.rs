//! Requests without a session, and how instances are shared out when there are too few.

use std::collections::HashSet;

use agentcube_api::labels;
use agentcube_instance::provider::{Path, ReserveError};
use agentcube_instance::revision::{labels_of, owner};
use agentcube_instance::{InstanceId, SpecId, TaskId};
use futures_util::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::world::{NAMESPACE, World, annotation, until};

fn oneshot(reuse: &str, more: Value) -> Value {
    let mut spec = json!({
        "routing": { "routePolicy": "Oneshot", "sessionIdentifier": null, "reserveTimeout": "10s" },
        "scaling": { "instanceLifecycle": { "reusePolicy": reuse } },
    });
    for (key, value) in more.as_object().unwrap() {
        for (name, value) in value.as_object().unwrap() {
            spec[key][name] = value.clone();
        }
    }
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_spread_and_never_more_than_allowed_share_an_instance() {
    let world = World::new().await;
    let parallel = json!({ "requestHandling": { "circuitBreaker": { "maxParallelRequests": 2 } },
        "scaling": { "maxInstances": 3 } });
    let task = world.task("agent", oneshot("Always", parallel)).await;
    for slot in 0..3 {
        world.instance(&task, slot).await;
    }
    let router = world.router("a").await;
    router.knows(&task, 3).await;
    router.traffic.take();
    let mut held = Vec::new();
    for round in 0..2 {
        let mut used = HashSet::new();
        for _ in 0..3 {
            let reserved = router.reserve_for(&task, None, None).await.unwrap();
            assert_eq!(reserved.path, Path::Reused);
            used.insert(reserved.instance.uid.clone());
            held.push(reserved);
        }
        assert_eq!(used.len(), 3, "the least used ones first, round {round}");
    }
    assert_eq!(router.traffic.take(), [""; 0], "room is given in memory");
    // Everything is full: one more waits until somebody is done.
    let refused = router.reserve_for(&task, None, None).await.unwrap_err();
    assert!(matches!(refused, ReserveError::Timeout { .. }), "{refused}");
    let done = held.pop().unwrap().instance;
    let next = router.reserve_for(&task, None, None).await.unwrap();
    assert_eq!(next.instance, done);
    // Nothing was written as if it were a reservation; that it was active was.
    drop((held, next));
    until("the activity is written", async || {
        let pods = world.all_pods().await;
        pods.iter().all(|pod| !annotation(pod, labels::LAST_ACTIVE).is_empty()).then_some(())
    })
    .await;
    assert!(world.all_pods().await.iter().all(|pod| annotation(pod, labels::RESERVE_KEY).is_empty()));
    assert!(world.sessions().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_another_has_begun_takes_up_room_when_it_is_taken_over() {
    let world = World::new().await;
    let one = json!({ "requestHandling": { "circuitBreaker": { "maxParallelRequests": 1 } },
        "scaling": { "maxInstances": 1 } });
    let task = world.task("agent", oneshot("Always", one)).await;
    world.instance(&task, 0).await;
    let router = world.router("a").await;
    router.knows(&task, 1).await;
    let instance = router.reserve_for(&task, None, None).await.unwrap().instance;
    let gone = InstanceId::pod(instance.name.clone(), "gone");
    assert!(router.reserver.take_over(&task, None, &gone).is_none());
    let held = router.reserver.take_over(&task, None, &instance).unwrap();
    let refused = router.reserve_for(&task, None, None).await.unwrap_err();
    assert!(matches!(refused, ReserveError::Timeout { .. }), "{refused}");
    drop(held);
    assert_eq!(router.reserve_for(&task, None, None).await.unwrap().instance, instance);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_oneshot_starts_what_its_requests_need() {
    let world = World::new().await;
    let wanted = json!({ "requestHandling": { "circuitBreaker": { "maxParallelRequests": 2 } },
        "routing": { "reserveTimeout": "20s" } });
    let task = world.task("agent", oneshot("Always", wanted)).await;
    let router = world.router("a").await;
    let requests = join_all((0..6).map(|_| router.reserve_for(&task, None, None))).await;
    let requests: Vec<_> = requests.into_iter().map(Result::unwrap).collect();
    let used: HashSet<_> = requests.iter().map(|reserved| &reserved.instance.uid).collect();
    let pods = world.all_pods().await.len();
    assert!(used.len() >= 3 && pods >= used.len() && pods <= 6, "{} of {pods}", used.len());
}

/// A Job, and Pods as its controller makes them.
async fn job(world: &World, task: &TaskId, parallelism: i32) -> Api<Job> {
    let spec = SpecId(format!("{}-1", task.name).into());
    let mut of_pods = labels_of(task, &spec);
    of_pods.insert("job".into(), "agent".into());
    let template = json!({ "metadata": { "labels": of_pods },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "agent", "image": "agent:1" }] } });
    let job = json!({
        "metadata": { "name": &*spec.0, "ownerReferences": [serde_json::to_value(owner(task)).unwrap()] },
        "spec": { "parallelism": parallelism, "completions": 2147483647, "template": template },
    });
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), NAMESPACE);
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    jobs
}

async fn job_pod(world: &World, task: &TaskId, n: u32) -> Pod {
    let spec = SpecId(format!("{}-1", task.name).into());
    let pod = json!({
        "metadata": { "name": format!("{spec}-pod{n}"), "labels": labels_of(task, &spec) },
        "spec": { "nodeName": "node", "restartPolicy": "Never",
            "containers": [{ "name": "agent", "image": "agent:1" }] },
    });
    let pod =
        world.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.until_ready(&pod.name_any()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_serves_once_is_given_once_over_all_routers() {
    let world = World::new().await;
    let task = world.task("agent", oneshot("Never", json!({ "scaling": { "maxInstances": 4 } }))).await;
    job(&world, &task, 3).await;
    for n in 0..3 {
        job_pod(&world, &task, n).await;
    }
    let routers = [world.router("a").await, world.router("b").await];
    for router in &routers {
        router.knows(&task, 3).await;
    }
    let requests = join_all((0..3).map(|n| routers[n % 2].reserve_for(&task, None, None))).await;
    let requests: Vec<_> = requests.into_iter().map(Result::unwrap).collect();
    let used: HashSet<_> = requests.iter().map(|reserved| reserved.instance.uid.clone()).collect();
    assert_eq!(used.len(), 3);
    drop(requests);
    // Served, and not used again though it still runs.
    let refused = routers[0].reserve_for(&task, None, None).await.unwrap_err();
    assert!(matches!(refused, ReserveError::Timeout { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_scaled_up_for_those_who_wait_and_not_beyond_the_maximum() {
    let world = World::new().await;
    let task = world.task("agent", oneshot("Never", json!({ "scaling": { "maxInstances": 4 } }))).await;
    let jobs = job(&world, &task, 0).await;
    let routers = [world.router("a").await, world.router("b").await];
    let requests = join_all((0..6).map(|n| routers[n % 2].reserve_for(&task, None, None)));
    let parallelism = async || jobs.get("agent-1").await.unwrap().spec.unwrap().parallelism.unwrap();
    let scaled = until("the Job is scaled", async || Some(parallelism().await).filter(|n| *n >= 3));
    tokio::select! {
        _ = requests => panic!("there is nobody to make Pods"),
        _ = scaled => {}
    }
    // Two routers with three waiters each: whoever comes second counts on what the first asked for.
    assert!(parallelism().await <= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_take_turns_at_the_maximum() {
    let world = World::new().await;
    let few = json!({ "scaling": { "maxInstances": 1 }, "routing": { "reserveTimeout": "20s" } });
    let task = world.task("agent", oneshot("Always", few)).await;
    world.instance(&task, 0).await;
    let router = world.router("a").await;
    router.knows(&task, 1).await;
    let held = router.reserve_for(&task, None, Some("loud")).await.unwrap();
    let order = parking_lot::Mutex::new(Vec::new());
    let ask = async |tenant: &'static str| {
        let reserved = router.reserve_for(&task, None, Some(tenant)).await.unwrap();
        order.lock().push(tenant);
        drop(reserved);
    };
    let all = async {
        // In the order of coming: futures are polled in turn, and each joins the queue when first polled.
        join_all(["loud", "loud", "loud", "quiet", "quiet"].map(ask)).await;
    };
    let release = async {
        tokio::task::yield_now().await;
        drop(held);
    };
    tokio::join!(all, release);
    assert_eq!(*order.lock(), ["loud", "quiet", "loud", "quiet", "loud"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_a_foreign_pod_has_is_passed_over() {
    let world = World::new().await;
    let task = world.task("agent", json!({ "scaling": { "maxInstances": 2 } })).await;
    let foreign = json!({ "metadata": { "name": "agent-0" },
        "spec": { "containers": [{ "name": "x", "image": "x:1" }] } });
    world.pods().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    let router = world.router("a").await;
    let reserved = router.reserve(&task, "user-1").await.unwrap();
    assert_eq!(&*reserved.instance.name, "agent-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scaling_nothing_is_started() {
    let world = World::new().await;
    let fixed = json!({ "scaling": { "scalingMode": "None" }, "routing": { "reserveTimeout": "500ms" } });
    let task = world.task("agent", fixed).await;
    let router = world.router("a").await;
    let refused = router.reserve(&task, "user-1").await.unwrap_err();
    assert!(matches!(&refused, ReserveError::Timeout { reason, .. } if reason.contains("scalingMode None")));
    assert!(world.all_pods().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_revision_takes_new_sessions_and_old_ones_stay() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    let router = world.router("a").await;
    let old = router.reserve(&task, "user-1").await.unwrap().instance;
    world.revision(&task, "agent-2").await;
    until("new sessions go to the new revision", async || {
        let key = format!("user-{}", world.all_pods().await.len() + 1);
        let reserved = router.reserve(&task, &key).await.unwrap();
        let pod = world.pods().get(&reserved.instance.name).await.unwrap();
        (pod.labels()[labels::SPEC_ID] == "agent-2").then_some(())
    })
    .await;
    assert_eq!(router.reserve(&task, "user-1").await.unwrap().instance, old);
}
