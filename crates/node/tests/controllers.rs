//! Deployments under our controllers over the embedded API server, while requests fail, answers get lost,
//! watches break and lag, and the controllers themselves are stopped and started again.

use std::sync::Arc;
use std::time::Duration;

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_node::controllers::{Caches, Key, pods, spawn};
use agentcube_operator::cache::Cache;
use agentcube_operator::controller::{Controller, Requeue};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The controllers, until they are stopped.
struct Running {
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    fn start(client: &Client) -> Running {
        let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let caches = Caches::start(client, &mut tasks, &shutdown);
        spawn(client, &caches, &mut tasks, &shutdown);
        Running { shutdown, tasks }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// Ends everything wherever it is, as a crash would.
    async fn crash(mut self) {
        self.tasks.shutdown().await;
        self.shutdown.cancel();
    }
}

/// A kubelet that has every Pod ready at once, and every deleted one gone.
fn kubelet(client: &Client, shutdown: &CancellationToken) {
    let cache: Cache<Pod> = Cache::new(client.clone(), watcher::Config::default());
    tokio::spawn(cache.clone().run(shutdown.clone()));
    let controller = Controller::new("kubelet").watch(&cache, |change| [Key::of(&**change.latest())]);
    let (client, stop) = (client.clone(), shutdown.clone());
    tokio::spawn(async move {
        let (client, cache) = (&client, &cache);
        let serve = move |key: Key| {
            let (client, cache) = (client.clone(), cache.clone());
            async move {
                let Some(pod) = cache.get(&key.namespace, &key.name) else { return Ok(Requeue::No) };
                serve(&Api::namespaced(client, &key.namespace), &pod).await.map(|()| Requeue::No)
            }
        };
        controller.run(stop, serve).await;
    });
}

async fn serve(api: &Api<Pod>, pod: &Arc<Pod>) -> Result<(), kube::Error> {
    if pod.metadata.deletion_timestamp.is_some() {
        let gone = api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        return match gone {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        };
    }
    if pods::is_ready(pod) {
        return Ok(());
    }
    let status = json!({ "status": { "phase": "Running", "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
    api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

fn deployment(image: &str) -> Deployment {
    let object = json!({
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "replicas": 6, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": image }] } } },
    });
    serde_json::from_value(object).expect("this is a Deployment")
}

/// Waits until the rollout of an image is complete.
async fn complete(deployments: &Cache<Deployment>, image: &str) {
    let mut changes = deployments.subscribe();
    loop {
        let Some(held) = changes.recv().await.new else { continue };
        let spec = held.spec.as_ref().expect("a Deployment has a spec");
        let containers = &spec.template.spec.as_ref().expect("a template has a spec").containers;
        let status = held.status.clone().unwrap_or_default();
        if containers[0].image.as_deref() == Some(image)
            && status.observed_generation == held.metadata.generation
            && [status.replicas, status.updated_replicas, status.available_replicas] == [spec.replicas; 3]
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_converge_through_faults_and_crashes() {
    let server = Server::builder().memory().embed().await.expect("a server in memory starts");
    let client = Client::new(server.front(), "default");
    let stop = CancellationToken::new();
    kubelet(&client, &stop);
    let deployments: Cache<Deployment> = Cache::new(client.clone(), watcher::Config::default());
    tokio::spawn(deployments.clone().run(stop.clone()));

    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &deployment("image-0")).await.expect("it is created");
    let faults = server.api().faults().clone();
    let mut running = Running::start(&client);
    for round in 1..=8u64 {
        let plan = Plan {
            seed: round,
            conflict: 0.1,
            internal: 0.1,
            lost_reply: 0.1,
            drop_watch: 0.1,
            lag_watch: 0.2,
            lag_for: Duration::from_millis(5),
            ..Plan::default()
        };
        let image = json!({ "spec": { "template": { "spec": { "containers": [
            { "name": "web", "image": format!("image-{round}") }] } } } });
        api.patch("web", &PatchParams::default(), &Patch::Strategic(image)).await.expect("it is changed");
        faults.set(plan);
        // How far the rollout has come when this happens differs from round to round, and does not matter.
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        for _ in 0..round * 10 {
            let _ = pods.list(&Default::default()).await;
        }
        match round % 2 {
            0 => running.stop().await,
            _ => running.crash().await,
        }
        running = Running::start(&client);
        if round % 3 != 0 {
            faults.clear();
            complete(&deployments, &format!("image-{round}")).await;
        }
        faults.clear();
    }
    complete(&deployments, "image-8").await;

    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    let sets = sets.list(&Default::default()).await.expect("ReplicaSets are listed");
    let sizes: Vec<i32> = sets.iter().filter_map(|set| set.spec.as_ref()?.replicas).collect();
    assert_eq!(sizes.iter().sum::<i32>(), 6, "one ReplicaSet has all Pods: {sizes:?}");
    let mut templates: Vec<String> =
        sets.iter().map(|set| set.labels()["pod-template-hash"].clone()).collect();
    templates.sort();
    templates.dedup();
    assert_eq!(templates.len(), sets.items.len(), "no template has two ReplicaSets");
    running.stop().await;
    stop.cancel();
}
