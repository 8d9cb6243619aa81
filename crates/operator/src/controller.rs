//! The shell of a controller: changes of caches become keys, keys are reconciled one at a time each. It decides
//! nothing itself. An error of a reconcile is logged here, once, counted, and retried with back-off.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Change, Object};
use crate::metrics::{self, Counter, Histogram, Registry};
pub use crate::queue::Requeue;
use crate::queue::{Key, Outcome, Queue};

const DEFAULT_CONCURRENCY: usize = 5;
/// How long a reconcile may take. What waits for longer waits for something that may never come, and would hold its key
/// and one of the places for ever.
const LONGEST: Duration = Duration::from_secs(60);

/// How much a controller has done since it was made.
#[derive(Debug, Default)]
pub struct Counts {
    pub reconciles: AtomicU64,
    pub errors: AtomicU64,
}

/// The same for all to see.
#[derive(Clone)]
struct Shown {
    reconciles: Counter,
    errors: Counter,
    took: Histogram,
}

/// A controller that is being put together; [`Controller::run`] runs it.
pub struct Controller<K> {
    name: &'static str,
    concurrency: usize,
    queue: Queue<K>,
    counts: Arc<Counts>,
    shown: Option<Shown>,
    /// Each turns the changes of one cache into keys, for ever.
    sources: Vec<BoxFuture<'static, ()>>,
    /// Each waits until one cache is filled.
    waits: Vec<BoxFuture<'static, ()>>,
}

impl<K: Key> Controller<K> {
    pub fn new(name: &'static str) -> Controller<K> {
        Controller {
            name,
            concurrency: DEFAULT_CONCURRENCY,
            queue: Queue::new(),
            counts: Arc::default(),
            shown: None,
            sources: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// How many keys may be reconciled at once.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Has the keys that `keys` gives for a change reconciled. Nothing is reconciled before the cache is filled.
    pub fn watch<O, I>(self, cache: &Cache<O>, keys: impl Fn(&Change<O>) -> I + Send + 'static) -> Self
    where
        O: Object,
        I: IntoIterator<Item = K>,
    {
        self.hear(cache, keys).needs(cache)
    }

    /// The same without waiting for the cache, which may be filled later, or never.
    pub fn hear<O, I>(mut self, cache: &Cache<O>, keys: impl Fn(&Change<O>) -> I + Send + 'static) -> Self
    where
        O: Object,
        I: IntoIterator<Item = K>,
    {
        let (mut changes, queue) = (cache.subscribe(), self.queue.clone());
        self.sources.push(Box::pin(async move {
            loop {
                let change = changes.recv().await;
                keys(&change).into_iter().for_each(|key| queue.add(key));
            }
        }));
        self
    }

    /// Reconciles nothing before this cache is filled.
    pub fn needs<O: Object>(mut self, cache: &Cache<O>) -> Self {
        let cache = cache.clone();
        self.waits.push(Box::pin(async move { cache.synced().await }));
        self
    }

    /// The queue, for what asks for a reconcile other than the change of an object.
    pub fn queue(&self) -> Queue<K> {
        self.queue.clone()
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Counts reconciles, their errors and how long they take in this registry, with the controller's name as label.
    pub fn metrics(mut self, registry: &Registry) -> Self {
        let (labels, values) = (&["controller"][..], &[self.name][..]);
        let total = "Reconciles that came to their end.";
        let errors = "Reconciles that failed, and are tried again.";
        let took = "How long reconciles took.";
        self.shown = Some(Shown {
            reconciles: registry.counter("agentcube_reconciles_total", total, labels).with(values),
            errors: registry.counter("agentcube_reconcile_errors_total", errors, labels).with(values),
            took: registry
                .histogram("agentcube_reconcile_seconds", took, labels, metrics::SECONDS)
                .with(values),
        });
        self
    }

    /// Runs until the shutdown, and then until the reconciles under way are over.
    pub async fn run<R, F, E>(self, shutdown: CancellationToken, reconcile: R)
    where
        R: Fn(K) -> F,
        F: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let Controller { name, concurrency, queue, counts, shown, sources, waits } = self;
        for wait in waits {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = wait => {}
            }
        }
        let handle = |key: K| {
            let (counts, shown, described) = (counts.clone(), shown.clone(), format!("{key:?}"));
            let reconciling = reconcile(key);
            async move {
                counts.reconciles.fetch_add(1, Ordering::Relaxed);
                let begun = Instant::now();
                let outcome = match tokio::time::timeout(LONGEST, reconciling).await {
                    Ok(outcome) => outcome.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("it was not over after {LONGEST:?}")),
                };
                if let Some(shown) = shown {
                    shown.reconciles.inc();
                    shown.errors.add(u64::from(outcome.is_err()));
                    shown.took.took(begun.elapsed());
                }
                match outcome {
                    Ok(requeue) => Outcome::Done(requeue),
                    Err(error) => {
                        counts.errors.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(controller = name, key = described, "will be tried again: {error}");
                        Outcome::Failed
                    }
                }
            }
        };
        let mut sources: FuturesUnordered<_> = sources.into_iter().collect();
        tokio::select! {
            () = queue.run(concurrency, shutdown.clone(), handle) => {}
            () = async { while sources.next().await.is_some() {}; std::future::pending().await } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_never_ends_is_given_up_and_tried_again() {
        let controller: Controller<&str> = Controller::new("test").concurrency(1);
        let (counts, shutdown) = (controller.counts(), CancellationToken::new());
        controller.queue().add("a");
        let (calls, stop) = (Arc::new(AtomicU64::new(0)), shutdown.clone());
        let reconcile = move |_| {
            let (calls, stop) = (calls.clone(), stop.clone());
            async move {
                if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                stop.cancel();
                Ok::<_, String>(Requeue::No)
            }
        };
        tokio::time::timeout(2 * LONGEST, controller.run(shutdown, reconcile)).await.expect("it goes on");
        assert_eq!(counts.reconciles.load(Ordering::SeqCst), 2);
        assert_eq!(counts.errors.load(Ordering::SeqCst), 1);
    }
}
