//! The janitor itself: looks, asks, plans, removes, and tells of it. All that it decides is in `plan`.

use std::time::Duration;

use agentcube_api::labels::{RUNTIME_MANAGED, SANDBOX_POOL};
use agentcube_containerd::Inventory;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::counts::Counts;
use crate::plan::{Answers, Container, Existence, Plan, Removal, Suspects, plan};
use crate::{Options, observe};

/// Of Pods that go together, one look is enough.
const TOGETHER: Duration = Duration::from_secs(1);

/// Why a scan came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot see what containerd has: {0}")]
    Inventory(#[from] agentcube_runtime::Error),
}

pub struct Janitor {
    client: Client,
    inventory: Inventory,
    options: Options,
    counts: Counts,
    begun: Instant,
    suspects: Suspects,
}

impl Janitor {
    pub fn new(client: Client, inventory: Inventory, options: Options, metrics: &Registry) -> Self {
        let counts = Counts::new(metrics);
        Self { client, inventory, options, counts, begun: Instant::now(), suspects: Suspects::new() }
    }

    /// Scans until it is told to stop: at the interval, when something becomes due, and when the Pod of an agent is
    /// deleted. `node` is where this runs, for Events.
    pub async fn run(mut self, node: Option<String>, shutdown: CancellationToken) {
        let events = Recorder::start(self.client.clone(), "agentcube-janitor", node, shutdown.clone());
        let deleted = Notify::new();
        let client = self.client.clone();
        let working = async {
            loop {
                let pause = match self.scan(&events).await {
                    Ok(next) => next.map_or(self.options.interval, |next| next.min(self.options.interval)),
                    Err(error) => {
                        tracing::warn!("{error}; the next scan tries again");
                        self.options.interval
                    }
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = deleted.notified() => tokio::time::sleep(TOGETHER.min(self.options.grace)).await,
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = working => {}
            () = watch(client, &deleted) => {}
        }
    }

    /// Looks once. Says when the next container is due.
    pub async fn scan(&mut self, events: &Recorder) -> Result<Option<Duration>, Error> {
        let found = self.inventory.labelled(RUNTIME_MANAGED, Some("true")).await;
        let found = found.inspect_err(|_| self.counts.scanned("failed"))?;
        let read = |one: &agentcube_containerd::Found| Container::read(&one.id, &one.labels, one.running);
        let containers: Vec<Container> = found.iter().filter_map(read).collect();
        let answers = observe::answers(&self.client, &containers).await;
        let now = self.begun.elapsed();
        let Plan { removals, suspects, next } =
            plan(&self.suspects, &containers, &answers, now, self.options.grace);
        self.suspects = suspects;
        self.counts.scanned(if is_answered(&answers) { "done" } else { "unanswered" });
        for removal in removals {
            self.remove(&removal, events).await;
        }
        self.counts.suspects(self.suspects.len());
        Ok(next)
    }

    async fn remove(&mut self, removal: &Removal, events: &Recorder) {
        match self.inventory.remove(&removal.container.id).await {
            Ok(()) => {
                self.suspects.remove(&removal.container.id);
                self.counts.removals.removed(removal);
                removal.tell(events);
            }
            Err(error) => self.counts.removals.failed(removal, &error, "scan"),
        }
    }
}

fn is_answered(answers: &Answers) -> bool {
    answers.agents.values().chain(answers.sandboxes.values()).all(|answer| *answer != Existence::Unknown)
}

/// Notices that the Pod of an agent is deleted. Never ends: a watch that breaks is begun again.
async fn watch(client: Client, deleted: &Notify) {
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let config = watcher::Config::default().labels(SANDBOX_POOL);
    let mut events = std::pin::pin!(watcher::watcher(pods, config));
    loop {
        match events.next().await {
            Some(Ok(Event::Delete(_))) => deleted.notify_one(),
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!("Pods are not heard of: {error}");
                tokio::time::sleep(TOGETHER).await;
            }
            None => std::future::pending().await,
        }
    }
}
