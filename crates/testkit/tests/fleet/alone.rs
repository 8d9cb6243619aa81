//! One `agentcube sandbox-agent`, and what a controller would say to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Claim, ConfigureRequest, Confirmed, Entry, Fence, LogsRequest, PauseRequest, Reason, SandboxSpec,
    StartRequest, StartResponse, State, StopRequest, SyncRequest, SyncResponse, Why,
};
use agentcube_protos::link::{AgentApi, Remote};
use agentcube_testkit::cluster::free_port;
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

use crate::agents::worker_of;
use crate::kernel::{self, Kernel};
use crate::ways::Way;
use crate::world::{LONG, LOOK, TOKEN, path};

/// Of the last address. The ports of sandboxes come back at the address where they were, so nobody else may be there.
static ADDRESS: AtomicU8 = AtomicU8::new(1);

pub(crate) struct Alone {
    program: PathBuf,
    way: Way,
    directory: tempfile::TempDir,
    address: SocketAddr,
    pub(crate) process: Process,
    pub(crate) fence: Fence,
    /// Of the last answer to a Sync.
    seq: AtomicU64,
    pub(crate) agent: Remote,
}

impl Alone {
    pub(crate) async fn start(program: &Path, way: &Way) -> Result<Alone> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("token"), TOKEN)?;
        let last = ADDRESS.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 78, last), free_port()?));
        let process = Self::process(program, way, directory.path(), address)?;
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        let agent = Remote::with_token(channel, TOKEN)?;
        let fence = Fence { term: 1, agent_uid: "alone".into(), incarnation: String::new() };
        let (program, way, seq) = (program.to_owned(), way.clone(), AtomicU64::new(0));
        let mut alone = Alone { program, way, directory, address, process, fence, seq, agent };
        alone.meet().await?;
        Ok(alone)
    }

    fn process(program: &Path, way: &Way, directory: &Path, address: SocketAddr) -> Result<Process> {
        let (listen, token, data) = (address.to_string(), directory.join("token"), directory.join("data"));
        let words = ["sandbox-agent", "--pool", "pool", "--uid", "alone", "--listen", &listen];
        let words = words.into_iter().chain(["--token-file", path(&token)?, "--data-dir", path(&data)?]);
        let words = words.chain(["--capacity", "8", "--runtime", &way.runtime]).map(str::to_owned);
        let words: Vec<String> = words.chain(way.words.iter().cloned()).collect();
        Process::start(program, &words, &directory.join("log"))
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn kernel(&self) -> Result<Kernel> {
        Kernel::of(&self.data(), self.process.pid())
    }

    pub(crate) async fn sync(&self, request: SyncRequest) -> Result<SyncResponse> {
        let answer = answered(&self.agent, &self.seq, request).await;
        answer.with_context(|| self.process.log_tail())
    }

    /// The first words of a controller.
    async fn meet(&mut self) -> Result<()> {
        self.fence.incarnation.clear();
        let first = SyncRequest { fence: Some(self.fence.clone()), ..SyncRequest::default() };
        self.fence.incarnation = self.sync(first).await?.incarnation;
        let second = SyncRequest { fence: Some(self.fence.clone()), ..SyncRequest::default() };
        ensure!(self.sync(second).await?.refusal.is_none());
        Ok(())
    }

    pub(crate) async fn whole(&self) -> Result<SyncResponse> {
        let request = SyncRequest { fence: Some(self.fence.clone()), ..SyncRequest::default() };
        let answer = self.sync(request).await?;
        ensure!(answer.refusal.is_none() && answer.whole, "{answer:?}");
        Ok(answer)
    }

    pub(crate) async fn entry(&self, run: &str) -> Result<Option<Entry>> {
        Ok(self.whole().await?.entries.into_iter().find(|entry| entry.run_id == run))
    }

    async fn until(&self, run: &str, wanted: impl Fn(&Entry) -> bool) -> Result<Entry> {
        let looking = async {
            loop {
                if let Some(entry) = self.entry(run).await?.filter(|entry| wanted(entry)) {
                    return anyhow::Ok(entry);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, looking).await.with_context(|| format!("{run} never comes to it"))?
    }

    pub(crate) fn order(&self, run: &str, command: &[&str]) -> StartRequest {
        let claim = Claim {
            namespace: "default".into(),
            name: format!("name-{run}"),
            pool: "pool".into(),
            ..Claim::default()
        };
        let spec = SandboxSpec {
            image: self.way.image.into(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            ..SandboxSpec::default()
        };
        StartRequest {
            fence: Some(self.fence.clone()),
            run_id: run.into(),
            claim: Some(claim),
            spec: Some(spec),
            recovery_timeout_seconds: 600,
            wait_ready_ms: 20_000,
            object: format!("{{\"the object of\": \"{run}\"}}").into_bytes(),
            ..StartRequest::default()
        }
    }

    async fn start_run(&self, order: StartRequest) -> Result<Vec<String>> {
        match self.agent.start(order).await?.outcome {
            Some(Outcome::Started(started)) => Ok(started.endpoints),
            other => bail!("{other:?}"),
        }
    }

    async fn stop_run(&self, run: &str) -> Result<()> {
        let request = StopRequest {
            fence: Some(self.fence.clone()),
            run_id: run.into(),
            why: Why::Deleted.into(),
            ..StopRequest::default()
        };
        let answer = self.agent.stop(request).await?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(())
    }

    fn worker(&self) -> Option<u32> {
        worker_of(self.process.pid())
    }

    /// Comes back when nothing runs that it has started.
    async fn nothing_runs(&self) -> Result<()> {
        let ending = async {
            while !kernel::running(&self.data(), self.way.elsewhere)?.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LONG, ending).await.context("what it has started outlives it")?
    }

    /// Told to end, it leaves nothing that runs.
    pub(crate) async fn end(&self) -> Result<()> {
        kill_process(Pid::from_raw(self.process.pid().try_into()?).context("a pid")?, Signal::TERM)?;
        let ended = async {
            while !self.process.has_ended() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, ended).await.context("it does not end")?;
        let log = self.process.log();
        ensure!(!log.contains("panicked") && !log.contains(TOKEN), "{log}");
        self.nothing_runs().await
    }

    /// Kills the worker, and comes back when another one answers.
    async fn lose_worker(&self) -> Result<()> {
        let old = self.worker().context("a worker")?;
        kill_process(Pid::from_raw(old.try_into()?).context("a pid")?, Signal::KILL)?;
        let another = async {
            while self.worker().is_none_or(|pid| pid == old) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LONG, another).await.context("there is no other worker")?;
        self.whole().await.map(drop)
    }
}

/// Asks until somebody answers, whoever works there by then; and says that the answer before, `seq`, has come.
pub(crate) async fn answered(agent: &Remote, seq: &AtomicU64, request: SyncRequest) -> Result<SyncResponse> {
    let asking = async {
        loop {
            let ack = seq.load(Ordering::Relaxed);
            match agent.sync(SyncRequest { ack, ..request.clone() }).await {
                Ok(answer) => {
                    seq.fetch_max(answer.seq, Ordering::Relaxed);
                    return answer;
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::time::timeout(LONG, asking).await.context("the agent never answers")
}

/// What a server in a sandbox answers.
pub(crate) async fn ask(endpoint: &str) -> Result<String> {
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

async fn log(alone: &Alone, run: &str) -> Result<String> {
    let mut chunks = alone.agent.logs(LogsRequest { run_id: run.into(), options: None }).await?;
    let mut text = Vec::new();
    while let Some(chunk) = chunks.next().await {
        text.extend(chunk?.content);
    }
    Ok(String::from_utf8(text)?)
}

pub(crate) const SERVES: [&str; 2] = ["/.agentcube/agentcube", "sample-agent"];
const COUNTS: [&str; 3] = ["/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done"];

pub(crate) async fn outlives(program: &Path, way: &Way) -> Result<()> {
    let mut alone = Alone::start(program, way).await?;
    let incarnation = alone.fence.incarnation.clone();
    let mut serves = alone.order("serves", &SERVES);
    serves.spec.get_or_insert_default().ports = vec![8080];
    let endpoints = alone.start_run(serves.clone()).await?;
    ensure!(endpoints.len() == 1 && ask(&endpoints[0]).await?.starts_with("HTTP/1.1"), "{endpoints:?}");
    alone.start_run(alone.order("counts", &COUNTS)).await?;
    alone.start_run(alone.order("stopped", &["/bin/sleep", "100000"])).await?;
    alone.stop_run("stopped").await?;
    alone.start_run(alone.order("paused", &["/bin/sleep", "100000"])).await?;
    let fence = Some(alone.fence.clone());
    let pause = PauseRequest {
        fence: fence.clone(),
        run_id: "paused".into(),
        paused: Some(true),
        ..PauseRequest::default()
    };
    let refusal = alone.agent.pause(pause).await?.refusal;
    ensure!(refusal.is_none() == way.freezes, "{refusal:?}");
    alone.start_run(alone.order("ends", &["/bin/sh", "-c", "exit 7"])).await?;
    alone.until("ends", |entry| entry.state() == State::Ended).await?;
    let confirmed = vec![Confirmed { run_id: "counts".into(), uid: "uid-of-counts".into() }];
    let term = Fence { term: 5, ..alone.fence.clone() };
    alone.sync(SyncRequest { fence: Some(term.clone()), confirmed, ..SyncRequest::default() }).await?;
    alone.fence = term;
    let configure =
        ConfigureRequest { fence: Some(alone.fence.clone()), capacity: 6, ..ConfigureRequest::default() };
    ensure!(alone.agent.configure(configure).await?.refusal.is_none());

    for _ in 0..3 {
        alone.lose_worker().await?;
        let told = alone.whole().await?;
        ensure!(told.incarnation == incarnation && told.term == 5 && told.capacity == 6, "{told:?}");
        ensure!(told.used == 3 && told.entries.len() == 4, "{told:?}");
        ensure!(
            told.tombstones.iter().any(|one| one.run_id == "stopped" && one.why() == Why::Deleted),
            "{told:?}"
        );
        let entry = |run: &str| told.entries.iter().find(|entry| entry.run_id == run).context("an entry");
        ensure!(entry("ends")?.exit.as_ref().is_some_and(|exit| exit.code == 7), "{told:?}");
        ensure!(entry("paused")?.paused == way.freezes && !entry("paused")?.fenced, "{told:?}");
        ensure!(entry("serves")?.endpoints == endpoints, "{told:?}");
        ensure!(!entry("serves")?.object.is_empty() && entry("counts")?.object.is_empty(), "{told:?}");
        let claim = entry("counts")?.claim.clone().unwrap_or_default();
        ensure!(claim.uid == "uid-of-counts", "{claim:?}");
        ensure!(ask(&endpoints[0]).await?.starts_with("HTTP/1.1"), "it is reached where it was");
        refused(&alone, "stopped", Reason::Tombstoned).await?;
        let again = StartRequest { fence: Some(alone.fence.clone()), ..serves.clone() };
        ensure!(alone.start_run(again).await? == endpoints, "the same order joins the run");
        let old = Fence { term: 4, ..alone.fence.clone() };
        let stale = alone.sync(SyncRequest { fence: Some(old), ..SyncRequest::default() }).await?;
        ensure!(stale.refusal.is_some_and(|it| it.reason() == Reason::StaleTerm));
    }
    grows(&alone).await?;
    alone.stop_run("counts").await?;
    alone.lose_worker().await?;
    ensure!(alone.entry("counts").await?.is_none() && alone.whole().await?.used == 2);
    dies(alone, &incarnation).await
}

/// The log has gone on, without a gap but for what the dead workers had read.
async fn grows(alone: &Alone) -> Result<()> {
    let lines = async {
        loop {
            let text = log(alone, "counts").await?;
            let last = text.lines().filter_map(|line| line.parse::<u32>().ok()).next_back().unwrap_or(0);
            if last > 60 {
                return anyhow::Ok(text.lines().count());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let lines = tokio::time::timeout(LONG, lines).await.context("the log does not grow")??;
    ensure!(lines > 50, "{lines} lines of 60");
    Ok(())
}

async fn refused(alone: &Alone, run: &str, reason: Reason) -> Result<()> {
    let StartResponse { outcome } = alone.agent.start(alone.order(run, &["/bin/true"])).await?;
    match outcome {
        Some(Outcome::Refusal(refusal)) if refusal.reason() == reason => Ok(()),
        other => bail!("{other:?} instead of {reason:?}"),
    }
}

/// With its keeper all is gone, and the next begins anew.
async fn dies(mut alone: Alone, incarnation: &str) -> Result<()> {
    // On some machines, what stands still does so until the next start.
    alone.stop_run("paused").await?;
    ensure!(!kernel::running(&alone.data(), alone.way.elsewhere)?.is_empty(), "something runs");
    kill_process(Pid::from_raw(alone.process.pid().try_into()?).context("a pid")?, Signal::KILL)?;
    alone.nothing_runs().await?;
    alone.process = Alone::process(&alone.program, &alone.way, alone.directory.path(), alone.address)?;
    alone.meet().await?;
    ensure!(alone.fence.incarnation != incarnation, "another life");
    let told = alone.whole().await?;
    ensure!(told.entries.is_empty() && told.used == 0 && told.tombstones.is_empty(), "{told:?}");
    // Told to end, it ends all that it runs.
    alone.start_run(alone.order("last", &["/bin/sleep", "100000"])).await?;
    alone.end().await
}

pub(crate) async fn refuses(program: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let short = directory.path().join("short");
    std::fs::write(&short, "short")?;
    let data = directory.path().join("data");
    let (short, data) = (path(&short)?.to_owned(), path(&data)?.to_owned());
    let table: [(&[&str], &str); 5] = [
        (&["--uid", "a", "--data-dir", &data], "--pool"),
        (&["--pool", "p", "--uid", "a", "--data-dir", &data], "--token-file"),
        (&["--pool", "p", "--uid", "../a", "--token-file", &short, "--data-dir", &data], "--uid"),
        (&["--pool", "p", "--uid", "a", "--token-file", &short, "--data-dir", &data], "16 characters"),
        (
            &[
                "--pool",
                "p",
                "--uid",
                "a",
                "--listen",
                "0.0.0.0:0",
                "--token-file",
                &short,
                "--data-dir",
                &data,
            ],
            "--sandbox-address",
        ),
    ];
    for (words, expected) in table {
        let mut command = Command::new(program);
        command.arg("sandbox-agent").args(words);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = tokio::time::timeout(Duration::from_secs(60), output).await.context("it runs")???;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(2) && said.contains(expected),
            "{words:?}: {:?} {said}",
            output.status
        );
    }
    Ok(())
}
