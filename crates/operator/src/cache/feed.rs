//! The changes of a cache on their way to one subscriber. Never grows beyond one change per object: changes of
//! the same object that were not yet received are joined.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A step in the life of one object. `old` is missing for a creation, `new` for a deletion.
#[derive(Debug)]
pub struct Change<K> {
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        Change { old: self.old.clone(), new: self.new.clone() }
    }
}

impl<K> Change<K> {
    /// The object as it is, or as it was last.
    pub fn latest(&self) -> &Arc<K> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change with neither side is never made")
    }

    /// Both sides that exist: a change concerns whoever either of them concerns.
    pub fn sides(&self) -> impl Iterator<Item = &Arc<K>> {
        self.old.iter().chain(&self.new)
    }
}

/// The receiving end of a subscription.
#[derive(Debug)]
pub struct Receiver<K> {
    feed: Arc<Feed<K>>,
}

impl<K> Receiver<K> {
    /// The next change. Nothing is lost if the future is dropped.
    pub async fn recv(&mut self) -> Change<K> {
        loop {
            if let Some(change) = self.try_recv() {
                return change;
            }
            self.feed.arrived.notified().await;
        }
    }

    /// The next change, if one is waiting.
    pub fn try_recv(&mut self) -> Option<Change<K>> {
        self.feed.pending.lock().pop()
    }
}

#[derive(Debug)]
pub(super) struct Feed<K> {
    pending: Mutex<Pending<K>>,
    arrived: Notify,
}

#[derive(Debug)]
struct Pending<K> {
    order: VecDeque<String>,
    changes: HashMap<String, Change<K>>,
}

impl<K> Feed<K> {
    pub(super) fn new() -> (Arc<Feed<K>>, Receiver<K>) {
        let pending = Pending { order: VecDeque::new(), changes: HashMap::new() };
        let feed = Arc::new(Feed { pending: Mutex::new(pending), arrived: Notify::new() });
        (feed.clone(), Receiver { feed })
    }

    pub(super) fn push(&self, uid: &str, change: Change<K>) {
        self.pending.lock().push(uid, change);
        self.arrived.notify_one();
    }
}

impl<K> Pending<K> {
    fn push(&mut self, uid: &str, change: Change<K>) {
        if let Some(waiting) = self.changes.get_mut(uid) {
            waiting.new = change.new;
        } else {
            self.changes.insert(uid.to_owned(), change);
            self.order.push_back(uid.to_owned());
        }
    }

    fn pop(&mut self) -> Option<Change<K>> {
        loop {
            let uid = self.order.pop_front()?;
            let change = self.changes.remove(&uid)?;
            // Created and deleted before anyone looked: nothing happened.
            if change.old.is_some() || change.new.is_some() {
                return Some(change);
            }
        }
    }
}
