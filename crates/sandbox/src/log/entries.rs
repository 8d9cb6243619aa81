//! What the log says, as records and as the entries that are open. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agentcube_api::Sandbox;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::core::pool_of;
use crate::names::{AgentId, Name, PoolKey, RunId};

/// The format that is written.
const FORMAT: u32 = 1;

/// One fact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Record {
    /// The first record of a log.
    Begin { format: u32 },
    /// A FAST create: its object will be made.
    Intent(Intent),
    /// What this run was for is deleted.
    Deleted { run: RunId },
    /// Nothing of this run is left to do.
    Done { run: RunId },
}

/// What a FAST create has set out to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Intent {
    pub(super) run: RunId,
    pub(super) agent: AgentId,
    /// The life of the agent in which the slot was reserved.
    pub(super) incarnation: String,
    /// The whole Sandbox, as the agent has it.
    pub(super) object: Box<RawValue>,
}

impl Intent {
    pub(super) fn new(
        run: &RunId,
        agent: &AgentId,
        incarnation: &str,
        text: &[u8],
    ) -> Result<Intent, String> {
        let object = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        Ok(Intent { run: run.clone(), agent: agent.clone(), incarnation: incarnation.into(), object })
    }
}

/// An entry that is open.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) run: RunId,
    pub(crate) agent: AgentId,
    pub(crate) incarnation: String,
    /// It is to stay deleted; otherwise it is to be made.
    pub(crate) deleted: bool,
    pub(crate) pool: PoolKey,
    object: Arc<str>,
}

impl Open {
    /// The object that was promised.
    pub(crate) fn object(&self) -> Result<Sandbox, serde_json::Error> {
        serde_json::from_str(&self.object)
    }
}

#[derive(Debug)]
struct Held {
    name: Name,
    open: Open,
    /// It is over, and the disk does not say so yet.
    done: bool,
}

/// Every entry that the disk may have as open.
#[derive(Debug, Default)]
pub(super) struct Entries {
    runs: HashMap<RunId, Held>,
    names: HashMap<Name, Vec<RunId>>,
    bytes: usize,
}

impl Entries {
    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// About as many as a rewritten log would have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, name: &Name, pool: &PoolKey, intent: &Intent) {
        self.remove(&intent.run);
        let object: Arc<str> = intent.object.get().into();
        self.bytes += object.len();
        let Intent { run, agent, incarnation, .. } = intent.clone();
        let open = Open { run: run.clone(), agent, incarnation, deleted: false, pool: pool.clone(), object };
        self.names.entry(name.clone()).or_default().push(run.clone());
        self.runs.insert(run, Held { name: name.clone(), open, done: false });
    }

    pub(super) fn remove(&mut self, run: &RunId) {
        let Some(held) = self.runs.remove(run) else { return };
        self.bytes = self.bytes.saturating_sub(held.open.object.len());
        if let Some(runs) = self.names.get_mut(&held.name) {
            runs.retain(|one| one != run);
            if runs.is_empty() {
                self.names.remove(&held.name);
            }
        }
    }

    pub(super) fn delete(&mut self, run: &RunId) -> bool {
        let held = self.runs.get_mut(run);
        held.map(|held| held.open.deleted = true).is_some()
    }

    /// Whether this is to be written: it is open, and not `deleted` unless those too.
    pub(super) fn done(&mut self, run: &RunId, deleted_too: bool) -> bool {
        let held = self.runs.get_mut(run).filter(|held| !held.done && (deleted_too || !held.open.deleted));
        held.map(|held| held.done = true).is_some()
    }

    pub(super) fn of(&self, name: &Name) -> Option<Open> {
        let mut held = self.names.get(name)?.iter().filter_map(|run| self.runs.get(run));
        held.find(|held| !held.done).map(|held| held.open.clone())
    }

    /// Runs of a name whose object the log would still make, and whether each is over in memory.
    pub(super) fn promised(&self, name: &Name) -> Vec<(RunId, bool)> {
        let runs = self.names.get(name).into_iter().flatten();
        let held = runs.filter_map(|run| self.runs.get(run)).filter(|held| !held.open.deleted);
        held.map(|held| (held.open.run.clone(), held.done)).collect()
    }

    pub(super) fn names(&self) -> Vec<Name> {
        self.runs.values().filter(|held| !held.done).map(|held| held.name.clone()).collect()
    }

    /// Takes in a record that was read.
    pub(super) fn take_in(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Begin { format: FORMAT } => {}
            Record::Begin { format } => return Err(format!("its format {format} is not known here")),
            Record::Intent(intent) => {
                let object: Sandbox = serde_json::from_str(intent.object.get())
                    .map_err(|error| format!("a record has no Sandbox: {error}"))?;
                self.insert(&Name::of(&object), &pool_of(&object), &intent);
            }
            Record::Deleted { run } if self.delete(&run) => {}
            Record::Deleted { run } => return Err(format!("run {run} is deleted and was never begun")),
            // Of a create that was never written.
            Record::Done { run } => self.remove(&run),
        }
        Ok(())
    }

    /// All that is open, as the records of a fresh log.
    pub(super) fn records(&self) -> Vec<Record> {
        let mut records = vec![Record::Begin { format: FORMAT }];
        for held in self.runs.values().filter(|held| !held.done) {
            let open = &held.open;
            if let Ok(intent) = Intent::new(&open.run, &open.agent, &open.incarnation, open.object.as_bytes())
            {
                records.push(Record::Intent(intent));
            }
            if open.deleted {
                records.push(Record::Deleted { run: open.run.clone() });
            }
        }
        records
    }

    /// A rewritten log is on disk, with these: of what was over before it says nothing any more.
    pub(super) fn rewritten(&mut self, with: &HashSet<RunId>) {
        let over = self.runs.values().filter(|held| held.done && !with.contains(&held.open.run));
        let over: Vec<RunId> = over.map(|held| held.open.run.clone()).collect();
        over.iter().for_each(|run| self.remove(run));
    }
}

/// The payload of a frame.
pub(super) fn payload(records: &[Record]) -> Vec<u8> {
    serde_json::to_vec(records).expect("records of strings are always JSON")
}

/// What a frame says; the first one that this is a log, and of which format.
pub(super) fn parse(payload: &[u8], first: bool) -> Result<Vec<Record>, String> {
    let records: Vec<Record> =
        serde_json::from_slice(payload).map_err(|error| format!("its records cannot be read: {error}"))?;
    if first && !matches!(records.first(), Some(Record::Begin { .. })) {
        return Err("it does not say which format it has".into());
    }
    Ok(records)
}
