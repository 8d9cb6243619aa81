//! Runs the Pods that are bound to this node, and tells the API how they do.
//!
//! Every Pod has a worker that owns its [`machine`]: it asks for a plan, performs it, and takes in what came of it.
//! Workers share nothing but what is in [`Parts`]. When the process ends, the containers end with it; the next process
//! finds the Pods in the API and starts them again in place.

mod caches;
mod container;
mod directories;
pub mod environment;
pub mod exec;
mod living;
pub mod logs;
pub mod lookup;
mod machine;
mod perform;
mod probe;
mod registration;
mod status;
pub mod volumes;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_runtime::image::Store;
use agentcube_runtime::spec::Mount;
use agentcube_runtime::{Handlers, Sandboxes};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::network::Network;
use agentcube_operator::cache::{Change, Object, Receiver};
use agentcube_operator::events::Recorder;

pub use caches::Caches;
pub use container::Allowed;
pub use living::{Living, Run};
pub use machine::Timing;

use directories::Directories;
use logs::Logs;
use lookup::Lookup;
use volumes::{Reference, Volumes};
use worker::{Orders, Worker};

/// Statuses that are written at once; more wait their turn, and only the latest of each Pod is written.
const WRITES_AT_ONCE: usize = 16;
/// Containers that are started at once; more only make each other slower.
const STARTS_AT_ONCE: usize = 16;
const PULLS_AT_ONCE: usize = 4;

/// What the node is called, and how it behaves.
#[derive(Debug, Clone)]
pub struct Options {
    pub node_name: String,
    /// Where Pods have their directories.
    pub data_dir: PathBuf,
    /// The node's own address, as Pods and nodes show it.
    pub address: IpAddr,
    pub cluster_domain: String,
    /// More Pods than this are not scheduled here.
    pub most_pods: u32,
    pub allowed: Allowed,
    /// Directories of the host that Pods may mount.
    pub host_paths: Vec<PathBuf>,
    /// Mounted into every container of the image `host`.
    pub host_mounts: Vec<Mount>,
    pub timing: Timing,
}

impl Options {
    pub fn new(node_name: impl Into<String>, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            node_name: node_name.into(),
            data_dir: data_dir.into(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            cluster_domain: "cluster.local".to_owned(),
            most_pods: 500,
            allowed: Allowed::default(),
            host_paths: Vec::new(),
            host_mounts: Vec::new(),
            timing: Timing::default(),
        }
    }
}

impl Options {
    /// Where volumes are, and which directories of the host may be one.
    pub fn volumes(&self) -> volumes::Options {
        volumes::Options { directory: self.data_dir.join("volumes"), host_paths: self.host_paths.clone() }
    }
}

/// What a kubelet is given to work with.
pub struct Tools {
    pub client: Client,
    /// Kept running by the caller.
    pub caches: Caches,
    pub recorder: Recorder,
    /// The runtimes by the handlers of RuntimeClasses.
    pub handlers: Handlers,
    pub sandboxes: Arc<dyn Sandboxes>,
    pub network: Network,
    pub images: Store,
}

/// Why a kubelet could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot prepare {path}: {source}; check that the data directory can be written")]
    Directory { path: PathBuf, source: std::io::Error },
}

/// What every worker works with.
pub(crate) struct Parts {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) recorder: Recorder,
    pub(crate) handlers: Handlers,
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) network: Network,
    pub(crate) images: Store,
    pub(crate) volumes: Volumes,
    pub(crate) lookup: Arc<dyn Lookup>,
    pub(crate) logs: Logs,
    pub(crate) living: Living,
    pub(crate) directories: Directories,
    /// Tells the runs of this process from those of others.
    pub(crate) boot: String,
    pub(crate) writes: Semaphore,
    pub(crate) starts: Semaphore,
    pub(crate) pulls: Semaphore,
}

/// The kubelet of one node.
pub struct Kubelet {
    parts: Arc<Parts>,
    pods: Receiver<Pod>,
    config_maps: Receiver<ConfigMap>,
    secrets: Receiver<Secret>,
}

impl Kubelet {
    /// Prepares the directories; nothing runs before [`Kubelet::run`].
    pub fn new(options: Options, tools: Tools) -> Result<Self, Error> {
        let Tools { client, caches, recorder, handlers, sandboxes, network, images } = tools;
        let at = |path: PathBuf| move |source| Error::Directory { path, source };
        let directories = Directories::new(&options.data_dir).map_err(at(options.data_dir.clone()))?;
        let lookup: Arc<dyn Lookup> =
            Arc::new(caches::View::new(caches.clone(), registration::allocatable(&options)));
        let for_volumes = options.volumes();
        let directory = for_volumes.directory.clone();
        let volumes = Volumes::new(for_volumes, lookup.clone()).map_err(at(directory))?;
        let (pods, config_maps, secrets) =
            (caches.pods.subscribe(), caches.config_maps.subscribe(), caches.secrets.subscribe());
        let parts = Parts {
            logs: Logs::new(directories.pods()),
            boot: format!("{:x}", jiff::Timestamp::now().as_millisecond()),
            living: Living::default(),
            writes: Semaphore::new(WRITES_AT_ONCE),
            starts: Semaphore::new(STARTS_AT_ONCE),
            pulls: Semaphore::new(PULLS_AT_ONCE),
            options,
            client,
            caches,
            recorder,
            handlers,
            sandboxes,
            network,
            images,
            volumes,
            lookup,
            directories,
        };
        Ok(Self { parts: Arc::new(parts), pods, config_maps, secrets })
    }

    /// The containers that run now, for whoever runs commands in them.
    pub fn living(&self) -> Living {
        self.parts.living.clone()
    }

    /// What containers wrote.
    pub fn logs(&self) -> Logs {
        self.parts.logs.clone()
    }

    /// Runs Pods until told to stop; then ends their containers, without telling the API, and returns.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let parts = self.parts.clone();
        tokio::select! {
            () = parts.caches.synced() => {}
            () = shutdown.cancelled() => return,
        }
        sweep(&parts, parts.caches.pods.list(None).iter().filter_map(|pod| pod.metadata.uid.clone())).await;
        let mut background = JoinSet::new();
        background.spawn(registration::run(parts.clone(), shutdown.clone()));
        background.spawn(refresh(parts.clone(), self.config_maps, self.secrets, shutdown.clone()));
        let mut pods = Pods { parts: parts.clone(), orders: HashMap::new(), workers: JoinSet::new() };
        for pod in parts.caches.pods.list(None) {
            pods.take(pod, false);
        }
        loop {
            tokio::select! {
                change = self.pods.recv() => pods.changed(&change),
                Some(ended) = pods.workers.join_next(), if !pods.workers.is_empty() => pods.ended(ended),
                () = shutdown.cancelled() => break,
            }
        }
        pods.leave().await;
        while background.join_next().await.is_some() {}
        // Of a deletion that we were about to hear of, nobody else would hear before the next start. The API knows.
        let all = Api::<Pod>::all(parts.client.clone());
        match all.list_metadata(&ListParams::default()).await {
            Ok(list) => sweep(&parts, list.items.into_iter().filter_map(|pod| pod.metadata.uid)).await,
            Err(error) => tracing::warn!("what deleted Pods left stays until the next start: {error}"),
        }
    }
}

/// Removes what Pods left behind that are no more.
async fn sweep(parts: &Arc<Parts>, living: impl Iterator<Item = String>) {
    let (parts, living) = (parts.clone(), living.collect::<BTreeSet<String>>());
    let sweeping = tokio::task::spawn_blocking(move || {
        parts.directories.sweep(&living)?;
        parts.volumes.sweep(&living)
    });
    if let Ok(Err(error)) = sweeping.await {
        tracing::warn!("what earlier Pods left could not be removed: {error}");
    }
}

/// The workers of this node's Pods, by uid.
struct Pods {
    parts: Arc<Parts>,
    orders: HashMap<String, watch::Sender<Orders>>,
    workers: JoinSet<String>,
}

impl Pods {
    /// Pods of the same name may have been joined into one change.
    fn changed(&mut self, change: &Change<Pod>) {
        let uid = |pod: &Arc<Pod>| pod.metadata.uid.clone();
        if let Some(old) = &change.old
            && change.new.as_ref().map(uid) != Some(uid(old))
        {
            self.take(old.clone(), true);
        }
        if let Some(new) = &change.new {
            self.take(new.clone(), false);
        }
    }

    fn take(&mut self, pod: Arc<Pod>, gone: bool) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let Some(uid) = pod.metadata.uid.clone() else { return };
        if node != Some(&self.parts.options.node_name) {
            return;
        }
        if let Some(orders) = self.orders.get(&uid) {
            orders.send_modify(|orders| {
                orders.gone |= gone;
                orders.pod = pod;
            });
        } else if !gone {
            let (sender, receiver) = watch::channel(Orders { pod, gone, leave: false });
            let worker = Worker::new(self.parts.clone(), receiver);
            self.orders.insert(uid.clone(), sender);
            self.workers.spawn(async move {
                worker.run().await;
                uid
            });
        }
    }

    fn ended(&mut self, worker: Result<String, tokio::task::JoinError>) {
        match worker {
            Ok(uid) => drop(self.orders.remove(&uid)),
            Err(error) => tracing::error!("the worker of a Pod ended badly: {error}"),
        }
    }

    async fn leave(mut self) {
        for orders in self.orders.values() {
            orders.send_modify(|orders| orders.leave = true);
        }
        while let Some(ended) = self.workers.join_next().await {
            self.ended(ended);
        }
    }
}

/// Writes what changed in ConfigMaps and Secrets into the volumes that show them.
async fn refresh(
    parts: Arc<Parts>,
    mut config_maps: Receiver<ConfigMap>,
    mut secrets: Receiver<Secret>,
    shutdown: CancellationToken,
) {
    fn place<K: Object>(change: &Change<K>) -> Option<(String, String)> {
        let meta = change.new.as_ref()?.meta();
        Some((meta.namespace.clone()?, meta.name.clone()?))
    }
    loop {
        let reference = tokio::select! {
            change = config_maps.recv() => {
                place(&change).map(|(namespace, name)| Reference::ConfigMap { namespace, name })
            }
            change = secrets.recv() => {
                place(&change).map(|(namespace, name)| Reference::Secret { namespace, name })
            }
            () = shutdown.cancelled() => return,
        };
        let Some(reference) = reference else { continue };
        let parts = parts.clone();
        let writing = tokio::task::spawn_blocking(move || parts.volumes.changed(&reference));
        for error in writing.await.unwrap_or_default() {
            tracing::warn!("a volume keeps its old content: {error}");
        }
    }
}
