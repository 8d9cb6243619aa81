//! What of the table outlives this process: what has changed of it, and how another process begins with it. Pure.

use agentcube_protos::agent::Tombstone;

use super::{MOST_CAPACITY, Run, Table, key};

/// Something that whoever comes after this process has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    Term,
    /// A run has a tombstone, or another one.
    Buried(String),
    /// The tombstone of this number and run is forgotten.
    Forgotten(u64, String),
    /// A run is not as it was.
    Run(String),
    /// A run is not here any more.
    Gone(String),
}

impl Table {
    /// From here on [`Table::changed`] tells what is to be kept.
    pub(crate) fn keep(&mut self) {
        self.changed.get_or_insert_default();
    }

    pub(super) fn note(&mut self, changed: impl FnOnce() -> Changed) {
        if let Some(list) = &mut self.changed {
            list.push(changed());
        }
    }

    /// What has changed since this was asked last.
    pub(crate) fn changed(&mut self) -> Vec<Changed> {
        self.changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    pub(crate) fn tombstone(&self, run: &str) -> Option<&(u64, Tombstone)> {
        self.tombstones.get(run)
    }

    pub(super) fn set_tombstone(&mut self, number: u64, tombstone: Tombstone) {
        self.tombstone_order.push_back((number, tombstone.run_id.clone()));
        self.tombstones.insert(tombstone.run_id.clone(), (number, tombstone));
    }

    /// Goes on from an earlier process: its term, and versions above all that it can have used, so that whoever asks by
    /// one of those is told everything.
    pub(crate) fn resume(&mut self, term: u64, version: u64) {
        self.term = term;
        self.version = self.version.max(version);
        self.gone_before = self.version;
    }

    /// Its limits.
    pub(crate) fn resume_limits(&mut self, capacity: u32, draining: bool) {
        if capacity > 0 {
            self.settings.capacity = capacity.min(MOST_CAPACITY);
        }
        self.draining = draining;
    }

    /// Its tombstones, in the order of their numbers.
    pub(crate) fn resume_tombstone(&mut self, number: u64, tombstone: Tombstone) {
        self.set_tombstone(number, tombstone);
    }

    /// One of its runs.
    pub(crate) fn resume_run(&mut self, id: &str, run: Run) {
        self.names.insert(key(&run.claim), id.to_owned());
        self.runs.insert(id.to_owned(), run);
        self.touch(id);
        if self.has(id) && self.runs.get(id).is_some_and(Run::ended) {
            self.forget(id);
        }
    }
}

impl Run {
    /// A run of an earlier process.
    pub(crate) fn resumed(claim: agentcube_protos::agent::Claim, life: crate::machine::Life) -> Run {
        Run {
            claim,
            life,
            object: Vec::new(),
            expire_unix_ms: 0,
            recovery: std::time::Duration::ZERO,
            endpoints: Vec::new(),
            ready: false,
            paused: false,
            fenced: false,
            started_unix_ms: 0,
            ended_unix_ms: 0,
            version: 0,
        }
    }
}
