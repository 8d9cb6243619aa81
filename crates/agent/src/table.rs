//! What an agent has taken on: runs by their ids and names, free slots, tombstones. Pure: an order is admitted as a
//! whole or refused with a reason, and nothing here waits or does anything.

pub(crate) mod inventory;
pub(crate) mod kept;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use agentcube_protos::agent::{Claim, Fence, Reason, Refusal, Tombstone, Why};

use crate::lease::Lease;
use crate::machine::{Effect, Event, Life, Phase};
use kept::Changed;

/// Of tombstones, the oldest go first.
const MOST_TOMBSTONES: usize = 100_000;
/// Runs that have ended and that the controller has not taken note of.
const MOST_ENDED: usize = 1_000;
/// Bytes of objects that are still to be made, over all runs: they must fit into one message.
const MOST_OBJECTS: usize = 5 << 19;
/// More slots than an inventory in one message could tell of.
pub(crate) const MOST_CAPACITY: u32 = 1_000;

/// Who this agent is, and how much it takes on.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) uid: String,
    pub(crate) incarnation: String,
    pub(crate) node: String,
    pub(crate) capacity: u32,
}

/// A run that is asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    pub(crate) run: String,
    pub(crate) claim: Claim,
    /// The object that is still to be made.
    pub(crate) object: Vec<u8>,
    /// 0: never.
    pub(crate) expire_unix_ms: i64,
    pub(crate) recovery: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    New,
    /// It was admitted before; whatever came of that is the answer.
    Again,
}

/// What a run has to do for the time that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Expire,
    Fence,
}

/// One run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) claim: Claim,
    pub(crate) life: Life,
    pub(crate) object: Vec<u8>,
    pub(crate) expire_unix_ms: i64,
    pub(crate) recovery: Duration,
    pub(crate) endpoints: Vec<String>,
    pub(crate) ready: bool,
    pub(crate) paused: bool,
    pub(crate) fenced: bool,
    pub(crate) started_unix_ms: i64,
    pub(crate) ended_unix_ms: i64,
    version: u64,
}

impl Run {
    pub(crate) fn ended(&self) -> bool {
        self.life.phase() == Phase::Ended
    }

    /// How long it may go on without a controller. One whose object nobody has confirmed may be taken for lost sooner:
    /// a new controller does not know of it, and starts another one of the same name.
    pub(crate) fn patience(&self) -> Duration {
        patience(&self.claim, self.recovery)
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    settings: Settings,
    term: u64,
    draining: bool,
    runs: HashMap<String, Run>,
    names: HashMap<(String, String), String>,
    /// With their numbers in the order below.
    tombstones: HashMap<String, (u64, Tombstone)>,
    tombstone_order: VecDeque<(u64, String)>,
    version: u64,
    /// Runs that are no more, by the version at which they went.
    gone: VecDeque<(u64, String)>,
    /// What went up to this version is forgotten.
    gone_before: u64,
    /// What whoever comes after this process has to know and was not yet told; `None` if nobody does.
    changed: Option<Vec<Changed>>,
}

fn refused(reason: Reason, message: impl Into<String>) -> Refusal {
    Refusal { reason: reason.into(), message: message.into(), run_id: String::new(), term: 0 }
}

impl Table {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            term: 0,
            draining: false,
            runs: HashMap::new(),
            names: HashMap::new(),
            tombstones: HashMap::new(),
            tombstone_order: VecDeque::new(),
            version: 1,
            gone: VecDeque::new(),
            gone_before: 0,
            changed: None,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, run: &str) -> Option<&Run> {
        self.runs.get(run)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.settings.capacity
    }

    /// Runs that take a slot.
    pub(crate) fn used(&self) -> u32 {
        let living = self.runs.values().filter(|run| !run.ended()).count();
        u32::try_from(living).unwrap_or(u32::MAX)
    }

    pub(crate) fn has(&self, tombstone: &str) -> bool {
        self.tombstones.contains_key(tombstone)
    }

    /// Whether the words are meant for us, and said by whoever leads now. A newer leader is remembered.
    pub(crate) fn check(&mut self, fence: Option<&Fence>) -> Result<(), Refusal> {
        let fence = fence.cloned().unwrap_or_default();
        if !fence.agent_uid.is_empty() && fence.agent_uid != self.settings.uid
            || fence.incarnation != self.settings.incarnation
        {
            let message = format!("this is agent {}, started anew or another one", self.settings.uid);
            return Err(refused(Reason::OtherIncarnation, message));
        }
        self.check_term(fence.term)
    }

    /// The first word of a controller, which does not know our incarnation yet.
    pub(crate) fn check_first(&mut self, fence: Option<&Fence>) -> Result<(), Refusal> {
        let mut fence = fence.cloned().unwrap_or_default();
        if fence.incarnation.is_empty() {
            fence.incarnation.clone_from(&self.settings.incarnation);
        }
        self.check(Some(&fence))
    }

    fn check_term(&mut self, term: u64) -> Result<(), Refusal> {
        if term < self.term {
            let message = format!("term {term} is over: this agent has heard of term {}", self.term);
            return Err(Refusal { term: self.term, ..refused(Reason::StaleTerm, message) });
        }
        if term > self.term {
            self.term = term;
            self.note(|| Changed::Term);
        }
        Ok(())
    }

    /// Whether the controller has been heard of late enough for a run to start.
    pub(crate) fn in_contact(&self, order: &Order, lease: &Lease, now: Instant) -> Result<(), Refusal> {
        if self.runs.contains_key(&order.run) || lease.holds(patience(&order.claim, order.recovery), now) {
            return Ok(());
        }
        let message =
            "this agent was out of contact with its controller: sync first, and acknowledge the answer";
        Err(refused(Reason::Unknown, message))
    }

    /// Takes a run on, or says why not. Nothing changes if not.
    pub(crate) fn admit(&mut self, order: Order, now_unix_ms: i64) -> Result<Admitted, Refusal> {
        if let Some((_, tombstone)) = self.tombstones.get(&order.run) {
            let message = format!("run {} was stopped ({:?})", order.run, tombstone.why());
            return Err(refused(Reason::Tombstoned, message));
        }
        if let Some(run) = self.runs.get(&order.run) {
            return match same(&run.claim, &order.claim) {
                true => Ok(Admitted::Again),
                false => Err(self.taken(&order.run)),
            };
        }
        let name = key(&order.claim);
        if let Some(other) = self.names.get(&name) {
            let message = format!("{}/{} is run {other} here", name.0, name.1);
            return Err(Refusal { run_id: other.clone(), ..refused(Reason::OtherRun, message) });
        }
        if order.expire_unix_ms != 0 && order.expire_unix_ms <= now_unix_ms {
            return Err(refused(Reason::Expired, "its time is over"));
        }
        self.room(order.object.len())?;
        let Order { run, claim, object, expire_unix_ms, recovery } = order;
        self.names.insert(name, run.clone());
        let admitted = Run {
            claim,
            life: Life::new(),
            object,
            expire_unix_ms,
            recovery,
            endpoints: Vec::new(),
            ready: false,
            paused: false,
            fenced: false,
            started_unix_ms: 0,
            ended_unix_ms: 0,
            version: 0,
        };
        self.runs.insert(run.clone(), admitted);
        self.touch(&run);
        Ok(Admitted::New)
    }

    fn room(&self, object: usize) -> Result<(), Refusal> {
        if self.draining {
            return Err(refused(Reason::Draining, "this agent is about to go"));
        }
        let (used, capacity) = (self.used(), self.settings.capacity);
        if used >= capacity {
            return Err(refused(Reason::Full, format!("all {capacity} slots are taken")));
        }
        let ended = self.runs.len() - used as usize;
        if ended >= MOST_ENDED {
            let message = format!("{ended} runs have ended and nobody has taken note of them");
            return Err(refused(Reason::Full, message));
        }
        let objects: usize = self.runs.values().map(|run| run.object.len()).sum();
        if objects + object > MOST_OBJECTS {
            return Err(refused(Reason::Full, "too many runs still wait for their objects"));
        }
        Ok(())
    }

    fn taken(&self, run: &str) -> Refusal {
        refused(Reason::Taken, format!("run {run} belongs to another sandbox"))
    }

    /// From now on the run is not started any more. True if it is here, to be ended.
    pub(crate) fn stop(&mut self, run: &str, claim: Option<&Claim>, why: Why) -> Result<bool, Refusal> {
        let here = self.runs.get(run);
        if let (Some(here), Some(claim)) = (here, claim)
            && !same(&here.claim, claim)
        {
            return Err(self.taken(run));
        }
        let known = here.map(|here| &here.claim).or(claim).cloned();
        let present = here.is_some();
        self.bury(run, known, why);
        if self.runs.get(run).is_some_and(Run::ended) {
            self.forget(run);
        }
        Ok(present)
    }

    /// Leaves a tombstone. That somebody deleted it is never forgotten for a lesser reason.
    pub(crate) fn bury(&mut self, run: &str, claim: Option<Claim>, why: Why) {
        if let Some((_, old)) = self.tombstones.get_mut(run) {
            if ![Why::Deleted, why].contains(&old.why()) {
                old.set_why(why);
                self.note(|| Changed::Buried(run.to_owned()));
            }
            return;
        }
        while self.tombstone_order.len() >= MOST_TOMBSTONES {
            if let Some((number, oldest)) = self.tombstone_order.pop_front() {
                self.tombstones.remove(&oldest);
                self.note(|| Changed::Forgotten(number, oldest));
            }
        }
        let number = self.tombstone_order.back().map_or(0, |(last, _)| last + 1);
        let tombstone = Tombstone { run_id: run.to_owned(), claim, why: why.into() };
        self.set_tombstone(number, tombstone);
        self.note(|| Changed::Buried(run.to_owned()));
    }

    /// A run that has ended and that nobody wants to know of.
    fn forget(&mut self, run: &str) {
        let Some(gone) = self.runs.remove(run) else { return };
        let name = key(&gone.claim);
        if self.names.get(&name).is_some_and(|holder| holder == run) {
            self.names.remove(&name);
        }
        self.went(run);
        self.note(|| Changed::Gone(run.to_owned()));
    }

    /// Takes in what happened to a run; what is to be done. One that has ended and was stopped is forgotten at once.
    pub(crate) fn step(&mut self, run: &str, event: Event, now_unix_ms: i64) -> Vec<Effect> {
        let Some(entry) = self.runs.get_mut(run) else { return Vec::new() };
        let before = entry.life.phase();
        let effects = entry.life.step(event);
        let after = entry.life.phase();
        if let Event::Exited(_) = event
            && entry.ended_unix_ms == 0
        {
            entry.ended_unix_ms = now_unix_ms;
        }
        if before != after {
            match after {
                Phase::Running => entry.started_unix_ms = now_unix_ms,
                Phase::Ended => (entry.ready, entry.endpoints) = (false, Vec::new()),
                _ => {}
            }
            self.touch(run);
        }
        if before != after && after != Phase::Ended || matches!(event, Event::Exited(_)) {
            self.note(|| Changed::Run(run.to_owned()));
        }
        if after == Phase::Ended && self.has(run) {
            self.forget(run);
        }
        effects
    }

    /// Changes what the inventory says of a run.
    pub(crate) fn change(&mut self, run: &str, change: impl FnOnce(&mut Run)) {
        if let Some(entry) = self.runs.get_mut(run) {
            change(entry);
            self.touch(run);
            self.note(|| Changed::Run(run.to_owned()));
        }
    }

    /// The object of a run exists: there is no need to keep it. This is no news for whoever says it. True if it was
    /// not known before.
    pub(crate) fn confirm(&mut self, run: &str, uid: &str) -> bool {
        let Some(entry) = self.runs.get_mut(run) else { return false };
        if entry.claim.uid == uid && entry.object.is_empty() {
            return false;
        }
        let before = std::mem::replace(&mut entry.claim.uid, uid.to_owned());
        entry.object = Vec::new();
        self.note(|| Changed::Run(run.to_owned()));
        before != uid
    }

    /// Something that is told besides runs has changed.
    pub(crate) fn news(&mut self) {
        self.version += 1;
    }

    /// New limits. Draining begins only where nothing is, and says whether it did.
    pub(crate) fn configure(&mut self, capacity: u32, drain: bool) -> bool {
        let drain = drain && self.runs.is_empty();
        let capacity = match capacity {
            0 => self.settings.capacity,
            wanted => wanted.min(MOST_CAPACITY),
        };
        if (self.settings.capacity, self.draining) != (capacity, drain) {
            (self.settings.capacity, self.draining) = (capacity, drain);
            self.version += 1;
        }
        drain
    }

    /// Nothing is taken on any more, whatever still runs.
    pub(crate) fn close(&mut self) {
        self.draining = true;
        self.version += 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What is due, and when to look again.
    pub(crate) fn due(
        &self,
        now_unix_ms: i64,
        now: Instant,
        lease: &Lease,
    ) -> (Vec<(String, Due)>, Option<Duration>) {
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        let mut later = |wait: Duration| next = Some(next.map_or(wait, |known| known.min(wait)));
        for (id, run) in &self.runs {
            if !matches!(run.life.phase(), Phase::Starting | Phase::Running) {
                continue;
            }
            match run.expire_unix_ms {
                0 => {}
                at if at <= now_unix_ms => due.push((id.clone(), Due::Expire)),
                at => later(Duration::from_millis(at.abs_diff(now_unix_ms))),
            }
            match lease.fence_at(run.patience()).filter(|_| !run.fenced) {
                None => {}
                Some(at) if at <= now => due.push((id.clone(), Due::Fence)),
                Some(at) => later(at.duration_since(now)),
            }
        }
        (due, next)
    }

    fn touch(&mut self, run: &str) {
        self.version += 1;
        if let Some(entry) = self.runs.get_mut(run) {
            entry.version = self.version;
        }
    }
}

fn patience(claim: &Claim, recovery: Duration) -> Duration {
    if claim.uid.is_empty() { Duration::ZERO } else { recovery }
}

fn key(claim: &Claim) -> (String, String) {
    (claim.namespace.clone(), claim.name.clone())
}

/// Whether two claims are of one sandbox. Without an object there is no uid yet.
fn same(one: &Claim, other: &Claim) -> bool {
    let uid = one.uid == other.uid || one.uid.is_empty() || other.uid.is_empty();
    uid && (&one.namespace, &one.name) == (&other.namespace, &other.name)
}
