//! One agent's inventory as the controller has it. Pure: times and numbers of questions come from outside.

use std::collections::{HashMap, HashSet, VecDeque};

use agentcube_protos::agent::{Claim, Entry, State, SyncResponse, Why};
use jiff::Timestamp;
use tokio::time::Instant;

use super::Seen;
use crate::names::{Name, RunId};
use crate::registry::Inventory;

/// Ends that are kept in mind; one that is forgotten is asked for again.
const MOST_STOPPED: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) incarnation: String,
    pub(super) seq: u64,
    pub(super) version: u64,
    pub(super) heard: Option<Instant>,
    pub(super) heard_at: Option<Timestamp>,
    /// The whole inventory of this incarnation was received.
    pub(super) synced: bool,
    pub(super) draining: bool,
    pub(super) node: String,
    pub(super) names: HashMap<Name, HashSet<RunId>>,
    entries: HashMap<RunId, Known>,
    tombstones: HashMap<RunId, Why>,
    /// Acknowledged since, with the number of the last question before.
    stopped: HashMap<RunId, (Why, u64)>,
    order: VecDeque<RunId>,
    capacity: u32,
    images: HashSet<String>,
    prepared: HashMap<String, u32>,
}

#[derive(Debug)]
struct Known {
    entry: Entry,
    /// Number of the last question before it was known.
    since: u64,
}

pub(crate) fn name_of(claim: Option<&Claim>) -> Name {
    claim.map_or_else(Name::default, |claim| Name::new(&claim.namespace, &claim.name))
}

impl View {
    pub(super) fn restart(&mut self) -> Vec<Name> {
        let names = std::mem::take(&mut self.names).into_keys().collect();
        self.entries.clear();
        self.tombstones.clear();
        self.stopped.clear();
        self.order.clear();
        self.incarnation.clear();
        (self.seq, self.version, self.synced) = (0, 0, false);
        names
    }

    pub(super) fn take_in(
        &mut self,
        response: &SyncResponse,
        asked: u64,
        now: Instant,
        at: Timestamp,
    ) -> Vec<Name> {
        let mut names = HashSet::new();
        if response.incarnation != self.incarnation {
            names.extend(self.restart());
            self.incarnation = response.incarnation.clone();
        }
        (self.heard, self.heard_at) = (Some(now), Some(at));
        (self.seq, self.capacity, self.draining) = (response.seq, response.capacity, response.draining);
        self.node.clone_from(&response.node);
        self.images = response.images.iter().cloned().collect();
        self.prepared = response.prepared.iter().map(|shape| (shape.image.clone(), shape.count)).collect();
        if !response.whole && !self.synced {
            // Changes of something unknown: ask for all of it.
            self.version = 0;
            return names.into_iter().collect();
        }
        // What is left out now is told again, in answer to a question that is young enough.
        if !self.leaves_out(response, asked) {
            self.version = response.version;
        }
        if response.whole {
            self.synced = true;
            self.tombstones =
                response.tombstones.iter().map(|t| (RunId::from(t.run_id.as_str()), t.why())).collect();
            let named: HashSet<&str> = response.entries.iter().map(|entry| entry.run_id.as_str()).collect();
            let left: Vec<RunId> =
                self.entries.keys().filter(|run| !named.contains(run.as_str())).cloned().collect();
            names.extend(left.iter().filter_map(|run| self.remove(run, asked)));
        }
        for entry in &response.entries {
            names.extend(self.upsert(entry, asked));
        }
        for run in &response.gone {
            names.extend(self.remove(&RunId::from(run.as_str()), asked));
        }
        names.into_iter().collect()
    }

    /// Whether something of an answer is not taken in, because what is known is younger than the question.
    fn leaves_out(&self, response: &SyncResponse, asked: u64) -> bool {
        let younger = |run: &str| {
            let run = RunId::from(run);
            let (known, stopped) = (self.entries.get(&run), self.stopped.get(&run));
            known.is_some_and(|known| known.since >= asked)
                || stopped.is_some_and(|(_, since)| *since >= asked)
        };
        response.entries.iter().any(|entry| younger(&entry.run_id))
            || response.gone.iter().any(|run| younger(run))
    }

    /// Takes an entry in, unless what is known is younger. Its name, if that changes anything.
    fn upsert(&mut self, entry: &Entry, asked: u64) -> Option<Name> {
        let run = RunId::from(entry.run_id.as_str());
        if self.stopped.get(&run).is_some_and(|(_, since)| *since >= asked) {
            return None;
        }
        let known = self.entries.get(&run);
        if known.is_some_and(|known| known.since >= asked || known.entry == *entry) {
            return None;
        }
        let name = name_of(entry.claim.as_ref());
        self.names.entry(name.clone()).or_default().insert(run.clone());
        self.entries.insert(run, Known { entry: entry.clone(), since: 0 });
        Some(name)
    }

    /// Forgets a run, unless it is younger than the question.
    fn remove(&mut self, run: &RunId, asked: u64) -> Option<Name> {
        if self.entries.get(run)?.since >= asked {
            return None;
        }
        self.forget(run)
    }

    fn forget(&mut self, run: &RunId) -> Option<Name> {
        let known = self.entries.remove(run)?;
        let name = name_of(known.entry.claim.as_ref());
        if let Some(runs) = self.names.get_mut(&name) {
            runs.remove(run);
            if runs.is_empty() {
                self.names.remove(&name);
            }
        }
        Some(name)
    }

    pub(super) fn started(&mut self, incarnation: &str, entry: Entry, asked: u64) {
        let run = RunId::from(entry.run_id.as_str());
        if incarnation != self.incarnation || self.stopped.contains_key(&run) {
            return;
        }
        // That it ended, or listens, may have been told before the answer to its start was.
        let told = |known: &Known| known.entry.state() != State::Starting;
        if self.entries.get(&run).is_some_and(told) {
            return;
        }
        let name = name_of(entry.claim.as_ref());
        self.names.entry(name).or_default().insert(run.clone());
        self.entries.insert(run, Known { entry, since: asked });
    }

    pub(super) fn stopped(&mut self, incarnation: &str, run: &RunId, why: Why, asked: u64) {
        if incarnation != self.incarnation {
            return;
        }
        self.forget(run);
        // That somebody deleted it is not forgotten for a lesser reason, here as at the agent.
        let deleted = self.tombstones.get(run) == Some(&Why::Deleted)
            || self.stopped.get(run).is_some_and(|(before, _)| *before == Why::Deleted);
        let why = if deleted { Why::Deleted } else { why };
        if self.stopped.insert(run.clone(), (why, asked)).is_none() {
            self.order.push_back(run.clone());
        }
        while self.order.len() > MOST_STOPPED {
            if let Some(oldest) = self.order.pop_front() {
                self.stopped.remove(&oldest);
            }
        }
    }

    /// The agent knows the object of a run. Its name, if that is news.
    pub(super) fn confirmed(&mut self, run: &RunId, uid: &str) -> Option<Name> {
        let entry = &mut self.entries.get_mut(run)?.entry;
        if entry.object.is_empty() {
            return None;
        }
        entry.object.clear();
        if let Some(claim) = &mut entry.claim {
            claim.uid = uid.into();
        }
        Some(name_of(entry.claim.as_ref()))
    }

    pub(super) fn paused(&mut self, run: &RunId, paused: Option<bool>, fenced: Option<bool>) {
        if let Some(known) = self.entries.get_mut(run) {
            known.entry.paused = paused.unwrap_or(known.entry.paused);
            known.entry.fenced = fenced.unwrap_or(known.entry.fenced);
        }
    }

    pub(super) fn seen(&self, run: &RunId) -> Seen {
        if let Some(known) = self.entries.get(run) {
            return Seen::Entry(Box::new(known.entry.clone()));
        }
        let why = self.stopped.get(run).map(|(why, _)| *why).or_else(|| self.tombstones.get(run).copied());
        why.map_or(Seen::Absent, Seen::Stopped)
    }

    pub(super) fn runs_of(&self, name: &Name) -> Vec<Entry> {
        let runs = self.names.get(name).into_iter().flatten();
        runs.filter_map(|run| self.entries.get(run)).map(|known| known.entry.clone()).collect()
    }

    pub(super) fn configured(&mut self, capacity: u32, draining: bool) {
        (self.capacity, self.draining) = (capacity, draining);
    }

    pub(super) fn counts(&self) -> (usize, u32) {
        let paused = self.entries.values().filter(|known| known.entry.paused).count();
        (paused, self.prepared.values().sum())
    }

    pub(super) fn inventory(&self, asked: u64) -> Inventory {
        let holding = self.entries.values().filter(|known| known.entry.state() != State::Ended);
        Inventory {
            asked,
            runs: holding.map(|known| RunId::from(known.entry.run_id.as_str())).collect(),
            capacity: self.capacity,
            draining: self.draining,
            images: self.images.clone(),
            prepared: self.prepared.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(run: &str) -> Entry {
        let claim = Claim { namespace: "n".into(), name: run.to_uppercase(), ..Claim::default() };
        Entry { run_id: run.into(), claim: Some(claim), state: State::Running.into(), ..Entry::default() }
    }

    fn answer(whole: bool, entries: &[&str], gone: &[&str]) -> SyncResponse {
        SyncResponse {
            incarnation: "1".into(),
            version: 1,
            whole,
            entries: entries.iter().map(|run| entry(run)).collect(),
            gone: gone.iter().map(|run| (*run).to_string()).collect(),
            ..SyncResponse::default()
        }
    }

    fn take(view: &mut View, response: &SyncResponse, asked: u64) -> Vec<String> {
        let names = view.take_in(response, asked, Instant::now(), Timestamp::UNIX_EPOCH);
        let mut names: Vec<String> = names.into_iter().map(|name| name.name).collect();
        names.sort();
        names
    }

    fn has(view: &View, run: &str) -> bool {
        matches!(view.seen(&run.into()), Seen::Entry(_))
    }

    #[test]
    fn changes_are_told_once() {
        let mut view = View::default();
        assert_eq!(take(&mut view, &answer(true, &["a", "b"], &[]), 1), ["A", "B"]);
        assert_eq!(take(&mut view, &answer(true, &["a", "b"], &[]), 2), Vec::<String>::new());
        assert_eq!(take(&mut view, &answer(false, &["c"], &["a"]), 3), ["A", "C"]);
        assert_eq!(take(&mut view, &answer(true, &["c"], &[]), 4), ["B"]);
    }

    #[test]
    fn an_answer_to_an_older_question_says_nothing_of_what_was_started_since() {
        let mut view = View::default();
        take(&mut view, &answer(true, &[], &[]), 1);
        view.started("1", entry("a"), 2);
        assert_eq!(take(&mut view, &answer(true, &[], &[]), 2), Vec::<String>::new());
        assert!(has(&view, "a"));
        assert_eq!(take(&mut view, &answer(true, &[], &[]), 3), ["A"]);
        assert_eq!(view.seen(&"a".into()), Seen::Absent);
    }

    #[test]
    fn what_was_left_out_of_an_older_answer_is_asked_for_again() {
        let mut view = View::default();
        take(&mut view, &answer(true, &[], &[]), 1);
        view.started("1", entry("a"), 2);
        let mut ended = answer(false, &["a"], &[]);
        (ended.version, ended.entries[0].state) = (2, State::Ended.into());
        take(&mut view, &ended, 2);
        assert_eq!(view.version, 1, "it would never be told again");
        assert_eq!(take(&mut view, &ended, 3), ["A"]);
        assert_eq!(view.version, 2);
        // The answer to its start comes late, and says less.
        view.started("1", entry("a"), 3);
        assert!(matches!(view.seen(&"a".into()), Seen::Entry(known) if known.state() == State::Ended));
    }

    #[test]
    fn what_was_stopped_does_not_come_back_with_an_older_answer() {
        let mut view = View::default();
        take(&mut view, &answer(true, &["a"], &[]), 1);
        view.stopped("1", &"a".into(), Why::Deleted, 2);
        take(&mut view, &answer(true, &["a"], &[]), 2);
        assert_eq!(view.seen(&"a".into()), Seen::Stopped(Why::Deleted));
    }

    #[test]
    fn another_life_knows_nothing_and_whoever_was_there_is_told() {
        let mut view = View::default();
        take(&mut view, &answer(true, &["a"], &[]), 1);
        view.stopped("1", &"b".into(), Why::Deleted, 1);
        let other = SyncResponse { incarnation: "2".into(), ..answer(true, &[], &[]) };
        assert_eq!(take(&mut view, &other, 2), ["A"]);
        assert_eq!((view.seen(&"a".into()), view.seen(&"b".into())), (Seen::Absent, Seen::Absent));
        // An answer that belongs to the earlier life comes too late.
        view.started("1", entry("a"), 2);
        assert!(!has(&view, "a"));
    }

    #[test]
    fn changes_without_the_whole_are_not_believed() {
        let mut view = View::default();
        take(&mut view, &answer(false, &["a"], &[]), 1);
        assert!(!view.synced && !has(&view, "a"));
        assert_eq!(view.version, 0);
    }
}
