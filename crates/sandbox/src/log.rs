//! The write-ahead log of the fast path: what FAST creates and deletes promise before there is an object that says so. A
//! promise is kept here from before its acknowledgement until the API server has it; then it is settled.
//!
//! It speaks for one controller at a time, and never for sandboxes that have an object.

mod disk;
mod entries;
mod frame;
mod writer;

#[cfg(test)]
mod tests;

pub use disk::{Disk, FileDisk};

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use agentcube_api::Sandbox;
use tokio::sync::oneshot;

pub(crate) use entries::Open;
use entries::{Entries, Intent, Record};
use writer::{Shared, Writer};

use crate::core::pool_of;
use crate::names::{AgentId, Name, RunId};

/// Why the log cannot be used, or what was to be written was not.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot use the log {log}: {why}")]
    Unusable { log: String, why: String },
    #[error("the log {log} is in use by another process; two controllers cannot share one")]
    Locked { log: String },
    #[error(
        "the log {log} is corrupt at byte {offset}: {why}. Restore it, or move it away to go on without: then sandboxes \
         that were acknowledged and have no object yet are known only to the agents that run them"
    )]
    Corrupt { log: String, offset: u64, why: String },
    #[error(
        "the log of sandboxes cannot be written ({why}): FAST creates are refused until it can; STRONG ones are not"
    )]
    Broken { why: String },
    #[error(
        "the log of sandboxes is full: too much waits for the API server; FAST creates are refused until it is less"
    )]
    Full,
    #[error("the log of sandboxes is closed")]
    Closed,
}

/// A handle to the log; cheap to clone. What waits to be written is written when the last one is dropped.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there is nothing more to be done about it here.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("open", &self.inner.shared.count()).finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log at this path, or begins one. What was torn by a crash at its end was never acknowledged, and is cut
    /// off.
    pub fn open(path: &Path) -> Result<Log, LogError> {
        Log::open_on(Box::new(FileDisk::open(path)?))
    }

    /// The same on something else than a file.
    pub fn open_on(mut disk: Box<dyn Disk>) -> Result<Log, LogError> {
        let log = disk.name();
        let unusable =
            |error: std::io::Error| LogError::Unusable { log: log.clone(), why: error.to_string() };
        let writer = match disk.read().map_err(unusable)? {
            None => Writer::begin(disk).map_err(unusable)?,
            Some(bytes) => {
                let corrupt = |offset, why| LogError::Corrupt { log: log.clone(), offset, why };
                let read = frame::read(&bytes).map_err(|bad| corrupt(bad.offset, bad.why))?;
                let mut entries = Entries::default();
                for (index, frame) in read.frames.iter().enumerate() {
                    let records = entries::parse(frame.payload, index == 0);
                    let records = records.map_err(|why| corrupt(frame.offset, why))?;
                    for record in records {
                        entries.take_in(record).map_err(|why| corrupt(frame.offset, why))?;
                    }
                }
                if read.length < bytes.len() as u64 {
                    let torn = bytes.len() as u64 - read.length;
                    tracing::warn!(log, torn, "the end of the log was torn by a crash, and is cut off");
                    disk.truncate(read.length).map_err(unusable)?;
                }
                Writer::resume(disk, entries, read.frames.len() as u64, read.length)
            }
        };
        let shared = writer.shared();
        let thread = std::thread::Builder::new().name("sandbox-log".into()).spawn(move || writer.run());
        let thread = Some(thread.map_err(unusable)?);
        Ok(Log { inner: Arc::new(Inner { shared, thread }) })
    }

    /// Whether it can be written, as far as anybody knows.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.inner.shared.check()
    }

    /// Promises that this object will be made. When this is `Ok` it is on disk; otherwise nobody knows, and the name stays
    /// taken until it is settled.
    pub(crate) async fn intent(
        &self,
        run: &RunId,
        agent: &AgentId,
        incarnation: &str,
        object: &Sandbox,
        text: &[u8],
    ) -> Result<(), LogError> {
        let intent = Intent::new(run, agent, incarnation, text).map_err(|why| LogError::Broken { why })?;
        let wait = self.inner.shared.promise(&Name::of(object), &pool_of(object), intent)?;
        written(wait).await
    }

    /// Promises that what this run was for stays deleted.
    pub(crate) async fn deleted(&self, run: &RunId) -> Result<(), LogError> {
        let wait = self.inner.shared.append(Record::Deleted { run: run.clone() })?;
        written(wait).await
    }

    /// The object is there, or nothing of the run can come any more. A deletion stays until it is done, too.
    pub(crate) fn settle(&self, run: &RunId) {
        self.inner.shared.done(run, false);
    }

    /// Nothing that the log says of this run matters any more.
    pub(crate) fn done(&self, run: &RunId) {
        self.inner.shared.done(run, true);
    }

    /// Waits until no promise to make an object of this name is on disk. One that is still open is settled.
    pub(crate) async fn forgotten(&self, name: &Name) -> Result<(), LogError> {
        match self.inner.shared.forget(name)? {
            None => Ok(()),
            Some(wait) => written(wait).await,
        }
    }

    /// What is open under a name.
    pub(crate) fn of(&self, name: &Name) -> Option<Open> {
        self.inner.shared.of(name)
    }

    /// Runs whose objects are yet to be made, with the names of those.
    pub fn promised(&self) -> Vec<(RunId, Name)> {
        let open = |name: Name| Some((self.of(&name).filter(|open| !open.deleted)?.run, name));
        self.names().into_iter().filter_map(open).collect()
    }

    /// Names under which something is open.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.inner.shared.names()
    }
}

async fn written(wait: oneshot::Receiver<Result<(), LogError>>) -> Result<(), LogError> {
    wait.await.unwrap_or(Err(LogError::Closed))
}
