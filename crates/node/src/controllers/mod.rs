//! The workload controllers: each keeps the objects of one kind as kube-controller-manager would. They share
//! the caches, and see their own writes through them.

pub mod deployments;
pub mod endpoints;
pub mod jobs;
pub mod nodes;
pub mod ownership;
pub mod pods;
mod refusal;
pub mod replicasets;
pub mod services;
pub mod statefulsets;
pub mod volumes;

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Endpoints, Node, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use agentcube_operator::cache::{Cache, Object};

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
    pub services: Cache<Service>,
    pub endpoint_slices: Cache<EndpointSlice>,
    pub endpoints: Cache<Endpoints>,
    pub nodes: Cache<Node>,
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
            services: start(client, tasks, shutdown),
            endpoint_slices: start(client, tasks, shutdown),
            endpoints: start(client, tasks, shutdown),
            nodes: start(client, tasks, shutdown),
        }
    }
}

/// A cache, and the task that keeps it current.
pub(crate) fn start<K: Object>(
    client: &Client,
    tasks: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) -> Cache<K> {
    let cache = Cache::new(client.clone(), watcher::Config::default());
    tasks.spawn(cache.clone().run(shutdown.clone()));
    cache
}

/// Starts every controller. The tasks end after the shutdown, once what they are doing is done.
pub fn spawn(client: &Client, caches: &Caches, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) {
    tasks.spawn(replicasets::run(client.clone(), caches.clone(), shutdown.clone()));
    tasks.spawn(deployments::run(client.clone(), caches.clone(), shutdown.clone()));
    tasks.spawn(endpoints::run(client.clone(), caches.clone(), shutdown.clone()));
    tasks.spawn(statefulsets::run(client.clone(), caches.clone(), shutdown.clone()));
    tasks.spawn(jobs::run(client.clone(), caches.clone(), shutdown.clone()));
    tasks.spawn(nodes::run(client.clone(), caches.clone(), shutdown.clone()));
}

/// Which object to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn of<K: Resource>(object: &K) -> Key {
        let meta = object.meta();
        Key {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether an object is still as it was observed, but for its status: asked of the server before anything is
/// done for it. Caches of two kinds do not move together: the end of what an object owns may be seen before its
/// own deletion is, and must not be taken for a loss to make good. What is newer is written through, and that
/// asks for the next reconcile.
pub async fn is_current<K: Object>(
    api: &Api<K>,
    cache: &Cache<K>,
    observed: &K,
) -> Result<bool, kube::Error> {
    let meta = observed.meta();
    let Some(fresh) = api.get_opt(meta.name.as_deref().unwrap_or_default()).await? else {
        cache.gone(observed);
        return Ok(false);
    };
    let current = fresh.meta().uid == meta.uid && fresh.meta().generation == meta.generation;
    if !current {
        cache.put(fresh);
    }
    Ok(current)
}

/// A time as the API keeps it: in whole seconds.
pub fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// A count as the API shows it: zero is left out.
pub fn counted(count: usize) -> Option<i32> {
    (count > 0).then(|| i32::try_from(count).unwrap_or(i32::MAX))
}

/// What the server said, without the decoration of the client.
pub fn reason_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

/// Whether something could not be created because its namespace is being deleted.
pub fn is_namespace_ending(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
