//! The fast path of `up`: agents that are members of this process, the controllers of Sandbox and SandboxPool, and gRPC
//! at the API server's own socket.

mod grpc;
mod left;
mod members;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_apiserver::hooks;
use agentcube_janitor::Removals;
use agentcube_node::network::Network;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use agentcube_runtime::Handlers;
use agentcube_runtime::image::Store;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::spec::Mount;
use agentcube_sandbox::{Controllers, Log, OneToken, Options, Timing};
use kube::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use members::Members;

/// Who tells by Events of what is removed, here and on machines with a janitor of their own.
const JANITOR: &str = "agentcube-janitor";

/// What members run sandboxes with.
pub(super) struct Machine {
    pub(super) spawner: Handle,
    pub(super) handlers: Handlers,
    pub(super) images: Store,
    pub(super) network: Network,
    /// A directory of the agents alone.
    pub(super) data: PathBuf,
    /// Mounted into every sandbox of the image `host`.
    pub(super) host_mounts: Vec<Mount>,
    pub(super) node: String,
}

/// The fast path, running.
pub(super) struct Sandboxes {
    members: Arc<Members>,
    service: Arc<dyn hooks::Grpc>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Sandboxes {
    /// Starts; comes back when sandboxes can be made. With a log, what FAST has acknowledged outlives this process.
    pub(super) async fn start(
        client: Client,
        machine: Machine,
        token: &str,
        metrics: &Registry,
        log: Option<PathBuf>,
    ) -> anyhow::Result<Sandboxes> {
        let log = log.map(|path| Log::open(&path)).transpose()?;
        // Before anything changes what objects say of an earlier process.
        let left = left::find(&machine.data, &client, log.as_ref()).await;
        let node = machine.node.clone();
        let members = Arc::new(Members::new(machine));
        // The server ends with this process, so nothing that was sent to it takes effect later than its answer.
        let timing = Timing { late: Duration::ZERO, ..Timing::default() };
        // Members are there at once: a create that finds no room waits for another one.
        let options = Options { timing, wait_for_agent: Duration::from_secs(5), log, ..Options::default() };
        let access = Arc::new(OneToken::new(token));
        let stop = CancellationToken::new();
        let events = Recorder::start(client.clone(), JANITOR, Some(node), stop.clone());
        let removals = Removals::new(metrics);
        let controllers = Controllers::new(client, members.clone(), access, options, metrics);
        let service = Arc::new(grpc::Served(controllers.fastpath()));
        let ready = controllers.ready();
        let running = tokio::spawn(controllers.run(stop.clone()));
        ready.await;
        // Nobody waits for that.
        tokio::task::spawn_blocking(move || left.remove(&removals, &events));
        Ok(Sandboxes { members, service, stop, running })
    }

    /// Answers what comes to the API server as gRPC.
    pub(super) fn service(&self) -> Arc<dyn hooks::Grpc> {
        self.service.clone()
    }

    /// Stops the controllers, then what runs.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the controllers of sandboxes did not end well");
        }
        self.members.shutdown().await;
    }
}
