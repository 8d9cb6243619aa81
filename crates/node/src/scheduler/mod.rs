//! Puts Pods on the node. It binds and explains; it never starts anything, and never moves a Pod that has a node.
//!
//! Every change that could matter asks for a round, and changes that come during one become one more: so nothing is
//! polled, and two hundred Pods at once are a handful of rounds.

mod apply;
mod claims;
mod demand;
mod fit;
mod placement;
mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use apply::Error;
pub use claims::Storage;
pub use demand::{Amounts, Demand, HostPort, Load};
pub use fit::{Reason, fit};
pub use plan::{Decision, Snapshot, plan};

use agentcube_operator::cache::{Cache, Change};
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;

/// Writes at once: enough that they share the store's syncs.
const WRITES_AT_ONCE: usize = 32;

/// Which Pods are this scheduler's.
#[derive(Debug, Clone)]
pub struct Options {
    /// The values of `schedulerName` that it answers to.
    pub names: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { names: vec!["default-scheduler".to_owned()] }
    }
}

/// What the scheduler reads.
#[derive(Clone, Debug)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub nodes: Cache<Node>,
    pub claims: Cache<PersistentVolumeClaim>,
    pub volumes: Cache<PersistentVolume>,
    pub classes: Cache<StorageClass>,
}

/// The scheduler; [`Scheduler::run`] runs it.
pub struct Scheduler {
    client: Client,
    caches: Caches,
    options: Options,
    events: Recorder,
    /// Bound by this process, but the cache does not show it yet. Pods by uid, with their nodes.
    assumed: Mutex<HashMap<String, String>>,
}

impl Scheduler {
    pub fn new(client: Client, caches: Caches, options: Options, events: Recorder) -> Scheduler {
        Scheduler { client, caches, options, events, assumed: Mutex::default() }
    }

    /// Schedules until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let caches = self.caches.clone();
        let names = self.options.names.clone();
        let scheduler = Arc::new(self);
        Controller::new("scheduler")
            .concurrency(1)
            .watch(&caches.pods, move |change| pod_matters(change, &names).then_some(()))
            .watch(&caches.nodes, |change| node_matters(change).then_some(()))
            .watch(&caches.claims, |_| [()])
            .watch(&caches.volumes, |_| [()])
            .watch(&caches.classes, |_| [()])
            .run(shutdown, move |()| {
                let scheduler = scheduler.clone();
                async move { scheduler.round().await }
            })
            .await;
    }

    /// Decides about all Pods that wait, and does what was decided. One failure does not keep the others waiting.
    async fn round(&self) -> Result<Requeue, Error> {
        let pods = self.caches.pods.list(None);
        self.forget_assumed(&pods);
        if !pods.iter().any(|pod| plan::is_waiting(pod, &self.options.names)) {
            return Ok(Requeue::No);
        }
        let snapshot = Snapshot {
            nodes: self.caches.nodes.list(None),
            storage: self.storage(),
            assumed: self.assumed.lock().clone(),
            pods,
        };
        let decisions = plan(&snapshot, &self.options.names);
        let writes: Vec<_> = decisions.into_iter().map(|decision| self.apply(decision)).collect();
        let outcomes: Vec<Result<(), Error>> =
            futures_util::stream::iter(writes).buffer_unordered(WRITES_AT_ONCE).collect().await;
        outcomes.into_iter().collect::<Result<(), Error>>()?;
        Ok(Requeue::No)
    }

    /// Keeps of the assumed Pods those that are still there and still without a node.
    fn forget_assumed(&self, pods: &[Arc<Pod>]) {
        let mut assumed = self.assumed.lock();
        if assumed.is_empty() {
            return;
        }
        let unplaced = |pod: &&Arc<Pod>| {
            pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref().unwrap_or_default().is_empty())
        };
        let unplaced: std::collections::HashSet<&str> =
            pods.iter().filter(unplaced).filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        assumed.retain(|uid, _| unplaced.contains(uid.as_str()));
    }

    fn storage(&self) -> Storage {
        let name = |meta: &kube::core::ObjectMeta| meta.name.clone().unwrap_or_default();
        let named = |claim: &Arc<PersistentVolumeClaim>| {
            (claim.metadata.namespace.clone().unwrap_or_default(), name(claim.meta()))
        };
        Storage {
            claims: self.caches.claims.list(None).into_iter().map(|claim| (named(&claim), claim)).collect(),
            volumes: self.caches.volumes.list(None).into_iter().map(|one| (name(one.meta()), one)).collect(),
            classes: self.caches.classes.list(None).into_iter().map(|one| (name(one.meta()), one)).collect(),
        }
    }
}

/// Whether a change of a Pod can let one be scheduled: it waits itself, or room became free.
fn pod_matters(change: &Change<Pod>, schedulers: &[String]) -> bool {
    let placed = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let takes = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        placed(pod) && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let waits = change.new.as_ref().is_some_and(|pod| plan::is_waiting(pod, schedulers));
    let resized = |old: &Pod, new: &Pod| Demand::of(old) != Demand::of(new);
    let frees = match (&change.old, &change.new) {
        (Some(old), Some(new)) => takes(old) && (!takes(new) || resized(old, new)),
        (Some(old), None) => takes(old),
        (None, _) => false,
    };
    waits || frees
}

/// A node that only says again that it lives changes nothing.
fn node_matters(change: &Change<Node>) -> bool {
    let seen = |node: &Node| {
        let status = node.status.clone().unwrap_or_default();
        let ready = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
        let ready = ready.map(|condition| condition.status);
        (node.spec.clone(), node.metadata.labels.clone(), status.allocatable, ready)
    };
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => seen(old) != seen(new),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use agentcube_apiserver::Server;
    use kube::api::{Api, DeleteParams, PostParams};
    use kube::runtime::watcher;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, more: Value) -> Pod {
        let mut spec =
            json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
            .unwrap()
    }

    /// The caches are not run: they show what the test puts there, as late as it likes.
    #[tokio::test]
    async fn what_was_bound_takes_room_before_the_cache_shows_it() {
        let server = Server::builder().memory().embed().await.unwrap();
        let client = Client::new(server.front(), "default");
        let config = watcher::Config::default;
        let caches = Caches {
            pods: Cache::new(client.clone(), config()),
            nodes: Cache::new(client.clone(), config()),
            claims: Cache::new(client.clone(), config()),
            volumes: Cache::new(client.clone(), config()),
            classes: Cache::new(client.clone(), config()),
        };
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "status": {"allocatable": {"cpu": "1", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        caches.nodes.put(serde_json::from_value(node).unwrap());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::start(client.clone(), "default-scheduler", None, shutdown.clone());
        let scheduler = Scheduler::new(client.clone(), caches.clone(), Options::default(), recorder);
        let pods: Api<Pod> = Api::default_namespaced(client);
        let place = async |name: &str| pods.get(name).await.unwrap().spec.unwrap().node_name;

        let late = pods.create(&PostParams::default(), &pod("late", json!({}))).await.unwrap();
        caches.pods.put(late.clone());
        scheduler.round().await.unwrap();
        assert_eq!(place("late").await.as_deref(), Some("n"));
        // Sorts before the other one, which the cache still shows without a node.
        caches.pods.put(pods.create(&PostParams::default(), &pod("early", json!({}))).await.unwrap());
        scheduler.round().await.unwrap();
        assert_eq!(place("early").await, None);
        // The cache catches up, and then the Pod goes.
        caches.pods.put(pods.get("late").await.unwrap());
        scheduler.round().await.unwrap();
        assert!(scheduler.assumed.lock().is_empty());
        assert_eq!(place("early").await, None);
        pods.delete("late", &DeleteParams::default().grace_period(0)).await.unwrap();
        caches.pods.gone(&late);
        scheduler.round().await.unwrap();
        assert_eq!(place("early").await.as_deref(), Some("n"));
        shutdown.cancel();
        server.shutdown().await;
    }

    #[test]
    fn only_changes_that_matter_ask_for_a_round() {
        let names = Options::default().names;
        let with = |name: &str, more: Value, phase: &str| {
            let mut pod = pod(name, more);
            pod.status = serde_json::from_value(json!({"phase": phase})).unwrap();
            Some(Arc::new(pod))
        };
        let (waits, runs) = (json!({}), json!({"nodeName": "n"}));
        for (old, new, expected) in [
            (None, with("p", waits.clone(), "Pending"), true),
            (None, with("p", runs.clone(), "Running"), false),
            (with("p", runs.clone(), "Pending"), with("p", runs.clone(), "Running"), false),
            (with("p", runs.clone(), "Running"), with("p", runs.clone(), "Succeeded"), true),
            (with("p", runs, "Running"), None, true),
            (with("p", waits, "Pending"), None, false),
        ] {
            assert_eq!(
                pod_matters(&Change { old: old.clone(), new: new.clone() }, &names),
                expected,
                "{old:?} {new:?}"
            );
        }
        let node = |value: Value| Some(Arc::new(serde_json::from_value::<Node>(value).unwrap()));
        let beat = |time: &str, status: &str| {
            node(
                json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": time}]}}),
            )
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        assert!(!node_matters(&Change { old: beat(first, "True"), new: beat(second, "True") }));
        assert!(node_matters(&Change { old: beat(first, "False"), new: beat(second, "True") }));
    }
}
