//! The instances of one Task as one router sees them: which are free, who gets which, and how many to start. Pure: the
//! caller carries out what is decided and tells what became of it. Never gives an instance beyond its capacity, and
//! never starts more than the maximum allows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::task::InstanceStatistics;

use super::queue::{Place, Queue};
use super::seat::Seat;
use crate::identity::SpecId;
use crate::record::{Hold, Instance, Life};

const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a slot whose name somebody else's Pod has is left alone.
const BLOCKED: Duration = Duration::from_secs(60);

/// What the Task wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The revision that new sessions go to, as the value of a label.
    pub spec: SpecId,
    pub max: u32,
    /// Whether requests start instances.
    pub on_demand: bool,
    /// How many requests one instance serves at a time; 1 for sessions.
    pub capacity: u32,
    /// An instance serves one request and ends.
    pub once: bool,
    /// A Job starts the instances.
    pub job: bool,
    /// How many may wait.
    pub most_waiting: usize,
    /// How long an instance that another router started is left to that router.
    pub patience: Duration,
}

#[derive(Debug)]
struct Member {
    instance: Arc<Instance>,
    /// For how many keys or requests of this router it is set aside or in use.
    load: u32,
    /// Set aside for the router that started it, until then.
    kept_until: Duration,
    /// Has served its one request.
    spent: bool,
    /// Was ready before, so it is not starting, whatever it looks like now.
    was_ready: bool,
}

/// Order of free instances: the least used first, then those that were not started for another router, then as all
/// routers have it.
type Rank = (u32, bool, u64, Arc<str>);

/// Too many wait already.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The instances of one Task.
#[derive(Debug)]
pub struct Pool {
    me: Arc<str>,
    seat: Arc<Seat>,
    rules: Rules,
    members: HashMap<Arc<str>, Member>,
    free: BTreeSet<Rank>,
    /// Free ones that are kept for others, by when that ends.
    kept: BTreeSet<(Duration, Arc<str>)>,
    slots: HashMap<u32, u32>,
    /// Instances of mine that start.
    starting: usize,
    /// Slots in which I am creating an instance.
    creating: BTreeSet<u32>,
    blocked: BTreeMap<u32, Duration>,
    queue: Queue,
    failures: u32,
    rest_until: Duration,
}

/// A place in the queue that has been given an instance.
pub type Given = (Place, Arc<Instance>);

impl Pool {
    pub fn new(me: Arc<str>, rules: Rules) -> Pool {
        Pool {
            me,
            seat: Arc::default(),
            rules,
            members: HashMap::new(),
            free: BTreeSet::new(),
            kept: BTreeSet::new(),
            slots: HashMap::new(),
            starting: 0,
            creating: BTreeSet::new(),
            blocked: BTreeMap::new(),
            queue: Queue::default(),
            failures: 0,
            rest_until: Duration::ZERO,
        }
    }

    /// The same for a router among others.
    pub fn at(self, seat: Arc<Seat>) -> Pool {
        Pool { seat, ..self }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The Task has changed.
    pub fn set_rules(&mut self, rules: Rules) {
        if self.rules == rules {
            return;
        }
        let uids: Vec<_> = self.members.keys().cloned().collect();
        uids.iter().for_each(|uid| self.forget(uid));
        self.rules = rules;
        uids.iter().for_each(|uid| self.count(uid));
    }

    /// An instance as it is now. One that existed before this router came is nobody's to wait for.
    pub fn apply(&mut self, instance: Arc<Instance>, now: Duration, settled: bool) {
        let uid = instance.id.uid.clone();
        self.forget(&uid);
        let patience = if settled { Duration::ZERO } else { self.rules.patience };
        let foreign = instance.created_for.as_ref().is_some_and(|router| *router != self.me);
        let (was, member) = match self.members.remove(&uid) {
            Some(member) => (Some(member.instance.clone()), member),
            None => {
                let kept_until = Duration::ZERO;
                let instance = instance.clone();
                (None, Member { instance, load: 0, kept_until, spent: false, was_ready: false })
            }
        };
        let mut member = Member { instance, ..member };
        member.was_ready |= was.as_ref().is_some_and(|was| was.life == Life::Ready);
        let ready = |instance: &Instance| instance.life == Life::Ready && instance.hold == Hold::Free;
        let before = was.as_deref().is_some_and(ready);
        if ready(&member.instance) && !before {
            member.kept_until = if foreign { now + patience } else { Duration::ZERO };
        }
        let started_by_me = member.instance.created_for.as_ref() == Some(&self.me);
        let started = was.is_some_and(|was| was.life == Life::Starting) && started_by_me;
        match member.instance.life {
            Life::Ready if started => self.failures = 0,
            // One that dies before it served would be replaced by one that dies, and so on.
            Life::Dead if started => self.start_failed(now),
            _ => {}
        }
        self.members.insert(uid.clone(), member);
        self.count(&uid);
    }

    /// An instance is gone.
    pub fn remove(&mut self, uid: &str) {
        self.forget(uid);
        self.members.remove(uid);
    }

    /// Takes a place in the queue.
    pub fn ask(&mut self, tenant: Option<&str>) -> Result<Place, Full> {
        match self.queue.len() < self.rules.most_waiting {
            true => Ok(self.queue.join(tenant)),
            false => Err(Full),
        }
    }

    /// Takes the old place back, because what was given could not be used.
    pub fn ask_again(&mut self, place: Place, tenant: Option<&str>) {
        self.queue.rejoin(place, tenant);
    }

    /// Leaves the queue.
    pub fn withdraw(&mut self, place: Place) {
        self.queue.leave(place);
    }

    /// Gives what is free to those whose turn it is.
    pub fn assign(&mut self, now: Duration) -> Vec<Given> {
        self.release_kept(now);
        let mut given = Vec::new();
        while let Some(uid) = self.next_free() {
            let scarce = self.is_scarce();
            let Some(place) = self.queue.serve(scarce) else { break };
            given.extend(self.change(&uid, |member| member.load += 1).map(|instance| (place, instance)));
        }
        given
    }

    /// Of the least used, the first as this router sees them.
    fn next_free(&self) -> Option<Arc<str>> {
        let least = self.free.first()?;
        let (load, others, view) = (least.0, least.1, self.seat.view());
        let (from, end) = (
            (load, others, view.from, Arc::default()),
            (load + u32::from(others), !others, 0, Arc::default()),
        );
        let is_least = |rank: &&Rank| (rank.0, rank.1) == (load, others);
        let chosen = match view.down {
            false => self.free.range(from..).next().filter(is_least),
            true => self
                .free
                .range(..from)
                .next_back()
                .filter(is_least)
                .or_else(|| self.free.range(..end).next_back()),
        };
        Some(chosen.unwrap_or(least).3.clone())
    }

    /// A request is at an instance already, though nobody here has sent it: it takes up room, whether there is any or not.
    /// Nothing if the instance is gone or about to go.
    pub fn occupy(&mut self, uid: &str) -> Option<Arc<Instance>> {
        let instance = &self.members.get(uid)?.instance;
        let stays = instance.life == Life::Ready && !instance.releasing;
        stays.then(|| self.change(uid, |member| member.load += 1))?
    }

    /// What was given is no longer needed; `used` if a request went there.
    pub fn give_back(&mut self, uid: &str, used: bool) {
        self.change(uid, |member| {
            member.load = member.load.saturating_sub(1);
            member.spent |= used;
        });
    }

    /// When [`Pool::assign`] or [`Pool::starts`] may have something to do although nothing changed.
    pub fn next_look(&self, now: Duration) -> Option<Duration> {
        if self.queue.is_empty() {
            return None;
        }
        let kept = self.kept.first().map(|(until, _)| *until);
        let rest = (self.rest_until > now).then_some(self.rest_until);
        let unblocked = self.blocked.values().copied().min();
        kept.into_iter().chain(rest).chain(unblocked).min()
    }

    /// The slots in which to create instances now, at most what this router's own waiters lack. This router is number
    /// `rank` of `routers`: each looks first at slots that the others look at last.
    pub fn starts(&mut self, now: Duration, rank: usize, routers: usize) -> Vec<u32> {
        if !self.rules.on_demand || self.rules.job || self.rests(now) {
            return Vec::new();
        }
        self.blocked.retain(|_, until| *until > now);
        let waiting = self.queue.len().div_ceil(self.rules.capacity.max(1) as usize);
        let lack = waiting.saturating_sub(self.starting + self.creating.len());
        let count = lack.min(self.room());
        if count == 0 {
            return Vec::new();
        }
        let routers = routers.max(1) as u32;
        let own = |slot: &u32| slot % routers == rank as u32 % routers;
        // Slots above the maximum that are still taken, from before it was lowered, count.
        let above = self.slots.keys().filter(|slot| **slot >= self.rules.max).count() as u32;
        let below = self.rules.max.saturating_sub(above);
        let free = |slot: &u32| {
            !self.slots.contains_key(slot)
                && !self.creating.contains(slot)
                && !self.blocked.contains_key(slot)
        };
        let first = (0..below).filter(own).filter(free);
        let then = (0..below).filter(|slot| !own(slot)).filter(free);
        let slots: Vec<u32> = first.chain(then).take(count).collect();
        self.creating.extend(&slots);
        slots
    }

    /// The creation in a slot is over, one way or another; the instance, if there is one, was applied before.
    pub fn created(&mut self, slot: u32) {
        self.creating.remove(&slot);
    }

    /// The name of a slot is taken by a Pod that is no instance of ours.
    pub fn block(&mut self, slot: u32, now: Duration) {
        self.blocked.insert(slot, now + BLOCKED);
    }

    /// An instance could not be started, or ended before it was ready: rest, longer each time. Several that fail
    /// together are one failure.
    pub fn start_failed(&mut self, now: Duration) {
        if self.rests(now) {
            return;
        }
        let rest = FIRST_REST.saturating_mul(1 << self.failures.min(16)).min(LONGEST_REST);
        self.failures += 1;
        self.rest_until = now + rest;
    }

    /// Whether nothing is to be started yet because the last attempt failed.
    pub fn rests(&self, now: Duration) -> bool {
        now < self.rest_until
    }

    /// The `parallelism` that the Job needs for all who wait, if it is more than it has.
    pub fn parallelism(&self, current: u32) -> Option<u32> {
        if !self.rules.on_demand || !self.rules.job || self.queue.is_empty() {
            return None;
        }
        let alive = |member: &&Member| {
            let instance = &member.instance;
            instance.spec_id == self.rules.spec && !matches!(instance.life, Life::Dead | Life::Terminating)
        };
        // What drains counts too.
        let is_old = |member: &&Member| {
            member.instance.spec_id != self.rules.spec && member.instance.life != Life::Dead
        };
        let old = u32::try_from(self.members.values().filter(is_old).count()).unwrap_or(u32::MAX);
        let (mut active, mut used) = (0, 0);
        for member in self.members.values().filter(alive) {
            active += 1;
            used += u32::from(member.load > 0 || is_spent(member));
        }
        let coming = current.max(active).saturating_sub(used);
        let lack = (self.queue.len() as u32).saturating_sub(coming);
        let wanted = current.saturating_add(lack).min(self.rules.max.saturating_sub(old));
        (wanted > current).then_some(wanted)
    }

    /// How many requests or keys of this router use the instance.
    pub fn load(&self, uid: &str) -> u32 {
        self.members.get(uid).map_or(0, |member| member.load)
    }

    /// Without instances and without anybody who waits.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.queue.is_empty() && self.creating.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Why those who wait do so, for people.
    pub fn why(&self) -> String {
        let Rules { max, on_demand, .. } = self.rules;
        let starting = self.members.values().filter(|member| member.instance.life == Life::Starting).count();
        let starting = starting + self.creating.len();
        let total = self.members.len();
        match starting {
            0 if on_demand && total >= max as usize => {
                format!("all of at most {max} instances are in use")
            }
            0 if on_demand => format!("no instance could be started; {total} of at most {max} exist"),
            0 => format!("all {total} instances are in use, and with scalingMode None no more are started"),
            1 => "an instance is starting".into(),
            n => format!("{n} instances are starting"),
        }
    }

    /// Counts of a revision's instances; its name as the value of a label.
    pub fn statistics(&self, spec: &SpecId) -> InstanceStatistics {
        let mut counts = InstanceStatistics::default();
        for member in self.members.values().filter(|member| member.instance.spec_id == *spec) {
            let instance = &member.instance;
            let reserved = instance.hold != Hold::Free || (member.load > 0 && self.rules.capacity == 1);
            let ready = instance.life == Life::Ready;
            counts.total += 1;
            counts.creating += i32::from(instance.life == Life::Starting);
            counts.ready += i32::from(ready);
            counts.reserved += i32::from(reserved);
            counts.idle += i32::from(ready && !reserved && !(self.rules.once && is_spent(member)));
        }
        counts
    }

    /// Not all who wait will be served by what is free, what starts, and what may be started.
    fn is_scarce(&self) -> bool {
        let room = if self.rules.on_demand { self.room() } else { 0 };
        let coming = self.starting + self.creating.len() + room;
        let capacity = (self.free.len() + coming).saturating_mul(self.rules.capacity as usize);
        self.queue.len() > capacity
    }

    fn room(&self) -> usize {
        (self.rules.max as usize).saturating_sub(self.members.len() + self.creating.len())
    }

    fn release_kept(&mut self, now: Duration) {
        while let Some((until, uid)) = self.kept.first().cloned() {
            if until > now {
                return;
            }
            self.change(&uid, |member| member.kept_until = Duration::ZERO);
        }
    }

    /// Changes a member with all that is counted of it.
    fn change(&mut self, uid: &str, change: impl FnOnce(&mut Member)) -> Option<Arc<Instance>> {
        self.forget(uid);
        let member = self.members.get_mut(uid)?;
        change(member);
        let (instance, uid) = (member.instance.clone(), member.instance.id.uid.clone());
        self.count(&uid);
        Some(instance)
    }

    fn count(&mut self, uid: &Arc<str>) {
        let Some(member) = self.members.get(uid) else { return };
        if let Some(slot) = member.instance.slot {
            *self.slots.entry(slot).or_default() += 1;
        }
        self.starting += usize::from(self.is_starting(member));
        if self.is_free(member) {
            match member.kept_until {
                Duration::ZERO => self.free.insert(self.rank(member)),
                until => self.kept.insert((until, uid.clone())),
            };
        }
    }

    /// The reverse of [`Pool::count`].
    fn forget(&mut self, uid: &str) {
        let Some(member) = self.members.get(uid) else { return };
        let (slot, starting, rank) = (member.instance.slot, self.is_starting(member), self.rank(member));
        let kept = (member.kept_until, rank.3.clone());
        if let Some(slot) = slot
            && let Some(count) = self.slots.get_mut(&slot)
        {
            *count -= 1;
            if *count == 0 {
                self.slots.remove(&slot);
            }
        }
        self.starting -= usize::from(starting);
        self.free.remove(&rank);
        self.kept.remove(&kept);
    }

    fn is_starting(&self, member: &Member) -> bool {
        let instance = &member.instance;
        instance.life == Life::Starting
            && !member.was_ready
            && instance.created_for.as_ref() == Some(&self.me)
            && instance.spec_id == self.rules.spec
    }

    fn is_free(&self, member: &Member) -> bool {
        let instance = &member.instance;
        let capacity = if self.rules.once { 1 } else { self.rules.capacity };
        instance.life == Life::Ready
            && instance.hold == Hold::Free
            && !instance.releasing
            && instance.address.is_some()
            && instance.spec_id == self.rules.spec
            && member.load < capacity
            && !(self.rules.once && is_spent(member))
    }

    fn rank(&self, member: &Member) -> Rank {
        let uid = &member.instance.id.uid;
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let others = member.instance.created_for.as_ref() != Some(&self.me);
        (member.load, others, hasher.finish(), uid.clone())
    }
}

fn is_spent(member: &Member) -> bool {
    member.spent || member.instance.last_active.is_some()
}

#[cfg(test)]
mod tests;
