//! The versioned store: every object of every resource under one revision counter.
//!
//! Objects are kept as encoded JSON, so reads, lists and watches copy bytes and never re-encode. Each table
//! keeps a bounded log of its last events; watchers are cursors into it and pull at their own pace, so a
//! slow one can neither block a writer nor grow memory: it falls off the log and is told to start anew.

mod durable;
mod journal;
mod object;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

pub use object::{Object, OwnerReference};

/// Where an object stands in the history of the whole store; grows by one with each write.
pub type Revision = u64;

/// What is kept of a table's past, for watches and consistent pages.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Events kept per table.
    pub events: usize,
    /// Bytes of encoded objects that those events may hold on to.
    pub bytes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events: 10_000, bytes: 16 << 20 }
    }
}

/// A write that happens only if the object is still as the writer saw it.
#[derive(Debug)]
pub struct Write {
    pub table: Arc<str>,
    pub key: Box<str>,
    pub expect: Expect,
    pub change: Change,
}

/// What the writer saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    At(Revision),
}

/// The object's `metadata.resourceVersion` is set by the store.
#[derive(Debug)]
pub enum Change {
    Put(Value),
    /// Carries the last state, which watchers see.
    Delete(Value),
}

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote first; the object as it is now.
    #[error("the object was changed by somebody else")]
    Raced(Option<Arc<Object>>),
    /// The disk refused; nothing was written.
    #[error("storage: {0}")]
    Storage(String),
}

/// Failure to open a data directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the data directory {path}: {reason}")]
pub struct OpenError {
    path: String,
    reason: String,
}

/// The history that a reader asked for is gone, or not yet there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld { asked: Revision, oldest: Revision },
    #[error("too large resource version: {asked}, current: {current}")]
    InFuture { asked: Revision, current: Revision },
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One step in the history of a table.
#[derive(Debug)]
pub struct Event {
    pub revision: Revision,
    pub kind: EventKind,
    /// The object after the step; for a deletion its last state under the revision of the deletion.
    pub object: Arc<Object>,
    /// The object before the step.
    pub previous: Option<Arc<Object>>,
}

impl Event {
    fn weight(&self) -> usize {
        self.object.json.len()
    }
}

struct Table {
    objects: BTreeMap<Box<str>, Arc<Object>>,
    log: VecDeque<Arc<Event>>,
    log_bytes: usize,
    /// Everything after this revision is in the log.
    compacted: Revision,
    changed: watch::Sender<Revision>,
}

impl Table {
    fn new(compacted: Revision) -> Self {
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            compacted,
            changed: watch::Sender::new(compacted),
        }
    }

    fn record(&mut self, event: Event, retention: Retention) {
        match event.kind {
            EventKind::Deleted => self.objects.remove(event.object.key()),
            EventKind::Added | EventKind::Modified => {
                self.objects.insert(event.object.key().into(), event.object.clone())
            }
        };
        self.log_bytes += event.weight();
        self.log.push_back(Arc::new(event));
        while self.log.len() > retention.events || (self.log_bytes > retention.bytes && self.log.len() > 1) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(event) = self.log.pop_front() {
            self.log_bytes -= event.weight();
            self.compacted = event.revision;
        }
    }

    /// Position in the log of the first event after `revision`.
    fn after(&self, revision: Revision) -> usize {
        self.log.partition_point(|event| event.revision <= revision)
    }
}

/// Called for each event, in order, while the store is locked: must be quick and must not call the store.
pub type Observer = Box<dyn Fn(&Arc<str>, &Event) + Send + Sync>;

struct State {
    revision: Revision,
    /// Revision at start: older history was never in memory.
    origin: Revision,
    tables: HashMap<Arc<str>, Table>,
    observers: Vec<Observer>,
}

impl State {
    fn new(revision: Revision) -> Self {
        Self { revision, origin: revision, tables: HashMap::new(), observers: Vec::new() }
    }

    fn table(&mut self, name: &Arc<str>) -> &mut Table {
        let origin = self.origin;
        self.tables.entry(name.clone()).or_insert_with(|| Table::new(origin))
    }

    fn current(&self, table: &str, key: &str) -> Option<&Arc<Object>> {
        self.tables.get(table)?.objects.get(key)
    }

    /// Applies a prepared event and wakes the table's watchers.
    fn commit(&mut self, table: &Arc<str>, event: Event, retention: Retention) {
        self.revision = event.revision;
        for observer in &self.observers {
            observer(table, &event);
        }
        let table = self.table(table);
        let revision = event.revision;
        table.record(event, retention);
        table.changed.send_replace(revision);
    }
}

/// Turns a write into the event it causes, or says who was first.
fn prepare(current: Option<&Arc<Object>>, write: Write, revision: Revision) -> Result<Event, WriteError> {
    let as_expected = match (write.expect, current) {
        (Expect::Absent, None) => true,
        (Expect::At(seen), Some(object)) => object.revision == seen,
        _ => false,
    };
    if !as_expected {
        return Err(WriteError::Raced(current.cloned()));
    }
    let previous = current.cloned();
    let (kind, value) = match (write.change, &previous) {
        (Change::Put(value), None) => (EventKind::Added, value),
        (Change::Put(value), Some(_)) => (EventKind::Modified, value),
        (Change::Delete(value), _) => (EventKind::Deleted, value),
    };
    let object = Arc::new(Object::encode(write.key, value, revision));
    Ok(Event { revision, kind, object, previous })
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    pub items: Vec<Arc<Object>>,
    /// The revision that the page shows.
    pub revision: Revision,
    /// The key after which the next page starts.
    pub next: Option<Box<str>>,
    /// Objects that follow this page.
    pub remaining: usize,
}

/// Which objects of a table to list.
#[derive(Debug, Default)]
pub struct Range<'a> {
    /// Only keys below `namespace/`.
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// As of this revision; `None` is now.
    pub at: Option<Revision>,
    /// At most so many; 0 is no limit.
    pub limit: usize,
}

/// A cheap handle to the store.
#[derive(Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    retention: Retention,
    disk: Option<durable::Committer>,
}

impl Store {
    /// Everything is gone when the process ends.
    pub fn memory(retention: Retention) -> Self {
        Self { state: Arc::new(RwLock::new(State::new(1))), retention, disk: None }
    }

    /// An acknowledged write survives the death of the process.
    pub fn durable(directory: &Path, retention: Retention) -> Result<Self, OpenError> {
        Self::durable_with(directory, retention, journal::CAPACITY)
    }

    fn durable_with(directory: &Path, retention: Retention, journal: usize) -> Result<Self, OpenError> {
        let fail = |reason: String| OpenError { path: directory.display().to_string(), reason };
        let (disk, loaded) = durable::open(directory, journal).map_err(fail)?;
        let mut state = State::new(loaded.revision);
        for (table, object) in loaded.objects {
            state.table(&table).objects.insert(object.key().into(), Arc::new(object));
        }
        let state = Arc::new(RwLock::new(state));
        let disk = durable::Committer::start(disk, state.clone(), retention).map_err(fail)?;
        Ok(Self { state, retention, disk: Some(disk) })
    }

    /// Writes if the object is as expected; returns it as watchers will see it.
    pub async fn write(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        match &self.disk {
            Some(disk) => disk.write(write).await,
            None => {
                let mut state = self.state.write();
                let table = write.table.clone();
                let revision = state.revision + 1;
                let event = prepare(state.current(&table, &write.key), write, revision)?;
                let object = event.object.clone();
                state.commit(&table, event, self.retention);
                Ok(object)
            }
        }
    }

    pub fn get(&self, table: &str, key: &str) -> Option<Arc<Object>> {
        self.state.read().current(table, key).cloned()
    }

    /// The revision of the last write.
    pub fn revision(&self) -> Revision {
        self.state.read().revision
    }

    /// How many objects a table holds.
    pub fn count(&self, table: &str) -> usize {
        self.state.read().tables.get(table).map_or(0, |table| table.objects.len())
    }

    /// The objects in a range that pass `keep`, in key order, all as of one revision.
    pub fn list(
        &self,
        table: &str,
        range: &Range<'_>,
        keep: impl Fn(&Object) -> bool,
    ) -> Result<Page, HistoryError> {
        let state = self.state.read();
        let revision = range.at.unwrap_or(state.revision);
        if revision > state.revision {
            return Err(HistoryError::InFuture { asked: revision, current: state.revision });
        }
        let Some(table) = state.tables.get(table) else {
            if revision < state.origin {
                return Err(HistoryError::TooOld { asked: revision, oldest: state.origin });
            }
            return Ok(Page { items: Vec::new(), revision, next: None, remaining: 0 });
        };
        if revision < table.compacted && range.at.is_some() {
            return Err(HistoryError::TooOld { asked: revision, oldest: table.compacted });
        }
        let undone = undo(table, revision);
        Ok(collect(table, &undone, range, revision, keep))
    }

    /// A cursor that yields every event of a table after `revision`, which may lie ahead.
    pub fn watch(&self, table: &Arc<str>, revision: Revision) -> Result<Cursor, HistoryError> {
        let mut state = self.state.write();
        let entry = state.table(table);
        if revision < entry.compacted {
            return Err(HistoryError::TooOld { asked: revision, oldest: entry.compacted });
        }
        let changed = entry.changed.subscribe();
        Ok(Cursor { state: self.state.clone(), table: table.clone(), seen: revision, changed })
    }

    /// Forgets the history of a table up to now, as compaction would.
    pub fn compact(&self, table: &Arc<str>) {
        let mut state = self.state.write();
        let now = state.revision;
        let table = state.table(table);
        table.log.clear();
        table.log_bytes = 0;
        table.compacted = now;
    }

    /// Shows an observer everything there is, as additions, and from then on every event.
    pub fn observe(&self, observer: Observer) {
        let mut state = self.state.write();
        for (name, table) in &state.tables {
            for object in table.objects.values() {
                let revision = object.revision;
                let event =
                    Event { revision, kind: EventKind::Added, object: object.clone(), previous: None };
                observer(name, &event);
            }
        }
        state.observers.push(observer);
    }

    /// Lets go of the observers, which may hold whatever holds this store.
    pub(crate) fn release(&self) {
        // Dropped after the lock is, as what they hold may be the last of something that needs it.
        let _observers = std::mem::take(&mut self.state.write().observers);
    }

    /// Ends the store: later writes to a durable one fail, and its directory may be opened again.
    pub(crate) async fn close(&self) {
        self.release();
        if let Some(disk) = &self.disk {
            disk.close().await;
        }
    }
}

/// The keys that changed after `revision`, with what they were then.
fn undo(table: &Table, revision: Revision) -> BTreeMap<&str, Option<&Arc<Object>>> {
    let mut past = BTreeMap::new();
    for event in table.log.iter().rev().take_while(|event| event.revision > revision) {
        past.insert(event.object.key(), event.previous.as_ref());
    }
    past
}

fn collect(
    table: &Table,
    past: &BTreeMap<&str, Option<&Arc<Object>>>,
    range: &Range<'_>,
    revision: Revision,
    keep: impl Fn(&Object) -> bool,
) -> Page {
    let prefix = range.namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let start = match range.after {
        Some(after) if after >= prefix.as_str() => Bound::Excluded(after),
        _ => Bound::Included(prefix.as_str()),
    };
    let in_range = |key: &str| key.starts_with(&prefix);
    let present = table
        .objects
        .range::<str, _>((start, Bound::Unbounded))
        .take_while(|(key, _)| in_range(key))
        .filter(|(key, _)| !past.contains_key(&***key))
        .map(|(key, object)| (&**key, object));
    let restored = past
        .range::<str, _>((start, Bound::Unbounded))
        .take_while(|(key, _)| in_range(key))
        .filter_map(|(key, object)| object.map(|object| (*key, object)));
    let mut page = Page { items: Vec::new(), revision, next: None, remaining: 0 };
    if past.is_empty() {
        fill(&mut page, present, range.limit, keep);
    } else {
        let mut all: Vec<_> = present.chain(restored).collect();
        all.sort_by_key(|(key, _)| *key);
        fill(&mut page, all.into_iter(), range.limit, keep);
    }
    page
}

fn fill<'a>(
    page: &mut Page,
    objects: impl Iterator<Item = (&'a str, &'a Arc<Object>)>,
    limit: usize,
    keep: impl Fn(&Object) -> bool,
) {
    let mut last: Option<&str> = None;
    for (key, object) in objects {
        if !keep(object) {
            continue;
        }
        if limit != 0 && page.items.len() == limit {
            page.remaining += 1;
            if page.next.is_none() {
                page.next = last.map(Into::into);
            }
            continue;
        }
        page.items.push(object.clone());
        last = Some(key);
    }
}

/// A reader's place in the history of a table.
pub struct Cursor {
    state: Arc<RwLock<State>>,
    table: Arc<str>,
    seen: Revision,
    changed: watch::Receiver<Revision>,
}

impl Cursor {
    /// At most `most` events after the last ones taken, and the revision up to which the reader has now seen
    /// everything. Fails when the reader was too slow and the log has moved on.
    pub fn take(&mut self, most: usize) -> Result<(Vec<Arc<Event>>, Revision), HistoryError> {
        self.changed.mark_unchanged();
        let state = self.state.read();
        let Some(table) = state.tables.get(&self.table) else { return Ok((Vec::new(), self.seen)) };
        if self.seen < table.compacted {
            return Err(HistoryError::TooOld { asked: self.seen, oldest: table.compacted });
        }
        let start = table.after(self.seen);
        let events: Vec<_> = table.log.range(start..).take(most).cloned().collect();
        let complete = start + events.len() == table.log.len();
        self.seen = match events.last() {
            Some(last) if !complete => last.revision,
            // A reader may ask for what is yet to come; until then it has seen nothing.
            _ => self.seen.max(state.revision),
        };
        Ok((events, self.seen))
    }

    /// Waits until there may be more events.
    pub async fn changed(&mut self) {
        // The sender lives in the table, which this cursor keeps alive through the state.
        let _closed = self.changed.changed().await;
    }
}

#[cfg(test)]
mod tests;
