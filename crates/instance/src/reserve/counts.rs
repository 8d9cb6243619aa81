//! What a router has done, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::provider::Path;

/// How often each thing happened.
#[derive(Debug, Default)]
pub struct Counts {
    reused: AtomicU64,
    bound: AtomicU64,
    waited: AtomicU64,
    rebound: AtomicU64,
    started: AtomicU64,
    flushed: AtomicU64,
}

impl Counts {
    pub(super) fn served(&self, path: Path) {
        self.of(path).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn flushed(&self) {
        self.flushed.fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, path: Path) -> &AtomicU64 {
        match path {
            Path::Reused => &self.reused,
            Path::Bound => &self.bound,
            Path::Waited => &self.waited,
            Path::Rebound => &self.rebound,
        }
    }

    /// Requests that were given an instance in this way.
    pub fn requests(&self, path: Path) -> u64 {
        self.of(path).load(Ordering::Relaxed)
    }

    /// Instances that were started for requests.
    pub fn starts(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Writes of activity.
    pub fn flushes(&self) -> u64 {
        self.flushed.load(Ordering::Relaxed)
    }
}
