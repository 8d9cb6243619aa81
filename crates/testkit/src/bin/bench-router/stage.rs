//! Everything that is measured, and what it needs: the API server with a Task and its sessions, instances, Envoys,
//! processors, the built-in gateway; each a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use agentcube_testkit::cluster::free_port;
use agentcube_testkit::cluster::process::{ServerProcess, Storage};
use agentcube_testkit::envoy::{Destination, Envoy, Plan, Processor, Program};
use agentcube_testkit::gateway;
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result};
use serde_json::json;

use crate::fixture::{self, Fixture};
use crate::{SESSIONS, backend, load, nothing};

pub(crate) const DIRECT: &str = "direct";
pub(crate) const STATIC: &str = "Envoy, static cluster";
pub(crate) const NOTHING: &str = "Envoy, ext_proc that does nothing";
pub(crate) const LOGGED: &str = "the same, and an access log";
pub(crate) const NAMED: &str = "the same, and names the instance";
pub(crate) const ROUTER: &str = "Envoy, agentcube router";
pub(crate) const GATEWAY: &str = "built-in gateway";

/// Threads of each Envoy that serve.
const CONCURRENCY: u32 = 1;
const SERVED_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A way to the instances.
pub(crate) struct Front {
    pub(crate) name: &'static str,
    /// Nothing where clients ask the instances themselves.
    pub(crate) address: Option<SocketAddr>,
    /// It leads each session to its own instance, with a token.
    pub(crate) picks: bool,
    /// Whose processor time counts.
    pub(crate) processes: Vec<u32>,
}

pub(crate) struct Stage {
    pub(crate) fronts: Vec<Front>,
    /// Of all instances.
    pub(crate) port: u16,
    envoys: Vec<(&'static str, Envoy)>,
    processes: Vec<Process>,
    server: ServerProcess,
    scratch: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn set(program: &Path, envoy: &Program) -> Result<Stage> {
        let scratch = tempfile::tempdir()?;
        let ourselves = std::env::current_exe()?;
        let backend =
            Process::start(&ourselves, &[backend::ROLE.to_owned()], &scratch.path().join("backend"))?;
        let port = backend.told(backend::READY).await?.parse()?;
        let server = ServerProcess::start(program, Storage::Memory).await?;
        eprintln!("{SESSIONS} sessions");
        sessions(&server, port).await?;
        let mut stage = Stage {
            fronts: vec![Front { name: DIRECT, address: None, picks: false, processes: Vec::new() }],
            port,
            envoys: Vec::new(),
            processes: vec![backend],
            server,
            scratch,
        };
        let addresses = || (0..SESSIONS).map(|number| (backend::address(number), port).into()).collect();
        let endpoints = || Destination::Endpoints(addresses());
        stage.add(envoy, STATIC, endpoints(), None, &[]).await?;
        for (name, logs, names) in [(NOTHING, false, false), (LOGGED, true, false), (NAMED, true, true)] {
            let log = stage.scratch.path().join(format!("nothing-{}", stage.processes.len()));
            let port = names.then(|| port.to_string());
            let arguments: Vec<String> = [nothing::ROLE.to_owned()].into_iter().chain(port).collect();
            let process = Process::start(&ourselves, &arguments, &log)?;
            let processor = Processor { addresses: vec![process.told(nothing::READY).await?.parse()?], logs };
            let destination = if names { Destination::Picked } else { endpoints() };
            stage.add(envoy, name, destination, Some(processor), &[process.pid()]).await?;
            stage.processes.push(process);
        }
        stage.add_router(program, envoy).await?;
        stage.add_gateway().await?;
        Ok(stage)
    }

    async fn add(
        &mut self,
        program: &Program,
        name: &'static str,
        destination: Destination,
        processor: Option<Processor>,
        processes: &[u32],
    ) -> Result<()> {
        let plan = Plan { destination, processor, concurrency: CONCURRENCY };
        let picks = matches!(plan.destination, Destination::Picked);
        let envoy = Envoy::start(program, &plan).await?;
        let processes = processes.iter().copied().chain([envoy.pid()]).collect();
        let front = Front { name, address: Some(envoy.address), picks, processes };
        self.envoys.push((name, envoy));
        self.add_front(front).await
    }

    async fn add_router(&mut self, program: &Path, envoy: &Program) -> Result<()> {
        let kubeconfig = self.server.kubeconfig().display().to_string();
        let arguments =
            ["router", "--kubeconfig", &kubeconfig, "--listen", "127.0.0.1:0", "--name", "bench-router"];
        let router =
            Process::start(program, &arguments.map(str::to_owned), &self.scratch.path().join("router"))?;
        let addresses = vec![router.told("ready at ").await?.parse()?];
        let processor = Some(Processor { addresses, logs: true });
        let counted = [router.pid(), self.server.pid()];
        self.processes.push(router);
        self.add(envoy, ROUTER, Destination::Picked, processor, &counted).await
    }

    async fn add_gateway(&mut self) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        gateway::listen(&self.server.http, "default", address.port()).await?;
        let (kubeconfig, log) = (self.server.kubeconfig(), self.scratch.path().join("gateway"));
        let process = gateway::start(&kubeconfig, address, "bench-gateway", &log).await?;
        let processes = vec![process.pid(), self.server.pid()];
        self.processes.push(process);
        let front = Front { name: GATEWAY, address: Some(address), picks: true, processes };
        self.add_front(front).await
    }

    /// A front counts from its first right answer on.
    async fn add_front(&mut self, front: Front) -> Result<()> {
        let answers = async {
            while load::once(&front, self.port).await.is_err() {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(SERVED_LIMIT, answers).await.is_err() {
            let told = self.told(&front);
            load::once(&front, self.port).await.with_context(|| format!("{}: {told}", front.name))?;
        }
        self.fronts.push(front);
        Ok(())
    }

    /// What the processes of a front said last.
    pub(crate) fn told(&self, front: &Front) -> String {
        let envoys = self.envoys.iter().filter(|(name, _)| *name == front.name).map(|(_, it)| it.told());
        let others = self.processes.iter().filter(|it| front.processes.contains(&it.pid()));
        envoys.chain(others.map(Process::log_tail)).collect::<Vec<_>>().join("\n")
    }
}

/// The Task, and its sessions with their instances.
async fn sessions(server: &ServerProcess, port: u16) -> Result<()> {
    gateway::install(&server.http).await?;
    let system = json!({ "metadata": { "name": fixture::SYSTEM } });
    fixture::post(&server.http, "/api/v1/namespaces", &system).await?;
    let task = Fixture::at(server.http.clone(), "agent", port, backend::address).await?;
    task.bound(0..SESSIONS).await
}
