//! Group commit into a `redb` file: one thread takes whatever writes are waiting, commits them in one
//! transaction, and only then makes them visible and answers. A write that was answered is on disk.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::oneshot;

use super::{Event, EventKind, Object, Retention, Revision, State, Write, WriteError, prepare};

/// `table\0key` → encoded object.
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const REVISION: &str = "revision";
/// Writes in one transaction: enough to saturate a disk, few enough to answer soon.
const BATCH: usize = 512;

pub(super) struct Loaded {
    pub(super) revision: Revision,
    pub(super) objects: Vec<(Arc<str>, Object)>,
}

/// Opens or creates the database and reads all of it.
pub(super) fn open(directory: &Path) -> Result<(Database, Loaded), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    std::fs::create_dir_all(directory).map_err(|e| text(&e))?;
    let database = Database::create(directory.join("store.redb")).map_err(|e| text(&e))?;
    let setup = database.begin_write().map_err(|e| text(&e))?;
    setup.open_table(OBJECTS).map_err(|e| text(&e))?;
    setup.open_table(COUNTERS).map_err(|e| text(&e))?;
    setup.commit().map_err(|e| text(&e))?;

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
    Ok((database, Loaded { revision, objects }))
}

type Reply = oneshot::Sender<Result<Arc<Object>, WriteError>>;

/// What the committing thread is asked to do.
enum Job {
    Write(Write, Reply),
    /// Close the database, then answer.
    Close(oneshot::Sender<()>),
}

/// A handle to the committing thread; the thread ends when it is told to, or the last handle is gone.
#[derive(Clone)]
pub(super) struct Committer {
    queue: mpsc::Sender<Job>,
}

impl Committer {
    pub(super) fn start(
        database: Database,
        state: Arc<RwLock<State>>,
        retention: Retention,
    ) -> Result<Self, String> {
        let (queue, waiting) = mpsc::channel();
        std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || {
                let told = run(&database, &state, retention, &waiting);
                drop(database);
                if let Some(told) = told {
                    let _gone = told.send(());
                }
            })
            .map_err(|e| e.to_string())?;
        Ok(Self { queue })
    }

    pub(super) async fn write(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let gone = || WriteError::Storage("the store is shutting down".into());
        let (reply, answer) = oneshot::channel();
        self.queue.send(Job::Write(write, reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Lets writes that are waiting finish, and returns when the file is closed.
    pub(super) async fn close(&self) {
        let (told, closed) = oneshot::channel();
        if self.queue.send(Job::Close(told)).is_ok() {
            // A thread that is gone has closed the file as well.
            let _gone = closed.await;
        }
    }
}

/// Commits until nobody is left, or until told to stop; returns whom to tell that it did.
fn run(
    database: &Database,
    state: &RwLock<State>,
    retention: Retention,
    waiting: &mpsc::Receiver<Job>,
) -> Option<oneshot::Sender<()>> {
    let mut close = None;
    while close.is_none()
        && let Ok(first) = waiting.recv()
    {
        let mut batch = Vec::new();
        for job in std::iter::once(first).chain(waiting.try_iter()) {
            match job {
                Job::Write(write, reply) => batch.push((write, reply)),
                Job::Close(told) => close = Some(told),
            }
            if close.is_some() || batch.len() == BATCH {
                break;
            }
        }
        let staged = stage(&state.read(), batch);
        if staged.is_empty() {
            continue;
        }
        match persist(database, &staged) {
            Ok(()) => {
                let mut state = state.write();
                for Staged { table, event, reply } in staged {
                    let object = event.object.clone();
                    state.commit(&table, event, retention);
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
    close
}

/// A table and a key in it.
type Place = (Arc<str>, Box<str>);

struct Staged {
    table: Arc<str>,
    event: Event,
    reply: Reply,
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

fn persist(database: &Database, staged: &[Staged]) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let transaction = database.begin_write().map_err(|e| text(&e))?;
    {
        let mut objects = transaction.open_table(OBJECTS).map_err(|e| text(&e))?;
        for Staged { table, event, .. } in staged {
            let path = format!("{table}\0{}", event.object.key());
            match event.kind {
                EventKind::Deleted => objects.remove(path.as_str()).map_err(|e| text(&e))?,
                EventKind::Added | EventKind::Modified => {
                    objects.insert(path.as_str(), &*event.object.json).map_err(|e| text(&e))?
                }
            };
        }
        let mut counters = transaction.open_table(COUNTERS).map_err(|e| text(&e))?;
        if let Some(last) = staged.last() {
            counters.insert(REVISION, last.event.revision).map_err(|e| text(&e))?;
        }
    }
    transaction.commit().map_err(|e| text(&e))
}
