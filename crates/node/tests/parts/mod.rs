//! An embedded API server with parts of a node around it, for tests that need no kubelet.
#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(clippy::panic, reason = "only tests are built with it")]

use std::path::PathBuf;
use std::time::Duration;

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_node::controllers::volumes::{self, Provisioner};
use agentcube_node::scheduler::{self, Scheduler};
use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::events::Recorder;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::{wait, watcher};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes; a test that hangs says where.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) claims: PathBuf,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Cluster {
    /// A server with nothing around it.
    pub(crate) async fn bare() -> Cluster {
        let server = Server::builder().memory().embed().await.expect("starts");
        let client = Client::new(server.front(), "default");
        let directory = tempfile::tempdir().expect("a directory");
        let claims = directory.path().canonicalize().expect("is there").join("claims");
        std::fs::create_dir(&claims).expect("is new");
        Cluster {
            server,
            client,
            directory,
            claims,
            tasks: JoinSet::new(),
            shutdown: CancellationToken::new(),
        }
    }

    /// A server, the scheduler and the volume controller.
    pub(crate) async fn start() -> Cluster {
        let mut cluster = Cluster::bare().await;
        cluster.start_parts();
        cluster
    }

    fn cache<K: Object>(&mut self) -> Cache<K> {
        let cache = Cache::new(self.client.clone(), watcher::Config::default());
        self.tasks.spawn(cache.clone().run(self.shutdown.clone()));
        cache
    }

    pub(crate) fn start_parts(&mut self) {
        let (pods, claims, volumes, classes) = (self.cache(), self.cache(), self.cache(), self.cache());
        let caches = scheduler::Caches { pods, nodes: self.cache(), claims, volumes, classes };
        let recorder =
            |component| Recorder::start(self.client.clone(), component, None, self.shutdown.clone());
        let scheduler = Scheduler::new(
            self.client.clone(),
            caches.clone(),
            scheduler::Options::default(),
            recorder("default-scheduler"),
        );
        let caches = volumes::Caches {
            pods: caches.pods,
            claims: caches.claims,
            volumes: caches.volumes,
            classes: caches.classes,
        };
        let provisioner = Provisioner::new(
            self.client.clone(),
            caches,
            recorder("persistentvolume-controller"),
            "n".to_owned(),
            self.claims.clone(),
        );
        self.tasks.spawn(scheduler.run(self.shutdown.clone()));
        self.tasks.spawn(provisioner.run(self.shutdown.clone()));
    }

    /// Ends the parts as a crash would, wherever they are, and starts new ones.
    pub(crate) async fn restart_parts(&mut self) {
        self.tasks.shutdown().await;
        self.shutdown.cancel();
        self.shutdown = CancellationToken::new();
        self.start_parts();
    }

    pub(crate) async fn stop(mut self) {
        self.server.api().faults().clear();
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no part panics");
        }
        self.server.shutdown().await;
    }

    /// Every kind of fault that a client can meet, often.
    pub(crate) fn trouble(&self, seed: u64) {
        self.server.api().faults().set(Plan {
            seed,
            conflict: 0.1,
            internal: 0.1,
            unavailable: 0.1,
            lost_reply: 0.1,
            drop_watch: 0.1,
            ..Plan::default()
        });
    }

    pub(crate) fn calm(&self) {
        self.server.api().faults().clear();
    }

    /// Of the whole cluster.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Of the namespace `default`.
    pub(crate) fn own<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A node of this size that is ready.
    pub(crate) async fn node(&self, cpu: &str) {
        let node: k8s_openapi::api::core::v1::Node = object(json!({"metadata": {
            "name": "n", "labels": {"kubernetes.io/hostname": "n"}}}));
        let api = self.all();
        create(&api, &node).await;
        let status = json!({"status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "1000"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let patch = kube::api::Patch::Merge(status);
        api.patch_status("n", &kube::api::PatchParams::default(), &patch).await.expect("is there");
    }

    /// Waits for an Event.
    pub(crate) async fn event(&self, about: &str, reason: &str) -> String {
        let api: Api<Event> = self.own();
        let (about, reason) = (about.to_owned(), reason.to_owned());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        let found = async {
            use futures_util::StreamExt;
            while let Some(event) = events.next().await {
                use watcher::Event::{Apply, InitApply};
                if let Ok(Apply(event) | InitApply(event)) = event
                    && event.involved_object.name.as_deref() == Some(&about)
                    && event.reason.as_deref() == Some(&reason)
                {
                    return event.message.unwrap_or_default();
                }
            }
            unreachable!("a watcher does not end")
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("no Event {reason} about {about}"))
    }
}

pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("well formed")
}

pub(crate) async fn create<K>(api: &Api<K>, object: &K) -> K
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), object).await.expect("accepted")
}

/// Creates through faults.
pub(crate) async fn insist<K>(api: &Api<K>, object: &K)
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    loop {
        match api.create(&PostParams::default(), object).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => return,
            Err(_) => {}
        }
    }
}

/// Waits until an object is as wanted.
pub(crate) async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let reached = wait::await_condition(api.clone(), name, |object: Option<&K>| object.is_some_and(&wanted));
    match tokio::time::timeout(PATIENCE, reached).await {
        Ok(Ok(Some(object))) => object,
        other => panic!("{name} never was {what}: {other:?}; it is {:?}", api.get_opt(name).await),
    }
}

/// Waits until an object is no more.
pub(crate) async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let reached = wait::await_condition(api.clone(), name, |object: Option<&K>| object.is_none());
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("{name} did not go: {:?}", api.get_opt(name).await);
    }
}

pub(crate) async fn list<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.list(&ListParams::default()).await.expect("answers").items
}
