//! The fronts: routers behind one Envoy, or gateways of which each has a door of its own. They are processes that stop in
//! order, are killed, and come back where they were.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_testkit::cluster::free_port;
use agentcube_testkit::envoy::{Destination, Envoy, Plan, Processor, Program};
use agentcube_testkit::gateway;
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::World;

const REPLICAS: usize = 2;
const LOOK: Duration = Duration::from_millis(20);

/// Where clients come in.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) addresses: Vec<SocketAddr>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Doors that were killed so far.
    kills: AtomicUsize,
    /// Those that were killed and have not come back, and those that stop or have stopped in order.
    down: [AtomicBool; REPLICAS],
    stopping: [AtomicBool; REPLICAS],
}

impl Doors {
    /// How many doors were killed so far.
    pub(crate) fn kills(&self) -> usize {
        self.state.kills.load(Ordering::SeqCst)
    }

    /// Whether a door was told to stop and has not come back.
    pub(crate) fn is_stopping(&self, door: usize) -> bool {
        self.state.stopping[door].load(Ordering::SeqCst)
    }

    /// Whether a door was killed and has not come back.
    pub(crate) fn is_down(&self, door: usize) -> bool {
        self.state.down[door].load(Ordering::SeqCst)
    }
}

/// How a replica is started.
enum Kind {
    /// `agentcube router`, behind this Envoy.
    Router {
        program: PathBuf,
        envoy: Option<Envoy>,
    },
    Gateway,
}

pub(crate) struct Fronts {
    kind: Kind,
    addresses: Vec<SocketAddr>,
    kubeconfig: PathBuf,
    logs: tempfile::TempDir,
    running: Vec<Mutex<Option<Process>>>,
    state: Arc<State>,
}

/// No connection to others comes from such an address, so none takes the port of a replica while it is away.
fn address(number: usize) -> Result<Ipv4Addr> {
    Ok(Ipv4Addr::new(127, 0, 0, u8::try_from(number)? + 11))
}

impl Fronts {
    pub(crate) async fn routers(world: &World, program: &Path, envoy: &Program) -> Result<Fronts> {
        let kind = Kind::Router { program: program.to_owned(), envoy: None };
        let mut fronts = Fronts::new(world, kind).await?;
        let processor = Some(Processor { addresses: fronts.addresses.clone(), logs: true });
        let plan = Plan { destination: Destination::Picked, processor, concurrency: 2 };
        let started = Envoy::start(envoy, &plan).await?;
        if let Kind::Router { envoy, .. } = &mut fronts.kind {
            *envoy = Some(started);
        }
        Ok(fronts)
    }

    pub(crate) async fn gateways(world: &World) -> Result<Fronts> {
        Fronts::new(world, Kind::Gateway).await
    }

    async fn new(world: &World, kind: Kind) -> Result<Fronts> {
        let mut fronts = Fronts {
            kind,
            addresses: Vec::new(),
            kubeconfig: world.kubeconfig(),
            logs: tempfile::tempdir()?,
            running: Vec::new(),
            state: Arc::default(),
        };
        // Replicas of a gateway have one port, as on machines of their own; routers are told apart by theirs.
        let shared = free_port()?;
        for number in 0..REPLICAS {
            fronts.addresses.push(match fronts.kind {
                Kind::Gateway => (address(number)?, shared).into(),
                Kind::Router { .. } => (address(number)?, free_port()?).into(),
            });
            fronts.running.push(Mutex::new(None));
        }
        if let Kind::Gateway = fronts.kind {
            world.listen(shared).await?;
        }
        for number in 0..REPLICAS {
            fronts.start(number).await?;
        }
        Ok(fronts)
    }

    pub(crate) fn doors(&self) -> Doors {
        match &self.kind {
            // Envoy stays, whatever becomes of the routers.
            Kind::Router { envoy, .. } => {
                let addresses = envoy.iter().map(|envoy| envoy.address).collect();
                Doors { addresses, state: Arc::default() }
            }
            Kind::Gateway => Doors { addresses: self.addresses.clone(), state: self.state.clone() },
        }
    }

    pub(crate) async fn start(&self, number: usize) -> Result<()> {
        let (address, name) = (self.addresses[number], format!("replica-{number}"));
        let log = self.logs.path().join(&name);
        let process = match &self.kind {
            Kind::Gateway => gateway::start(&self.kubeconfig, address, &name, &log).await?,
            Kind::Router { program, .. } => {
                let (kubeconfig, listen) = (self.kubeconfig.display().to_string(), address.to_string());
                let arguments = ["router", "--kubeconfig", &kubeconfig, "--listen", &listen, "--name", &name];
                let limits = ["--lease", "10s", "--drain", "2s"];
                let arguments: Vec<String> =
                    arguments.iter().chain(&limits).map(|&word| word.to_owned()).collect();
                let process = Process::start(program, &arguments, &log)?;
                process.told("ready at ").await?;
                process
            }
        };
        *self.running[number].lock() = Some(process);
        self.state.down[number].store(false, Ordering::SeqCst);
        self.state.stopping[number].store(false, Ordering::SeqCst);
        Ok(())
    }

    /// It is told to stop, and has its time.
    pub(crate) async fn stop(&self, number: usize) -> Result<()> {
        self.state.stopping[number].store(true, Ordering::SeqCst);
        let process = self.running[number].lock().take().context("it runs")?;
        let pid = Pid::from_raw(process.pid().try_into()?).context("it has an id")?;
        kill_process(pid, Signal::TERM)?;
        while !process.has_ended() {
            tokio::time::sleep(LOOK).await;
        }
        ensure!(!process.log().contains("panicked"), "{}", process.log_tail());
        Ok(())
    }

    /// It is gone from one moment to the next.
    pub(crate) fn kill(&self, number: usize) -> Result<()> {
        let process = self.running[number].lock().take().context("it runs")?;
        self.state.down[number].store(true, Ordering::SeqCst);
        self.state.kills.fetch_add(1, Ordering::SeqCst);
        ensure!(!process.log().contains("panicked"), "{}", process.log_tail());
        process.kill();
        Ok(())
    }

    /// What the processes said last.
    pub(crate) fn told(&self) -> String {
        let replicas = self.running.iter().filter_map(|it| it.lock().as_ref().map(Process::log_tail));
        let envoy = match &self.kind {
            Kind::Router { envoy, .. } => envoy.as_ref().map(Envoy::told),
            Kind::Gateway => None,
        };
        format!("the fronts say: {}", replicas.chain(envoy).collect::<Vec<_>>().join("\n"))
    }
}
