//! Who binds what in this router: one binding per key, however many requests wait for it. When the last of them goes
//! away the binding is told to stop.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::bind::Why;
use super::index::SessionId;
use crate::identity::{SessionKey, TaskId};
use crate::provider::{Path, ReserveError, Which};

/// How many requests may wait for one key.
const MOST_WAITING: usize = 10_000;

/// What a binding came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The session is bound: look it up.
    Bound(Path),
    Failed(ReserveError),
    /// It stopped because nobody waited; whoever came since has to begin anew.
    Abandoned,
}

/// One binding.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) id: SessionId,
    pub(super) task: TaskId,
    pub(super) key: SessionKey,
    pub(super) tenant: Option<String>,
    /// What the first who asked for it would have.
    pub(super) which: Which,
    pub(super) cancel: CancellationToken,
    /// Something that the binding rests on has changed.
    pub(super) changed: Notify,
    /// What it waits for and what went wrong last, for those who run out of time.
    pub(super) state: Mutex<(Option<Why>, Option<String>)>,
    done: watch::Sender<Option<Outcome>>,
}

#[derive(Default)]
struct Registry {
    bindings: HashMap<SessionId, (Arc<Binding>, usize)>,
    /// Which bindings rest on which instance, by its UID.
    by_instance: HashMap<Arc<str>, HashSet<SessionId>>,
    instance_of: HashMap<SessionId, Arc<str>>,
}

/// All bindings of this router.
#[derive(Default)]
pub(super) struct Bindings {
    registry: Mutex<Registry>,
}

/// What a request finds when it wants a key bound.
pub(super) enum Joined {
    /// It is the first: the binding has to be run.
    First(Subscription),
    /// It waits with others.
    Waiting(Subscription),
    /// There is one that is just stopping.
    Stopping(watch::Receiver<Option<Outcome>>),
    TooMany,
}

impl Bindings {
    pub(super) fn join(self: &Arc<Self>, new: impl FnOnce() -> Binding, id: &SessionId) -> Joined {
        let mut registry = self.registry.lock();
        if let Some((binding, count)) = registry.bindings.get_mut(id) {
            if binding.cancel.is_cancelled() {
                return Joined::Stopping(binding.done.subscribe());
            }
            if *count >= MOST_WAITING {
                return Joined::TooMany;
            }
            *count += 1;
            return Joined::Waiting(Subscription { bindings: self.clone(), binding: binding.clone() });
        }
        let binding = Arc::new(new());
        registry.bindings.insert(id.clone(), (binding.clone(), 1));
        Joined::First(Subscription { bindings: self.clone(), binding })
    }

    /// The binding is over.
    pub(super) fn finish(&self, binding: &Binding, outcome: Outcome) {
        self.rest_on(&binding.id, None);
        self.registry.lock().bindings.remove(&binding.id);
        binding.done.send_replace(Some(outcome));
    }

    /// The binding rests on this instance from now on, and on no other.
    pub(super) fn rest_on(&self, id: &SessionId, instance: Option<&Arc<str>>) {
        let mut registry = self.registry.lock();
        if registry.instance_of.get(id) == instance {
            return;
        }
        if let Some(old) = registry.instance_of.remove(id)
            && let Some(ids) = registry.by_instance.get_mut(&old)
        {
            ids.remove(id);
            if ids.is_empty() {
                registry.by_instance.remove(&old);
            }
        }
        if let Some(instance) = instance {
            registry.instance_of.insert(id.clone(), instance.clone());
            registry.by_instance.entry(instance.clone()).or_default().insert(id.clone());
        }
    }

    pub(super) fn session_changed(&self, id: &SessionId) {
        if let Some((binding, _)) = self.registry.lock().bindings.get(id) {
            binding.changed.notify_one();
        }
    }

    pub(super) fn instance_changed(&self, uid: &str) {
        let registry = self.registry.lock();
        for id in registry.by_instance.get(uid).into_iter().flatten() {
            if let Some((binding, _)) = registry.bindings.get(id) {
                binding.changed.notify_one();
            }
        }
    }

    /// Every binding looks again.
    pub(super) fn all_changed(&self) {
        self.registry.lock().bindings.values().for_each(|(binding, _)| binding.changed.notify_one());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.registry.lock().bindings.is_empty()
    }
}

impl Binding {
    pub(super) fn new(
        id: SessionId,
        task: TaskId,
        key: SessionKey,
        tenant: Option<String>,
        which: Which,
        cancel: CancellationToken,
    ) -> Binding {
        let (changed, state, done) = (Notify::new(), Mutex::default(), watch::Sender::new(None));
        Binding { id, task, key, tenant, which, cancel, changed, state, done }
    }
}

/// A request's wait for a binding. Dropping it may stop the binding.
pub(super) struct Subscription {
    bindings: Arc<Bindings>,
    pub(super) binding: Arc<Binding>,
}

impl Subscription {
    /// What the binding came to.
    pub(super) async fn outcome(&self) -> Outcome {
        outcome(self.binding.done.subscribe()).await
    }
}

/// What a binding came to.
pub(super) async fn outcome(mut done: watch::Receiver<Option<Outcome>>) -> Outcome {
    let outcome = done.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
    outcome.unwrap_or(Outcome::Abandoned)
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut registry = self.bindings.registry.lock();
        if let Some((binding, count)) = registry.bindings.get_mut(&self.binding.id)
            && Arc::ptr_eq(binding, &self.binding)
        {
            *count -= 1;
            if *count == 0 {
                binding.cancel.cancel();
            }
        }
    }
}
