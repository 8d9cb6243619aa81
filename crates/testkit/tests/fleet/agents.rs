//! A small kubelet: for every Pod of the fleet an `agentcube sandbox-agent`, at an address of its own; started again when
//! it ends, ended with its Pod.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_protos::agent::{StatsRequest, SyncRequest};
use agentcube_protos::link::{AgentApi, Remote};
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tonic::transport::Endpoint;

use crate::certificates;
use crate::world::{LONG, LOOK, Settings, TOKEN, go, path};

/// How long it waits before it starts an agent again that has ended.
const RESTART: Duration = Duration::from_millis(200);

/// One Pod's agent.
pub(crate) struct Agent {
    pub(crate) name: String,
    uid: String,
    pub(crate) address: SocketAddr,
    words: Vec<String>,
    pub(crate) data: PathBuf,
    log: PathBuf,
    process: Mutex<Option<Process>>,
    /// How often its keeper was killed, and its worker.
    pub(crate) keepers: AtomicUsize,
    pub(crate) workers: AtomicUsize,
}

pub(crate) struct Agents {
    program: PathBuf,
    directory: PathBuf,
    pub(crate) port: u16,
    dropped: Duration,
    certificates: bool,
    pods: Api<Pod>,
    all: Mutex<BTreeMap<String, Arc<Agent>>>,
    /// What the kubelet could not do.
    pub(crate) wrong: Mutex<Vec<String>>,
}

impl Agents {
    pub(crate) fn new(
        program: &Path,
        directory: &Path,
        port: u16,
        settings: &Settings,
        client: Client,
    ) -> Result<Arc<Agents>> {
        Ok(Arc::new(Agents {
            program: program.to_owned(),
            directory: directory.to_owned(),
            port,
            dropped: settings.dropped(),
            certificates: settings.authority.is_some(),
            pods: Api::namespaced(client, "default"),
            all: Mutex::default(),
            wrong: Mutex::default(),
        }))
    }

    /// Those that run, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Agent>> {
        self.all.lock().values().cloned().collect()
    }

    pub(crate) fn of(&self, name: &str) -> Option<Arc<Agent>> {
        self.all.lock().values().find(|agent| agent.name == name).cloned()
    }

    /// Told to end, they leave nothing.
    pub(crate) async fn end(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.all.lock());
        for agent in all.into_values() {
            agent.end().await?;
        }
        Ok(())
    }

    pub(crate) fn told(&self) -> String {
        let tails =
            self.all().into_iter().filter_map(|agent| agent.process.lock().as_ref().map(Process::log_tail));
        tails.collect::<Vec<_>>().join("\n--\n")
    }

    pub(crate) async fn run(self: Arc<Self>) {
        let ours = watcher::Config::default().labels("sandbox.fast.io/agent");
        let mut events = watcher(self.pods.clone(), ours).boxed();
        let mut restart = tokio::time::interval(RESTART);
        loop {
            let tended = tokio::select! {
                Some(event) = events.next() => match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => self.tend(&pod).await,
                    _ => Ok(()),
                },
                _ = restart.tick() => self.restart(),
            };
            if let Err(error) = tended {
                self.wrong.lock().push(format!("{error:#}"));
            }
        }
    }

    /// Starts those again that have ended.
    fn restart(&self) -> Result<()> {
        for agent in self.all() {
            let mut process = agent.process.lock();
            let ended = process.as_ref().is_none_or(Process::has_ended);
            if ended {
                *process = Some(Process::start(&self.program, &agent.words, &agent.log)?);
            }
        }
        Ok(())
    }

    async fn tend(&self, pod: &Pod) -> Result<()> {
        let (name, uid) = (pod.name_any(), pod.uid().context("a UID")?);
        if pod.metadata.deletion_timestamp.is_some() {
            let agent = self.all.lock().remove(&uid);
            if let Some(agent) = agent {
                agent.end().await?;
            }
            let done = json!({ "status": { "phase": "Succeeded" } });
            // Both may have been done before.
            let _gone = self.pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(done)).await;
            let _gone = self.pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
            return Ok(());
        }
        let agent = self.all.lock().get(&uid).cloned();
        let agent = match agent {
            Some(agent) => agent,
            None => {
                let agent = Arc::new(self.agent(pod, &uid)?);
                *agent.process.lock() = Some(Process::start(&self.program, &agent.words, &agent.log)?);
                self.all.lock().insert(uid.clone(), agent.clone());
                agent
            }
        };
        let status = pod.status.clone().unwrap_or_default();
        if status.pod_ip.is_none() {
            let ip = agent.address.ip();
            let running = json!({ "metadata": { "uid": uid }, "status": { "phase": "Running", "podIP": ip,
                "podIPs": [{ "ip": ip }], "conditions": [{ "type": "Ready", "status": "True" }] } });
            self.pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(running)).await?;
        }
        Ok(())
    }

    /// What its Pod says it is, in words of the command line.
    fn agent(&self, pod: &Pod, uid: &str) -> Result<Agent> {
        let container = pod.spec.iter().flat_map(|spec| &spec.containers).next().context("a container")?;
        let value = |name: &str| -> Result<String> {
            let wanted = format!("AGENTCUBE_AGENT_{name}");
            let found = container.env.iter().flatten().find(|one| one.name == wanted);
            let found = found.with_context(|| format!("{wanted} is not said"))?;
            let field = found.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
            Ok(match (field.map(|field| field.field_path.as_str()), &found.value) {
                (Some("metadata.uid"), _) => uid.to_owned(),
                (Some("metadata.name"), _) => pod.name_any(),
                (Some("metadata.namespace"), _) => pod.namespace().unwrap_or_default(),
                (_, Some(value)) => value.clone(),
                _ => anyhow::bail!("{wanted} is said in a way that is not known here"),
            })
        };
        let index: u8 = pod.labels().get("sandbox.fast.io/agent").context("a place")?.parse()?;
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 77, index + 1), self.port));
        let data = self.directory.join(format!("agent-{uid}"));
        std::fs::create_dir_all(&data)?;
        let mut words = vec!["sandbox-agent".to_owned()];
        for (flag, value) in [
            ("--uid", value("UID")?),
            ("--name", value("NAME")?),
            ("--namespace", value("NAMESPACE")?),
            ("--pool", value("POOL")?),
            ("--capacity", value("CAPACITY")?),
            ("--runtime", value("RUNTIME")?),
            ("--listen", address.to_string()),
            ("--data-dir", path(&data)?.to_owned()),
            ("--dropped", go(self.dropped)),
        ] {
            words.extend([flag.to_owned(), value]);
        }
        words.extend(match self.certificates {
            false => ["--token-file", path(&self.directory.join("token"))?].map(str::to_owned).to_vec(),
            true => certificates::of_agent(&self.directory)?,
        });
        Ok(Agent {
            name: pod.name_any(),
            uid: uid.to_owned(),
            address,
            words,
            log: self.directory.join(format!("{}-{uid}.log", pod.name_any())),
            data,
            process: Mutex::new(None),
            keepers: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
        })
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.all.lock().clear();
    }
}

impl Agent {
    async fn end(&self) -> Result<()> {
        let Some(process) = self.process.lock().take() else { return Ok(()) };
        let pid = Pid::from_raw(process.pid().try_into()?).context("a pid")?;
        // It may have ended before.
        let _gone = kill_process(pid, Signal::TERM);
        let ending = async {
            while !process.has_ended() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, ending).await.context("the agent does not end")?;
        ensure!(!process.log().contains("panicked"), "{}", process.log_tail());
        Ok(())
    }

    /// Its keeper is killed, and with it all that it runs.
    pub(crate) fn kill_keeper(&self) -> Result<()> {
        let Some(process) = self.process.lock().take() else { return Ok(()) };
        self.keepers.fetch_add(1, Ordering::SeqCst);
        ensure!(!process.log().contains("panicked"), "{}", process.log_tail());
        process.kill();
        Ok(())
    }

    /// Its worker is killed; what it runs goes on. The kernel's number of it.
    pub(crate) fn kill_worker(&self) -> Result<Option<u32>> {
        let Some(worker) = self.worker() else { return Ok(None) };
        let pid = Pid::from_raw(worker.try_into()?).context("a pid")?;
        self.workers.fetch_add(1, Ordering::SeqCst);
        // It may have ended by itself.
        let _gone = kill_process(pid, Signal::KILL);
        Ok(Some(worker))
    }

    /// The same, as soon as there is one.
    pub(crate) async fn worker_dies(&self) -> Result<()> {
        let killing = async {
            while self.kill_worker()?.is_none() {
                tokio::time::sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LONG, killing).await.context("it never has a worker")?
    }

    pub(crate) fn log(&self) -> String {
        self.process.lock().as_ref().map(Process::log).unwrap_or_default()
    }

    /// The keeper, if it runs.
    pub(crate) fn keeper(&self) -> Option<u32> {
        self.process.lock().as_ref().map(Process::pid)
    }

    /// The worker, if one runs.
    pub(crate) fn worker(&self) -> Option<u32> {
        worker_of(self.process.lock().as_ref()?.pid())
    }

    /// How many runs it says to have: in its table, and living.
    pub(crate) async fn says(&self) -> Result<(u32, usize)> {
        let channel = Endpoint::from_shared(format!("http://{}", self.address))?.connect().await?;
        let agent = Remote::with_token(channel, TOKEN)?;
        // An old term is refused, with how much there is.
        let used = agent.sync(SyncRequest::default()).await?.used;
        let runs = agent.stats(StatsRequest::default()).await?.runs.len();
        Ok((used, runs))
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name, self.uid)
    }
}

/// The worker of a keeper, if one runs.
pub(crate) fn worker_of(keeper: u32) -> Option<u32> {
    children(keeper).into_iter().find(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"--worker")
    })
}

/// Processes whose parent this is.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        fields.split_whitespace().nth(1).and_then(|text| text.parse().ok()) == Some(parent)
    };
    numbers.filter(of).collect()
}
