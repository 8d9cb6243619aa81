//! An API server, controllers and agents, all of them processes that are killed and come back; and a small kubelet that
//! starts an agent for every Pod of the fleet.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentcube_testkit::cluster::free_port;
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::agents::Agents;
use crate::certificates::{self, Authority};

pub(crate) const POOL: &str = "fleet";
pub(crate) const SYSTEM: &str = "agentcube-system";
pub(crate) const TOKEN: &str = "a-token-of-the-fleet-suite";
pub(crate) const AGENTS: usize = 3;
/// Longer than anything takes that goes right, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// What is asked of the processes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Slots of each agent.
    pub(crate) slots: usize,
    pub(crate) lease: Duration,
    /// Times of the protocol that are not the usual ones.
    pub(crate) timing: Vec<(&'static str, Duration)>,
    pub(crate) controllers: usize,
    /// FAST creates are written to a log first.
    pub(crate) logged: bool,
    /// Who has signed what the processes show to each other; otherwise they show a token, and nothing is encrypted.
    pub(crate) authority: Option<Arc<Authority>>,
}

impl Settings {
    /// What agents have to know, too.
    pub(crate) fn dropped(&self) -> Duration {
        let changed = self.timing.iter().find(|(name, _)| *name == "dropped");
        changed.map_or(Duration::from_secs(15), |(_, duration)| *duration)
    }
}

/// The embedded API server, which comes back with what it held.
pub(crate) struct Server {
    program: PathBuf,
    directory: PathBuf,
    address: String,
    process: Mutex<Option<Process>>,
}

impl Server {
    async fn start(&self) -> Result<()> {
        let (data, kubeconfig) = (self.directory.join("data"), self.kubeconfig());
        let words = ["apiserver", "--listen", &self.address, "--data-dir", path(&data)?];
        let words = words.into_iter().chain(["--kubeconfig", path(&kubeconfig)?]).map(str::to_owned);
        let process = Process::start(&self.program, &words.collect::<Vec<_>>(), &self.directory.join("log"))?;
        process.told("ready in ").await?;
        *self.process.lock() = Some(process);
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Gone from one moment to the next.
    pub(crate) fn kill(&self) -> Result<()> {
        self.process.lock().take().context("the API server runs")?.kill();
        Ok(())
    }

    pub(crate) async fn again(&self) -> Result<()> {
        self.start().await
    }
}

/// One `agentcube fastpath` after the other, on a data directory of its own.
pub(crate) struct Controller {
    number: usize,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    process: Mutex<Option<Process>>,
}

pub(crate) struct World {
    pub(crate) program: PathBuf,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) settings: Settings,
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) agents: Arc<Agents>,
    _stop: DropGuard,
}

pub(crate) fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}

pub(crate) fn go(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

impl World {
    pub(crate) async fn start(program: &Path, settings: Settings) -> Result<World> {
        let directory = tempfile::tempdir()?;
        let token = directory.path().join("token");
        std::fs::write(&token, TOKEN)?;
        settings.authority.iter().try_for_each(|authority| authority.write_all(directory.path()))?;
        let own = directory.path().join("apiserver");
        std::fs::create_dir(&own)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let server =
            Server { program: program.to_owned(), directory: own, address, process: Mutex::new(None) };
        server.start().await?;
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        prepare(&client).await?;
        let stop = CancellationToken::new();
        let port = free_port()?;
        let agents = Agents::new(program, directory.path(), port, &settings, client.clone())?;
        tokio::spawn(stop.clone().run_until_cancelled_owned(agents.clone().run()));
        let mut world = World {
            program: program.to_owned(),
            directory,
            settings,
            server,
            client,
            controllers: Vec::new(),
            agents,
            _stop: stop.drop_guard(),
        };
        for number in 0..world.settings.controllers {
            let at = |port| SocketAddr::from((Ipv4Addr::new(127, 0, 0, 21), port));
            let (address, admin) = (at(free_port()?), at(free_port()?));
            world.controllers.push(Controller { number, address, admin, process: Mutex::new(None) });
            world.start_controller(number).await?;
        }
        world.make_pool().await?;
        Ok(world)
    }

    pub(crate) async fn start_controller(&self, number: usize) -> Result<()> {
        let controller = &self.controllers[number];
        let data = self.directory.path().join(format!("controller-{number}"));
        std::fs::create_dir_all(&data)?;
        let (token, kubeconfig) = (self.directory.path().join("token"), self.server.kubeconfig());
        let (listen, admin) = (controller.address.to_string(), controller.admin.to_string());
        let (port, lease) = (self.agents.port.to_string(), go(self.settings.lease));
        let words = ["fastpath", "--listen", &listen, "--admin-listen", &admin, "--lease", &lease];
        let words = words.into_iter().chain(["--kubeconfig", path(&kubeconfig)?, "--data-dir", path(&data)?]);
        let words = words.chain(["--token-file", path(&token)?, "--agent-port", &port]);
        let words = words.chain(["--agent-image", "agentcube:test"]);
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.extend(match &self.settings.authority {
            None => ["--agent-token-file", path(&token)?, "--log", "info"].map(str::to_owned).to_vec(),
            Some(_) => certificates::of_controller(self.directory.path())?,
        });
        words.extend(self.settings.logged.then(|| "--wal".to_owned()));
        for (name, duration) in &self.settings.timing {
            words.extend(["--timing".to_owned(), format!("{name}={}", go(*duration))]);
        }
        let log = self.directory.path().join(format!("controller-{number}.log"));
        let process = Process::start(&self.program, &words, &log)?;
        process.told("ready at ").await?;
        *controller.process.lock() = Some(process);
        Ok(())
    }

    /// Which controller leads, as soon as one does.
    pub(crate) async fn leader(&self) -> Result<usize> {
        let looking = async {
            loop {
                let leads = |one: &&Controller| one.log().is_some_and(|log| log.contains("leads in term"));
                if let Some(leader) = self.controllers.iter().find(leads) {
                    return leader.number;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, looking).await.with_context(|| format!("nobody leads\n{}", self.told()))
    }

    /// Gone from one moment to the next.
    pub(crate) fn kill_controller(&self, number: usize) -> Result<()> {
        let process = self.controllers[number].process.lock().take().context("the controller runs")?;
        ensure!(!process.log().contains("panicked"), "{}", process.log_tail());
        process.kill();
        Ok(())
    }

    async fn make_pool(&self) -> Result<()> {
        let pool = json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": POOL },
            "spec": { "capacity": { "poolMin": AGENTS, "poolMax": AGENTS },
                "maxSandboxesPerPod": self.settings.slots },
        });
        let api = objects(&self.client, "SandboxPool");
        api.create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
        Ok(())
    }

    /// A number that the leader counts.
    pub(crate) async fn counted(&self, name: &str) -> Result<Option<i64>> {
        let leader = self.leader().await?;
        let text = get(self.controllers[leader].admin, "/metrics").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.and_then(|number| number.trim().parse().ok()))
    }

    /// Ends all of it in order, so that nothing is left in the kernel.
    pub(crate) async fn end(self) -> Result<()> {
        let World { controllers, agents, _stop, server, .. } = self;
        drop(controllers);
        drop(_stop);
        agents.end().await?;
        drop(server);
        Ok(())
    }

    /// What the processes said last.
    pub(crate) fn told(&self) -> String {
        let controllers =
            self.controllers.iter().filter_map(|one| one.process.lock().as_ref().map(Process::log_tail));
        let agents = self.agents.told();
        format!("controllers:\n{}\nagents:\n{agents}", controllers.collect::<Vec<_>>().join("\n--\n"))
    }
}

impl Controller {
    pub(crate) fn log(&self) -> Option<String> {
        self.process.lock().as_ref().filter(|process| !process.has_ended()).map(Process::log)
    }
}

/// Objects of a kind of ours in the default namespace.
pub(crate) fn objects(client: &Client, kind: &str) -> Api<DynamicObject> {
    let plural = format!("{}s", kind.to_lowercase());
    let resource = ApiResource {
        group: "sandbox.fast.io".into(),
        version: "v1alpha1".into(),
        api_version: "sandbox.fast.io/v1alpha1".into(),
        kind: kind.into(),
        plural: if kind == "Sandbox" { "sandboxes".into() } else { plural },
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

async fn prepare(client: &Client) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in agentcube_api::crds() {
        definitions.create(&PostParams::default(), &definition).await?;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM } }))?;
    namespaces.create(&PostParams::default(), &system).await?;
    let served = async {
        for kind in ["Sandbox", "SandboxPool"] {
            while objects(client, kind).list(&kube::api::ListParams::default()).await.is_err() {
                tokio::time::sleep(LOOK).await;
            }
        }
    };
    tokio::time::timeout(LONG, served).await.context("the kinds are never served")
}

/// A page of this machine, without more of HTTP than it takes.
async fn get(address: SocketAddr, page: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET {page} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
