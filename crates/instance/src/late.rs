//! A cache that stays empty until somebody needs it. Whoever has no Task on a pool need not let us see Sandboxes, and may
//! not even have the kind.

use std::ops::Deref;
use std::sync::Arc;

use agentcube_operator::cache::{Cache, Object};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The cache, and whether it is needed. Cheap to clone.
#[derive(Debug)]
pub struct LateCache<K> {
    cache: Cache<K>,
    wanted: Arc<watch::Sender<bool>>,
}

impl<K> Clone for LateCache<K> {
    fn clone(&self) -> Self {
        LateCache { cache: self.cache.clone(), wanted: self.wanted.clone() }
    }
}

impl<K> Deref for LateCache<K> {
    type Target = Cache<K>;

    fn deref(&self) -> &Cache<K> {
        &self.cache
    }
}

impl<K: Object> LateCache<K> {
    pub fn new(cache: Cache<K>) -> LateCache<K> {
        LateCache { cache, wanted: Arc::new(watch::Sender::new(false)) }
    }

    /// Has it filled from now on.
    pub fn want(&self) {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    /// Waits until it is needed, and then keeps it until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut wanted = self.wanted.subscribe();
        tokio::select! {
            () = shutdown.cancelled() => return,
            // The sender is ours, so there is no error.
            _ = wanted.wait_for(|wanted| *wanted) => {}
        }
        self.cache.run(shutdown).await;
    }
}
