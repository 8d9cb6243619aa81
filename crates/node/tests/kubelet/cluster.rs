//! An API server and one node, in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentcube_apiserver::Server;
use agentcube_node::kubelet::{Caches, Kubelet, Options, Timing, Tools};
use agentcube_node::network::{self, Network};
use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::events::Recorder;
use agentcube_runtime::image::{self, Store};
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::{Handlers, Sandboxes};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub(crate) const NODE: &str = "node-1";

pub(crate) struct Cluster {
    pub(crate) client: kube::Client,
    pub(crate) network: Network,
    pub(crate) data_dir: PathBuf,
    server: Server,
    spawner: Handle,
    caches: Caches,
    background: JoinSet<()>,
    shutdown: CancellationToken,
    kubelet: Option<(JoinHandle<()>, CancellationToken)>,
}

/// Short enough to see several waits, long enough to see that there is one.
fn timing() -> Timing {
    let millis = Duration::from_millis;
    Timing {
        back_off: millis(200),
        back_off_limit: millis(800),
        retry: millis(200),
        drain: Duration::from_secs(2),
        ..Timing::default()
    }
}

impl Cluster {
    pub(crate) async fn start(spawner: Handle, data_dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&data_dir)?;
        let server = Server::builder().memory().embed().await?;
        let client = kube::Client::new(server.front(), "default");
        let (shutdown, mut background) = (CancellationToken::new(), JoinSet::new());
        fn cache<K: Object>(
            client: &kube::Client,
            background: &mut JoinSet<()>,
            shutdown: &CancellationToken,
        ) -> Cache<K> {
            let cache = Cache::new(client.clone(), watcher::Config::default());
            background.spawn(cache.clone().run(shutdown.clone()));
            cache
        }
        macro_rules! cache {
            () => {
                cache(&client, &mut background, &shutdown)
            };
        }
        let caches = Caches {
            pods: cache!(),
            config_maps: cache!(),
            secrets: cache!(),
            services: cache!(),
            claims: cache!(),
            volumes: cache!(),
            runtime_classes: cache!(),
        };
        let network =
            Network::new(network::Options::default(), Arc::new(spawner.clone()) as Arc<dyn Sandboxes>);
        let for_network = network::Caches {
            pods: caches.pods.clone(),
            services: caches.services.clone(),
            namespaces: cache!(),
            slices: cache!(),
            policies: cache!(),
        };
        let (following, until) = (network.clone(), shutdown.clone());
        background.spawn(async move { following.follow(for_network, until).await });
        let mut cluster =
            Self { client, network, data_dir, server, spawner, caches, background, shutdown, kubelet: None };
        cluster.start_kubelet()?;
        Ok(cluster)
    }

    pub(crate) fn start_kubelet(&mut self) -> Result<()> {
        let program = std::env::current_exe()?;
        let also = program.parent().map(Path::to_owned).into_iter().collect();
        let options = image::Options { host_also: also, ..image::Options::default() };
        let images = Store::open_with(&self.data_dir, options)?;
        let stop = self.shutdown.child_token();
        let recorder =
            Recorder::start(self.client.clone(), "kubelet", Some(NODE.to_owned()), self.shutdown.clone());
        let handlers = Handlers::from([(String::new(), Arc::new(Native::new(self.spawner.clone())) as _)]);
        let options = Options { timing: timing(), ..Options::new(NODE, &self.data_dir) };
        let tools = Tools {
            client: self.client.clone(),
            caches: self.caches.clone(),
            recorder,
            handlers,
            sandboxes: Arc::new(self.spawner.clone()),
            network: self.network.clone(),
            images,
        };
        let kubelet = Kubelet::new(options, tools)?;
        self.kubelet = Some((tokio::spawn(kubelet.run(stop.clone())), stop));
        Ok(())
    }

    pub(crate) async fn stop_kubelet(&mut self) -> Result<()> {
        let (kubelet, stop) = self.kubelet.take().context("no kubelet runs")?;
        stop.cancel();
        kubelet.await?;
        Ok(())
    }

    /// Stops everything, and sees that nothing is left of Pods that are no more. What a kubelet had no time to remove,
    /// the next one does before it runs anything.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop_kubelet().await?;
        self.start_kubelet()?;
        let last = json!({"restartPolicy": "Never", "containers": [inside("c", &["exit", "0"])]});
        self.create("last", last).await?;
        self.until_phase("last", "Succeeded").await?;
        self.stop_kubelet().await?;
        let uids: Vec<_> = self.pods().list(&ListParams::default()).await?.items;
        let uids: Vec<_> = uids.into_iter().filter_map(|pod| pod.metadata.uid).collect();
        for place in ["pods", "volumes/pods"] {
            for entry in std::fs::read_dir(self.data_dir.join(place))? {
                let name = entry?.file_name().into_string().unwrap_or_default();
                ensure!(uids.contains(&name), "{place}/{name} is left");
            }
        }
        self.shutdown.cancel();
        while self.background.join_next().await.is_some() {}
        self.server.shutdown().await;
        self.spawner.stop().await;
        Ok(())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<Pod> {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        pod.spec.as_mut().context("a spec")?.node_name = Some(NODE.to_owned());
        Ok(self.pods().create(&PostParams::default(), &pod).await?)
    }

    pub(crate) async fn delete(&self, name: &str, grace: Option<u32>) -> Result<()> {
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        self.pods().delete(name, &params).await?;
        Ok(())
    }

    /// Every version of a Pod until one will do; `None` once it is gone. The last version that was seen.
    pub(crate) async fn until(
        &self,
        name: &str,
        wanted: impl Fn(Option<&Pod>) -> bool,
    ) -> Result<Option<Pod>> {
        let list = self.pods().list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
        let last = list.items.into_iter().next();
        if wanted(last.as_ref()) {
            return Ok(last);
        }
        let version = list.metadata.resource_version.context("a version")?;
        self.follow(name, &version, last, wanted).await
    }

    /// The version that the API is at.
    pub(crate) async fn version(&self) -> Result<String> {
        let list = self.pods().list(&ListParams::default().limit(1)).await?;
        list.metadata.resource_version.context("a version")
    }

    /// The same from a version on.
    pub(crate) async fn follow(
        &self,
        name: &str,
        version: &str,
        mut last: Option<Pod>,
        wanted: impl Fn(Option<&Pod>) -> bool,
    ) -> Result<Option<Pod>> {
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(290);
        let mut events = Box::pin(self.pods().watch(&params, version).await?);
        let looking = async {
            while let Some(event) = events.next().await {
                match event? {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        last = Some(pod);
                        if wanted(last.as_ref()) {
                            return anyhow::Ok(true);
                        }
                    }
                    WatchEvent::Deleted(pod) => {
                        last = Some(pod);
                        if wanted(None) {
                            return Ok(true);
                        }
                    }
                    _ => {}
                }
            }
            Ok(false)
        };
        let found = tokio::time::timeout(Duration::from_secs(60), looking).await;
        let status =
            last.as_ref().and_then(|pod| pod.status.as_ref()).map(|it| serde_json::json!(it).to_string());
        ensure!(matches!(found, Ok(Ok(true))), "{name} never came to it; its last status: {status:?}");
        Ok(last)
    }

    pub(crate) async fn until_pod(&self, name: &str, wanted: impl Fn(&Pod) -> bool) -> Result<Pod> {
        let found = self.until(name, |pod| pod.is_some_and(&wanted)).await?;
        found.context("it is there")
    }

    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> Result<Pod> {
        self.until_pod(name, |pod| self::phase(pod) == phase).await
    }

    /// Until an Event about a Pod says so.
    pub(crate) async fn until_event(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        let api: Api<Event> = Api::default_namespaced(self.client.clone());
        let fits = |event: &Event| {
            event.involved_object.name.as_deref() == Some(pod)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|message| message.contains(words))
        };
        let list = api.list(&ListParams::default()).await?;
        if list.items.iter().any(fits) {
            return Ok(());
        }
        let version = list.metadata.resource_version.context("a version")?;
        let mut events = Box::pin(api.watch(&WatchParams::default().timeout(290), &version).await?);
        let looking = async {
            while let Some(event) = events.next().await {
                if let WatchEvent::Added(event) | WatchEvent::Modified(event) = event?
                    && fits(&event)
                {
                    return anyhow::Ok(true);
                }
            }
            Ok(false)
        };
        let found = tokio::time::timeout(Duration::from_secs(60), looking).await;
        let all = api.list(&ListParams::default()).await?.items.into_iter();
        let all: Vec<_> = all
            .filter(|event| event.involved_object.name.as_deref() == Some(pod))
            .map(|event| {
                format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
            })
            .collect();
        ensure!(matches!(found, Ok(Ok(true))), "no Event of {pod} says {reason}: {words}, but {all:#?}");
        Ok(())
    }
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The status of its first container.
pub(crate) fn first(pod: &Pod) -> ContainerStatus {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.unwrap_or_default().into_iter().next().unwrap_or_default()
}

/// Why its first container waits.
pub(crate) fn waiting(pod: &Pod) -> String {
    first(pod).state.and_then(|state| state.waiting).and_then(|waiting| waiting.reason).unwrap_or_default()
}

/// A container that runs this program.
pub(crate) fn inside(name: &str, words: &[&str]) -> Value {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = vec![program.to_str().expect("its path is text").to_owned(), "inside".to_owned()];
    command.extend(words.iter().map(|word| (*word).to_owned()));
    json!({"name": name, "image": "host", "command": command})
}
