//! Takes back what is no longer needed, and keeps up what is: ends sessions, gives back their instances, keeps the
//! minimum, drains old revisions, clears away leftovers. Run by the leader only, though two at once would do no harm:
//! every write is conditional on the state it was planned for.
//!
//! It never takes an instance from under a request: whatever may be in use goes only when every router agreed
//! (`docs/decisions/0011-reservation.md`).

mod apply;
mod caches;
mod explain;
mod observe;
mod operation;
mod plan;
mod routers;
mod view;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use agentcube_operator::cache::Change;
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use agentcube_operator::queue::Queue;
use futures_util::{StreamExt, stream};
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::timing::Timing;
use apply::{Hands, Outcome};
use caches::Caches;
use explain::Explainer;
use observe::{Concerned, Index, TaskKey};
use view::Rules;

pub use explain::Reclaimed;
pub use operation::Reason;
pub use view::Limits;

/// Tasks that are worked on at once.
const TASKS_AT_ONCE: usize = 4;
/// Writes for one Task that are under way at once.
const WRITES_AT_ONCE: usize = 8;
/// When to plan again after nothing could be done because what was planned for had changed: twice as late every time.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How long an operation may take, with the reads that it needs.
const ANSWER: Duration = Duration::from_secs(30);

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's namespace, where routers have their Leases.
    pub namespace: String,
    pub timing: Timing,
    pub limits: Limits,
}

/// The lifecycle manager; [`Manager::run`] runs it.
pub struct Manager {
    client: Client,
    options: Options,
    reclaimed: Reclaimed,
}

/// What is to be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Task(TaskKey),
    /// The routers' own Leases.
    Routers,
}

/// Some operations failed; the first error stands for all.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {tried} operations failed, the first: {first}")]
struct Error {
    failed: usize,
    tried: usize,
    first: String,
}

impl Error {
    fn one(error: impl Display) -> Error {
        Error { failed: 1, tried: 1, first: error.to_string() }
    }
}

/// An answer of the server, or that there was none.
async fn answered<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the API server did not answer within {ANSWER:?}")),
    }
}

impl Manager {
    pub fn new(client: Client, options: Options) -> Manager {
        Manager::counted(client, options, &Registry::new())
    }

    /// The same, with its counts among these metrics.
    pub fn counted(client: Client, options: Options, metrics: &Registry) -> Manager {
        Manager { client, options, reclaimed: Reclaimed::new(metrics) }
    }

    /// Counts of what was taken back.
    pub fn reclaimed(&self) -> Reclaimed {
        self.reclaimed.clone()
    }

    /// Works until the shutdown, and then until the writes under way are over.
    pub async fn run(self, shutdown: CancellationToken) {
        let Manager { client, options, reclaimed } = self;
        let rules = Rules { timing: options.timing, limits: options.limits };
        let caches = Caches::new(&client);
        let index = Arc::new(Mutex::new(Index::new(caches.clone(), rules, options.namespace.clone())));
        let events = Recorder::start(client.clone(), "agentcube-lifecycle", None, shutdown.clone());
        let controller = watch(Controller::new("lifecycle").concurrency(TASKS_AT_ONCE), &caches, &index);
        let queue = controller.queue();
        let explainer = Explainer { events, reclaimed };
        let routers_in = options.namespace;
        let hands =
            Hands { client, caches: caches.clone(), index: index.clone(), explainer, rules, routers_in };
        let mut running = JoinSet::new();
        caches.start(&mut running, &shutdown);
        running.spawn(full_passes(index, queue, rules.limits.full_pass, shutdown.clone()));
        controller
            .run(shutdown, move |key| {
                let hands = hands.clone();
                async move {
                    match key {
                        Key::Task(task) => reconcile(hands, task).await,
                        Key::Routers => remove_dead_routers(hands).await,
                    }
                }
            })
            .await;
        while running.join_next().await.is_some() {}
    }
}

/// Has every change taken in by the index, and whom it concerns looked at.
fn watch(controller: Controller<Key>, caches: &Caches, index: &Arc<Mutex<Index>>) -> Controller<Key> {
    let of = |index: &Arc<Mutex<Index>>| index.clone();
    let (tasks, pods, leases, templates, jobs) = (of(index), of(index), of(index), of(index), of(index));
    let sandboxes = of(index);
    controller
        .watch(&caches.tasks, move |change| keys(at(change, |ns, name| tasks.lock().task(ns, name))))
        .watch(&caches.pods, move |change| keys(at(change, |ns, name| pods.lock().pod(ns, name))))
        .hear(&caches.sandboxes, move |change| {
            keys(at(change, |ns, name| sandboxes.lock().sandbox(ns, name)))
        })
        .watch(&caches.leases, move |change| keys(at(change, |ns, name| leases.lock().lease(ns, name))))
        .watch(&caches.templates, move |change| keys(templates.lock().template(&change.latest().metadata)))
        .watch(&caches.jobs, move |change| keys(at(change, |ns, name| jobs.lock().job(ns, name))))
}

fn at<K: Resource<DynamicType = ()>>(
    change: &Change<K>,
    take: impl FnOnce(&str, &str) -> Concerned,
) -> Concerned {
    let meta = change.latest().meta();
    take(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn keys(concerned: Concerned) -> Vec<Key> {
    let routers = concerned.routers.then_some(Key::Routers);
    concerned.tasks.into_iter().map(Key::Task).chain(routers).collect()
}

/// Has everything looked at now and then, whether or not anything happened.
async fn full_passes(
    index: Arc<Mutex<Index>>,
    queue: Queue<Key>,
    every: Duration,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        let tasks = {
            let mut index = index.lock();
            index.begin_full_pass();
            index.keys()
        };
        tasks.into_iter().map(Key::Task).chain([Key::Routers]).for_each(|key| queue.add(key));
    }
}

/// Plans for a Task and carries out a bounded part of the plan; what is left has its turn after other Tasks.
async fn reconcile(hands: Hands, key: TaskKey) -> Result<Requeue, Error> {
    know_sandboxes(&hands, &key).await?;
    let plan = hands.index.lock().plan(&key);
    if plan.operations.is_empty() {
        return Ok(plan.again.map_or(Requeue::No, Requeue::After));
    }
    let mut operations = plan.operations;
    operations.truncate(hands.rules.limits.operations);
    if operations.iter().any(|operation| operation.rests_on_routers()) {
        let unknown = answered(hands.is_any_router_unknown()).await.map_err(Error::one)?;
        if unknown {
            // Its Lease is on its way here.
            hands.index.lock().waits_for_routers(&key);
            operations.retain(|operation| !operation.rests_on_routers());
        }
    }
    let tried = operations.len();
    let results: Vec<_> = stream::iter(operations)
        .map(|operation| {
            let (hands, key) = (hands.clone(), key.clone());
            async move { answered(Box::pin(hands.apply(&key, &operation))).await }
        })
        .buffer_unordered(WRITES_AT_ONCE)
        .collect()
        .await;
    let done = results.iter().any(|result| matches!(result, Ok(Outcome::Done)));
    let mut errors = results.into_iter().filter_map(Result::err);
    let error = errors.next().map(|first| Error { failed: 1 + errors.count(), tried, first });
    match error {
        // What fails for long must not hold up the rest.
        Some(error) if done => tracing::warn!("{error}"),
        Some(error) => return Err(error),
        None => {}
    }
    let vain = if done { Duration::ZERO } else { in_vain(&hands, &key) };
    Ok(Requeue::After(plan.again.map_or(vain, |again| again.max(FIRST_RETRY).min(vain))))
}

/// Waits for the list of Sandboxes, for a Task that may have some: without it all would look lost.
async fn know_sandboxes(hands: &Hands, key: &TaskKey) -> Result<(), Error> {
    if !hands.index.lock().lacks_sandboxes(key) {
        return Ok(());
    }
    let listed = tokio::time::timeout(ANSWER, hands.caches.sandboxes.synced()).await;
    listed.map_err(|_| Error::one(format!("Sandboxes could not be listed within {ANSWER:?}")))?;
    hands.index.lock().know_sandboxes();
    Ok(())
}

/// How long to wait after a pass that could do nothing.
fn in_vain(hands: &Hands, key: &TaskKey) -> Duration {
    let mut index = hands.index.lock();
    let Some(view) = index.view_mut(key) else { return FIRST_RETRY };
    view.in_vain = view.in_vain.saturating_add(1);
    FIRST_RETRY.saturating_mul(2u32.saturating_pow(view.in_vain - 1)).min(LONGEST_RETRY)
}

/// Removes the Leases of routers that count as dead.
async fn remove_dead_routers(hands: Hands) -> Result<Requeue, Error> {
    let timing = hands.rules.timing;
    let now = Instant::now();
    let (dead, next) = {
        let index = hands.index.lock();
        let dead: Vec<_> = index.routers().dead(&timing, now).cloned().collect();
        (dead, index.routers().next_death(&timing, now))
    };
    for router in dead {
        match answered(hands.remove_router(&router)).await.map_err(Error::one)? {
            Outcome::Done => {
                tracing::warn!(router = %router.name, "removed the Lease of a router that has been silent for too long");
                hands.explainer.reclaimed.add(Reason::RouterGone);
            }
            Outcome::Stale => {}
        }
    }
    Ok(next.map_or(Requeue::No, |next| Requeue::After(next.saturating_duration_since(now))))
}
