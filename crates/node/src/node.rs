//! The parts of the node, wired to each other and to the API server.

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_apiserver::api::Api;
use agentcube_apiserver::hooks::Hooks;
use agentcube_runtime::image::Store;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::{Handlers, Sandboxes};
use kube::Client;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::controllers::{self, start, volumes};
use crate::kubelet::exec::PodExec;
use crate::kubelet::logs::PodLogs;
use crate::kubelet::{self, Kubelet};
use crate::network::{self, Network, PodConnect};
use crate::scheduler::{self, Scheduler};
use agentcube_operator::cache::Cache;
use agentcube_operator::events::Recorder;

/// What the node is made of.
pub struct Parts {
    pub client: Client,
    /// Asked to answer for logs, commands and connections from now on.
    pub api: Api,
    pub spawner: Handle,
    /// The runtimes by the handler of a RuntimeClass; the empty one is the default.
    pub handlers: Handlers,
    pub images: Store,
}

/// How the node behaves.
pub struct Options {
    pub kubelet: kubelet::Options,
    pub network: network::Options,
    pub scheduler: scheduler::Options,
}

/// Why the node did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kubelet(#[from] kubelet::Error),
    #[error("cannot prepare {path}: {source}; check that the data directory can be written", path = path.display())]
    Claims { path: PathBuf, source: std::io::Error },
}

/// A running node.
pub struct Node {
    name: String,
    network: Network,
    nodes: Cache<k8s_openapi::api::core::v1::Node>,
    spawner: Handle,
    kubelet: JoinHandle<()>,
    kubelet_stop: CancellationToken,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Node {
    /// Starts every part. To be called in a tokio runtime.
    pub fn start(options: Options, parts: Parts) -> Result<Self, Error> {
        let Parts { client, api, spawner, handlers, images } = parts;
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let caches = controllers::Caches::start(&client, &mut tasks, &shutdown);
        let name = options.kubelet.node_name.clone();
        let recorder = |component: &'static str, host: Option<&str>| {
            Recorder::start(client.clone(), component, host.map(str::to_owned), shutdown.clone())
        };

        let sandboxes: Arc<dyn Sandboxes> = Arc::new(spawner.clone());
        let api_port = options.network.api_server.map(|address| address.port());
        let network = Network::new(options.network, sandboxes.clone());
        let (followed, until) = (network.clone(), shutdown.clone());
        let for_network = network::Caches {
            pods: caches.pods.clone(),
            namespaces: start(&client, &mut tasks, &shutdown),
            services: caches.services.clone(),
            slices: caches.endpoint_slices.clone(),
            policies: start(&client, &mut tasks, &shutdown),
        };
        tasks.spawn(async move { followed.follow(for_network, until).await });

        controllers::spawn(&client, &caches, &mut tasks, &shutdown);
        if let Some(port) = api_port {
            let address = SocketAddrV4::new(network.gateway(), port);
            tasks.spawn(controllers::services::run(
                client.clone(),
                caches.clone(),
                address,
                shutdown.clone(),
            ));
        }
        let for_volumes = volumes::Caches {
            pods: caches.pods.clone(),
            claims: caches.claims.clone(),
            volumes: start(&client, &mut tasks, &shutdown),
            classes: start(&client, &mut tasks, &shutdown),
        };
        let for_scheduler = scheduler::Caches {
            pods: caches.pods.clone(),
            nodes: caches.nodes.clone(),
            claims: caches.claims.clone(),
            volumes: for_volumes.volumes.clone(),
            classes: for_volumes.classes.clone(),
        };
        let for_kubelet = kubelet::Caches {
            pods: caches.pods.clone(),
            config_maps: start(&client, &mut tasks, &shutdown),
            secrets: start(&client, &mut tasks, &shutdown),
            services: caches.services.clone(),
            claims: caches.claims.clone(),
            volumes: for_volumes.volumes.clone(),
            runtime_classes: start(&client, &mut tasks, &shutdown),
        };
        let directory = claims_directory(&options.kubelet)?;
        let events = recorder("persistentvolume-controller", None);
        let provisioner =
            volumes::Provisioner::new(client.clone(), for_volumes, events, name.clone(), directory);
        tasks.spawn(provisioner.run(shutdown.clone()));
        let events = recorder("default-scheduler", None);
        let scheduler = Scheduler::new(client.clone(), for_scheduler, options.scheduler, events);
        tasks.spawn(scheduler.run(shutdown.clone()));

        let tools = kubelet::Tools {
            client: client.clone(),
            caches: for_kubelet,
            recorder: recorder("kubelet", Some(&name)),
            handlers,
            sandboxes,
            network: network.clone(),
            images,
        };
        let kubelet = Kubelet::new(options.kubelet, tools)?;
        let hooks = Hooks {
            logs: Some(Arc::new(PodLogs(kubelet.logs()))),
            exec: Some(Arc::new(PodExec::new(kubelet.living(), kubelet.logs()))),
            connect: Some(Arc::new(PodConnect(network.clone()))),
            ..api.hooks()
        };
        api.set_hooks(hooks);
        let kubelet_stop = CancellationToken::new();
        let kubelet = tokio::spawn(kubelet.run(kubelet_stop.clone()));
        Ok(Self { name, network, nodes: caches.nodes, spawner, kubelet, kubelet_stop, tasks, shutdown })
    }

    /// Connections to the node's Pods.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Waits until the node takes Pods.
    pub async fn ready(&self) {
        let mut changes = self.nodes.subscribe();
        self.nodes.synced().await;
        while !self.nodes.get("", &self.name).is_some_and(|node| is_ready(&node)) {
            changes.recv().await;
        }
    }

    /// Comes back when the node cannot run Pods any more, because its spawner is gone.
    pub async fn failed(&self) {
        self.spawner.gone().await;
    }

    /// Ends the Pods' containers, then everything else. The API still shows the Pods: they start again with the node.
    pub async fn stop(mut self) {
        self.kubelet_stop.cancel();
        if let Err(error) = self.kubelet.await {
            tracing::error!("the kubelet ended badly: {error}");
        }
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!("a part of the node ended badly: {error}");
            }
        }
        self.spawner.stop().await;
    }
}

fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn claims_directory(options: &kubelet::Options) -> Result<PathBuf, Error> {
    let path = options.volumes().claims();
    let directory = std::fs::create_dir_all(&path).and_then(|()| path.canonicalize());
    directory.map_err(|source| Error::Claims { path, source })
}
