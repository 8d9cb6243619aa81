//! Builds that wait, run, or have failed. What has succeeded is in the store, and nothing else is remembered of it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_api::conditions::frontend as reasons;
use agentcube_api::frontend::bundle::BundleFile;
use agentcube_operator::metrics::{Counter, Family, Registry};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::bundler;
use super::contract::{Build, BuildStatus};
use super::step::{Failure, Tool};
use super::store::Store;
use super::{HOW_TO_GET, Options};
use crate::hash;

/// Failures that are remembered.
const MOST_FAILURES: usize = 256;

/// An order that was looked at: canonical JSON, and its hash.
pub(super) struct Accepted {
    pub(super) manifest: String,
    pub(super) hash: String,
}

/// Too many wait already.
pub(super) struct Full;

enum Entry {
    Pending,
    Running,
    Failed(Failure),
}

#[derive(Default)]
struct Builds {
    known: HashMap<String, Entry>,
    /// In the order in which they failed.
    failed: VecDeque<String>,
}

/// A bundler as it was found, and what it makes of everything.
struct Known {
    program: PathBuf,
    seen: (u64, Option<std::time::SystemTime>),
    identity: String,
}

pub(super) struct Queue {
    pub(super) options: Options,
    store: Store,
    builds: Mutex<Builds>,
    known: AsyncMutex<Option<Known>>,
    places: Semaphore,
    running: TaskTracker,
    stop: CancellationToken,
    counter: Family<Counter>,
}

impl Queue {
    pub(super) fn open(options: Options, metrics: &Registry) -> io::Result<Queue> {
        let about = "Builds that came to their end, by how.";
        Ok(Queue {
            store: Store::open(&options.directory, options.limits.kept)?,
            builds: Mutex::default(),
            known: AsyncMutex::new(None),
            places: Semaphore::new(options.limits.workers.max(1)),
            running: TaskTracker::new(),
            stop: CancellationToken::new(),
            counter: metrics.counter("agentcube_forge_builds_total", about, &["outcome"]),
            options,
        })
    }

    /// Gives up what runs and waits.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.running.close();
        self.running.wait().await;
    }

    /// Has it built, unless it is, or is being.
    pub(super) async fn take(self: &Arc<Self>, order: Accepted) -> Result<Build, Full> {
        let id = match self.identity().await {
            Ok(identity) => id(&order.hash, &identity),
            Err(failure) => {
                return Ok(failed(&format!("bld_{}", &hash::hex(order.hash.as_bytes())[..32]), &failure));
            }
        };
        let mut builds = self.builds.lock();
        match builds.known.get(&id) {
            Some(Entry::Pending) => return Ok(build(&id, BuildStatus::Pending)),
            Some(Entry::Running) => return Ok(build(&id, BuildStatus::Running)),
            _ if self.store.has(&id) => return Ok(build(&id, BuildStatus::Succeeded)),
            _ => {}
        }
        let waiting = builds.known.values().filter(|entry| matches!(entry, Entry::Pending)).count();
        if waiting >= self.options.limits.waiting || self.stop.is_cancelled() {
            return Err(Full);
        }
        builds.known.insert(id.clone(), Entry::Pending);
        builds.failed.retain(|failed| *failed != id);
        drop(builds);
        let (queue, name) = (self.clone(), id.clone());
        self.running.spawn(async move { queue.work(name, order).await });
        Ok(build(&id, BuildStatus::Pending))
    }

    pub(super) fn look(&self, id: &str) -> Option<Build> {
        match self.builds.lock().known.get(id) {
            Some(Entry::Pending) => Some(build(id, BuildStatus::Pending)),
            Some(Entry::Running) => Some(build(id, BuildStatus::Running)),
            Some(Entry::Failed(failure)) => Some(failed(id, failure)),
            None => self.store.has(id).then(|| build(id, BuildStatus::Succeeded)),
        }
    }

    pub(super) async fn files(self: &Arc<Self>, id: &str) -> io::Result<Option<Vec<BundleFile>>> {
        let (queue, id) = (self.clone(), id.to_owned());
        tokio::task::spawn_blocking(move || queue.store.get(&id)).await.map_err(io::Error::other)?
    }

    async fn work(self: Arc<Self>, id: String, order: Accepted) {
        let working = async {
            let _place = self.places.acquire().await;
            self.builds.lock().known.insert(id.clone(), Entry::Running);
            self.build(&id, &order).await
        };
        let outcome = match self.stop.run_until_cancelled(working).await {
            Some(outcome) => outcome,
            None => return,
        };
        let word = if outcome.is_ok() { "succeeded" } else { "failed" };
        self.counter.with(&[word]).inc();
        let mut builds = self.builds.lock();
        match outcome {
            Ok(()) => drop(builds.known.remove(&id)),
            Err(failure) => {
                tracing::warn!(id, "a build failed: {}", failure.message);
                builds.known.insert(id.clone(), Entry::Failed(failure));
                builds.failed.push_back(id);
                if builds.failed.len() > MOST_FAILURES
                    && let Some(oldest) = builds.failed.pop_front()
                {
                    builds.known.remove(&oldest);
                }
            }
        }
    }

    async fn build(self: &Arc<Self>, id: &str, order: &Accepted) -> Result<(), Failure> {
        let work = self.store.work()?;
        let made = self.tool()?.build(work.path(), &order.manifest).await?;
        let (queue, id) = (self.clone(), id.to_owned());
        let kept = tokio::task::spawn_blocking(move || queue.store.put(&id, &made)).await;
        Ok(kept.map_err(io::Error::other)??)
    }

    fn tool(&self) -> Result<Tool, Failure> {
        let Options { bundler, path, confiner, limits, .. } = &self.options;
        let program = bundler::find(bundler.as_deref(), path).ok_or_else(|| Failure {
            reason: reasons::REASON_BUNDLER_MISSING,
            message: format!("the build service has no bundler: {HOW_TO_GET}"),
            is_final: true,
        })?;
        Ok(Tool { program, confiner: confiner.clone(), limits: limits.clone() })
    }

    /// What results depend on besides the manifest; asked of the bundler once, and again when it is another.
    async fn identity(&self) -> Result<String, Failure> {
        let tool = self.tool()?;
        let meta = std::fs::metadata(&tool.program)?;
        let seen = (meta.len(), meta.modified().ok());
        let mut known = self.known.lock().await;
        match &*known {
            Some(known) if known.program == tool.program && known.seen == seen => Ok(known.identity.clone()),
            _ => {
                let identity = tool.identity(self.store.work()?.path()).await?;
                *known = Some(Known { program: tool.program, seen, identity: identity.clone() });
                Ok(identity)
            }
        }
    }
}

fn id(manifest: &str, identity: &str) -> String {
    format!("bld_{}", &hash::hex(format!("{manifest}\n{identity}").as_bytes())[..32])
}

/// Whether it could be the id of a build; nothing else becomes part of a path.
pub(super) fn is_id(text: &str) -> bool {
    let hex = text.strip_prefix("bld_").unwrap_or_default();
    hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn build(id: &str, status: BuildStatus) -> Build {
    Build { build_id: id.to_owned(), status, message: None, reason: None, is_final: false }
}

fn failed(id: &str, failure: &Failure) -> Build {
    Build {
        message: Some(failure.message.clone()),
        reason: Some(failure.reason.to_owned()),
        is_final: failure.is_final,
        ..build(id, BuildStatus::Failed)
    }
}
