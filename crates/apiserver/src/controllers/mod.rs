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
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::api::{Api, FieldValidation, Intent};
use crate::server::told_to_stop;

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
    Fut: Future<Output = Result<(), crate::status::Status>> + Send,
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
