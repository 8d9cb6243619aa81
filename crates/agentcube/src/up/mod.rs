//! `agentcube up`: everything in one process, from the lock on the data directory to the last drained part.

pub(crate) mod cluster;
mod console;
pub(crate) mod definitions;
mod detach;
pub(crate) mod footprint;
mod forge;
mod gateway;
pub(crate) mod log;
mod merge;
mod offer;
mod operator;
pub(crate) mod running;
pub(crate) mod runtimes;
mod sandboxes;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentcube_node::network::Egress;
use agentcube_runtime::spawner::Spawner;
use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::access_log;
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::paths::{self, DataDir, write_private};
use crate::{memory, output};
use cluster::Cluster;
use running::{Lock, Phase, Place, Record};

/// How long parts may take to stop before the process ends without them.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube up                      # in the foreground; Ctrl-C stops it
  agentcube up --detach             # in the background; `agentcube down` stops it
  agentcube up --data-dir ./data --listen 127.0.0.1:6443 --gateway-listen 127.0.0.1:8080
  agentcube up --memory             # nothing is kept

Twice Ctrl-C stops at once. The kubeconfig, the log and all data are in the data directory.")]
pub(crate) struct Arguments {
    /// Keep everything in this directory [default: $XDG_STATE_HOME/agentcube or ~/.local/state/agentcube]
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Keep objects in memory; they are gone when it stops
    #[arg(long)]
    memory: bool,
    /// Where the API listens; port 0 is the port of the last run, or a free one
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    listen: SocketAddr,
    /// Where requests to Tasks come in; port 0 is the port of the last run, 8090, or a free one
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    gateway_listen: SocketAddr,
    /// Where the console listens, on loopback only; port 0 is the port of the last run, 8091, or a free one
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    console_listen: SocketAddr,
    /// Show this directory, read-only, to containers of the image `host`; may be given several times
    #[arg(long, value_name = "DIR")]
    host_image_dir: Vec<PathBuf>,
    /// Look for runc, crun and runsc in this directory before those of PATH; may be given several times
    #[arg(long, value_name = "DIR")]
    oci_runtime_dir: Vec<PathBuf>,
    /// The bundler of front ends, esbuild [default: that of the PATH]
    #[arg(long, value_name = "FILE")]
    bundler: Option<PathBuf>,
    /// Pods reach each other and Services, but nothing outside
    #[arg(long)]
    no_egress: bool,
    /// Leave Apps, Components and Groups alone, for controllers of them that run elsewhere
    #[arg(long)]
    no_middleware: bool,
    /// Leave FrontendIntegrations and JSBundles alone, for controllers of them that run elsewhere
    #[arg(long, conflicts_with = "bundler")]
    no_forge: bool,
    #[command(flatten)]
    access_log: access_log::Arguments,
    /// Run in the background; returns when it is ready
    #[arg(long)]
    detach: bool,
    /// Add the context `agentcube` to the kubeconfig that kubectl uses; no other file is touched
    #[arg(long)]
    merge_kubeconfig: bool,
    /// This is the process in the background
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub(crate) background: bool,
}

impl Arguments {
    pub(crate) fn data_dir(&self, environment: &Environment) -> DataDir {
        self.data_dir.as_deref().map_or_else(|| paths::default_data_dir(environment), DataDir::new)
    }
}

/// Runs until told to stop.
pub(crate) fn run(
    arguments: Arguments,
    log_filter: &str,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    if arguments.access_log.is_stdout() && (arguments.detach || arguments.background) {
        return Err(Usage(
            "--access-log -: in the background there is no standard output; name a file".into(),
        )
        .into());
    }
    let data = arguments.data_dir(environment);
    data.create().with_context(|| format!("cannot make the data directory {}", data.path().display()))?;
    if arguments.detach {
        return detach::run(&arguments, log_filter, &data);
    }
    if arguments.background {
        // The terminal that started it may close; its signals must not reach us.
        rustix::process::setsid().context("cannot leave the terminal's session")?;
    }
    let lock = Lock::take(&data)?;
    raise_open_files();
    // While there is one thread: what it starts ends with the thread that started it, and must not inherit others.
    let spawner = cluster::start_spawner(&data)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build().context("cannot start a runtime")?;
    let outcome = runtime.block_on(serve(&arguments, &data, &lock, spawner, environment));
    // Whatever has not stopped by now is not waited for.
    runtime.shutdown_background();
    lock.release();
    outcome
}

/// Each connection of a Pod takes two; what the machine allows is not always what it begins with.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the number of open files");
    }
}

async fn serve(
    arguments: &Arguments,
    data: &DataDir,
    lock: &Lock,
    spawner: Spawner,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    let mut signals = Signals::listen()?;
    let began = Instant::now();
    let starting = start(arguments, data, spawner, environment);
    let cluster = tokio::select! {
        cluster = starting => cluster?,
        () = signals.stop() => return Ok(Outcome::Done),
    };
    let kubeconfig = data.kubeconfig();
    write_private(&kubeconfig, cluster.kubeconfig().as_bytes())
        .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    if arguments.merge_kubeconfig {
        merge::run(&cluster.kubeconfig(), environment)?;
    }
    let place = Place { api: cluster.address(), gateway: cluster.gateway(), console: cluster.console() };
    lock.announce(Phase::Ready, Some(place))?;
    let banner = banner(data, &lock.record(Phase::Ready, Some(place)), began.elapsed(), arguments);
    // Nobody may be listening any more, which is no reason to stop serving.
    let _unheard = output::write(banner.as_bytes());
    tracing::info!(address = %place.api, gateway = %place.gateway, "ready");
    if arguments.background {
        detach::let_go()?;
    }
    tokio::spawn(memory::give_back());
    let failed = tokio::select! {
        () = signals.stop() => false,
        () = cluster.failed() => true,
    };
    tracing::info!("stopping");
    lock.announce(Phase::Stopping, Some(place))?;
    if !arguments.background && !failed {
        say("stopping; Ctrl-C again stops at once");
    }
    let stopped = tokio::select! {
        stopped = tokio::time::timeout(DRAIN_LIMIT, cluster.stop()) => stopped.is_ok(),
        () = signals.stop() => false,
    };
    if !stopped {
        say("stopped before everything came to its end");
        return Ok(Outcome::Failed);
    }
    if failed {
        bail!("the process that runs Pods has ended, and with it all Pods; start `agentcube up` again");
    }
    Ok(Outcome::Done)
}

/// Starts on the address of the last run if that can be had.
async fn start(
    arguments: &Arguments,
    data: &DataDir,
    spawner: Spawner,
    environment: &Environment,
) -> anyhow::Result<Cluster> {
    let directories = arguments.oci_runtime_dir.iter().filter_map(|path| std::path::absolute(path).ok());
    let remembered = remembered_address(&data.address(), arguments.listen);
    let gateway = arguments.gateway_listen;
    let gateway = gateway::bind(gateway, remembered_address(&data.gateway(), gateway))?;
    let console = arguments.console_listen;
    let console = console::bind(console, remembered_address(&data.console(), console))?;
    let path: Vec<PathBuf> = std::env::split_paths(&environment.path).collect();
    let options = cluster::Options {
        data,
        memory: arguments.memory,
        listen: remembered.filter(|address| can_listen(*address)).unwrap_or(arguments.listen),
        host_directories: arguments.host_image_dir.clone(),
        bundler: arguments.bundler.as_deref().map(std::path::absolute).transpose()?,
        runtime_directories: directories.chain(path.iter().cloned()).collect(),
        egress: if arguments.no_egress { Egress::Closed } else { Egress::Open },
        gateway,
        console,
        access_log: arguments.access_log.clone(),
        middleware: !arguments.no_middleware,
        forge: !arguments.no_forge,
        path,
    };
    let cluster = Cluster::start(options, spawner).await?;
    let addresses = [
        (data.address(), cluster.address()),
        (data.gateway(), cluster.gateway()),
        (data.console(), cluster.console()),
    ];
    for (path, address) in addresses {
        write_private(&path, address.to_string().as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(cluster)
}

/// The address of the last run, if any port will do and the rest fits.
fn remembered_address(file: &Path, wanted: SocketAddr) -> Option<SocketAddr> {
    let address: SocketAddr = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (wanted.port() == 0 && address.ip() == wanted.ip()).then_some(address)
}

/// Asked beforehand, so that a port that somebody else took meanwhile only costs the habit of using it.
fn can_listen(address: SocketAddr) -> bool {
    std::net::TcpListener::bind(address).is_ok()
}

fn banner(data: &DataDir, record: &Record, took: Duration, arguments: &Arguments) -> String {
    let kubeconfig = data.kubeconfig();
    let custom = match &arguments.data_dir {
        Some(path) => format!(" --data-dir {}", path.display()),
        None => String::new(),
    };
    let stop = if arguments.background {
        format!("agentcube down{custom}")
    } else {
        format!("Ctrl-C, or agentcube down{custom}")
    };
    let talk = match arguments.data_dir {
        Some(_) => format!("agentcube get pods --kubeconfig {}", kubeconfig.display()),
        None => "agentcube get pods".to_owned(),
    };
    let mut table = output::Table::plain();
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("API:", record.address.clone().unwrap_or_default());
    row("gateway:", record.gateway.clone().unwrap_or_default());
    row("console:", record.console.clone().unwrap_or_default());
    row("data:", if arguments.memory { "in memory".into() } else { data.path().display().to_string() });
    row("kubeconfig:", kubeconfig.display().to_string());
    if arguments.background {
        row("log:", data.log().display().to_string());
    }
    row("try:", talk);
    row("", format!("kubectl --kubeconfig {} get pods", kubeconfig.display()));
    row("stop:", stop);
    format!("AgentCube is ready after {} ms\n{}", took.as_millis(), table.indented(2))
}

/// The signals that ask to stop; from the first one on, they no longer end the process by themselves.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_remembered_for_the_same_interface_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("address");
        let wanted = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(remembered_address(&file, wanted("127.0.0.1:0")), None);
        std::fs::write(&file, "127.0.0.1:4321\n").unwrap();
        for (asked, expected) in
            [("127.0.0.1:0", Some(wanted("127.0.0.1:4321"))), ("127.0.0.1:80", None), ("127.0.0.2:0", None)]
        {
            assert_eq!(remembered_address(&file, wanted(asked)), expected, "{asked}");
        }
        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(remembered_address(&file, wanted("127.0.0.1:0")), None);
    }
}
