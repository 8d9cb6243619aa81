//! What containerd has of ours, found by labels, and its removal. Needs nothing of an agent: the janitor works by it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use agentcube_runtime::Error;
use tonic::{Code, Status};

use crate::Options;
use crate::client::{Client, During, ask, or_gone};
use crate::container::SCRATCH;
use crate::generated::containerd::services::containers::v1 as containers;
use crate::generated::containerd::services::snapshots::v1::RemoveSnapshotRequest;
use crate::generated::containerd::services::tasks::v1 as tasks;
use crate::generated::containerd::v1::types::Status as State;

/// A killed process has ended soon, unless a disk holds it.
const ENDING: Duration = Duration::from_secs(10);
const KILL: u32 = 9;

/// A container that containerd has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: String,
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub created: i64,
    /// Its program has not ended, as far as containerd knows: it runs, stands still, or is about to run.
    pub running: bool,
}

/// The containers of one namespace of containerd. Cheap to clone.
#[derive(Clone)]
pub struct Inventory {
    pub(crate) client: Client,
    pub(crate) snapshotter: String,
}

impl Inventory {
    /// Connects with the first question. Needs a tokio runtime.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let client = Client::new(&options.socket, &options.namespace)?;
        Ok(Self { client, snapshotter: options.snapshotter.clone() })
    }

    /// All that have this label; with a value, only those that have it with that.
    pub async fn labelled(&self, label: &str, value: Option<&str>) -> Result<Vec<Found>, Error> {
        let filter = match value {
            Some(value) => format!("labels.{}=={}", quoted(label), quoted(value)),
            None => format!("labels.{}", quoted(label)),
        };
        let request = containers::ListContainersRequest { filters: vec![filter] };
        let listed = ask(self.client.containers().list(self.client.request(request))).await;
        let containers = listed.during("listing the containers")?.containers;
        // After the containers: a container whose task is not among them has none, or has lost it meanwhile.
        let request = self.client.request(tasks::ListTasksRequest::default());
        let tasks = ask(self.client.tasks().list(request)).await.during("listing the containers")?.tasks;
        // containerd calls a task by its container, in the second field.
        let running: BTreeSet<String> =
            tasks.into_iter().filter(|task| task.status() != State::Stopped).map(|task| task.id).collect();
        Ok(containers.into_iter().map(|container| found(container, &running)).collect())
    }

    /// Kills what runs of a container, and removes all that containerd has of it. One that is not there is no error.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        self.end(id).await?;
        let request = containers::GetContainerRequest { id: id.to_owned() };
        let got = or_gone(ask(self.client.containers().get(self.client.request(request))).await);
        let container = got.during("asking for the container")?.and_then(|answer| answer.container);
        let Some(container) = container else { return Ok(()) };
        if !container.snapshot_key.is_empty() {
            let snapshotter = match container.snapshotter.as_str() {
                "" => self.snapshotter.clone(),
                own => own.to_owned(),
            };
            let request = RemoveSnapshotRequest { snapshotter, key: container.snapshot_key };
            let removed = ask(self.client.snapshots().remove(self.client.request(request))).await;
            or_gone(removed).during("removing the root file system")?;
        }
        if let Some(scratch) = container.labels.get(SCRATCH) {
            remove_scratch(Path::new(scratch))?;
        }
        // Last: as long as anything is there, it can be found.
        let request = containers::DeleteContainerRequest { id: id.to_owned() };
        let deleted = ask(self.client.containers().delete(self.client.request(request))).await;
        or_gone(deleted).map(drop).during("removing the container")
    }

    /// Kills the processes of a container and waits until they have ended.
    async fn end(&self, id: &str) -> Result<(), Error> {
        let client = &self.client;
        let step = "ending the container";
        let id = || id.to_owned();
        let request = tasks::GetRequest { container_id: id(), exec_id: String::new() };
        let Some(task) = or_gone(ask(client.tasks().get(client.request(request))).await).during(step)? else {
            return Ok(());
        };
        let state = task.process.map(|process| process.status()).unwrap_or_default();
        if state != State::Stopped {
            let kill =
                tasks::KillRequest { container_id: id(), exec_id: String::new(), signal: KILL, all: true };
            or_gone(ask(client.tasks().kill(client.request(kill))).await).during(step)?;
            if matches!(state, State::Paused | State::Pausing) {
                // Somebody has frozen it by containerd. On some machines, what stands still does not end either.
                let resume = tasks::ResumeTaskRequest { container_id: id() };
                let _ended = ask(client.tasks().resume(client.request(resume))).await;
            }
            let wait = tasks::WaitRequest { container_id: id(), exec_id: String::new() };
            let ended = tokio::time::timeout(ENDING, client.tasks().wait(client.request(wait))).await;
            let late = || Status::deadline_exceeded("it was killed and does not end");
            or_gone(ended.map_err(|_| late()).during(step)?).during(step)?;
        }
        let request = tasks::DeleteTaskRequest { container_id: id() };
        match ask(client.tasks().delete(client.request(request))).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            other => other.map(drop).during(step),
        }
    }
}

fn found(container: containers::Container, running: &BTreeSet<String>) -> Found {
    let created = container.created_at.map_or(0, |at| at.seconds);
    let running = running.contains(&container.id);
    Found { id: container.id, labels: container.labels, created, running }
}

/// As containerd's filters have words that are more than letters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn remove_scratch(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::Step {
            step: "deleting the scratch directory",
            reason: format!("{}: {error}", path.display()),
        }),
        _ => Ok(()),
    }
}
