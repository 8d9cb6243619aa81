//! All objects of one kind, kept current by a list and a watch, and written through by whoever writes: a
//! controller always sees its own writes. No state ever goes backwards: neither a late watch event nor a late
//! write-through brings back an older state or a deleted object.
//!
//! The list and the watch are driven here and not by `kube::runtime::watcher`, because telling a late
//! write-through from a new one needs the revision that the watch has reached, which the watcher keeps to itself.

mod contents;
mod feed;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Client, Resource};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use contents::Contents;
pub use feed::{Change, Receiver};

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

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
    contents: RwLock<Contents<K>>,
    synced: watch::Sender<bool>,
}

/// Why a list or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("the server ended the watch: {message} (code {code})")]
    Watch { code: u16, message: String },
    #[error("the list has the resourceVersion {0:?}, which is not a number")]
    Version(String),
}

impl Error {
    /// The revision to watch from is no longer kept by the server: only a new list helps.
    fn is_expired(&self) -> bool {
        match self {
            Error::Request(kube::Error::Api(status)) => status.code == 410,
            Error::Watch { code, .. } => *code == 410,
            _ => false,
        }
    }
}

impl<K: Object> Cache<K> {
    /// An empty cache; [`Cache::run`] fills it. With selectors in `config`, only what they select may be put.
    pub fn new(client: Client, config: watcher::Config) -> Cache<K> {
        let contents = RwLock::new(Contents::default());
        let synced = watch::Sender::new(false);
        Cache { shared: Arc::new(Shared { client, config, contents, synced }) }
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
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(&self) {
        let mut delay = FIRST_RETRY;
        let mut listed = false;
        loop {
            let outcome = match listed {
                false => self.relist().await,
                true => self.watch(&mut delay).await,
            };
            match outcome {
                Ok(()) => listed = true,
                Err(error) if error.is_expired() => {
                    tracing::debug!(kind = %K::kind(&()), "listing again: {error}");
                    listed = false;
                }
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), retry_in = ?delay, "not watching: {error}");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(LONGEST_RETRY);
                }
            }
        }
    }

    async fn relist(&self) -> Result<(), Error> {
        let api: Api<K> = Api::all(self.shared.client.clone());
        let config = &self.shared.config;
        let parameters = ListParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            ..ListParams::default()
        };
        let list = api.list(&parameters).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let revision = version.parse().map_err(|_| Error::Version(version))?;
        self.shared.contents.write().listed(list.items, revision);
        self.shared.synced.send_replace(true);
        Ok(())
    }

    /// Follows one watch to its end. A watch that delivered something makes the next failure a first one.
    async fn watch(&self, delay: &mut Duration) -> Result<(), Error> {
        let api: Api<K> = Api::all(self.shared.client.clone());
        let config = &self.shared.config;
        let parameters = WatchParams {
            label_selector: config.label_selector.clone(),
            field_selector: config.field_selector.clone(),
            timeout: config.timeout,
            bookmarks: config.bookmarks,
            send_initial_events: false,
        };
        let reached = self.shared.contents.read().reached().to_string();
        let mut events = std::pin::pin!(api.watch(&parameters, &reached).await?);
        while let Some(event) = events.next().await {
            let event = event?;
            *delay = FIRST_RETRY;
            let mut contents = self.shared.contents.write();
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => contents.watched(object),
                WatchEvent::Deleted(object) => contents.watched_deletion(object.meta()),
                WatchEvent::Bookmark(bookmark) => contents.bookmark(&bookmark.metadata.resource_version),
                WatchEvent::Error(status) => {
                    return Err(Error::Watch { code: status.code, message: status.message.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Whether a deletion of this object has begun but waits: for its grace period, or for finalizers.
fn waits(meta: &kube::core::ObjectMeta) -> bool {
    let finalizers = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    meta.deletion_timestamp.is_some() && (finalizers || meta.deletion_grace_period_seconds.unwrap_or(0) > 0)
}
