//! The objects that the lifecycle manager works with, as they are on the server.

use agentcube_api::{Sandbox, Task, labels};
use agentcube_operator::cache::Cache;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::Client;
use kube::runtime::watcher;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::late::LateCache;

#[derive(Clone, Debug)]
pub(super) struct Caches {
    pub(super) tasks: Cache<Task>,
    pub(super) pods: Cache<Pod>,
    /// Filled when the first Task has its instances on a pool: without one, nobody need let us see Sandboxes.
    pub(super) sandboxes: LateCache<Sandbox>,
    /// Of sessions and of routers: one watch, so that what a router says it has seen never arrives before what it
    /// wrote of it.
    pub(super) leases: Cache<Lease>,
    pub(super) templates: Cache<PodTemplate>,
    pub(super) jobs: Cache<Job>,
}

impl Caches {
    pub(super) fn new(client: &Client) -> Caches {
        let with = |label: &str| watcher::Config::default().labels(label);
        Caches {
            tasks: Cache::new(client.clone(), watcher::Config::default()),
            pods: Cache::new(client.clone(), with(labels::TASK_UID)),
            sandboxes: LateCache::new(Cache::new(client.clone(), with(labels::TASK_UID))),
            leases: Cache::new(client.clone(), with(labels::LEASE)),
            templates: Cache::new(client.clone(), with(labels::FORM)),
            jobs: Cache::new(client.clone(), with(labels::TASK_UID)),
        }
    }

    pub(super) fn start(&self, running: &mut JoinSet<()>, shutdown: &CancellationToken) {
        running.spawn(self.tasks.clone().run(shutdown.clone()));
        running.spawn(self.pods.clone().run(shutdown.clone()));
        running.spawn(self.sandboxes.clone().run(shutdown.clone()));
        running.spawn(self.leases.clone().run(shutdown.clone()));
        running.spawn(self.templates.clone().run(shutdown.clone()));
        running.spawn(self.jobs.clone().run(shutdown.clone()));
    }
}
