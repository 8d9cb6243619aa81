//! What the reconcilers and the fast path share: caches, agents, the registry, the lock of each sandbox.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentcube_api::{Sandbox, SandboxPool};
use agentcube_operator::cache::Cache;
use agentcube_operator::events::Recorder;
use agentcube_operator::queue::Queue;
use kube::api::Api;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agents::{Agent, Agents, Contact};
use crate::counts::Counts;
use crate::fleet::Fleet;
use crate::link;
use crate::locks::Locks;
use crate::names::{AgentId, Name, PoolKey, RunId};
use crate::options::Options;
use crate::pending::Pending;
use crate::registry::{Full, Registry, Slot, Want};
use crate::rush::Rush;

/// How long a change of slots waits for more before a pool's counts are looked at.
const COUNT_AFTER: Duration = Duration::from_millis(250);
/// More of them are swept for those that nobody waits for.
const SWEEP_ABOVE: usize = 1024;

pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) fleet: Arc<dyn Fleet>,
    pub(crate) sandboxes: Cache<Sandbox>,
    pub(crate) pools: Cache<SandboxPool>,
    pub(crate) registry: Registry,
    pub(crate) agents: Agents,
    pub(crate) pending: Pending,
    pub(crate) locks: Locks,
    /// Places for requests to the API server.
    pub(crate) calls: Semaphore,
    pub(crate) growing: Locks,
    pub(crate) queue: Queue<Name>,
    pub(crate) pool_queue: Queue<PoolKey>,
    pub(crate) demand: Demand,
    pub(crate) waiting: Waiting,
    pub(crate) rush: Rush,
    pub(crate) hub: Hub,
    pub(crate) counts: Counts,
    pub(crate) begun: Instant,
    /// Everything was listed, and every agent asked or given up.
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) stop: CancellationToken,
    pub(crate) events: OnceLock<Recorder>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn api(&self, namespace: &str) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Does something beside, until the end of all.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    pub(crate) fn warn(&self, sandbox: &Sandbox, reason: &str, message: impl Into<String>) {
        if let Some(events) = self.events.get() {
            events.warning(sandbox, reason, message);
        }
    }

    /// An answer of the API server, or that there was none.
    pub(crate) async fn answered<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let asking = async {
            // Nobody closes it.
            let _place = self.calls.acquire().await;
            if self.options.leading.now() { Some(request.await) } else { None }
        };
        match tokio::time::timeout(self.options.timing.api, asking).await {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(kube::Error::Api(status)))) => Err(ApiError::Answered(status)),
            Ok(Some(Err(error))) => Err(ApiError::Unreachable(error.to_string())),
            Ok(None) => Err(ApiError::Unreachable("this process does not lead any more".into())),
            Err(_) => Err(ApiError::Unreachable("the API server did not answer in time".into())),
        }
    }

    /// Reads an object anew.
    pub(crate) async fn refresh(&self, name: &Name) -> Result<Option<Arc<Sandbox>>, ApiError> {
        let known = self.sandboxes.get(&name.namespace, &name.name);
        match self.answered(self.api(&name.namespace).get_opt(&name.name)).await? {
            Some(object) => {
                self.sandboxes.put(object.clone());
                Ok(Some(Arc::new(object)))
            }
            None => {
                if let Some(known) = known {
                    self.sandboxes.gone(&known);
                }
                Ok(None)
            }
        }
    }

    /// What is known of a run at an agent.
    pub(crate) fn contact(&self, agent: &AgentId, run: &RunId) -> Contact {
        if self.fleet.is_dead(agent) {
            return Contact::Dead;
        }
        match self.agents.get(&agent.uid) {
            Some(known) => known.contact(run, self.begun, self.options.timing.dropped),
            None => self.agents.contact_of_unknown(&agent.uid, self.begun),
        }
    }

    /// Takes in who the agents of a pool are now.
    pub(crate) fn look_at_places(self: &Arc<Self>, pool: &PoolKey) {
        let places = self.fleet.agents(pool);
        for agent in self.agents.of(pool) {
            if places.iter().all(|place| place.id != *agent.id()) {
                agent.gone.cancel();
                self.registry.remove(pool, agent.id());
                self.agents.remove(&agent.id().uid);
                agent.names().into_iter().for_each(|name| self.queue.add(name));
            }
        }
        for place in places {
            let Some(agent) = self.agents.add(pool, place) else { continue };
            if agent.place.dead {
                self.registry.remove(pool, agent.id());
                continue;
            }
            self.registry.add(pool, agent.id());
            let core = self.clone();
            self.spawn(async move { link::follow(core, agent).await });
        }
        self.pool_queue.add(pool.clone());
    }

    /// Whether every agent of a pool was asked what it runs, or has been silent for too long since the beginning.
    pub(crate) fn is_open(&self, pool: &PoolKey) -> bool {
        let dropped = self.options.timing.dropped;
        let settled = |agent: &Arc<Agent>| agent.place.dead || agent.is_synced();
        self.begun.elapsed() >= dropped || self.agents.of(pool).iter().all(settled)
    }

    /// Takes a slot, with another agent if that is quickly had.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        pool: &SandboxPool,
        image: &str,
        without: &[AgentId],
    ) -> Result<Slot, Full> {
        let key = Name::of(pool);
        let want = Want { pool: &key, image, without };
        if let Ok(slot) = self.registry.reserve(&want, RunId::mint()) {
            return Ok(slot);
        }
        self.demand.refused(&key);
        self.pool_queue.add(key.clone());
        if self.options.wait_for_agent.is_zero() || !self.grow(pool, without).await {
            return Err(Full);
        }
        self.registry.reserve(&want, RunId::mint())
    }

    /// Adds an agent and waits until it can be used. One at a time: whoever waited looks for room first.
    async fn grow(self: &Arc<Self>, pool: &SandboxPool, without: &[AgentId]) -> bool {
        let key = Name::of(pool);
        let _one = self.growing.lock(&key).await;
        if without.is_empty() && self.registry.free(&key) > 0 {
            return true;
        }
        let taken: BTreeSet<u32> = self.fleet.agents(&key).iter().map(|place| place.index).collect();
        let most = pool.spec.capacity.pool_max.max(0).unsigned_abs();
        let Some(index) = (0..most).find(|index| !taken.contains(index)) else { return false };
        if let Err(error) = self.fleet.add(pool, index).await {
            tracing::warn!(pool = %key, index, "an agent could not be added: {error}");
            return false;
        }
        self.look_at_places(&key);
        let free = async {
            for agent in self.agents.of(&key).iter().filter(|agent| !agent.place.dead) {
                agent.synced().await;
            }
        };
        let _ = tokio::time::timeout(self.options.wait_for_agent, free).await;
        self.registry.free(&key) > 0
    }

    /// A run holds no slot any more.
    pub(crate) fn release(&self, pool: &PoolKey, run: &RunId) {
        if self.registry.release(pool, run) {
            self.room(pool);
        }
    }

    /// There is room: who waits for it is looked at, as many as have it.
    pub(crate) fn room(&self, pool: &PoolKey) {
        let free = self.registry.free(pool) as usize;
        self.waiting.first(pool, free).into_iter().for_each(|name| self.queue.add(name));
        // Counts may be a little late; a write for each sandbox would cost more than they are worth.
        self.pool_queue.add_after(pool.clone(), COUNT_AFTER);
    }
}

/// Why the API server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// It said so.
    #[error("the API server refused: {0}")]
    Answered(Box<kube::core::Status>),
    /// Nobody knows whether it happened.
    #[error("{0}")]
    Unreachable(String),
}

impl ApiError {
    /// The object is gone, or another one, or has changed.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, ApiError::Answered(status) if status.code == 404 || status.code == 409)
    }
}

/// Sandboxes that wait for a slot of each pool.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pools: Mutex<HashMap<PoolKey, BTreeSet<Name>>>,
}

impl Waiting {
    pub(crate) fn add(&self, pool: &PoolKey, name: &Name) {
        self.pools.lock().entry(pool.clone()).or_default().insert(name.clone());
    }

    pub(crate) fn remove(&self, pool: &PoolKey, name: &Name) {
        let mut pools = self.pools.lock();
        if let Some(names) = pools.get_mut(pool) {
            names.remove(name);
            if names.is_empty() {
                pools.remove(pool);
            }
        }
    }

    pub(crate) fn count(&self, pool: &PoolKey) -> usize {
        self.pools.lock().get(pool).map_or(0, BTreeSet::len)
    }

    fn first(&self, pool: &PoolKey, count: usize) -> Vec<Name> {
        self.pools.lock().get(pool).into_iter().flatten().take(count).cloned().collect()
    }
}

/// Creates that were refused lately: they count as if they waited, so that the pool grows for those who ask again.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    refused: Mutex<HashMap<PoolKey, Vec<Instant>>>,
}

impl Demand {
    /// The most that are kept in mind.
    const MOST: usize = 10_000;

    fn refused(&self, pool: &PoolKey) {
        let mut refused = self.refused.lock();
        let times = refused.entry(pool.clone()).or_default();
        if times.len() < Self::MOST {
            times.push(Instant::now());
        }
    }

    /// How many were refused within this time.
    pub(crate) fn within(&self, pool: &PoolKey, time: Duration) -> usize {
        let mut refused = self.refused.lock();
        let Some(times) = refused.get_mut(pool) else { return 0 };
        times.retain(|at| at.elapsed() < time);
        let count = times.len();
        if count == 0 {
            refused.remove(pool);
        }
        count
    }
}

/// Tells whoever waits for a sandbox that it has changed.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    waits: Mutex<HashMap<Name, Arc<Notify>>>,
}

impl Hub {
    pub(crate) fn changed(&self, name: &Name) {
        let mut waits = self.waits.lock();
        if let Some(notify) = waits.get(name) {
            notify.notify_waiters();
            // Nobody but this map has it: whoever waited is gone.
            if Arc::strong_count(notify) == 1 {
                waits.remove(name);
            }
        }
    }

    pub(crate) fn of(&self, name: &Name) -> Arc<Notify> {
        let mut waits = self.waits.lock();
        if waits.len() >= SWEEP_ABOVE && waits.len().is_power_of_two() {
            waits.retain(|_, notify| Arc::strong_count(notify) > 1);
        }
        waits.entry(name.clone()).or_default().clone()
    }
}

pub(crate) fn is_deleted(object: &Sandbox) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

pub(crate) fn pool_of(object: &Sandbox) -> PoolKey {
    PoolKey { namespace: object.namespace().unwrap_or_default(), name: object.spec.pool_ref.clone() }
}
