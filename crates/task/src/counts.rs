//! Counts of instances by Task. Of each only a few bytes are kept.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

use agentcube_api::agentcube::task::InstanceStatistics;
use agentcube_api::{Sandbox, labels};
use agentcube_instance::Kind;
use agentcube_instance::bearer::Bearer;
use agentcube_instance::record::{Hold, Instance, Life};
use agentcube_operator::watch::{self, Sink};
use k8s_openapi::api::core::v1::Pod;
use kube::core::ObjectMeta;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch as signal};
use tokio_util::sync::CancellationToken;

/// A Task of which an instance came, went or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) namespace: String,
    /// As the label has it: the whole name unless that is long.
    pub(crate) task: String,
    pub(crate) uid: Arc<str>,
}

/// A handle on the counts; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changes: mpsc::UnboundedSender<Changed>,
    /// A Task has its instances on a pool.
    sandboxes_wanted: signal::Sender<bool>,
}

/// What tells instances apart: their kind, namespace and name.
type Key = (Kind, String, String);

#[derive(Debug, Default)]
struct State {
    instances: HashMap<Key, Kept>,
    by_task: HashMap<Arc<str>, InstanceStatistics>,
}

/// What is kept of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    key: Key,
    of: Option<Changed>,
    life: Life,
    reserved: bool,
}

impl Counts {
    pub(crate) fn new() -> (Counts, mpsc::UnboundedReceiver<Changed>) {
        let (changes, receiver) = mpsc::unbounded_channel();
        let sandboxes_wanted = signal::Sender::new(false);
        let shared = Shared { state: Mutex::default(), changes, sandboxes_wanted };
        (Counts { shared: Arc::new(shared) }, receiver)
    }

    /// The counts of the Task with this UID.
    pub(crate) fn of(&self, uid: &str) -> InstanceStatistics {
        self.shared.state.lock().by_task.get(uid).copied().unwrap_or_default()
    }

    /// Has Sandboxes counted too from now on.
    pub(crate) fn want_sandboxes(&self) {
        self.shared.sandboxes_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    /// Follows all instances until the shutdown.
    pub(crate) async fn run(self, client: Client, shutdown: CancellationToken) {
        let config = watcher::Config::default().labels(labels::TASK_UID);
        let pods = watch::follow::<Pod, _>(
            client.clone(),
            config.clone(),
            Followed { shared: self.shared.clone(), kind: PhantomData },
            shutdown.clone(),
        );
        let sandboxes = async {
            let mut wanted = self.shared.sandboxes_wanted.subscribe();
            tokio::select! {
                () = shutdown.cancelled() => return,
                // The sender is ours, so there is no error.
                _ = wanted.wait_for(|wanted| *wanted) => {}
            }
            let sink = Followed { shared: self.shared.clone(), kind: PhantomData };
            watch::follow::<Sandbox, _>(client, config, sink, shutdown.clone()).await;
        };
        tokio::join!(pods, sandboxes);
    }
}

/// Where the watch of a kind leads.
struct Followed<B> {
    shared: Arc<Shared>,
    kind: PhantomData<B>,
}

impl<B: Bearer> Sink<B> for Followed<B> {
    type Item = Kept;

    fn read(&self, object: B) -> Kept {
        let key = (B::KIND, object.namespace().unwrap_or_default(), object.name_any());
        let instance = Instance::read(&object);
        let task = object.labels().get(labels::TASK).cloned().unwrap_or_default();
        let of = instance.as_ref().map(|instance| Changed {
            namespace: key.1.clone(),
            task,
            uid: instance.task_uid.clone(),
        });
        Kept {
            key,
            of,
            life: instance.as_ref().map_or(Life::Dead, |instance| instance.life),
            reserved: instance.is_some_and(|instance| instance.hold != Hold::Free),
        }
    }

    fn listed(&self, items: Vec<Kept>, _: u64) {
        let mut state = self.shared.state.lock();
        let gone: Vec<Key> = {
            let there: HashSet<&Key> = items.iter().map(|item| &item.key).collect();
            let of_kind = state.instances.keys().filter(|key| key.0 == B::KIND);
            of_kind.filter(|key| !there.contains(key)).cloned().collect()
        };
        for key in gone {
            self.shared.put(&mut state, &key, None);
        }
        for item in items {
            self.shared.put(&mut state, &item.key.clone(), Some(item));
        }
    }

    fn applied(&self, item: Kept, _: u64) {
        self.shared.put(&mut self.shared.state.lock(), &item.key.clone(), Some(item));
    }

    fn deleted(&self, meta: &ObjectMeta, _: u64) {
        let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
        let key = (B::KIND, namespace.unwrap_or_default(), name.unwrap_or_default());
        self.shared.put(&mut self.shared.state.lock(), &key, None);
    }

    fn bookmark(&self, _: u64) {}
}

impl Shared {
    fn put(&self, state: &mut State, key: &Key, new: Option<Kept>) {
        let old = match &new {
            Some(new) => state.instances.insert(key.clone(), new.clone()),
            None => state.instances.remove(key),
        };
        if old == new {
            return;
        }
        for (kept, sign) in [(&old, -1), (&new, 1)] {
            let Some((kept, of)) = kept.as_ref().and_then(|kept| Some((kept, kept.of.as_ref()?))) else {
                continue;
            };
            let counts = state.by_task.entry(of.uid.clone()).or_default();
            add(counts, kept, sign);
            if counts.total == 0 {
                state.by_task.remove(&of.uid);
            }
        }
        for of in [old, new].into_iter().flatten().filter_map(|kept| kept.of) {
            // Nobody listens any more when the controllers have ended.
            let _ = self.changes.send(of);
        }
    }
}

fn add(counts: &mut InstanceStatistics, kept: &Kept, sign: i32) {
    counts.total += sign;
    counts.creating += sign * i32::from(kept.life == Life::Starting);
    counts.ready += sign * i32::from(kept.life == Life::Ready);
    counts.reserved += sign * i32::from(kept.reserved);
    counts.idle += sign * i32::from(kept.life == Life::Ready && !kept.reserved);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ready: bool, key: &str) -> Pod {
        let reservation = if key.is_empty() { "" } else { "l1.1" };
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "n", "uid": name, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { labels::TASK_UID: "t1", labels::TASK: "agent", labels::SPEC_ID: "agent-1" },
                "annotations": { labels::RESERVE_KEY: key, labels::RESERVATION: reservation },
            },
            "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
        .unwrap()
    }

    #[test]
    fn counts_follow_every_change_and_tell_of_it_once() {
        let (counts, mut changes) = Counts::new();
        let sink = Followed::<Pod> { shared: counts.shared.clone(), kind: PhantomData };
        let apply = |pod: Pod| sink.applied(sink.read(pod), 1);
        apply(pod("a", false, ""));
        apply(pod("b", true, ""));
        apply(pod("c", true, "user"));
        let all = InstanceStatistics { total: 3, creating: 1, ready: 2, reserved: 1, idle: 1 };
        assert_eq!(counts.of("t1"), all);
        apply(pod("c", true, "user"));
        apply(pod("b", true, "other"));
        assert_eq!(counts.of("t1"), InstanceStatistics { reserved: 2, idle: 0, ..all });
        // A Sandbox of the same name is another instance.
        let others = Followed::<Sandbox> { shared: counts.shared.clone(), kind: PhantomData };
        others.deleted(&pod("b", false, "").metadata, 2);
        others.listed(Vec::new(), 2);
        sink.deleted(&pod("a", false, "").metadata, 2);
        sink.listed(vec![sink.read(pod("b", true, ""))], 3);
        let one = InstanceStatistics { total: 1, creating: 0, ready: 1, reserved: 0, idle: 1 };
        assert_eq!(counts.of("t1"), one);
        let mut told = 0;
        while changes.try_recv().is_ok() {
            told += 1;
        }
        // Three came; b changed (both states count), a went, c went, b changed.
        assert_eq!(told, 3 + 2 + 1 + 1 + 2);
    }
}
