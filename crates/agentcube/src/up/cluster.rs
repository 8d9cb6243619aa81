//! The parts that `up` runs, started in order and stopped in the reverse order.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentcube_apiserver::hooks::{self, Hooks};
use agentcube_apiserver::{Handle, Server};
use agentcube_node::{Node, kubelet, network, scheduler};
use agentcube_operator::metrics::Registry;
use agentcube_runtime::image::{self, Store};
use agentcube_runtime::spawner::{self, Spawner};
use agentcube_runtime::spec::{Mount, Source};
use anyhow::Context;

use super::console::Console;
use super::operator::{self, Operator};
use super::sandboxes::{self, Sandboxes};
use super::{definitions, forge, gateway, offer, runtimes};
use crate::access_log;
use crate::paths::DataDir;

/// What the one node is called.
const NODE: &str = "agentcube";
/// Where containers of the image `host` find this program.
const PROGRAM: &str = "/.agentcube/agentcube";

/// What is asked of the parts.
pub(super) struct Options<'a> {
    pub(super) data: &'a DataDir,
    /// Objects live in memory.
    pub(super) memory: bool,
    pub(super) listen: SocketAddr,
    /// Directories that containers of the image `host` see besides the machine's programs.
    pub(super) host_directories: Vec<PathBuf>,
    /// The bundler of front ends, if it is named.
    pub(super) bundler: Option<PathBuf>,
    /// Where OCI runtimes are looked for.
    pub(super) runtime_directories: Vec<PathBuf>,
    pub(super) egress: network::Egress,
    /// The socket for requests to Tasks.
    pub(super) gateway: TcpListener,
    /// The socket for browsers.
    pub(super) console: TcpListener,
    pub(super) access_log: access_log::Arguments,
    /// Apps are looked after.
    pub(super) middleware: bool,
    /// Front ends are looked after.
    pub(super) forge: bool,
    /// Where programs are looked for.
    pub(super) path: Vec<PathBuf>,
}

/// Everything that runs.
pub(super) struct Cluster {
    apiserver: Handle,
    node: Node,
    operator: Operator,
    sandboxes: Sandboxes,
    console: Console,
    gateway: SocketAddr,
}

/// Starts the process that starts Pods. To be called while there is one thread.
pub(super) fn start_spawner(data: &DataDir) -> anyhow::Result<Spawner> {
    let program = this_program()?;
    let options = spawner::Options::new(node_id(data.path()), data.runtime());
    Spawner::start(&program, &options)
        .context("cannot run Pods on this machine (`agentcube doctor` says more)")
}

pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().and_then(|path| path.canonicalize()).context("cannot find this program")
}

/// Tells the cgroups of this data directory from those of others (FNV-1a: the same in every release).
pub(crate) fn node_id(data_dir: &Path) -> String {
    let bytes = data_dir.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl Cluster {
    pub(super) async fn start(options: Options<'_>, spawner: Spawner) -> anyhow::Result<Self> {
        let builder = Server::builder().listen(options.listen);
        let builder = match options.memory {
            true => builder.memory(),
            false => builder.data_dir(options.data.apiserver()),
        };
        let apiserver = builder.start().await.context("cannot start the API server")?;
        let client = kube::Client::new(apiserver.server().front(), "default");
        let spawner = spawner.into_handle()?;
        let handlers = runtimes::find(&spawner, options.runtime_directories.clone());
        let names: Vec<String> = handlers.keys().cloned().collect();
        let images =
            image::Options { host_also: options.host_directories.clone(), ..image::Options::default() };
        let images = Store::open_with(options.data.path(), images).context("cannot open the images")?;
        let parts = agentcube_node::Parts {
            client: client.clone(),
            api: apiserver.server().api().clone(),
            handlers: handlers.clone(),
            spawner: spawner.clone(),
            images: images.clone(),
        };
        let (builds, builds_at) = options.forge.then(forge::bind).transpose()?.unzip();
        let node = start_node(&options, parts, apiserver.addr(), builds_at)?;
        definitions::install(&client).await.context("cannot install the definitions of AgentCube's kinds")?;
        runtimes::install(&client, names.clone()).await?;
        let at = options.gateway.local_addr().context("the gateway's socket has no address")?;
        gateway::install(&client, at.port()).await?;
        let forge = builds.map(|listener| forge::Machine {
            listener,
            directory: options.data.builds(),
            bundler: options.bundler,
            path: options.path.clone(),
            image: offer::HOST.into(),
            program: PROGRAM.into(),
        });
        let machine = offer::Machine {
            namespace: operator::NAMESPACE,
            program: PROGRAM,
            path: options.path,
            host_directories: &options.host_directories,
            handlers: &names,
        };
        let metrics = Registry::new();
        let machine_of_sandboxes = sandboxes::Machine {
            spawner,
            handlers,
            images,
            network: node.network().clone(),
            data: options.data.sandboxes(),
            host_mounts: vec![program_mount()?],
            node: NODE.to_owned(),
        };
        // Objects in memory end with this process, and with them what was promised of them.
        let log = (!options.memory).then(|| options.data.sandbox_log());
        let sandboxes =
            Sandboxes::start(client.clone(), machine_of_sandboxes, apiserver.token(), &metrics, log);
        let operator = Operator::start(operator::Options {
            client,
            config: offer::config(&machine),
            connect: Arc::new(gateway::PodNetwork(node.network().clone())),
            listener: options.gateway,
            address: at.ip(),
            metrics: metrics.clone(),
            access_log: options.access_log,
            forge,
            middleware: options.middleware,
        });
        let (operator, sandboxes, ()) = tokio::join!(operator, sandboxes, node.ready());
        let (operator, sandboxes) = (operator?, sandboxes.context("cannot start the fast path")?);
        let api = apiserver.server().api();
        let (debug, grpc) = (Some(operator.debug()), Some(sandboxes.service()));
        let metrics: Option<hooks::Metrics> = Some(Arc::new(move || metrics.encode()));
        api.set_hooks(Hooks { metrics, debug, grpc, ..api.hooks() });
        let console = Console::start(options.console, &apiserver.kubeconfig_yaml()).await?;
        Ok(Self { apiserver, node, operator, sandboxes, console, gateway: at })
    }

    /// Where requests to Tasks come in.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Where browsers come in.
    pub(super) fn console(&self) -> SocketAddr {
        self.console.address()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.apiserver.addr()
    }

    pub(super) fn kubeconfig(&self) -> String {
        self.apiserver.kubeconfig_yaml()
    }

    /// Comes back when a part has failed that the others cannot do without.
    pub(super) async fn failed(&self) {
        self.node.failed().await;
    }

    /// Lets what is under way come to its end.
    pub(super) async fn stop(self) {
        self.console.stop().await;
        self.operator.stop().await;
        self.sandboxes.stop().await;
        self.node.stop().await;
        self.apiserver.shutdown().await;
    }
}

fn start_node(
    options: &Options<'_>,
    parts: agentcube_node::Parts,
    api_server: SocketAddr,
    builds: Option<SocketAddr>,
) -> anyhow::Result<Node> {
    let network = network::Options {
        api_server: Some(api_server),
        platform: builds.map(|at| (forge::PLATFORM, at)),
        egress: options.egress,
        ..network::Options::default()
    };
    let mut kubelet = kubelet::Options::new(NODE, options.data.node());
    kubelet.address = IpAddr::V4(network.pods.first());
    kubelet.host_mounts.push(program_mount()?);
    let options = agentcube_node::Options { kubelet, network, scheduler: scheduler::Options::default() };
    Ok(Node::start(options, parts)?)
}

/// This program, where containers of the image `host` find it.
pub(crate) fn program_mount() -> anyhow::Result<Mount> {
    Ok(Mount { target: PROGRAM.into(), source: Source::Bind(this_program()?), read_only: true })
}
