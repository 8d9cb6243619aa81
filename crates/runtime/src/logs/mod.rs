//! The logs of containers: one file for each run of a container, in the format of container runtimes, bounded in size.
//! A program's output is never blocked by a reader, and a reader never sees half a line.

mod line;
mod pump;
mod read;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

pub use read::Selection;

/// A log may take twice this: when a file has grown to it, it becomes the old one and the old one goes.
pub(super) const FILE_LIMIT: u64 = 10 << 20;

/// One run of one container of one Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Run {
    pub pod_uid: String,
    pub container: String,
    /// 0 for the first run, then one more for each restart.
    pub attempt: u32,
}

/// How far a log that is being written has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// Counts writes; of interest only as something that changes.
    writes: u64,
    ended: bool,
}

/// All logs of a node. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    pods: Arc<Path>,
    live: Arc<Mutex<HashMap<Run, watch::Receiver<Progress>>>>,
}

impl Logs {
    /// Logs below this directory, in which each Pod has one of its own; they go when that is removed.
    pub fn new(pods: impl Into<PathBuf>) -> Self {
        Self { pods: pods.into().into(), live: Arc::default() }
    }

    /// Begins the log of a run: the ends of two pipes for the program's output and errors. The log ends when the
    /// program, and whatever it passed them on to, has closed them.
    pub fn begin(&self, run: &Run) -> io::Result<(OwnedFd, OwnedFd)> {
        let (writer, receiver) = self.writer(run)?;
        let stdout = writer.stream(line::Stream::Stdout)?.0;
        let stderr = writer.stream(line::Stream::Stderr)?.0;
        self.follow(run, receiver);
        Ok((stdout, stderr))
    }

    /// The same, with copies of what is read here, for whoever goes on with [`Logs::resume`] after this process.
    pub fn begin_kept(&self, run: &Run) -> io::Result<([OwnedFd; 2], [OwnedFd; 2])> {
        let (writer, receiver) = self.writer(run)?;
        let (stdout, output) = writer.stream(line::Stream::Stdout)?;
        let (stderr, errors) = writer.stream(line::Stream::Stderr)?;
        self.follow(run, receiver);
        Ok(([stdout, stderr], [output?, errors?]))
    }

    /// Goes on with the log of a run that an earlier process began, from what [`Logs::begin_kept`] gave it to keep.
    pub fn resume(&self, run: &Run, kept: [OwnedFd; 2]) -> io::Result<()> {
        let (writer, receiver) = self.writer(run)?;
        let [output, errors] = kept;
        writer.resume(line::Stream::Stdout, output)?;
        writer.resume(line::Stream::Stderr, errors)?;
        self.follow(run, receiver);
        Ok(())
    }

    /// The Pod has its directory from here on; its logs are made in it when there is something to write.
    fn writer(&self, run: &Run) -> io::Result<(pump::Writer, watch::Receiver<Progress>)> {
        match std::fs::create_dir(self.pods.join(&run.pod_uid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(self.pods.join(&run.pod_uid))?;
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let (progress, receiver) = watch::channel(Progress::default());
        Ok((pump::Writer::new(self.file(run), progress), receiver))
    }

    fn follow(&self, run: &Run, receiver: watch::Receiver<Progress>) {
        self.live.lock().insert(run.clone(), receiver.clone());
        let logs = self.clone();
        let run = run.clone();
        tokio::spawn(async move {
            let mut receiver = receiver;
            // An error means that the writer is gone, which is an end as well.
            let _gone = receiver.wait_for(|progress| progress.ended).await;
            logs.live.lock().remove(&run);
        });
    }

    /// Waits until everything that the run's processes have written is in its log.
    pub async fn ended(&self, run: &Run) {
        let receiver = self.live.lock().get(run).cloned();
        if let Some(mut receiver) = receiver {
            let _gone = receiver.wait_for(|progress| progress.ended).await;
        }
    }

    /// The last bytes of a run's output, for a termination message; at most so many bytes and lines.
    pub fn tail(&self, run: &Run, lines: usize, bytes: usize) -> String {
        read::tail(&self.file(run), lines, bytes)
    }

    /// Forgets the runs of a container before this one and the one before it.
    pub fn forget_before(&self, run: &Run) -> io::Result<()> {
        let Some(attempt) = run.attempt.checked_sub(2) else { return Ok(()) };
        let file = self.file(&Run { attempt, ..run.clone() });
        for path in [older(&file), file] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&self, run: &Run) -> PathBuf {
        // A uid and a container's name are file names: whoever begins a log has seen to that.
        self.pods.join(&run.pod_uid).join("logs").join(&run.container).join(format!("{}.log", run.attempt))
    }

    fn progress(&self, run: &Run) -> Option<watch::Receiver<Progress>> {
        self.live.lock().get(run).cloned()
    }
}

/// Where a file goes when it is full.
fn older(file: &Path) -> PathBuf {
    file.with_extension("log.old")
}

#[cfg(test)]
mod tests;
