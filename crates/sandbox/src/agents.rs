//! What is known of each agent: what it said last, when, and what was asked of it since. Keeps answers in order: one that
//! was given before something happened neither undoes it nor proves anything about it.

mod view;

pub(crate) use view::name_of;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentcube_protos::agent::{Confirmed, Entry, Fence, SyncResponse, Why};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fleet::Place;
use crate::names::{AgentId, Name, PoolKey, RunId};
use view::View;

/// The most confirmations in one message.
const CONFIRMED_AT_ONCE: usize = 1000;

/// How long what is to be told to an agent waits for more.
const TELL_AFTER: Duration = Duration::from_millis(5);

/// The longest `recoveryTimeoutSeconds`: a silence that lasts longer is certain for every sandbox.
const LONGEST_FENCE: Duration = Duration::from_hours(24);

/// What is known of one run at one agent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Contact {
    /// It is proved that nothing of the agent runs.
    Dead,
    /// It was last heard of so long ago, at that time.
    Silent { ago: Duration, at: Timestamp },
    /// It answers.
    Heard(Seen),
}

/// What an agent that answers says of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Entry(Box<Entry>),
    /// It has acknowledged that the run is over, and will not start it.
    Stopped(Why),
    Absent,
    /// Another sandbox has this run: whoever wrote it down here made it up.
    Foreign,
}

/// A run, as an agent has it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) agent: Arc<Agent>,
    pub(crate) entry: Entry,
}

/// One agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) pool: PoolKey,
    pub(crate) place: Place,
    view: Mutex<View>,
    /// Number of the last question; of the answer to an older one nothing follows for what happened since.
    asked: AtomicU64,
    confirm: Mutex<BTreeMap<RunId, String>>,
    synced: watch::Sender<bool>,
    /// It has had an acknowledgement in this life: it starts what it is asked to.
    admitted: watch::Sender<bool>,
    tell: Notify,
    /// Runs that were started elsewhere after a silence of this agent, without an answer that they are over. As long as
    /// there are any, nothing is acknowledged: without contact it starts nothing, however late a start arrives.
    given_up: Mutex<HashSet<RunId>>,
    /// Runs whose stop was sent and not answered yet.
    condemned: Mutex<HashSet<RunId>>,
    /// Ends the task that talks to it.
    pub(crate) gone: CancellationToken,
}

impl Agent {
    fn new(pool: PoolKey, place: Place) -> Agent {
        Agent {
            pool,
            place,
            view: Mutex::default(),
            asked: AtomicU64::new(0),
            confirm: Mutex::default(),
            synced: watch::Sender::new(false),
            admitted: watch::Sender::new(false),
            tell: Notify::new(),
            given_up: Mutex::default(),
            condemned: Mutex::default(),
            gone: CancellationToken::new(),
        }
    }

    pub(crate) fn id(&self) -> &AgentId {
        &self.place.id
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Who decides, for this life of the agent.
    pub(crate) fn fence(&self, term: u64) -> Fence {
        Fence { term, agent_uid: self.id().uid.clone(), incarnation: self.view.lock().incarnation.clone() }
    }

    pub(crate) fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub(crate) fn is_admitted(&self) -> bool {
        *self.admitted.borrow()
    }

    pub(crate) fn admitted(&self) {
        self.admitted.send_replace(true);
    }

    /// Waits until it was asked what it runs, and can be given more.
    pub(crate) async fn synced(&self) {
        let (mut synced, mut admitted) = (self.synced.subscribe(), self.admitted.subscribe());
        // The senders live as long as this.
        let _ = synced.wait_for(|synced| *synced).await;
        let _ = admitted.wait_for(|admitted| *admitted).await;
    }

    pub(crate) fn give_up(&self, run: &RunId) {
        self.given_up.lock().insert(run.clone());
    }

    /// It was not given up after all.
    pub(crate) fn take_back(&self, run: &RunId) {
        self.given_up.lock().remove(run);
    }

    /// A stop of this run is sent: whatever comes of it, it is not adopted any more.
    pub(crate) fn condemn(&self, run: &RunId) {
        self.condemned.lock().insert(run.clone());
    }

    pub(crate) fn is_condemned(&self, run: &RunId) -> bool {
        self.condemned.lock().contains(run)
    }

    pub(crate) fn has_given_up(&self) -> bool {
        !self.given_up.lock().is_empty()
    }

    /// Waits until there is something to tell it, and a moment longer, so that several things go together.
    pub(crate) async fn has_to_tell(&self) {
        self.tell.notified().await;
        tokio::time::sleep(TELL_AFTER).await;
    }

    /// Last seq and version, for the next question.
    pub(crate) fn known(&self) -> (u64, u64) {
        let view = self.view.lock();
        (view.seq, view.version)
    }

    /// Runs whose objects exist now, to be told to the agent.
    pub(crate) fn confirmations(&self) -> Vec<Confirmed> {
        let confirm = self.confirm.lock();
        let some = confirm.iter().take(CONFIRMED_AT_ONCE);
        some.map(|(run, uid)| Confirmed { run_id: run.to_string(), uid: uid.clone() }).collect()
    }

    /// The agent has heard these, and keeps their records no longer. The names they concern.
    pub(crate) fn confirmed(&self, told: &[Confirmed]) -> Vec<Name> {
        let mut confirm = self.confirm.lock();
        for one in told {
            confirm.remove(&RunId::from(one.run_id.as_str()));
        }
        drop(confirm);
        let mut view = self.view.lock();
        told.iter().filter_map(|one| view.confirmed(&one.run_id.as_str().into(), &one.uid)).collect()
    }

    /// The object of a run exists; the agent need not keep its record any more.
    pub(crate) fn confirm(&self, run: &RunId, uid: &str) {
        if self.confirm.lock().insert(run.clone(), uid.into()).is_none() {
            self.tell.notify_one();
        }
    }

    /// Takes in an answer to question `asked`; the names it concerns.
    pub(crate) fn take_in(&self, response: &SyncResponse, asked: u64) -> Vec<Name> {
        let mut view = self.view.lock();
        if !view.incarnation.is_empty() && view.incarnation != response.incarnation {
            self.begins_anew();
        }
        let names = view.take_in(response, asked, Instant::now(), Timestamp::now());
        let synced = view.synced;
        drop(view);
        self.synced.send_if_modified(|before| std::mem::replace(before, synced) != synced);
        names
    }

    /// The agent says that it lives another life: what was known of it is void.
    pub(crate) fn forget(&self) {
        self.view.lock().restart();
        self.begins_anew();
    }

    fn begins_anew(&self) {
        // What it was given up for ended with its last life.
        self.given_up.lock().clear();
        self.condemned.lock().clear();
        self.confirm.lock().clear();
        self.synced.send_replace(false);
        self.admitted.send_replace(false);
    }

    pub(crate) fn inventory(&self, asked: u64) -> crate::registry::Inventory {
        self.view.lock().inventory(asked)
    }

    /// A run was started, as an answer to its start said.
    pub(crate) fn started(&self, fence: &Fence, entry: Entry) {
        self.view.lock().started(&fence.incarnation, entry, self.asked());
    }

    /// A run is over, as an answer to its stop said.
    pub(crate) fn stopped(&self, fence: &Fence, run: &RunId, why: Why) {
        self.view.lock().stopped(&fence.incarnation, run, why, self.asked());
        self.given_up.lock().remove(run);
        self.condemned.lock().remove(run);
    }

    /// A run stands still or goes on, as an answer said.
    pub(crate) fn paused(&self, run: &RunId, paused: Option<bool>, fenced: Option<bool>) {
        self.view.lock().paused(run, paused, fenced);
    }

    /// What it says of a run. Of an agent that was never heard of, silence counts from `begun`.
    pub(crate) fn contact(&self, run: &RunId, begun: Instant, dropped: Duration) -> Contact {
        if self.place.dead {
            return Contact::Dead;
        }
        let view = self.view.lock();
        let heard = view.heard.unwrap_or(begun);
        let ago = heard.elapsed();
        if !view.synced || ago >= dropped {
            let at = view.heard_at.unwrap_or_else(|| long_ago(ago));
            return Contact::Silent { ago, at };
        }
        Contact::Heard(view.seen(run))
    }

    /// How long ago it was heard of.
    pub(crate) fn silence(&self, begun: Instant) -> Duration {
        self.view.lock().heard.unwrap_or(begun).elapsed()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.view.lock().draining
    }

    pub(crate) fn node(&self) -> String {
        self.view.lock().node.clone()
    }

    pub(crate) fn configured(&self, capacity: u32, draining: bool) {
        self.view.lock().configured(capacity, draining);
    }

    /// Paused runs and prepared sandboxes.
    pub(crate) fn counts(&self) -> (usize, u32) {
        self.view.lock().counts()
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.view.lock().names.keys().cloned().collect()
    }

    fn runs_of(&self, name: &Name) -> Vec<Entry> {
        self.view.lock().runs_of(name)
    }
}

/// The time of day so long ago.
fn long_ago(ago: Duration) -> Timestamp {
    let now = Timestamp::now();
    now.checked_sub(ago).unwrap_or(now)
}

/// All agents, by uid.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    all: RwLock<HashMap<String, Arc<Agent>>>,
    /// When those were last heard of that are no longer known: what they ran may run on.
    left: Mutex<HashMap<String, (Instant, Timestamp)>>,
}

impl Agents {
    pub(crate) fn get(&self, uid: &str) -> Option<Arc<Agent>> {
        self.all.read().get(uid).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Agent>> {
        self.all.read().values().cloned().collect()
    }

    pub(crate) fn of(&self, pool: &PoolKey) -> Vec<Arc<Agent>> {
        self.all.read().values().filter(|agent| agent.pool == *pool).cloned().collect()
    }

    /// Takes in an agent, if it is new or has come to be known as dead.
    pub(crate) fn add(&self, pool: &PoolKey, place: Place) -> Option<Arc<Agent>> {
        let mut all = self.all.write();
        if let Some(known) = all.get(&place.id.uid) {
            if known.place.dead == place.dead {
                return None;
            }
            known.gone.cancel();
        }
        let agent = Arc::new(Agent::new(pool.clone(), place));
        all.insert(agent.id().uid.clone(), agent.clone());
        Some(agent)
    }

    pub(crate) fn remove(&self, uid: &str) {
        let Some(agent) = self.all.write().remove(uid) else { return };
        let heard = {
            let view = agent.view.lock();
            view.heard.zip(view.heard_at)
        };
        if let Some(heard) = heard {
            let mut left = self.left.lock();
            left.retain(|_, (heard, _)| heard.elapsed() < LONGEST_FENCE);
            left.insert(uid.to_owned(), heard);
        }
    }

    /// What is known of the runs of an agent that is not known: how long it has been silent. That it has no place any more
    /// proves nothing. Of one that was never heard of, silence counts from `begun`.
    pub(crate) fn contact_of_unknown(&self, uid: &str, begun: Instant) -> Contact {
        let (ago, at) = match self.left.lock().get(uid) {
            Some((heard, at)) => (heard.elapsed(), *at),
            None => (begun.elapsed(), long_ago(begun.elapsed())),
        };
        Contact::Silent { ago, at }
    }

    /// Every run that was started for this name, wherever.
    pub(crate) fn runs_of(&self, name: &Name) -> Vec<Run> {
        let agents = self.all();
        let here = agents.iter().filter(|agent| agent.pool.namespace == name.namespace);
        here.flat_map(|agent| {
            agent.runs_of(name).into_iter().map(|entry| Run { agent: agent.clone(), entry })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use agentcube_protos::link::Remote;
    use tonic::transport::Endpoint;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn place(uid: &str) -> Place {
        let nobody = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let id = AgentId { name: "agent".into(), uid: uid.into() };
        Place { id, index: 0, dead: false, link: Arc::new(Remote::new(nobody)) }
    }

    /// A place that is gone proves nothing: the node of a Pod that was deleted by force may not have heard of it.
    #[tokio::test(start_paused = true)]
    async fn the_silence_of_who_has_left_counts_from_its_last_word() {
        let (agents, pool, begun) = (Agents::default(), PoolKey::new("here", "pool"), Instant::now());
        let ago = |uid| match agents.contact_of_unknown(uid, begun) {
            Contact::Silent { ago, .. } => ago,
            other => panic!("{other:?}"),
        };
        tokio::time::advance(3600 * SECOND).await;
        let heard = agents.add(&pool, place("heard")).unwrap();
        agents.add(&pool, place("never heard"));
        heard.take_in(&SyncResponse { incarnation: "first".into(), ..SyncResponse::default() }, heard.ask());
        tokio::time::advance(SECOND).await;
        agents.remove("heard");
        agents.remove("never heard");
        tokio::time::advance(SECOND).await;
        assert_eq!(ago("heard"), 2 * SECOND);
        assert_eq!((ago("never heard"), ago("unknown")), (3602 * SECOND, 3602 * SECOND));
        // Nobody waits for longer than that, so it need not be kept.
        tokio::time::advance(LONGEST_FENCE).await;
        agents.add(&pool, place("another")).unwrap().take_in(&SyncResponse::default(), 1);
        agents.remove("another");
        assert_eq!(agents.left.lock().keys().collect::<Vec<_>>(), ["another"]);
    }
}
