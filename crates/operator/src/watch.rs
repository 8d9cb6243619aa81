//! Follows all objects of one kind by a list and a watch, and tells a [`Sink`] what it hears. Keeps no object itself:
//! whoever needs only a few bytes of each keeps only those.
//!
//! Driven here and not by `kube::runtime::watcher`, because telling a late write from a new one needs the revision
//! that the watch has reached, which that watcher keeps to itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::Client;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::ObjectMeta;
use kube::runtime::watcher;
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
    follow_in(Api::all(client), config, sink, shutdown).await;
}

/// The same, for the objects that `api` reaches: those of one namespace, for instance.
pub async fn follow_in<K: Object, S: Sink<K>>(
    api: Api<K>,
    config: watcher::Config,
    sink: S,
    shutdown: CancellationToken,
) {
    let follower = Follower { api, config, sink, reached: None, whole: false, delay: FIRST_RETRY };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = follower.run() => {}
    }
}

struct Follower<K, S> {
    api: Api<K>,
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
    async fn run(mut self) {
        loop {
            let outcome = match self.reached {
                None => self.list().await,
                Some(reached) => self.watch(reached).await,
            };
            let Err(error) = outcome else { continue };
            let kind = K::kind(&());
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

    async fn list(&mut self) -> Result<(), Error> {
        let mut parameters = ListParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            limit: self.config.page_size.filter(|_| !self.whole),
            ..ListParams::default()
        };
        let mut items = Vec::new();
        let version = loop {
            let page = answered(self.api.list(&parameters)).await?.map_err(Error::from);
            let later = parameters.continue_token.is_some();
            let page = page.inspect_err(|error| self.whole |= later && error.is_expired())?;
            items.extend(page.items.into_iter().map(|object| self.sink.read(object)));
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
    async fn watch(&mut self, reached: u64) -> Result<(), Error> {
        let begun = Instant::now();
        let seconds = self.config.timeout.unwrap_or(WATCH_SECONDS);
        let parameters = WatchParams {
            label_selector: self.config.label_selector.clone(),
            field_selector: self.config.field_selector.clone(),
            timeout: Some(seconds),
            bookmarks: self.config.bookmarks,
            send_initial_events: false,
        };
        let events = answered(self.api.watch(&parameters, &reached.to_string())).await??;
        let limit = Duration::from_secs(seconds.into()) + OVERTIME;
        let heard = tokio::time::timeout_at(begun + limit, self.hear(events)).await;
        let heard = heard.map_err(|_| Error::Silent(limit))??;
        if !heard && begun.elapsed() < LONGEST_RETRY {
            // Ended at once and without a word; so may the next.
            self.rest().await;
        }
        Ok(())
    }

    /// Takes in what a watch says. Whether it said anything.
    async fn hear(&mut self, events: impl Stream<Item = kube::Result<WatchEvent<K>>>) -> Result<bool, Error> {
        let mut events = std::pin::pin!(events);
        let mut heard = false;
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let revision = self.reach(object.meta().resource_version.as_deref());
                    self.sink.applied(self.sink.read(object), revision);
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
