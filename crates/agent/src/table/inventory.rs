//! What the controller is told: everything, or what has changed since a version that it knows.

use agentcube_protos::agent::{Entry, State, SyncResponse, Tombstone};
use agentcube_protos::session::Exit;

use super::{Run, Table};
use crate::machine::{Ending, Phase};

/// Runs that went and are still told of by name. Whoever asks for older versions gets everything.
const MOST_GONE: usize = 4_096;
/// Bytes of tombstones in one answer; the newest are told.
const MOST_TOMBSTONE_BYTES: usize = 1 << 19;

impl Table {
    pub(super) fn went(&mut self, run: &str) {
        self.version += 1;
        self.gone.push_back((self.version, run.to_owned()));
        if self.gone.len() > MOST_GONE
            && let Some((version, _)) = self.gone.pop_front()
        {
            self.gone_before = version;
        }
    }

    /// What is here, as an answer without number. `known` is what the asker has; 0: nothing.
    pub(crate) fn view(&self, known: u64) -> SyncResponse {
        let whole = known == 0 || known > self.version || known < self.gone_before;
        let entries = self.runs.iter().filter(|(_, run)| whole || run.version > known);
        let gone = self.gone.iter().filter(|(version, _)| !whole && *version > known);
        SyncResponse {
            whole,
            entries: entries.map(|(id, run)| entry(id, run)).collect(),
            gone: gone.map(|(_, run)| run.clone()).collect(),
            tombstones: if whole { self.newest_tombstones() } else { Vec::new() },
            ..self.header()
        }
    }

    /// Who answers, and in what state; nothing of what runs.
    pub(crate) fn header(&self) -> SyncResponse {
        SyncResponse {
            agent_uid: self.settings.uid.clone(),
            incarnation: self.settings.incarnation.clone(),
            node: self.settings.node.clone(),
            term: self.term,
            version: self.version,
            capacity: self.settings.capacity,
            used: self.used(),
            draining: self.draining,
            ..SyncResponse::default()
        }
    }

    fn newest_tombstones(&self) -> Vec<Tombstone> {
        let mut bytes = 0;
        let newest = self.tombstone_order.iter().rev().filter_map(|(_, run)| self.tombstones.get(run));
        let newest = newest.map(|(_, tombstone)| tombstone);
        let fits = newest.take_while(|tombstone| {
            bytes += prost::Message::encoded_len(*tombstone) + 8;
            bytes <= MOST_TOMBSTONE_BYTES
        });
        fits.cloned().collect()
    }
}

fn entry(id: &str, run: &Run) -> Entry {
    Entry {
        run_id: id.to_owned(),
        claim: Some(run.claim.clone()),
        state: state(run.life.phase()).into(),
        exit: exit(run),
        endpoints: run.endpoints.clone(),
        ready: run.ready,
        paused: run.paused,
        fenced: run.fenced,
        started_unix_ms: run.started_unix_ms,
        object: run.object.clone(),
    }
}

fn state(phase: Phase) -> State {
    match phase {
        Phase::Starting => State::Starting,
        Phase::Running => State::Running,
        Phase::Stopping => State::Stopping,
        Phase::Ended => State::Ended,
    }
}

/// How a run ended, in the words of the protocol.
pub(crate) fn exit(run: &Run) -> Option<Exit> {
    let (exit, ending) = run.life.exit()?;
    let reason = match ending {
        Some(Ending::Stopped) => "Stopped",
        Some(Ending::Expired) => "Expired",
        Some(Ending::Fenced) => "Fenced",
        None if exit.out_of_memory => "OutOfMemory",
        None => "Exited",
    };
    Some(Exit { code: exit.code, reason: reason.into(), ended_unix_ms: run.ended_unix_ms })
}
