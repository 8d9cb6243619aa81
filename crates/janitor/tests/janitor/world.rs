//! A containerd with containers of agents, and API servers as cases want them.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentcube_api::{Sandbox, labels};
use agentcube_apiserver::Server;
use agentcube_containerd::{Containerd, Inventory, Options};
use agentcube_runtime::image::Source as _;
use agentcube_runtime::spawner::{self, Handle, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Runtime, SandboxId, SandboxSockets, SandboxSpec, Sandboxes, Stdio,
};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;
use tower::Service;

use crate::NAMESPACE;
use crate::daemon::Daemon;

const IMAGE: &str = "example.com/tests/probe:1";
const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const SPACE: &str = "default";

pub(crate) struct World {
    daemon: Daemon,
    directory: tempfile::TempDir,
    handle: Handle,
    containerd: Containerd,
    root: Root,
    sandbox: SandboxId,
    _sockets: SandboxSockets,
}

/// What a container says of whose it is.
#[derive(Default)]
pub(crate) struct Labels<'a> {
    pub(crate) agent: &'a str,
    pub(crate) agent_uid: &'a str,
    pub(crate) sandbox: &'a str,
    pub(crate) sandbox_uid: &'a str,
}

impl World {
    pub(crate) async fn start(programs: &Path) -> Result<Self> {
        let daemon = Daemon::start(programs)?;
        daemon.import(IMAGE, true)?;
        let directory = tempfile::tempdir()?;
        let options = spawner::Options::new(
            format!("janitor-{}", std::process::id()),
            directory.path().join("runtime"),
        );
        let handle = Spawner::start(&std::env::current_exe()?, &options)?.into_handle()?;
        let containerd =
            Containerd::connect(Self::options(&daemon, directory.path()), handle.clone()).await?;
        let root = containerd.get(IMAGE).await?.0.root;
        let spec = SandboxSpec {
            id: SandboxId::new("pod")?,
            hostname: "pod".into(),
            address: Ipv4Addr::new(10, 244, 0, 2),
            name_server: Ipv4Addr::new(10, 96, 0, 10),
        };
        let sandbox = spec.id.clone();
        let sockets = handle.create(spec).await?;
        Ok(Self { daemon, directory, handle, containerd, root, sandbox, _sockets: sockets })
    }

    fn options(daemon: &Daemon, directory: &Path) -> Options {
        Options { namespace: NAMESPACE.into(), ..Options::new(daemon.socket(), directory.join("own")) }
    }

    pub(crate) fn inventory(&self) -> Result<Inventory> {
        Ok(Inventory::new(&Self::options(&self.daemon, self.directory.path()))?)
    }

    /// A container as an agent makes it, whose program has ended or goes on.
    pub(crate) async fn container(
        &self,
        name: &str,
        labelled: Option<Labels<'_>>,
        running: bool,
    ) -> Result<()> {
        let id = ContainerId::new(format!("t{}-{name}", std::process::id()))?;
        let words: &[&str] = if running { &["wait"] } else { &["exit", "0"] };
        let all = |labels: Labels<'_>| {
            [
                (labels::RUNTIME_MANAGED, "true"),
                (labels::RUNTIME_AGENT_UID, labels.agent_uid),
                (labels::RUNTIME_AGENT_NAME, labels.agent),
                (labels::RUNTIME_NAMESPACE, SPACE),
                (labels::RUNTIME_ID, name),
                (labels::RUNTIME_CLAIM_UID, labels.sandbox_uid),
                (labels::RUNTIME_SANDBOX_NAME, labels.sandbox),
            ]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
        };
        let spec = ContainerSpec {
            scratch: self.directory.path().join("scratch").join(id.as_str()),
            id,
            sandbox: self.sandbox.clone(),
            root: self.root.clone(),
            read_only_root: false,
            args: ["/probe", "inside"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
            env: Vec::new(),
            cwd: "/".into(),
            user: User::default(),
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: Default::default(),
            no_new_privileges: true,
            seccomp: true,
            terminal: false,
            files: Vec::new(),
            tag: String::new(),
            labels: labelled.map(all).into_iter().flatten().collect(),
        };
        let process = self.containerd.start(spec, Stdio::default()).await?;
        if !running {
            process.exit.await?;
        }
        Ok(())
    }

    /// The names of the containers that are there.
    pub(crate) fn names(&self) -> Result<BTreeSet<String>> {
        let prefix = format!("t{}-", std::process::id());
        let listed = self.daemon.ctr(&["containers", "ls", "-q"])?;
        Ok(listed.lines().map(|line| line.trim_start_matches(&prefix).to_owned()).collect())
    }

    /// Removes whatever a case has left.
    pub(crate) async fn clear(&self) -> Result<()> {
        for name in self.names()? {
            self.containerd.remove(&ContainerId::new(format!("t{}-{name}", std::process::id()))?).await?;
        }
        ensure!(self.daemon.left()?.is_empty(), "{:?}", self.daemon.left()?);
        Ok(())
    }

    pub(crate) async fn stop(self) {
        self.handle.stop().await;
    }
}

/// An API server that can be out of reach.
pub(crate) struct Cluster {
    _server: Server,
    pub(crate) client: Client,
    cut: Arc<AtomicBool>,
}

impl Cluster {
    pub(crate) async fn start(with_kinds: bool) -> Result<Self> {
        let server = Server::builder().memory().embed().await?;
        let (front, cut) = (server.front(), Arc::new(AtomicBool::new(false)));
        let is_cut = cut.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (mut front, is_cut) = (front.clone(), is_cut.clone());
            async move {
                if is_cut.load(Ordering::SeqCst) {
                    return Err(Box::<dyn std::error::Error + Send + Sync>::from("the line is cut"));
                }
                front.call(request).await.map_err(Into::into)
            }
        });
        let client = Client::new(service, SPACE);
        if with_kinds {
            let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
            for definition in agentcube_api::crds() {
                if definition.spec.group == "sandbox.fast.io" {
                    definitions.create(&PostParams::default(), &definition).await?;
                }
            }
        }
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": SPACE } }))?;
        let _there = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
        Ok(Self { _server: server, client, cut })
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SPACE)
    }

    /// The Pod of an agent; its UID.
    pub(crate) async fn agent(&self, name: &str) -> Result<String> {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { labels::SANDBOX_POOL: "pool" } },
            "spec": { "containers": [{ "name": "agent", "image": "agent" }] },
        }))?;
        self.pods().create(&PostParams::default(), &pod).await?.uid().context("it has no UID")
    }

    /// A sandbox; its UID.
    pub(crate) async fn sandbox(&self, name: &str) -> Result<String> {
        let sandbox: Sandbox = serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "image": "probe", "poolRef": "pool" },
        }))?;
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), SPACE);
        sandboxes.create(&PostParams::default(), &sandbox).await?.uid().context("it has no UID")
    }
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !holds().await? {
        ensure!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::task::yield_now().await;
    }
    Ok(())
}
