//! Group commit: one writer takes whatever writes are waiting, appends them to the journal with one sync, and
//! only then makes them visible and answers. A write that was answered is on disk. A thread carries what the journal
//! holds over into a `redb` file, one transaction for each turn of the journal.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::journal::{Journal, Record};
use super::{Event, EventKind, Object, Retention, Revision, State, Write, WriteError, prepare};

/// `table\0key` → encoded object.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const REVISION: &str = "revision";
/// Everything is in memory already; the database needs little more than the pages that it is changing.
const CACHE: usize = 4 << 20;
/// Writes behind one sync: enough to saturate a disk, few enough to answer soon.
const BATCH: usize = 512;
/// What a task may take of its thread's time without harm to the others.
const QUICK: Duration = Duration::from_millis(1);
/// Batches that a writer commits for others before it sees to its own answer.
const LED: usize = 4;

/// The files of a store.
pub(super) struct Disk {
    database: Database,
    journal: Journal,
}

pub(super) struct Loaded {
    pub(super) revision: Revision,
    pub(super) objects: Vec<(Arc<str>, Object)>,
}

/// Opens or creates the files, brings the database up to the journal, and reads all of it.
pub(super) fn open(directory: &Path, journal: usize) -> Result<(Disk, Loaded), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    std::fs::create_dir_all(directory).map_err(|e| text(&e))?;
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    let database = builder.create(directory.join("store.redb")).map_err(|e| text(&e))?;
    let setup = database.begin_write().map_err(|e| text(&e))?;
    setup.open_table(OBJECTS).map_err(|e| text(&e))?;
    setup.open_table(COUNTERS).map_err(|e| text(&e))?;
    setup.commit().map_err(|e| text(&e))?;
    let (journal, records) = Journal::open(directory, journal).map_err(|e| text(&e))?;
    replay(&database, records)?;

    let read = database.begin_read().map_err(|e| text(&e))?;
    let counters = read.open_table(COUNTERS).map_err(|e| text(&e))?;
    let revision = counters.get(REVISION).map_err(|e| text(&e))?.map_or(1, |value| value.value());
    let mut objects = Vec::new();
    let mut names: HashMap<String, Arc<str>> = HashMap::new();
    for row in read.open_table(OBJECTS).map_err(|e| text(&e))?.iter().map_err(|e| text(&e))? {
        let (path, json) = row.map_err(|e| text(&e))?;
        let Some((table, key)) = path.value().split_once('\0') else {
            return Err(format!("unreadable key {:?}", path.value()));
        };
        let object = Object::decode(key.into(), Bytes::copy_from_slice(json.value()))
            .map_err(|e| format!("object {table}/{key} is damaged: {e}"))?;
        let table = names.entry(table.to_owned()).or_insert_with(|| table.into()).clone();
        objects.push((table, object));
    }
    drop(counters);
    drop(read);
    Ok((Disk { database, journal }, Loaded { revision, objects }))
}

/// Writes into the database what only the journal holds: what was answered just before a crash.
fn replay(database: &Database, records: Vec<Record>) -> Result<(), String> {
    let stored = {
        let read = database.begin_read().map_err(|e| e.to_string())?;
        let counters = read.open_table(COUNTERS).map_err(|e| e.to_string())?;
        counters.get(REVISION).map_err(|e| e.to_string())?.map_or(0, |value| value.value())
    };
    let mut changes = Changes::default();
    for record in records.into_iter().filter(|record| record.revision > stored) {
        changes.add(record);
    }
    if changes.is_empty() { Ok(()) } else { checkpoint(database, &changes) }
}

type Reply = oneshot::Sender<Result<Arc<Object>, WriteError>>;

/// A cheap handle to the files.
#[derive(Clone)]
pub(super) struct Committer {
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Mutex<VecDeque<(Write, Reply)>>,
    /// `None` once closed.
    log: Mutex<Option<Log>>,
    state: Arc<RwLock<State>>,
    retention: Retention,
    /// Whether the last batch took longer than a task may hold its thread. Moving the other tasks of the thread away
    /// costs about as much as a quick sync, so it is done for slow disks only.
    slow_disk: AtomicBool,
}

/// Runs what waits for the disk while the other tasks of this thread go on elsewhere.
fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

impl Committer {
    pub(super) fn start(disk: Disk, state: Arc<RwLock<State>>, retention: Retention) -> Result<Self, String> {
        let archive = Archive::start(disk.database)?;
        let log = Log { journal: disk.journal, archive, changes: Changes::default(), broken: None };
        let shared = Shared {
            waiting: Mutex::default(),
            log: Mutex::new(Some(log)),
            state,
            retention,
            slow_disk: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Queues a write. Whoever finds nobody at work commits for all that wait, so a lone writer hands its write
    /// to no other thread, and many share one sync.
    pub(super) async fn write(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.shared.waiting.lock().push_back((write, reply));
        let others_wait = match self.shared.slow_disk.load(Ordering::Relaxed) {
            true => elsewhere(|| self.shared.lead(LED)),
            false => self.shared.lead(LED),
        };
        if others_wait {
            let shared = self.shared.clone();
            tokio::task::spawn_blocking(move || shared.lead(usize::MAX));
        }
        answer.await.map_err(|_| WriteError::Storage("the store is shutting down".into()))?
    }

    /// Lets writes that are waiting finish, and returns when the files are closed.
    pub(super) async fn close(&self) {
        let shared = self.shared.clone();
        let closing = tokio::task::spawn_blocking(move || {
            let log = shared.log.lock().take();
            if let Some(log) = log {
                log.close();
            }
            shared.lead(usize::MAX);
        });
        // It does not panic; if it did, the journal still has everything.
        let _ended = closing.await;
    }
}

impl Shared {
    /// Commits so many batches at most, as long as anybody waits and nobody else commits. Returns whether somebody
    /// still waits for whom nobody commits.
    ///
    /// A write that is queued while somebody commits is seen by that somebody, who looks again after letting go.
    fn lead(&self, batches: usize) -> bool {
        let mut left = batches;
        while !self.waiting.lock().is_empty() {
            if left == 0 {
                return true;
            }
            let Some(mut log) = self.log.try_lock() else { return false };
            while left > 0 {
                let batch: Vec<_> = {
                    let mut waiting = self.waiting.lock();
                    let most = waiting.len().min(BATCH);
                    waiting.drain(..most).collect()
                };
                if batch.is_empty() {
                    break;
                }
                left -= 1;
                self.commit(log.as_mut(), batch);
            }
        }
        false
    }

    fn commit(&self, log: Option<&mut Log>, batch: Vec<(Write, Reply)>) {
        let staged = stage(&self.state.read(), batch);
        if staged.is_empty() {
            return;
        }
        let closed = || Err("the store is shutting down".to_owned());
        let began = Instant::now();
        let written = log.map_or_else(closed, |log| log.write(&staged));
        self.slow_disk.store(began.elapsed() > QUICK, Ordering::Relaxed);
        match written {
            Ok(()) => {
                let mut state = self.state.write();
                for Staged { table, event, reply } in staged {
                    let object = event.object.clone();
                    state.commit(&table, event, self.retention);
                    // The caller may have given up; the write stands all the same.
                    let _gone = reply.send(Ok(object));
                }
            }
            Err(reason) => {
                for Staged { reply, .. } in staged {
                    let _gone = reply.send(Err(WriteError::Storage(reason.clone())));
                }
            }
        }
    }
}

/// A table and a key in it.
type Place = (Arc<str>, Box<str>);

struct Staged {
    table: Arc<str>,
    event: Event,
    reply: Reply,
}

impl Staged {
    fn record(&self) -> Record {
        let object = &self.event.object;
        Record {
            revision: self.event.revision,
            path: format!("{}\0{}", self.table, object.key()),
            json: (self.event.kind != EventKind::Deleted).then(|| object.json.clone()),
        }
    }
}

/// Decides each write of a batch against what the ones before it will leave behind; losers are told at once.
fn stage(state: &State, batch: Vec<(Write, Reply)>) -> Vec<Staged> {
    let mut ahead: HashMap<Place, Option<Arc<Object>>> = HashMap::new();
    let mut staged = Vec::with_capacity(batch.len());
    let mut revision = state.revision;
    for (write, reply) in batch {
        let place = (write.table.clone(), write.key.clone());
        let current = match ahead.get(&place) {
            Some(pending) => pending.as_ref(),
            None => state.current(&write.table, &write.key),
        };
        match prepare(current, write, revision + 1) {
            Ok(event) => {
                revision += 1;
                let left = (event.kind != EventKind::Deleted).then(|| event.object.clone());
                let table = place.0.clone();
                ahead.insert(place, left);
                staged.push(Staged { table, event, reply });
            }
            Err(lost) => {
                let _gone = reply.send(Err(lost));
            }
        }
    }
    staged
}

/// What the database lacks: the last state of each path since it was told.
#[derive(Default)]
struct Changes {
    revision: Revision,
    paths: HashMap<String, Option<Bytes>>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    fn add(&mut self, record: Record) {
        self.revision = record.revision;
        self.paths.insert(record.path, record.json);
    }
}

/// The journal, and the way from it into the database.
struct Log {
    journal: Journal,
    archive: Archive,
    /// In the journal's present turn, and not yet in the database.
    changes: Changes,
    /// After a failed sync nobody knows what is on disk: nothing more is written until the store is opened again.
    broken: Option<String>,
}

impl Log {
    /// Makes a batch durable.
    fn write(&mut self, staged: &[Staged]) -> Result<(), String> {
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        let result = self.try_write(staged);
        if let Err(reason) = &result {
            self.broken = Some(reason.clone());
        }
        result
    }

    fn try_write(&mut self, staged: &[Staged]) -> Result<(), String> {
        let records: Vec<Record> = staged.iter().map(Staged::record).collect();
        let mut encoded = encode(self.journal.epoch(), &records);
        if !self.journal.fits(encoded.len()) {
            // The other file may be used again once the database has what it held.
            elsewhere(|| self.archive.finish())?;
            self.archive.begin(std::mem::take(&mut self.changes))?;
            self.journal.turn();
            encoded = encode(self.journal.epoch(), &records);
        }
        let journaled = self.journal.fits_any(encoded.len());
        if journaled {
            self.journal.append(&encoded).map_err(|e| e.to_string())?;
        }
        for record in records {
            self.changes.add(record);
        }
        if !journaled {
            // Too large for any file: the database itself is the journal of such a batch.
            elsewhere(|| {
                self.archive.finish()?;
                self.archive.begin(std::mem::take(&mut self.changes))?;
                self.archive.finish()
            })?;
        }
        Ok(())
    }

    /// Brings the database up to date, so that the next start has nothing to replay. Failing that, the journal
    /// still has everything.
    fn close(mut self) {
        let outcome = self.archive.finish().and_then(|()| self.archive.begin(self.changes));
        if let Err(reason) = outcome.and_then(|()| self.archive.finish()) {
            tracing::warn!(%reason, "the database will be brought up to date at the next start");
        }
        self.archive.close();
    }
}

fn encode(epoch: u64, records: &[Record]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for record in records {
        Journal::encode(epoch, record, &mut encoded);
    }
    encoded
}

/// The thread that owns the database; at most one set of changes is on its way there.
struct Archive {
    thread: Option<std::thread::JoinHandle<()>>,
    work: Option<mpsc::Sender<Changes>>,
    done: mpsc::Receiver<Result<(), String>>,
    busy: bool,
}

impl Archive {
    fn start(database: Database) -> Result<Self, String> {
        let (work, waiting) = mpsc::channel::<Changes>();
        let (report, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store-archive".into())
            .spawn(move || {
                for changes in waiting {
                    let written = if changes.is_empty() { Ok(()) } else { checkpoint(&database, &changes) };
                    if report.send(written).is_err() {
                        break;
                    }
                }
            })
            .map_err(|e| e.to_string())?;
        Ok(Self { thread: Some(thread), work: Some(work), done, busy: false })
    }

    fn begin(&mut self, changes: Changes) -> Result<(), String> {
        let gone = || "the archiving thread is gone".to_owned();
        self.work.as_ref().ok_or_else(gone)?.send(changes).map_err(|_| gone())?;
        self.busy = true;
        Ok(())
    }

    /// Waits for what was begun.
    fn finish(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.busy) {
            return Ok(());
        }
        self.done.recv().map_err(|_| "the archiving thread is gone".to_owned())?
    }

    /// Returns when the database is closed.
    fn close(mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, the database is closed all the same.
            let _ended = thread.join();
        }
    }
}

/// One transaction that brings the database to a revision.
fn checkpoint(database: &Database, changes: &Changes) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let transaction = database.begin_write().map_err(|e| text(&e))?;
    {
        let mut objects = transaction.open_table(OBJECTS).map_err(|e| text(&e))?;
        for (path, json) in &changes.paths {
            match json {
                None => objects.remove(path.as_str()).map_err(|e| text(&e))?,
                Some(json) => objects.insert(path.as_str(), &**json).map_err(|e| text(&e))?,
            };
        }
        let mut counters = transaction.open_table(COUNTERS).map_err(|e| text(&e))?;
        counters.insert(REVISION, changes.revision).map_err(|e| text(&e))?;
    }
    transaction.commit().map_err(|e| text(&e))
}
