//! The agent: the table with all that is needed to perform what it decides. Cheap to clone.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use agentcube_runtime::Runtime;
use agentcube_runtime::logs::Logs;
use parking_lot::Mutex;
use ring::rand::SecureRandom;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::images::Images;
use crate::keep::Keep;
use crate::lease::Lease;
use crate::prepared::{self, Prepared};
use crate::ready::Looks;
use crate::record::Record;
use crate::run::Handle;
use crate::stock::{self, Stock};
use crate::table::kept::Changed;
use crate::table::{MOST_CAPACITY, Settings, Table};
use crate::{Options, Parts, clock, place};

/// Why an agent could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot prepare {path}: {source}; check that the agent's directory can be written")]
    Directory { path: PathBuf, source: io::Error },
    #[error("no runtime for {0:?} is configured on this machine")]
    NoRuntime(String),
    #[error("this machine gives no random numbers")]
    NoRandom,
    #[error(transparent)]
    Runtime(#[from] agentcube_runtime::Error),
}

/// An agent, as the controller of the same process or a server of gRPC calls it. What it runs ends when it is shut
/// down, and with its spawner.
#[derive(Clone)]
pub struct Agent {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) parts: Parts,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) images: Images,
    pub(crate) logs: Logs,
    pub(crate) prepared: Prepared,
    pub(crate) stock: Arc<Stock>,
    pub(crate) looks: Looks,
    /// The tasks that make things ahead.
    preparing: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) incarnation: String,
    /// Where runs have their directories.
    pub(crate) directory: PathBuf,
    state: Mutex<State>,
    /// Of the table; who waits for news waits here.
    pub(crate) version: watch::Sender<u64>,
    /// Something may be due earlier than was thought.
    pub(crate) sooner: Arc<Notify>,
    pub(crate) closing: CancellationToken,
    /// Where others come after this process.
    pub(crate) keep: Option<Keep>,
}

pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) lease: Lease,
    /// Of each run in the table, and of those whose log is just being removed.
    pub(crate) runs: HashMap<String, Arc<Handle>>,
}

impl Agent {
    /// Begins with nothing, under a new incarnation. To be called in a tokio runtime.
    pub fn new(options: Options, parts: Parts) -> Result<Self, Error> {
        let inner = Inner::new(options, parts, incarnation()?, None)?;
        inner.clear(&HashSet::new())?;
        let agent = Self { inner: Arc::new(inner) };
        agent.begin();
        Ok(agent)
    }

    /// From here on time passes.
    pub(crate) fn begin(&self) {
        let inner = &self.inner;
        tokio::spawn(clock::run(Arc::downgrade(inner), inner.sooner.clone(), inner.closing.clone()));
        let filling = tokio::spawn(stock::run(Arc::downgrade(inner), inner.closing.clone()));
        inner.preparing.lock().push(filling);
        if let Some(native) = inner.parts.native.clone() {
            let preparing = prepared::run(Arc::downgrade(inner), native, inner.closing.clone());
            inner.preparing.lock().push(tokio::spawn(preparing));
        }
    }

    /// Ends all that runs here, and takes on nothing more. Comes back when nothing is left.
    pub async fn shutdown(&self) {
        let runs: Vec<Arc<Handle>> = self.inner.update(|state| {
            state.table.close();
            state.runs.values().cloned().collect()
        });
        self.inner.closing.cancel();
        for run in runs {
            // An error means that its task is gone, which is an end as well.
            let mut over = run.over.clone();
            let _gone = over.wait_for(Option::is_some).await;
        }
        let preparing = std::mem::take(&mut *self.inner.preparing.lock());
        for preparing in preparing {
            // Whatever it was about to make, it removes. That it panicked would have been said.
            let _ended = preparing.await;
        }
        prepared::end(&self.inner).await;
        self.inner.stock.end();
        // With the spawner, everything has ended.
        let _gone = self.inner.parts.spawner.spare(&self.inner.incarnation, 0, false).await;
    }
}

impl State {
    /// Writes down what has changed.
    fn keep(&mut self, keep: &Keep) {
        for changed in self.table.changed() {
            match changed {
                Changed::Term => keep.term(self.table.term()),
                Changed::Buried(run) => {
                    if let Some((number, tombstone)) = self.table.tombstone(&run) {
                        keep.tombstone(*number, tombstone);
                    }
                }
                Changed::Forgotten(number, run) => keep.no_tombstone(number, &run),
                Changed::Gone(run) => keep.gone(&run),
                // What was stopped is not gone on with.
                Changed::Run(run) if self.table.has(&run) => {}
                Changed::Run(run) => {
                    let living = self.runs.get(&run).and_then(|handle| handle.living.get());
                    // One that has not begun is written down when it does.
                    let (Some(living), Some(entry)) = (living, self.table.get(&run)) else { continue };
                    let record = Record::new(&run, entry, &living.made);
                    match record.exit() {
                        Some(_) => keep.ended(record),
                        None => {
                            let patience = self.lease.goes_on_for(entry.patience());
                            keep.living(&living.place.container, record, patience);
                        }
                    }
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

impl Inner {
    pub(crate) fn new(
        options: Options,
        parts: Parts,
        incarnation: String,
        keep: Option<Keep>,
    ) -> Result<Self, Error> {
        let runtime =
            parts.runtime(&options.runtime).ok_or_else(|| Error::NoRuntime(options.runtime.clone()))?;
        let directory = parts.data.join(place::RUNS);
        let make = || {
            std::fs::create_dir_all(&directory)?;
            crate::place::keep_apart(&directory);
            directory.canonicalize()
        };
        let directory = make().map_err(|source| Error::Directory { path: directory.clone(), source })?;
        let ahead = parts.data.join("ahead");
        let stock = Stock::new(ahead.clone()).map_err(|source| Error::Directory { path: ahead, source })?;
        let mut table = Table::new(Settings {
            uid: options.uid.clone(),
            incarnation: incarnation.clone(),
            node: options.node.clone(),
            capacity: options.capacity.min(MOST_CAPACITY),
        });
        if keep.is_some() {
            table.keep();
        }
        Ok(Inner {
            images: Images::new(parts.images.clone(), runtime.clone()),
            logs: Logs::new(directory.clone()),
            version: watch::Sender::new(table.version()),
            state: Mutex::new(State { table, lease: Lease::new(options.dropped), runs: HashMap::new() }),
            prepared: Prepared::default(),
            stock: Arc::new(stock),
            looks: Looks::default(),
            preparing: Mutex::default(),
            sooner: Arc::default(),
            closing: CancellationToken::new(),
            incarnation,
            options,
            parts,
            runtime,
            directory,
            keep,
        })
    }

    /// Removes the directories of all runs but these.
    pub(crate) fn clear(&self, but: &HashSet<String>) -> Result<(), Error> {
        let clear = || {
            for entry in std::fs::read_dir(&self.directory)? {
                let entry = entry?;
                if entry.file_name().to_str().is_none_or(|name| !but.contains(name)) {
                    place::remove(&entry.path())?;
                }
            }
            Ok(())
        };
        clear().map_err(|source| Error::Directory { path: self.directory.clone(), source })
    }

    /// Comes back when whoever comes after this process would know all that happened until now.
    pub(crate) async fn kept(&self) {
        if let Some(keep) = &self.keep {
            keep.flushed().await;
        }
    }

    /// Changes something, and tells whoever waits for news.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.table.version();
        let changed = change(&mut state);
        let after = state.table.version();
        if let Some(keep) = &self.keep {
            state.keep(keep);
        }
        if before != after {
            // Under the lock, so that versions are told in order.
            self.version.send_replace(after);
        }
        changed
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock())
    }
}

pub(crate) fn incarnation() -> Result<String, Error> {
    let mut bytes = [0; 16];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| Error::NoRandom)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
