//! When each object was last compared with what the server really has. Everything else goes by what the watches tell;
//! this finds what no watch told.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A handle; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Passes<K> {
    last: Arc<Mutex<HashMap<K, Instant>>>,
}

impl<K> Default for Passes<K> {
    fn default() -> Self {
        Passes { last: Arc::default() }
    }
}

impl<K: Eq + Hash + Clone> Passes<K> {
    /// Begins a pass over an object. Whether it is a full one. The first is not: the caches have just been filled.
    pub(crate) fn begin(&self, key: &K, every: Duration) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock();
        let due = last.get(key).is_some_and(|last| now.duration_since(*last) >= every);
        if due || !last.contains_key(key) {
            last.insert(key.clone(), now);
        }
        due
    }

    /// How long until the next full one.
    pub(crate) fn rest(&self, key: &K, every: Duration) -> Duration {
        let last = self.last.lock().get(key).copied();
        last.map_or(every, |last| (last + every).saturating_duration_since(Instant::now()))
            .max(Duration::from_millis(1))
    }

    pub(crate) fn forget(&self, key: &K) {
        self.last.lock().remove(key);
    }
}
