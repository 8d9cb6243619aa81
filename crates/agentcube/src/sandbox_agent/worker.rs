//! The worker: an agent behind gRPC, which goes on from where the last worker ended.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentcube_agent::serve::{Access, serve};
use agentcube_agent::{Agent, Options, Parts};
use agentcube_api::labels::RUNTIME_AGENT_UID;
use agentcube_containerd::Containerd;
use agentcube_node::network::{self, Egress, Network, Range};
use agentcube_runtime::ContainerId;
use agentcube_runtime::image::{self, Store};
use agentcube_runtime::keeper;
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{Handle, Snapshot};
use anyhow::{Context, bail};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::mortal::Mortal;
use super::network::{Forwarded, State};
use super::{Arguments, Credentials};
use crate::environment::Environment;
use crate::exit::Outcome;
use crate::guests::Guests;
use crate::memory;
use crate::router::{say, shutdown};
use crate::up::cluster::program_mount;
use crate::up::runtimes;

const NATIVE: &str = "native";
const CONTAINERD: &str = "containerd";
/// Of sandboxes, and of nothing else on any network: addresses for benchmarks of devices.
const SANDBOXES: &str = "198.18.0.0/16";
const SERVICES: &str = "198.19.0.0/16";

pub(super) fn run(
    arguments: Arguments,
    inherited: keeper::Worker,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().build().context("cannot start a runtime")?;
    let outcome = runtime.block_on(work(&arguments, inherited, environment));
    runtime.shutdown_background();
    outcome
}

async fn work(
    arguments: &Arguments,
    mut inherited: keeper::Worker,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    let shutdown = shutdown()?;
    let fuse = inherited.dies_after(&arguments.die_after);
    let (spawner, mut snapshot) = inherited.adopt().await.context("cannot take over the spawner")?;
    let data = arguments.data_dir(environment).canonicalize().context("the data directory is gone")?;
    let network = network(arguments, &spawner, environment).await?;
    let mut parts = parts(arguments, &spawner, &data, environment, network.clone())?;
    if arguments.runtime == CONTAINERD {
        let runtime = Box::pin(containerd(arguments, &spawner, &data, &mut snapshot)).await;
        let runtime = runtime.with_context(|| format!("--containerd {}", arguments.containerd.display()))?;
        parts.runtimes.insert(CONTAINERD.to_owned(), Arc::new(runtime));
    }
    let agent = Agent::resume(options(arguments)?, parts, snapshot).await?;
    let access = match arguments.credentials()? {
        Credentials::Token(token) => Access::Token(token),
        Credentials::Certificates(tls) => Access::Certificates(Arc::new(tls.watched()?)),
    };
    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    say(&format!("ready at {}", listener.local_addr()?));
    tokio::spawn(memory::give_back());
    let stop = CancellationToken::new();
    let heard = move |controller| network.hear(controller);
    let served = agent.clone();
    let mut serving = match fuse {
        None => tokio::spawn(serve(served, listener, access, heard, stop.clone())),
        Some(fuse) => {
            tokio::spawn(serve(Mortal { agent: served, fuse }, listener, access, heard, stop.clone()))
        }
    };
    tokio::select! {
        served = &mut serving => bail!("it serves no longer: {served:?}"),
        () = spawner.gone() => bail!("the spawner has ended, and with it all that it had started"),
        () = shutdown.cancelled() => {}
    }
    agent.shutdown().await;
    stop.cancel();
    serving.await.context("the server did not end well")??;
    Ok(Outcome::Done)
}

/// The runtime, with what it runs for the worker before us; what an agent of this UID before our keeper has left there
/// is removed.
async fn containerd(
    arguments: &Arguments,
    spawner: &Handle,
    data: &Path,
    snapshot: &mut Option<Snapshot>,
) -> Result<Containerd, agentcube_runtime::Error> {
    let options = agentcube_containerd::Options {
        namespace: arguments.containerd_namespace.clone(),
        ..agentcube_containerd::Options::new(&arguments.containerd, data.join("containerd"))
    };
    let runtime = Containerd::connect(options, spawner.clone()).await?;
    if let Some(snapshot) = snapshot {
        runtime.adopt(snapshot).await?;
    }
    let held = snapshot.iter().flat_map(|snapshot| &snapshot.containers);
    let held: Vec<ContainerId> = held.map(|held| held.id.clone()).collect();
    runtime.sweep(RUNTIME_AGENT_UID, &arguments.uid, &held).await?;
    Ok(runtime)
}

fn options(arguments: &Arguments) -> anyhow::Result<Options> {
    let name = arguments.name.as_ref().unwrap_or(&arguments.uid);
    let mut options = Options::new(&*arguments.namespace, &*arguments.pool, &**name);
    options.uid.clone_from(&arguments.uid);
    options.node.clone_from(&arguments.node);
    options.capacity = arguments.capacity;
    options.runtime.clone_from(&arguments.runtime);
    options.dropped = arguments.dropped.to_std();
    options.host_mounts = vec![program_mount()?];
    Ok(options)
}

async fn network(
    arguments: &Arguments,
    spawner: &Handle,
    environment: &Environment,
) -> anyhow::Result<Network> {
    let range = |text: &str| text.parse().context("a range of addresses");
    let layout = network::Options {
        pods: range(SANDBOXES)?,
        services: range(SERVICES)?,
        egress: if arguments.no_egress { Egress::Closed } else { Egress::Open },
        closed: closed(arguments, environment).await?,
        ..network::Options::default()
    };
    Ok(Network::new(layout, Arc::new(spawner.clone())))
}

/// What no sandbox reaches, besides what this process finds out by itself.
async fn closed(arguments: &Arguments, environment: &Environment) -> anyhow::Result<Vec<Range>> {
    let mut addresses: Vec<IpAddr> = arguments.host_address.into_iter().collect();
    if let Some(host) = &environment.api_server {
        // Nearly always an address; some clouds put a name there.
        let found = tokio::net::lookup_host((&**host, 443)).await;
        let found = found.with_context(|| format!("where is KUBERNETES_SERVICE_HOST={host}?"))?;
        addresses.extend(found.map(|found| found.ip()));
    }
    // Of the others there are none that a sandbox could reach.
    let all = addresses.iter().filter_map(|address| match address.to_canonical() {
        IpAddr::V4(address) => Some(Range::from(address)),
        IpAddr::V6(_) => None,
    });
    Ok(arguments.closed_to.iter().copied().chain(all).collect())
}

fn parts(
    arguments: &Arguments,
    spawner: &Handle,
    data: &Path,
    environment: &Environment,
    network: Network,
) -> anyhow::Result<Parts> {
    let images = image::Options { host_also: arguments.host_image_dir.clone(), ..image::Options::default() };
    let images = Store::open_with(data, images).context("cannot open the images")?;
    let own = arguments.oci_runtime_dir.iter().filter_map(|path| std::path::absolute(path).ok());
    let directories: Vec<PathBuf> = own.chain(std::env::split_paths(&environment.path)).collect();
    let forwarded = Forwarded {
        guests: Arc::new(Guests { network, spawner: spawner.clone() }),
        address: arguments.sandbox_address()?,
        ports: arguments.sandbox_ports.clone(),
        state: Mutex::new(State::default()),
    };
    Ok(Parts {
        spawner: spawner.clone(),
        runtimes: runtimes::find(spawner, directories),
        native: (arguments.runtime == NATIVE).then(|| Native::new(spawner.clone())),
        images,
        network: Arc::new(forwarded),
        data: data.join("agent"),
    })
}
