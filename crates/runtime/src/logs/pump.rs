//! From a program's output into a log file. Reading goes on whatever happens to the file: a full disk costs lines, it
//! does not stop the program.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::line::{self, Splitter, Stream};
use super::{FILE_LIMIT, Progress, older};

/// Bytes read at once.
const CHUNK: usize = 32 << 10;

/// Writes one log file; ends when the last of its streams has.
pub(super) struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    out: Mutex<Out>,
    progress: watch::Sender<Progress>,
}

struct Out {
    /// None before the first line: most programs of a short life print none.
    file: Option<File>,
    length: u64,
    /// A write failed, and that was said.
    failing: bool,
}

impl Writer {
    /// The file is made with the first line.
    pub(super) fn new(path: PathBuf, progress: watch::Sender<Progress>) -> Self {
        let out = Mutex::new(Out { file: None, length: 0, failing: false });
        Self { shared: Arc::new(Shared { path, out, progress }) }
    }

    /// A pipe whose other end is written to the log, and a copy of that end.
    pub(super) fn stream(&self, stream: Stream) -> io::Result<(OwnedFd, io::Result<OwnedFd>)> {
        let (sender, receiver) = pipe::pipe()?;
        let copy = receiver.as_fd().try_clone_to_owned();
        tokio::spawn(pump(receiver, stream, self.shared.clone()));
        Ok((sender.into_blocking_fd()?, copy))
    }

    /// A pipe that somebody else has read until now.
    pub(super) fn resume(&self, stream: Stream, source: OwnedFd) -> io::Result<()> {
        let receiver = pipe::Receiver::from_owned_fd(source)?;
        tokio::spawn(pump(receiver, stream, self.shared.clone()));
        Ok(())
    }
}

async fn pump(mut source: pipe::Receiver, stream: Stream, shared: Arc<Shared>) {
    let mut splitter = Splitter::default();
    let mut chunk = vec![0; CHUNK];
    let mut lines = Vec::new();
    loop {
        let read = match source.read(&mut chunk).await {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, log = %shared.path.display(), "cannot read a container's output any more");
                break;
            }
        };
        lines.clear();
        let now = jiff::Timestamp::now();
        splitter.push(&chunk[..read], |partial, part| line::encode(&mut lines, now, stream, partial, part));
        shared.write(&lines);
    }
    lines.clear();
    let now = jiff::Timestamp::now();
    splitter.finish(|partial, part| line::encode(&mut lines, now, stream, partial, part));
    shared.write(&lines);
}

impl Shared {
    fn write(&self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let mut out = self.out.lock();
        match self.append(&mut out, lines) {
            Ok(()) => out.failing = false,
            Err(error) if !out.failing => {
                out.failing = true;
                tracing::warn!(%error, log = %self.path.display(), "lines of a container's log are lost");
            }
            Err(_) => {}
        }
        drop(out);
        self.progress.send_modify(|progress| progress.writes += 1);
    }

    fn append(&self, out: &mut Out, lines: &[u8]) -> io::Result<()> {
        if out.length > 0 && out.length + lines.len() as u64 > FILE_LIMIT {
            std::fs::rename(&self.path, older(&self.path))?;
            (out.file, out.length) = (None, 0);
        }
        let file = match &mut out.file {
            Some(file) => file,
            none => {
                let file = open(&self.path)?;
                out.length = file.metadata()?.len();
                none.insert(file)
            }
        };
        file.write_all(lines)?;
        out.length += lines.len() as u64;
        Ok(())
    }
}

/// Makes what is missing below the directory of the Pod, and never that itself: once it is removed, what is written late
/// must not bring it back.
fn open(path: &Path) -> io::Result<File> {
    let append = || File::options().create(true).append(true).open(path);
    match append() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut missing: Vec<&Path> = path.ancestors().skip(1).take(2).collect();
    while let Some(directory) = missing.pop() {
        match std::fs::create_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    append()
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.progress.send_modify(|progress| progress.ended = true);
    }
}
