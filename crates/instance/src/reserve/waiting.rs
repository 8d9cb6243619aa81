//! The pools of all Tasks, shared between requests and watches: a ticket waits for an instance, a grant sets one aside.
//! Both give everything back when dropped. Decides nothing itself; [`Pool`] does.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, oneshot};

use super::activity::{Subject, Use};
use super::clock::Clock;
use super::pool::{Full, Pool, Rules};
use super::queue::Place;
use super::seat::Seat;
use crate::identity::{SpecId, TaskId};
use crate::record::Instance;

/// A Task, by its namespace and UID. The namespace is part of it, so that no Pod of another one gets in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) namespace: Arc<str>,
    pub(super) uid: Arc<str>,
}

impl PoolKey {
    pub(super) fn of(task: &TaskId) -> PoolKey {
        PoolKey { namespace: task.namespace.clone(), uid: task.uid.clone() }
    }

    fn of_instance(instance: &Instance) -> PoolKey {
        PoolKey { namespace: instance.namespace.clone(), uid: instance.task_uid.clone() }
    }
}

/// Pools that somebody should look after: start instances for those who wait.
#[derive(Debug, Default)]
pub(super) struct Pokes {
    keys: Mutex<HashSet<PoolKey>>,
    poked: Notify,
}

impl Pokes {
    pub(super) fn poke(&self, key: &PoolKey) {
        self.keys.lock().insert(key.clone());
        self.poked.notify_one();
    }

    pub(super) async fn wait(&self) -> HashSet<PoolKey> {
        loop {
            let keys = std::mem::take(&mut *self.keys.lock());
            if !keys.is_empty() {
                return keys;
            }
            self.poked.notified().await;
        }
    }
}

/// The pools of all Tasks.
pub(super) struct Pools {
    me: Arc<str>,
    seat: Arc<Seat>,
    clock: Clock,
    pools: RwLock<HashMap<PoolKey, Arc<TaskPool>>>,
    pub(super) pokes: Arc<Pokes>,
}

impl Pools {
    pub(super) fn new(me: Arc<str>, seat: Arc<Seat>, clock: Clock) -> Pools {
        Pools { me, seat, clock, pools: RwLock::default(), pokes: Arc::default() }
    }

    pub(super) fn get(&self, key: &PoolKey) -> Option<Arc<TaskPool>> {
        self.pools.read().get(key).cloned()
    }

    /// The pool of a Task that may not have been heard of yet.
    fn get_or_make(&self, key: &PoolKey) -> Arc<TaskPool> {
        if let Some(pool) = self.get(key) {
            return pool;
        }
        let new = || {
            let pool = Pool::new(self.me.clone(), no_rules()).at(self.seat.clone());
            let state = State { pool, known: false, ..State::default() };
            let (pokes, clock) = (self.pokes.clone(), self.clock);
            Arc::new(TaskPool { key: key.clone(), state: Mutex::new(state), pokes, clock })
        };
        self.pools.write().entry(key.clone()).or_insert_with(new).clone()
    }

    /// The Task wants this; nothing if it is gone.
    pub(super) fn set_rules(&self, key: &PoolKey, rules: Option<Rules>) {
        let pool = self.get_or_make(key);
        let mut state = pool.state.lock();
        state.known = rules.is_some();
        state.pool.set_rules(rules.unwrap_or_else(no_rules));
        pool.settle(&mut state);
        drop(state);
        self.forget_if_over(key);
    }

    /// An instance as it was, if it was known, and as it is now. Whether this router uses it.
    pub(super) fn apply(&self, was: Option<&Instance>, instance: &Arc<Instance>, settled: bool) -> bool {
        let key = PoolKey::of_instance(instance);
        // Somebody has given it another label.
        if let Some(was) = was.filter(|was| PoolKey::of_instance(was) != key) {
            self.remove(was);
        }
        let pool = self.get_or_make(&key);
        let mut state = pool.state.lock();
        state.pool.apply(instance.clone(), self.clock.now(), settled);
        let uid = &*instance.id.uid;
        let active = state.uses.get(uid).is_some_and(|usage| usage.is_active());
        let used = active || state.pool.load(uid) > 0;
        pool.settle(&mut state);
        used
    }

    pub(super) fn remove(&self, instance: &Instance) {
        let key = PoolKey::of_instance(instance);
        let Some(pool) = self.get(&key) else { return };
        let mut state = pool.state.lock();
        state.pool.remove(&instance.id.uid);
        state.uses.remove(&instance.id.uid);
        pool.settle(&mut state);
        drop(state);
        self.forget_if_over(&key);
    }

    fn forget_if_over(&self, key: &PoolKey) {
        let mut pools = self.pools.write();
        let over = pools.get(key).is_some_and(|pool| {
            let state = pool.state.lock();
            !state.known && state.pool.is_empty()
        });
        if over {
            pools.remove(key);
        }
    }
}

fn no_rules() -> Rules {
    Rules {
        spec: SpecId("".into()),
        max: 0,
        on_demand: false,
        capacity: 1,
        once: false,
        job: false,
        most_waiting: 0,
        patience: Duration::ZERO,
    }
}

/// The pool of one Task.
pub(super) struct TaskPool {
    pub(super) key: PoolKey,
    state: Mutex<State>,
    pokes: Arc<Pokes>,
    clock: Clock,
}

struct State {
    pool: Pool,
    /// The Task has been heard of.
    known: bool,
    waiting: HashMap<Place, oneshot::Sender<Arc<Instance>>>,
    /// What requests without a session do with instances.
    uses: HashMap<Arc<str>, Arc<Use>>,
    /// Why the last instance could not be started.
    trouble: Option<String>,
}

impl Default for State {
    fn default() -> State {
        let pool = Pool::new("".into(), no_rules());
        State { pool, known: false, waiting: HashMap::new(), uses: HashMap::new(), trouble: None }
    }
}

impl Debug for TaskPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPool").field("key", &self.key).finish_non_exhaustive()
    }
}

impl TaskPool {
    /// Asks for an instance.
    pub(super) fn ask(self: &Arc<Self>, tenant: Option<&str>) -> Result<Ticket, Full> {
        let mut state = self.state.lock();
        let place = state.pool.ask(tenant)?;
        Ok(self.wait_at(&mut state, place))
    }

    /// An instance, if one is free and nobody waits for it.
    pub(super) fn take_free(self: &Arc<Self>, tenant: Option<&str>) -> Result<Option<Grant>, Full> {
        let mut state = self.state.lock();
        let place = state.pool.ask(tenant)?;
        let (sender, mut receiver) = oneshot::channel();
        state.waiting.insert(place, sender);
        self.assign(&mut state);
        state.waiting.remove(&place);
        state.pool.withdraw(place);
        let grant = |instance| Grant { pool: self.clone(), instance, used: false };
        Ok(receiver.try_recv().ok().map(grant))
    }

    /// Room on this very instance, for a request that is there already.
    pub(super) fn occupy(self: &Arc<Self>, uid: &str) -> Option<Grant> {
        let instance = self.state.lock().pool.occupy(uid)?;
        Some(Grant { pool: self.clone(), instance, used: true })
    }

    fn ask_again(self: &Arc<Self>, place: Place, tenant: Option<&str>) -> Ticket {
        let mut state = self.state.lock();
        state.pool.ask_again(place, tenant);
        self.wait_at(&mut state, place)
    }

    fn wait_at(self: &Arc<Self>, state: &mut State, place: Place) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(place, sender);
        self.settle(state);
        Ticket { pool: self.clone(), place, receiver, served: false }
    }

    /// Gives what is free to those who wait, and has somebody look after the rest.
    fn settle(&self, state: &mut State) {
        self.assign(state);
        if state.pool.waiting() > 0 {
            self.pokes.poke(&self.key);
        }
    }

    fn assign(&self, state: &mut State) {
        loop {
            let given = state.pool.assign(self.clock.now());
            if given.is_empty() {
                return;
            }
            for (place, instance) in given {
                let unwanted = match state.waiting.remove(&place) {
                    Some(sender) => sender.send(instance).err(),
                    None => Some(instance),
                };
                if let Some(instance) = unwanted {
                    state.pool.give_back(&instance.id.uid, false);
                }
            }
        }
    }

    /// What those who wait need now, after what is free was given away: slots to start instances in, and when to look
    /// again although nothing changed.
    pub(super) fn starts(&self, rank: usize, routers: usize) -> (Vec<u32>, Option<Duration>) {
        let mut state = self.state.lock();
        self.assign(&mut state);
        let now = self.clock.now();
        (state.pool.starts(now, rank, routers), state.pool.next_look(now))
    }

    /// Works on the pool; what becomes free by it is given away.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Pool) -> T) -> T {
        let mut state = self.state.lock();
        let result = work(&mut state.pool);
        self.settle(&mut state);
        result
    }

    /// Looks at the pool.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Pool) -> T) -> T {
        look(&self.state.lock().pool)
    }

    /// The use of an instance by requests without a session.
    pub(super) fn usage(&self, instance: &Instance, interval: Duration) -> Arc<Use> {
        let mut state = self.state.lock();
        let written = instance.last_active.map_or(Duration::ZERO, |time| self.clock.moment(time));
        let new = || Arc::new(Use::new(Subject::Instance(instance.id.clone()), interval, written));
        state.uses.entry(instance.id.uid.clone()).or_insert_with(new).clone()
    }

    /// Notes why an instance could not be started, or that one could.
    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.state.lock().trouble = trouble;
    }

    /// Why those who wait do so, for people.
    pub(super) fn why(&self) -> String {
        let state = self.state.lock();
        match &state.trouble {
            Some(trouble) => format!("{}; {trouble}", state.pool.why()),
            None => state.pool.why(),
        }
    }
}

/// Waits for an instance. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Ticket {
    pool: Arc<TaskPool>,
    place: Place,
    receiver: oneshot::Receiver<Arc<Instance>>,
    served: bool,
}

impl Ticket {
    /// Waits anew, at the old place: what was given could not be used.
    pub(super) fn again(self, tenant: Option<&str>) -> Ticket {
        let (pool, place) = (self.pool.clone(), self.place);
        // First, because it leaves the place.
        drop(self);
        pool.ask_again(place, tenant)
    }

    /// The instance, if it was given.
    pub(super) fn given(&mut self) -> Option<Grant> {
        let instance = self.receiver.try_recv().ok()?;
        self.served = true;
        Some(self.grant(instance))
    }

    /// Waits for the instance; for ever if it was given before. Nothing is lost if the future is dropped.
    pub(super) async fn wait(&mut self) -> Grant {
        if !self.served
            && let Ok(instance) = (&mut self.receiver).await
        {
            self.served = true;
            return self.grant(instance);
        }
        std::future::pending().await
    }

    fn grant(&self, instance: Arc<Instance>) -> Grant {
        Grant { pool: self.pool.clone(), instance, used: false }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.waiting.remove(&self.place);
        state.pool.withdraw(self.place);
        if let Ok(instance) = self.receiver.try_recv() {
            state.pool.give_back(&instance.id.uid, false);
        }
        self.pool.settle(&mut state);
    }
}

/// Room on an instance, set aside. Dropping it gives the room back.
pub(super) struct Grant {
    pool: Arc<TaskPool>,
    pub(super) instance: Arc<Instance>,
    /// A request went there.
    pub(super) used: bool,
}

impl Debug for Grant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("instance", &self.instance.id).finish_non_exhaustive()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.pool.with(|pool| pool.give_back(&self.instance.id.uid, self.used));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Hold, Life};

    fn instance(slot: u32) -> Arc<Instance> {
        Arc::new(Instance {
            namespace: "prod".into(),
            id: crate::InstanceId::pod(format!("agent-{slot}"), format!("p{slot}")),
            version: 1,
            task_uid: "t1".into(),
            spec_id: SpecId("agent-1".into()),
            slot: Some(slot),
            address: Some([10, 0, 0, 7].into()),
            port: None,
            life: Life::Ready,
            hold: Hold::Free,
            paused: false,
            woken: None,
            releasing: false,
            created_for: None,
            created: jiff::Timestamp::UNIX_EPOCH,
            last_active: None,
        })
    }

    fn pools() -> (Pools, Arc<TaskPool>) {
        let pools = Pools::new("router-a".into(), Arc::default(), Clock::start());
        let key = PoolKey { namespace: "prod".into(), uid: "t1".into() };
        let rules = Rules { spec: SpecId("agent-1".into()), max: 3, most_waiting: 9, ..no_rules() };
        pools.set_rules(&key, Some(rules));
        let pool = pools.get(&key).unwrap();
        (pools, pool)
    }

    #[tokio::test]
    async fn what_is_dropped_is_given_to_the_next() {
        let (pools, pool) = pools();
        pools.apply(None, &instance(0), true);
        let grant = pool.take_free(None).unwrap().unwrap();
        assert!(pool.take_free(None).unwrap().is_none());
        let (mut first, mut second) = (pool.ask(None).unwrap(), pool.ask(None).unwrap());
        drop(grant);
        // Given to the first, who goes away without having looked.
        assert!(second.given().is_none());
        drop(first);
        let grant = second.wait().await;
        // Of no use: waits anew at the old place, ahead of whoever came since.
        let mut third = pool.ask(None).unwrap();
        first = second.again(None);
        drop(grant);
        assert!(third.given().is_none());
        assert!(first.given().is_some());
        drop((first, third));
        assert!(pool.look(|pool| pool.waiting() == 0 && pool.load("p0") == 0));
    }

    #[test]
    fn pods_of_another_namespace_do_not_get_in() {
        let (pools, pool) = pools();
        let foreign = Instance { namespace: "other".into(), ..(*instance(0)).clone() };
        pools.apply(None, &Arc::new(foreign), true);
        assert!(pool.take_free(None).unwrap().is_none());
    }

    #[test]
    fn an_instance_that_is_given_another_label_leaves_its_pool() {
        let (pools, pool) = pools();
        let ours = instance(0);
        pools.apply(None, &ours, true);
        let foreign = Arc::new(Instance { task_uid: "t2".into(), ..(*ours).clone() });
        pools.apply(Some(&ours), &foreign, true);
        assert!(pool.take_free(None).unwrap().is_none());
        pools.remove(&foreign);
        assert!(pools.get(&PoolKey::of_instance(&foreign)).is_none());
    }

    #[test]
    fn a_pool_is_forgotten_with_its_task_and_its_instances() {
        let (pools, pool) = pools();
        pools.apply(None, &instance(0), true);
        pools.set_rules(&pool.key, None);
        assert!(pools.get(&pool.key).is_some());
        pools.remove(&instance(0));
        assert!(pools.get(&pool.key).is_none());
    }
}
