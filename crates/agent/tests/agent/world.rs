//! An agent for one case, and what a controller would say to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agentcube_agent::network::Isolated;
use agentcube_agent::{Agent, Options, Parts, SandboxNetwork};
use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Claim, Entry, Fence, PauseRequest, Reason, Refusal, SandboxSpec, StartRequest, Started, StopRequest,
    StopResponse, SyncRequest, SyncResponse, Why,
};
use agentcube_protos::link::AgentApi;
use agentcube_runtime::Handlers;
use agentcube_runtime::image::{self, Store};
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::Handle;
use anyhow::{Context, Result, bail, ensure};
use futures_util::future::join_all;

static WORLDS: AtomicU32 = AtomicU32::new(0);
pub(crate) const CAPACITY: u32 = 60;

pub(crate) struct World {
    pub(crate) agent: Agent,
    pub(crate) network: Arc<Isolated>,
    pub(crate) fence: Fence,
    pub(crate) number: u32,
    spawner: Handle,
    data: PathBuf,
}

impl World {
    pub(crate) async fn new(spawner: &Handle, directory: &Path) -> Result<Self> {
        Self::with(spawner, directory, |_| {}).await
    }

    /// Another agent beside this one.
    pub(crate) async fn another(&self, change: impl FnOnce(&mut Options)) -> Result<Self> {
        let directory = self.data.parent().context("a directory")?;
        Self::with(&self.spawner, directory, change).await
    }

    async fn with(spawner: &Handle, directory: &Path, change: impl FnOnce(&mut Options)) -> Result<Self> {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let data = directory.join(format!("agent-{number}"));
        let program = std::env::current_exe()?;
        let also = program.parent().map(Path::to_owned).into_iter().collect();
        let options = image::Options { host_also: also, ..image::Options::default() };
        let native = Native::new(spawner.clone());
        let network = Arc::new(Isolated::new(spawner.clone()));
        let parts = Parts {
            spawner: spawner.clone(),
            runtimes: Handlers::from([(String::new(), Arc::new(native.clone()) as _)]),
            native: Some(native),
            images: Store::open_with(directory, options)?,
            network: network.clone(),
            data: data.clone(),
        };
        let uid = format!("uid-{number}");
        let mut options = Options {
            uid: uid.clone(),
            node: "node".into(),
            capacity: CAPACITY,
            // Nobody acknowledges anything in most cases, however slow the machine.
            dropped: Duration::from_secs(3_600),
            ..Options::new("default", "pool", "pool-agent-0")
        };
        change(&mut options);
        let agent = Agent::new(options, parts)?;
        let fence = Fence { term: 1, agent_uid: uid, incarnation: String::new() };
        let mut world = Self { agent, network, fence, number, spawner: spawner.clone(), data };
        let first = SyncRequest { fence: Some(world.fence.clone()), ..SyncRequest::default() };
        let answer = world.agent.sync(first).await?;
        world.fence.incarnation = answer.incarnation;
        world.acknowledge(answer.seq).await?;
        Ok(world)
    }

    /// Whatever is made at the first start and stays.
    pub(crate) async fn warm_up(self) -> Result<()> {
        for round in 0..2 {
            let names: Vec<String> = (0..6).map(|number| format!("warm-{round}-{number}")).collect();
            for started in join_all(names.iter().map(|name| self.started(name, &["forever"]))).await {
                started?;
            }
            // Without a freezer this is refused, and nothing is made for it.
            self.pause(&names[0], true).await?;
            for name in &names {
                self.stop(name, 0).await?;
            }
        }
        self.end().await
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.agent.shutdown().await;
        let left: Vec<_> = std::fs::read_dir(self.data.join("runs"))?.collect();
        ensure!(left.is_empty(), "directories are left: {left:?}");
        Ok(())
    }

    /// Runs of different worlds must not meet: they share the spawner.
    pub(crate) fn run(&self, name: &str) -> String {
        format!("run-{}-{name}", self.number)
    }

    pub(crate) fn claim(&self, name: &str) -> Claim {
        Claim { namespace: "default".into(), name: name.into(), pool: "pool".into(), ..Claim::default() }
    }

    pub(crate) fn order(&self, name: &str, words: &[&str]) -> StartRequest {
        StartRequest {
            fence: Some(self.fence.clone()),
            run_id: self.run(name),
            claim: Some(self.claim(name)),
            spec: Some(SandboxSpec {
                image: "host".into(),
                command: command(words),
                ..SandboxSpec::default()
            }),
            recovery_timeout_seconds: 600,
            ..StartRequest::default()
        }
    }

    pub(crate) async fn start(&self, order: StartRequest) -> Result<Result<Started, Refusal>> {
        match self.agent.start(order).await?.outcome {
            Some(Outcome::Started(started)) => Ok(Ok(started)),
            Some(Outcome::Refusal(refusal)) => Ok(Err(refusal)),
            None => bail!("an answer without an outcome"),
        }
    }

    pub(crate) async fn started(&self, name: &str, words: &[&str]) -> Result<Started> {
        self.ordered(self.order(name, words)).await
    }

    pub(crate) async fn ordered(&self, order: StartRequest) -> Result<Started> {
        self.start(order).await?.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))
    }

    pub(crate) async fn refused(&self, order: StartRequest) -> Result<Refusal> {
        self.start(order).await?.err().context("it was started")
    }

    pub(crate) async fn refused_for(&self, order: StartRequest, reason: Reason) -> Result<()> {
        let refusal = self.refused(order).await?;
        ensure!(refusal.reason() == reason, "{refusal:?} instead of {reason:?}");
        Ok(())
    }

    pub(crate) async fn pause(&self, name: &str, paused: bool) -> Result<Option<Refusal>> {
        let request = PauseRequest { paused: Some(paused), ..self.of(name) };
        Ok(self.agent.pause(request).await?.refusal)
    }

    /// Says nothing of a run, as yet.
    pub(crate) fn of(&self, name: &str) -> PauseRequest {
        PauseRequest { fence: Some(self.fence.clone()), run_id: self.run(name), ..PauseRequest::default() }
    }

    pub(crate) async fn stop(&self, name: &str, grace: u32) -> Result<StopResponse> {
        self.stop_for(name, grace, Why::Deleted).await
    }

    pub(crate) async fn stop_for(&self, name: &str, grace: u32, why: Why) -> Result<StopResponse> {
        let request = StopRequest {
            fence: Some(self.fence.clone()),
            run_id: self.run(name),
            claim: Some(self.claim(name)),
            grace_seconds: grace,
            why: why.into(),
        };
        let answer = self.agent.stop(request).await?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(answer)
    }

    pub(crate) async fn sync(&self, known: u64) -> Result<SyncResponse> {
        let request = SyncRequest {
            fence: Some(self.fence.clone()),
            known_version: known,
            wait_ms: 10_000,
            ..SyncRequest::default()
        };
        let answer = self.agent.sync(request).await?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(answer)
    }

    /// Says that an answer was received.
    pub(crate) async fn acknowledge(&self, ack: u64) -> Result<()> {
        let request = SyncRequest { fence: Some(self.fence.clone()), ack, ..SyncRequest::default() };
        let answer = self.agent.sync(request).await?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(())
    }

    /// Listens to the inventory until it says so of a run.
    pub(crate) async fn until(
        &self,
        name: &str,
        wanted: impl Fn(Option<&Entry>) -> bool,
    ) -> Result<Option<Entry>> {
        let run = self.run(name);
        let mut known = 0;
        let mut entry = None;
        let looking = async {
            loop {
                let news = self.sync(known).await?;
                if news.whole || news.gone.contains(&run) {
                    entry = None;
                }
                entry = news.entries.into_iter().find(|one| one.run_id == run).or(entry.take());
                if wanted(entry.as_ref()) {
                    return anyhow::Ok(());
                }
                known = news.version;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), looking).await;
        found.with_context(|| format!("{name} never came to it; last seen: {entry:?}"))??;
        Ok(entry)
    }

    /// What a port of a sandbox answers.
    pub(crate) async fn ask(&self, name: &str, port: u16) -> Result<String> {
        use tokio::io::AsyncReadExt;
        let sandbox = agentcube_runtime::SandboxId::new(format!("sb-{}", self.run(name)))?;
        let mut stream = self.network.connect(&sandbox, port).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }
}

/// This program, inside of a sandbox.
pub(crate) fn command(words: &[&str]) -> Vec<String> {
    let program = std::env::current_exe().expect("this program has a path");
    let program = program.to_str().expect("its path is text");
    [program, "inside"].into_iter().chain(words.iter().copied()).map(str::to_owned).collect()
}
