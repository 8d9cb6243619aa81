//! What Tasks wait for that does not exist. Each such object is watched by its name, its metadata only, as long as
//! somebody waits: neither does every Secret and ConfigMap of the cluster pass through here, nor is any read.

use std::collections::HashMap;
use std::sync::Arc;

use agentcube_operator::queue::Queue;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Name;
use crate::task::Reference;

/// A handle; cheap to clone.
#[derive(Clone)]
pub(crate) struct Missing {
    client: Client,
    queue: Queue<Name>,
    waiting: Arc<Mutex<HashMap<Name, Waiting>>>,
}

struct Waiting {
    references: Vec<Reference>,
    /// Ends the watches.
    _watches: DropGuard,
}

impl Missing {
    pub(crate) fn new(client: Client, queue: Queue<Name>) -> Missing {
        Missing { client, queue, waiting: Arc::default() }
    }

    /// Has the Task looked at again when one of these appears or changes.
    pub(crate) fn wait_for(&self, task: &Name, references: Vec<Reference>) {
        let mut waiting = self.waiting.lock();
        if waiting.get(task).is_some_and(|held| held.references == references) {
            return;
        }
        let stop = CancellationToken::new();
        for reference in &references {
            let (client, stop) = (self.client.clone(), stop.clone());
            let (queue, task) = (self.queue.clone(), task.clone());
            let tell = move || queue.add(task.clone());
            match reference.clone() {
                Reference::ConfigMap { namespace, name } => {
                    spawn(Api::<ConfigMap>::namespaced(client, &namespace), name, tell, stop);
                }
                Reference::Secret { namespace, name } => {
                    spawn(Api::<Secret>::namespaced(client, &namespace), name, tell, stop);
                }
                Reference::Claim { namespace, name } => {
                    spawn(Api::<PersistentVolumeClaim>::namespaced(client, &namespace), name, tell, stop);
                }
                Reference::ServiceAccount { namespace, name } => {
                    spawn(Api::<ServiceAccount>::namespaced(client, &namespace), name, tell, stop);
                }
                Reference::PriorityClass { name } => {
                    spawn(Api::<PriorityClass>::all(client), name, tell, stop)
                }
                // Small kinds that are watched anyway.
                Reference::Pool { .. } | Reference::RuntimeClass => {}
            }
        }
        waiting.insert(task.clone(), Waiting { references, _watches: stop.drop_guard() });
    }

    /// The Task waits for nothing any more.
    pub(crate) fn found(&self, task: &Name) {
        self.waiting.lock().remove(task);
    }

    /// The Tasks that wait for an object that `wanted` picks.
    pub(crate) fn waiting_for(&self, wanted: impl Fn(&Reference) -> bool) -> Vec<Name> {
        let waiting = self.waiting.lock();
        let waits = waiting.iter().filter(|(_, waiting)| waiting.references.iter().any(&wanted));
        waits.map(|(task, _)| task.clone()).collect()
    }
}

fn spawn<K>(api: Api<K>, name: String, tell: impl Fn() + Send + 'static, stop: CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow(api, &name, tell) => {}
        }
    });
}

/// Tells of every change of one object. From revision 0 on: what is there already is told first. A watch that ends or
/// fails is not begun again in a hurry: whoever waits also looks by itself from time to time.
async fn follow<K>(api: Api<K>, name: &str, tell: impl Fn())
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(290);
    loop {
        if let Ok(events) = api.watch_metadata(&parameters, "0").await {
            let mut events = std::pin::pin!(events);
            while let Some(Ok(event)) = events.next().await {
                if matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_)) {
                    tell();
                }
            }
        }
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    }
}
