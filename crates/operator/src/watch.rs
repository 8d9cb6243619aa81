//! Follows all objects of one kind by a list and a watch, and tells a [`Sink`] what it hears. Keeps no object itself:
//! whoever needs only a few bytes of each keeps only those.
//!
//! Driven here and not by `kube::runtime::watcher`, because telling a late write from a new one needs the revision
//! that the watch has reached, which that watcher keeps to itself.
//!
//! An object that cannot be read, which anybody may have written, concerns nobody but itself: it is told as if it had
//! nothing but metadata or, where its kind cannot do without more, as if it were gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, NamespaceResourceScope, ObjectMeta};
use kube::runtime::watcher;
use kube::{Client, Resource};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::Object;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How long the server lets a watch last unless the configuration says otherwise.
const WATCH_SECONDS: u32 = 290;
/// How much longer than that we wait for its end: a connection may have died without a word.
const OVERTIME: Duration = Duration::from_secs(30);
/// How long the answer to a list, or the beginning of a watch, may take.
const ANSWER: Duration = Duration::from_secs(60);

/// Where news of the objects of one kind go. Called in the order of revisions, one call at a time.
pub trait Sink<K>: Send + Sync {
    /// What is kept of an object while a list is put together: `K` itself, or less.
    type Item: Send;

    /// What to keep of an object.
    fn read(&self, object: K) -> Self::Item;

    /// Everything that existed at `revision`. What is known and not in here is gone, unless it is newer.
    fn listed(&self, items: Vec<Self::Item>, revision: u64);

    /// An object was created or changed, which made it `revision`.
    fn applied(&self, item: Self::Item, revision: u64);

    /// An object is gone, or no longer selected, since `revision`.
    fn deleted(&self, meta: &ObjectMeta, revision: u64);

    /// Everything up to `revision` was told.
    fn bookmark(&self, revision: u64);

    /// The server was heard of: called after every list, event and bookmark. Says nothing of how old the news are:
    /// they may have waited in a buffer while this process stood still.
    fn contact(&self) {}

    /// A list or a watch failed; it is tried again. A watch that ends in order is no failure.
    fn broken(&self, error: &Error) {
        let _ = error;
    }
}

impl<K, S: Sink<K> + ?Sized> Sink<K> for Arc<S> {
    type Item = S::Item;

    fn read(&self, object: K) -> S::Item {
        (**self).read(object)
    }

    fn listed(&self, items: Vec<S::Item>, revision: u64) {
        (**self).listed(items, revision);
    }

    fn applied(&self, item: S::Item, revision: u64) {
        (**self).applied(item, revision);
    }

    fn deleted(&self, meta: &ObjectMeta, revision: u64) {
        (**self).deleted(meta, revision);
    }

    fn bookmark(&self, revision: u64) {
        (**self).bookmark(revision);
    }

    fn contact(&self) {
        (**self).contact();
    }

    fn broken(&self, error: &Error) {
        (**self).broken(error);
    }
}

/// Why a list or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("the server ended the watch: {message} (code {code})")]
    Watch { code: u16, message: String },
    #[error("the list has the resourceVersion {0:?}, which is not a number")]
    Version(String),
    #[error("the server did not answer within {0:?}")]
    Silent(Duration),
}

impl Error {
    /// Something in the answer is not what it should be.
    fn is_unreadable(&self) -> bool {
        match self {
            Error::Request(kube::Error::SerdeError(_)) => true,
            // An event of a watch that cannot be read passes for a Status in which nothing is said.
            Error::Request(kube::Error::Api(status)) => status.code == 0,
            _ => false,
        }
    }

    /// The revision to watch from, or to list at, is no longer kept by the server: only a new list helps.
    fn is_expired(&self) -> bool {
        match self {
            Error::Request(kube::Error::Api(status)) => status.code == 410,
            Error::Watch { code, .. } => *code == 410,
            _ => false,
        }
    }
}

/// Follows the objects of all namespaces that `config` selects until the shutdown. Failures are retried, with a new
/// list where the server no longer knows the revision that was reached. Lists come in pages of `page_size`.
pub async fn follow<K: Object, S: Sink<K>>(
    client: Client,
    config: watcher::Config,
    sink: S,
    shutdown: CancellationToken,
) {
    let (api, guarded) = (Api::all(client.clone()), Api::all(client));
    Follower::new(api, guarded, config, sink).run_until(shutdown).await;
}

/// The same, for the objects of one namespace.
pub async fn follow_in<K, S: Sink<K>>(
    client: Client,
    namespace: &str,
    config: watcher::Config,
    sink: S,
    shutdown: CancellationToken,
) where
    K: Object + Resource<Scope = NamespaceResourceScope>,
{
    let (api, guarded) = (Api::namespaced(client.clone(), namespace), Api::namespaced(client, namespace));
    Follower::new(api, guarded, config, sink).run_until(shutdown).await;
}

type Guarded<K> = DeserializeGuard<K>;

struct Follower<K, S> {
    api: Api<K>,
    /// The same, slower, but past objects that cannot be read.
    guarded: Api<Guarded<K>>,
    /// Whether the last answer had such an object.
    guards: bool,
    config: watcher::Config,
    sink: S,
    /// The revision that was reached; none before the first list, and when it is no longer known to the server.
    reached: Option<u64>,
    /// The next list comes whole: the server forgot the revision of the last one between two pages.
    whole: bool,
    /// How long to wait after the next failure.
    delay: Duration,
}

impl<K: Object, S: Sink<K>> Follower<K, S> {
    fn new(api: Api<K>, guarded: Api<Guarded<K>>, config: watcher::Config, sink: S) -> Follower<K, S> {
        let (reached, whole, delay) = (None, false, FIRST_RETRY);
        Follower { api, guarded, guards: false, config, sink, reached, whole, delay }
    }

    async fn run_until(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.run() => {}
        }
    }

    async fn run(mut self) {
        loop {
            let outcome = match (self.guards, self.reached) {
                (false, None) => self.list(self.api.clone(), Ok).await,
                (false, Some(reached)) => self.watch(reached, self.api.clone(), Ok).await,
                (true, None) => self.list(self.guarded.clone(), |object| object.0.map_err(Box::new)).await,
                (true, Some(reached)) => {
                    self.watch(reached, self.guarded.clone(), |object| object.0.map_err(Box::new)).await
                }
            };
            let kind = K::kind(&());
            let guarded = std::mem::take(&mut self.guards);
            let Err(error) = outcome else { continue };
            if !guarded && error.is_unreadable() {
                tracing::debug!(%kind, "looking for what cannot be read: {error}");
                self.guards = true;
                continue;
            }
            self.sink.broken(&error);
            if error.is_expired() {
                tracing::debug!(%kind, "listing again: {error}");
                self.reached = None;
                // The first time at once; but never in a circle without a rest.
                if self.delay == FIRST_RETRY {
                    self.delay *= 2;
                    continue;
                }
            } else {
                tracing::warn!(%kind, retry_in = ?self.delay, "not watching: {error}");
            }
            self.rest().await;
        }
    }

    async fn rest(&mut self) {
        tokio::time::sleep(self.delay).await;
        self.delay = (self.delay * 2).min(LONGEST_RETRY);
    }

    async fn list<W: Object>(&mut self, api: Api<W>, open: Open<W, K>) -> Result<(), Error> {
        let mut parameters = ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            limit: self.config.page_size.filter(|_| !self.whole),
            ..ListParams::default()
        };
        let mut items = Vec::new();
        let version = loop {
            let page = answered(api.list(&parameters)).await?.map_err(Error::from);
            let later = parameters.continue_token.is_some();
            let page = page.inspect_err(|error| self.whole |= later && error.is_expired())?;
            items.extend(
                page.items
                    .into_iter()
                    .filter_map(|object| readable(open(object)).ok())
                    .map(|object| self.sink.read(object)),
            );
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
            self.sink.contact();
        };
        let revision = version.parse().map_err(|_| Error::Version(version))?;
        self.whole = false;
        self.reached = Some(revision);
        self.sink.listed(items, revision);
        self.sink.contact();
        Ok(())
    }

    /// Follows one watch to its end. A watch that delivered something makes the next failure a first one.
    async fn watch<W: Object>(&mut self, reached: u64, api: Api<W>, open: Open<W, K>) -> Result<(), Error> {
        let begun = Instant::now();
        let seconds = self.config.timeout.unwrap_or(WATCH_SECONDS);
        let parameters = WatchParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            timeout: Some(seconds),
            bookmarks: self.config.bookmarks,
            send_initial_events: false,
        };
        let events = answered(api.watch(&parameters, &reached.to_string())).await??;
        let limit = Duration::from_secs(seconds.into()) + OVERTIME;
        let heard = tokio::time::timeout_at(begun + limit, self.hear(events, open)).await;
        let heard = heard.map_err(|_| Error::Silent(limit))??;
        if !heard && begun.elapsed() < LONGEST_RETRY {
            // Ended at once and without a word; so may the next.
            self.rest().await;
        }
        Ok(())
    }

    /// Takes in what a watch says. Whether it said anything.
    async fn hear<W: Object>(
        &mut self,
        events: impl Stream<Item = kube::Result<WatchEvent<W>>>,
        open: Open<W, K>,
    ) -> Result<bool, Error> {
        let mut events = std::pin::pin!(events);
        let mut heard = false;
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let revision = self.reach(object.meta().resource_version.as_deref());
                    match readable(open(object)) {
                        Ok(object) => self.sink.applied(self.sink.read(object), revision),
                        Err(meta) => self.sink.deleted(&meta, revision),
                    }
                }
                WatchEvent::Deleted(object) => {
                    let revision = self.reach(object.meta().resource_version.as_deref());
                    self.sink.deleted(object.meta(), revision);
                }
                WatchEvent::Bookmark(bookmark) => {
                    let revision = self.reach(Some(&bookmark.metadata.resource_version));
                    self.sink.bookmark(revision);
                }
                WatchEvent::Error(status) => {
                    return Err(Error::Watch { code: status.code, message: status.message.clone() });
                }
            }
            (heard, self.delay) = (true, FIRST_RETRY);
            self.sink.contact();
        }
        Ok(heard)
    }

    /// Notes the revision of an event; a watch goes on from there. What cannot be read leaves it where it was.
    fn reach(&mut self, version: Option<&str>) -> u64 {
        let reached = self.reached.unwrap_or(0);
        let revision = version.and_then(|version| version.parse().ok()).unwrap_or(0).max(reached);
        self.reached = Some(revision);
        revision
    }
}

/// What the server answers, unless it takes too long.
async fn answered<T>(request: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(ANSWER, request).await.map_err(|_| Error::Silent(ANSWER))
}

/// How an object comes out of what was sent.
type Open<W, K> = fn(W) -> Result<K, Box<InvalidObject>>;

/// The object, as much of it as can be read; its metadata if that is not enough for its kind.
fn readable<K: Object>(object: Result<K, Box<InvalidObject>>) -> Result<K, Box<ObjectMeta>> {
    let InvalidObject { error, metadata } = match object {
        Ok(object) => return Ok(object),
        Err(invalid) => *invalid,
    };
    let (kind, namespace, name) = (K::kind(&()), metadata.namespace.clone(), metadata.name.clone());
    tracing::warn!(%kind, ?namespace, ?name, "cannot be read, and is taken for its metadata: {error}");
    serde_json::from_value(serde_json::json!({ "metadata": metadata })).map_err(|_| Box::new(metadata))
}
