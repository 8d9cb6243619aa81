//! The disk of a log, as a controller that can die has it: every write is an effect, and the disk can be full or slow.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentcube_sandbox::{Disk, FileDisk};
use parking_lot::{Condvar, Mutex};

use super::fuse::Fuse;

/// The longest that a write waits.
const LONGEST: Duration = Duration::from_secs(30);

/// What is wrong with the disk; outlives controllers.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    full: AtomicBool,
    held: Mutex<bool>,
    changed: Condvar,
}

impl Trouble {
    /// Nothing more fits, or it does again.
    pub(crate) fn full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// Writes wait, or go on.
    pub(crate) fn hold(&self, held: bool) {
        *self.held.lock() = held;
        self.changed.notify_all();
    }

    fn strike(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        // A case that has failed lets nobody go on.
        while *held {
            if self.changed.wait_for(&mut held, LONGEST).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// The file, until its controller dies.
#[derive(Clone)]
pub(crate) struct Fused {
    file: Arc<Mutex<Option<FileDisk>>>,
    fuse: Fuse,
    trouble: Arc<Trouble>,
    /// What is done to open it is no effect: nobody waits for it.
    opened: Arc<AtomicBool>,
}

impl Fused {
    pub(crate) fn open(path: &Path, fuse: &Fuse, trouble: &Arc<Trouble>) -> Fused {
        let file = FileDisk::open(path).expect("nobody else has the log");
        Fused {
            file: Arc::new(Mutex::new(Some(file))),
            fuse: fuse.clone(),
            trouble: trouble.clone(),
            opened: Arc::default(),
        }
    }

    /// From now on writes are effects.
    pub(crate) fn opened(&self) {
        self.opened.store(true, Ordering::SeqCst);
    }

    /// Whoever is dead has no files.
    pub(crate) fn close(&self) {
        self.file.lock().take();
    }

    fn effect<T>(&self, work: impl FnOnce(&mut FileDisk) -> io::Result<T>) -> io::Result<T> {
        let dead = || io::Error::other("its process is dead");
        self.trouble.strike()?;
        if self.fuse.blown.is_cancelled() {
            return Err(dead());
        }
        let done = work(self.file.lock().as_mut().ok_or_else(dead)?)?;
        if self.opened.load(Ordering::SeqCst) {
            self.fuse.spend();
        }
        if self.fuse.blown.is_cancelled() { Err(dead()) } else { Ok(done) }
    }
}

impl Disk for Fused {
    fn name(&self) -> String {
        "the log of the stage".into()
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.file.lock().as_mut().ok_or(io::ErrorKind::NotFound)?.read()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.effect(|file| file.truncate(length))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.effect(|file| file.append(bytes))
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.effect(|file| file.replace(bytes))
    }
}
