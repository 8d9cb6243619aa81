//! What the controllers keep in memory.

use agentcube_api::{JSBundle, labels};
use agentcube_operator::cache::{Cache, Object};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::raw::Integration;

#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) integrations: Cache<Integration>,
    pub(crate) bundles: Cache<JSBundle>,
    /// Of builds only, and their Pods, which say how they ended.
    pub(crate) jobs: Cache<Job>,
    pub(crate) pods: Cache<Pod>,
}

impl Caches {
    pub(crate) fn new(client: &Client) -> Caches {
        let every = watcher::Config::default();
        let of_builds = watcher::Config::default().labels(labels::FORGE_FI_NAME);
        Caches {
            integrations: Cache::new(client.clone(), every.clone()),
            bundles: Cache::new(client.clone(), every),
            jobs: Cache::new(client.clone(), of_builds.clone()),
            pods: Cache::new(client.clone(), of_builds),
        }
    }

    /// Keeps all of them current until the shutdown: those of one namespace, if one is given.
    pub(crate) fn spawn(
        &self,
        tasks: &mut JoinSet<()>,
        namespace: Option<&String>,
        shutdown: &CancellationToken,
    ) {
        fn feed<K: Object + Resource<Scope = NamespaceResourceScope>>(
            tasks: &mut JoinSet<()>,
            cache: &Cache<K>,
            namespace: Option<&String>,
            shutdown: &CancellationToken,
        ) {
            tasks.spawn(cache.clone().run_in(namespace.cloned(), shutdown.clone()));
        }
        feed(tasks, &self.integrations, namespace, shutdown);
        feed(tasks, &self.bundles, namespace, shutdown);
        feed(tasks, &self.jobs, namespace, shutdown);
        feed(tasks, &self.pods, namespace, shutdown);
    }
}
