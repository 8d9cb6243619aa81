//! Which agent has room: slots in memory, ranked without a lock over all of them. A cache: the agents themselves admit
//! or refuse, and their inventories correct what is held here.
//!
//! A slot is held under the id of its run and given back once: giving back is "forget this run".

mod rank;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::names::{AgentId, PoolKey, RunId};

/// Slots of all agents; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    pools: Arc<RwLock<HashMap<PoolKey, Arc<Pool>>>>,
}

#[derive(Debug, Default)]
struct Pool {
    /// Readers clone it and look without a lock.
    agents: RwLock<Arc<[Arc<AgentSlots>]>>,
}

impl Default for AgentSlots {
    fn default() -> AgentSlots {
        AgentSlots {
            id: AgentId::default(),
            used: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            open: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            images: RwLock::default(),
            prepared: RwLock::default(),
            held: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct AgentSlots {
    id: AgentId,
    /// Always the number of runs in `held` and of reservations that are about to be there.
    used: AtomicU32,
    capacity: AtomicU32,
    /// It was asked what it runs, and is in contact.
    open: AtomicBool,
    draining: AtomicBool,
    images: RwLock<Arc<HashSet<String>>>,
    /// Images of which sandboxes wait, with how many.
    prepared: RwLock<Arc<HashMap<String, u32>>>,
    held: Mutex<HashMap<RunId, Held>>,
}

/// Since which question to the agent a run is held: answers to earlier ones know nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// Its start is under way.
    Reserved,
    /// Believed to run; an answer to a question after this number that does not name it frees its slot.
    Since(u64),
}

/// No agent of the pool has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A reserved slot. Given back when dropped, unless it is kept.
#[derive(Debug)]
pub struct Slot {
    agent: Arc<AgentSlots>,
    run: RunId,
    kept: bool,
}

impl Slot {
    pub fn agent(&self) -> &AgentId {
        &self.agent.id
    }

    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The run has the slot now. `asked` is the number of the last question that was put to the agent.
    pub(crate) fn keep(mut self, asked: u64) {
        self.kept = true;
        if let Some(held) = self.agent.held.lock().get_mut(&self.run) {
            *held = Held::Since(asked);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.kept {
            self.agent.release(&self.run);
        }
    }
}

/// What an agent says it has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    /// Number of the question that this answers.
    pub(crate) asked: u64,
    /// Runs that hold a slot.
    pub(crate) runs: HashSet<RunId>,
    pub(crate) capacity: u32,
    pub(crate) draining: bool,
    pub(crate) images: HashSet<String>,
    pub(crate) prepared: HashMap<String, u32>,
}

/// What is wanted of an agent.
#[derive(Clone, Debug)]
pub struct Want<'a> {
    pub pool: &'a PoolKey,
    pub image: &'a str,
    /// Agents that have refused.
    pub without: &'a [AgentId],
}

/// How slots are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub capacity: u32,
    pub used: u32,
    pub held: Vec<RunId>,
    /// Agents whose count is not that of what they hold; none, unless there is a mistake.
    pub mismatched: usize,
}

impl AgentSlots {
    /// Takes a slot if there is one.
    fn take(&self) -> bool {
        let capacity = self.capacity.load(Ordering::Acquire);
        let more = |used| (used < capacity).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn release(&self, run: &RunId) -> bool {
        let mut held = self.held.lock();
        let removed = held.remove(run).is_some();
        if removed {
            self.used.fetch_sub(1, Ordering::AcqRel);
        }
        removed
    }

    /// Holds a slot for a run that has one, whether or not there is room.
    fn hold(&self, run: &RunId, asked: u64) {
        let mut held = self.held.lock();
        if held.insert(run.clone(), Held::Since(asked)).is_none() {
            self.used.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn take_in(&self, inventory: &Inventory) {
        self.capacity.store(inventory.capacity, Ordering::Release);
        self.draining.store(inventory.draining, Ordering::Release);
        if **self.images.read() != inventory.images {
            *self.images.write() = Arc::new(inventory.images.clone());
        }
        *self.prepared.write() = Arc::new(inventory.prepared.clone());
        let mut held = self.held.lock();
        let before = held.len();
        held.retain(|run, held| match held {
            Held::Reserved => true,
            Held::Since(asked) => *asked >= inventory.asked || inventory.runs.contains(run),
        });
        let removed = before - held.len();
        let mut added = 0;
        for run in &inventory.runs {
            held.entry(run.clone()).or_insert_with(|| {
                added += 1;
                Held::Since(0)
            });
        }
        let change = |used: u32| Some((used + added).saturating_sub(u32::try_from(removed).unwrap_or(0)));
        let _ = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}

impl Registry {
    fn agents(&self, pool: &PoolKey) -> Arc<[Arc<AgentSlots>]> {
        let pool = self.pools.read().get(pool).cloned();
        pool.map_or_else(Arc::default, |pool| pool.agents.read().clone())
    }

    fn agent(&self, pool: &PoolKey, agent: &AgentId) -> Option<Arc<AgentSlots>> {
        self.agents(pool).iter().find(|slots| slots.id == *agent).cloned()
    }

    /// Takes the best slot there is for a new run.
    pub fn reserve(&self, want: &Want<'_>, run: RunId) -> Result<Slot, Full> {
        let agents = self.agents(want.pool);
        // Another may take the slot between ranking and taking; then the next best is looked for.
        loop {
            let agent = rank::best(&agents, want).ok_or(Full)?;
            if agent.take() {
                agent.held.lock().insert(run.clone(), Held::Reserved);
                return Ok(Slot { agent: agent.clone(), run, kept: false });
            }
        }
    }

    /// Holds a slot for a run that the API or the agent says is there.
    pub(crate) fn hold(&self, pool: &PoolKey, agent: &AgentId, run: &RunId, asked: u64) {
        if let Some(agent) = self.agent(pool, agent) {
            agent.hold(run, asked);
        }
    }

    /// Forgets a run. Whether it was held.
    pub fn release(&self, pool: &PoolKey, run: &RunId) -> bool {
        // Of one run there is one agent.
        self.agents(pool).iter().any(|agent| agent.release(run))
    }

    /// There is an agent; it gets nothing before it was asked what it runs.
    pub(crate) fn add(&self, pool: &PoolKey, agent: &AgentId) {
        let pool = self.pools.write().entry(pool.clone()).or_default().clone();
        let mut agents = pool.agents.write();
        if agents.iter().all(|slots| slots.id != *agent) {
            let new = Arc::new(AgentSlots { id: agent.clone(), ..AgentSlots::default() });
            *agents = agents.iter().cloned().chain([new]).collect();
        }
    }

    /// An agent is gone, with all it held.
    pub(crate) fn remove(&self, pool: &PoolKey, agent: &AgentId) {
        let mut pools = self.pools.write();
        let Some(held) = pools.get(pool) else { return };
        let left: Arc<[Arc<AgentSlots>]> =
            held.agents.read().iter().filter(|slots| slots.id != *agent).cloned().collect();
        if left.is_empty() {
            pools.remove(pool);
        } else {
            *held.agents.write() = left;
        }
    }

    /// Whether an agent may get new runs.
    pub(crate) fn open(&self, pool: &PoolKey, agent: &AgentId, open: bool) {
        if let Some(agent) = self.agent(pool, agent) {
            agent.open.store(open, Ordering::Release);
        }
    }

    /// An agent gets no new runs from here, whatever it says itself.
    pub(crate) fn drain(&self, pool: &PoolKey, agent: &AgentId, draining: bool) {
        if let Some(agent) = self.agent(pool, agent) {
            agent.draining.store(draining, Ordering::Release);
        }
    }

    /// What an agent says replaces what was thought, except what is younger than the question.
    pub(crate) fn take_in(&self, pool: &PoolKey, agent: &AgentId, inventory: &Inventory) {
        if let Some(agent) = self.agent(pool, agent) {
            agent.take_in(inventory);
        }
    }

    /// Runs that an agent holds.
    pub(crate) fn used(&self, pool: &PoolKey, agent: &AgentId) -> u32 {
        self.agent(pool, agent).map_or(0, |agent| agent.used.load(Ordering::Acquire))
    }

    /// Slots that are free at agents that may get new runs.
    pub(crate) fn free(&self, pool: &PoolKey) -> u32 {
        let agents = self.agents(pool);
        let taking = agents.iter().filter(|agent| rank::takes(agent));
        let free = |agent: &Arc<AgentSlots>| {
            agent.capacity.load(Ordering::Acquire).saturating_sub(agent.used.load(Ordering::Acquire))
        };
        taking.map(free).sum()
    }

    /// How slots of all pools are used, for tests and metrics.
    pub fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        let pools: Vec<Arc<Pool>> = self.pools.read().values().cloned().collect();
        for agent in pools.iter().flat_map(|pool| pool.agents.read().to_vec()) {
            let held = agent.held.lock();
            let used = agent.used.load(Ordering::Acquire);
            audit.capacity += agent.capacity.load(Ordering::Acquire);
            audit.used += used;
            audit.mismatched += usize::from(used as usize != held.len());
            audit.held.extend(held.keys().cloned());
        }
        audit.held.sort();
        audit
    }
}

#[cfg(test)]
mod tests;
