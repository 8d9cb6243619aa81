//! Performs the operations of a plan. Each is one future that ends with what came of it; none changes the state of the
//! machine, and none is performed twice at once.

mod api;
mod exit;
mod ground;
mod hooks;
mod pull;
mod start;

use std::sync::Arc;

use agentcube_runtime::Exit;
use agentcube_runtime::image::{Held, Image};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::oneshot;

use super::Parts;
use super::living::Run;
use super::machine::Report;
use super::volumes::Prepared;
use super::worker::Ground;

pub(super) use api::{delete, write};
pub(super) use exit::{clean, exit};
pub(super) use ground::{remove_directory, remove_sandbox, remove_volumes, sandbox, volumes};
pub(super) use hooks::{post_start, pre_stop, probe};
pub(super) use pull::pull;
pub(super) use start::Start;

/// What an operation ended with.
pub(super) enum Outcome {
    Report(Report),
    Volumes(Prepared),
    Sandbox(Ground),
    Image { container: String, loaded: Loaded },
    Started(Box<Started>),
    Written(Written),
    Nothing,
}

/// An image that stays on the disk as long as this lives.
pub(super) struct Loaded {
    pub(super) image: Image,
    pub(super) _held: Held,
}

impl Loaded {
    /// By its digest in a registry, if it has one.
    pub(super) fn id(&self) -> String {
        let pinned = self.image.names.iter().find(|name| name.contains('@'));
        pinned.unwrap_or(&self.image.id).clone()
    }
}

/// A container whose program runs.
pub(super) struct Started {
    pub(super) container: String,
    pub(super) attempt: u32,
    pub(super) run: Run,
    pub(super) exit: oneshot::Receiver<Exit>,
}

/// What became of a status.
pub(super) enum Written {
    Accepted {
        pod: Arc<Pod>,
        status: Box<PodStatus>,
    },
    /// The Pod has changed meanwhile.
    Outdated(Arc<Pod>),
    /// Worth another try.
    Failed,
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Runs what blocks on the disk; a panic there is an error here.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("it ended badly: {error}")))
}
