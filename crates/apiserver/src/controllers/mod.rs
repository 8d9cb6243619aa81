//! What the API server does by itself: names become resources, namespaces empty themselves, orphans go.
//!
//! Each controller is a queue of keys fed by the store and a task that works them off. A key says only
//! "look here"; what to do is decided from the objects as they are then, so a lost wake-up costs time, not truth.

mod definitions;
mod garbage;
mod namespaces;
mod protection;

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::api::{Api, Creation, FieldValidation, Intent, Name, PatchKind};
use crate::resource::Resource;
use crate::server::told_to_stop;
use crate::status::Status;
use crate::store::Object;

/// The field manager of what the server writes by itself.
const MANAGER: &str = "kube-controller-manager";
/// Pause before a key that failed is tried again.
const RETRY: Duration = Duration::from_millis(200);

fn intent(manager: &str) -> Intent {
    Intent { manager: manager.to_owned(), dry_run: false, validation: FieldValidation::Ignore }
}

/// Starts all controllers. When this returns, every stored definition is served.
pub(crate) async fn start(api: &Api, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
    definitions::start(api, tasks, stopped).await;
    namespaces::start(api, tasks, stopped).await;
    garbage::start(api, tasks, stopped);
    protection::start(api, tasks, stopped);
}

/// Changes the metadata of an object, if it is still as it was seen. One that is gone needs no change.
async fn patch_metadata(
    api: &Api,
    resource: &Arc<Resource>,
    object: &Object,
    mut metadata: Value,
) -> Result<(), Status> {
    metadata["uid"] = (*object.uid).into();
    metadata["resourceVersion"] = object.revision.to_string().into();
    let patch = Creation::from(json!({"metadata": metadata}));
    let namespace = resource.namespaced.then(|| object.namespace());
    let named = Name { namespace, name: object.name() };
    match api.patch(resource, &named, "", PatchKind::Merge, patch, &intent(MANAGER)).await {
        Ok(_) => Ok(()),
        Err(status) if status.reason == "NotFound" => Ok(()),
        Err(status) => Err(status),
    }
}

/// Takes a finalizer off an object.
async fn release(
    api: &Api,
    resource: &Arc<Resource>,
    object: &Object,
    finalizer: &str,
) -> Result<(), Status> {
    let rest: Vec<&str> = object.finalizers.iter().map(|f| &**f).filter(|f| *f != finalizer).collect();
    if rest.len() == object.finalizers.len() {
        return Ok(());
    }
    let finalizers = if rest.is_empty() { Value::Null } else { json!(rest) };
    patch_metadata(api, resource, object, json!({"finalizers": finalizers})).await
}

/// Keys to look at, each once however often it is asked for.
struct Queue<K> {
    waiting: Mutex<(VecDeque<K>, HashSet<K>)>,
    ready: Notify,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::new((VecDeque::new(), HashSet::new())), ready: Notify::new() })
    }

    fn push(&self, key: K) {
        let mut waiting = self.waiting.lock();
        if waiting.1.insert(key.clone()) {
            waiting.0.push_back(key);
            self.ready.notify_one();
        }
    }

    async fn pop(&self) -> K {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if let Some(key) = waiting.0.pop_front() {
                    waiting.1.remove(&key);
                    return key;
                }
            }
            self.ready.notified().await;
        }
    }
}

/// Works a queue off until the server stops. Work that fails is tried again after a pause.
fn work<K, F, Fut>(queue: Arc<Queue<K>>, tasks: &mut JoinSet<()>, stopped: &watch::Receiver<bool>, each: F)
where
    K: Clone + Eq + Hash + Send + 'static,
    F: Fn(K) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Status>> + Send,
{
    let mut stopped = stopped.clone();
    tasks.spawn(async move {
        let run = async {
            loop {
                let key = queue.pop().await;
                if let Err(problem) = each(key.clone()).await {
                    tracing::debug!(%problem, "controller will try again");
                    let queue = queue.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(RETRY).await;
                        queue.push(key);
                    });
                }
            }
        };
        tokio::select! {
            () = run => {}
            () = told_to_stop(&mut stopped) => {}
        }
    });
}
