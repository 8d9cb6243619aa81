//! All objects of one kind, kept current by a list and a watch, and written through by whoever writes: a
//! controller always sees its own writes. No state ever goes backwards: neither a late watch event nor a late
//! write-through brings back an older state or a deleted object.

mod contents;
mod feed;

use std::fmt::Debug;
use std::sync::Arc;

use kube::core::{NamespaceResourceScope, ObjectMeta};
use kube::runtime::watcher;
use kube::{Client, Resource};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;

use contents::Contents;
pub use feed::{Change, Receiver};

use crate::watch::{self, Sink};

/// What a cache holds: any typed object of the API.
pub trait Object:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

/// A handle on the objects of one kind over all namespaces; cheap to clone.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Debug for Cache<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Cache { shared: self.shared.clone() }
    }
}

struct Shared<K> {
    client: Client,
    config: watcher::Config,
    /// The server's record of who wrote which field is kept; it can be as large as all the rest.
    managed_fields: bool,
    contents: RwLock<Contents<K>>,
    synced: Sender<bool>,
}

impl<K: Object> Cache<K> {
    /// An empty cache; [`Cache::run`] fills it. With selectors in `config`, only what they select may be put. Objects
    /// are held without their `managedFields`.
    pub fn new(client: Client, config: watcher::Config) -> Cache<K> {
        Cache::over(client, config, false)
    }

    /// The same, with `managedFields`: for objects that are compared by [`crate::children`], which goes by them.
    pub fn with_managed_fields(client: Client, config: watcher::Config) -> Cache<K> {
        Cache::over(client, config, true)
    }

    fn over(client: Client, config: watcher::Config, managed_fields: bool) -> Cache<K> {
        let contents = RwLock::new(Contents::default());
        let synced = Sender::new(false);
        Cache { shared: Arc::new(Shared { client, config, managed_fields, contents, synced }) }
    }

    /// The object of this name; the namespace is empty for kinds that have none.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.shared.contents.read().get(namespace, name)
    }

    /// Every object, or those of one namespace, in the order of namespaces and names.
    pub fn list(&self, namespace: Option<&str>) -> Vec<Arc<K>> {
        self.shared.contents.read().list(namespace)
    }

    /// The objects whose controller has this uid.
    pub fn owned_by(&self, controller: &str) -> Vec<Arc<K>> {
        self.shared.contents.read().owned_by(controller)
    }

    /// The objects of a namespace that have no controller.
    pub fn orphans(&self, namespace: &str) -> Vec<Arc<K>> {
        self.shared.contents.read().orphans(namespace)
    }

    /// Takes in what the server answered to a write. Ignored if something as new or newer is known.
    pub fn put(&self, object: K) {
        let object = self.shared.read(object);
        self.shared.contents.write().put(object);
    }

    /// Takes in that the server said of this object that it is gone.
    pub fn gone(&self, object: &K) {
        self.shared.contents.write().gone(object.meta());
    }

    /// Takes in the answer to a deletion: what is left of the object if it waits for something (`.left()` of
    /// what `Api::delete` gives), else that it is gone.
    pub fn deleted(&self, object: &K, rest: Option<K>) {
        match rest {
            Some(rest) if waits(rest.meta()) => self.put(rest),
            _ => self.gone(object),
        }
    }

    /// Every change from now on, beginning with what is held now. Changes of one object that were not yet
    /// received become one, so a slow receiver holds no more than one change per object.
    pub fn subscribe(&self) -> Receiver<K> {
        self.shared.contents.write().subscribe()
    }

    /// Waits until the cache has been filled once.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as this handle.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Keeps the cache current until the shutdown. Failures are retried, with a new list where the server no
    /// longer knows the revision that was reached.
    pub async fn run(self, shutdown: CancellationToken) {
        let Shared { client, config, .. } = &*self.shared;
        watch::follow(client.clone(), config.clone(), self.shared.clone(), shutdown).await;
    }

    /// The same, with the objects of one namespace only, if one is given.
    pub async fn run_in(self, namespace: Option<String>, shutdown: CancellationToken)
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let Some(namespace) = namespace else { return self.run(shutdown).await };
        let Shared { client, config, .. } = &*self.shared;
        watch::follow_in(client.clone(), &namespace, config.clone(), self.shared.clone(), shutdown).await;
    }
}

impl<K: Object> Sink<K> for Shared<K> {
    type Item = K;

    fn read(&self, mut object: K) -> K {
        if !self.managed_fields {
            object.meta_mut().managed_fields = None;
        }
        object
    }

    fn listed(&self, items: Vec<K>, revision: u64) {
        self.contents.write().listed(items, revision);
        self.synced.send_replace(true);
    }

    fn applied(&self, object: K, _: u64) {
        self.contents.write().watched(object);
    }

    fn deleted(&self, meta: &ObjectMeta, _: u64) {
        self.contents.write().watched_deletion(meta);
    }

    fn bookmark(&self, revision: u64) {
        self.contents.write().bookmark(revision);
    }
}

/// Whether a deletion of this object has begun but waits: for its grace period, or for finalizers.
fn waits(meta: &ObjectMeta) -> bool {
    let finalizers = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    meta.deletion_timestamp.is_some() && (finalizers || meta.deletion_grace_period_seconds.unwrap_or(0) > 0)
}
