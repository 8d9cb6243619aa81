//! One at a time per sandbox: the reconciler and the calls of clients take the same lock.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::names::Name;

/// More of them are swept for those that nobody has.
const SWEEP_ABOVE: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Locks {
    all: Mutex<HashMap<Name, Weak<AsyncMutex<()>>>>,
}

impl Locks {
    /// Waits for the lock of this name.
    pub(crate) async fn lock(&self, name: &Name) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.all.lock();
            if all.len() > SWEEP_ABOVE && all.len().is_power_of_two() {
                all.retain(|_, lock| lock.strong_count() > 0);
            }
            let held = all.get(name).and_then(Weak::upgrade);
            held.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                all.insert(name.clone(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_others_beside() {
        let locks = Locks::default();
        let (one, other) = (Name::new("n", "one"), Name::new("n", "other"));
        let held = locks.lock(&one).await;
        let _beside = locks.lock(&other).await;
        let mut second = std::pin::pin!(locks.lock(&one));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop(held);
        second.await;
    }
}
