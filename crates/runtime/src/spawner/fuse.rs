//! For tests: the death of a worker after so many of its effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many effects a worker still has: what it asks of the spawner, and what it answers. Instead of the next one it dies.
/// Only debug builds look at it.
#[derive(Debug, Clone)]
pub struct Fuse(Arc<AtomicU64>);

impl Fuse {
    pub(crate) fn after(effects: u64) -> Self {
        Self(Arc::new(AtomicU64::new(effects)))
    }

    /// To be called before each effect.
    pub fn effect(&self) {
        let spend = |left: u64| left.checked_sub(1);
        if cfg!(debug_assertions) && self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend).is_err()
        {
            super::die();
        }
    }
}
