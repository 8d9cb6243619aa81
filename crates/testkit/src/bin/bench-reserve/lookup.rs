//! Finding the instance of a bound session in memory. The router is a process of its own, so that its memory is that of
//! a router and nothing else; the server is another.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentcube_instance::TaskId;
use agentcube_instance::reserve::Reserver;
use agentcube_testkit::cluster::process::{ServerProcess, Storage};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Fixture};
use crate::{connect, router};

pub(crate) const SESSIONS: [usize; 3] = [1, 1_000, 100_000];
const LOOKUPS: usize = 200_000;
/// Until the watch has brought all sessions.
const KNOWN_LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);

/// What was measured with so many sessions.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) sessions: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Memory that the router alone uses, after it has served each session once.
    pub(crate) memory_bytes: u64,
}

/// Fills the server step by step, and has the router measure after each.
pub(crate) async fn measure(agentcube: &Path) -> Result<Vec<Measured>> {
    let server = ServerProcess::start(agentcube, Storage::Memory).await?;
    fixture::install(&server.http).await?;
    let fixture = Fixture::new(server.http.clone(), "agent").await?;
    let mut router = Router::start(&server.kubeconfig(), &fixture.task)?;
    let mut measured = Vec::new();
    let mut filled = 0;
    for sessions in SESSIONS {
        eprintln!("    {sessions} sessions");
        fixture.bound(filled..sessions).await?;
        filled = sessions;
        measured.push(router.ask(sessions)?);
    }
    server.kill();
    Ok(measured)
}

/// The router's process. Answers each line with a number of sessions with a line of what it measured.
struct Router {
    process: Child,
}

impl Router {
    fn start(kubeconfig: &Path, task: &TaskId) -> Result<Router> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([crate::ROUTER, &kubeconfig.display().to_string(), &task.name, &task.uid]);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        Ok(Router { process })
    }

    fn ask(&mut self, sessions: usize) -> Result<Measured> {
        writeln!(self.process.stdin.as_mut().context("it is a pipe")?, "{sessions}")?;
        let mut line = Vec::new();
        let output = self.process.stdout.as_mut().context("it is a pipe")?;
        // Byte by byte: nothing of the next answer is to be lost.
        for byte in std::io::Read::bytes(output) {
            match byte? {
                b'\n' => return Ok(serde_json::from_slice(&line)?),
                byte => line.push(byte),
            }
        }
        bail!("the router has ended")
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The body of the router's process.
pub(crate) async fn serve(kubeconfig: &Path, task: &str, uid: &str) -> Result<()> {
    let reserver = router(connect(kubeconfig).await?).await?;
    tokio::spawn(reserver.clone().run(CancellationToken::new()));
    reserver.ready().await;
    let task = TaskId { namespace: "default".into(), name: task.into(), uid: uid.into() };
    for line in std::io::stdin().lock().lines() {
        let sessions = line?.parse()?;
        known(&reserver, &task, sessions).await?;
        // Before there are keys to ask by: those come with requests, and go with them.
        let memory_bytes = own_memory()?;
        let measured = Measured { memory_bytes, ..time(&reserver, &task, sessions)? };
        println!("{}", serde_json::to_string(&measured)?);
    }
    Ok(())
}

/// Waits until every session can be served, and serves each once.
async fn known(reserver: &Reserver, task: &TaskId, sessions: usize) -> Result<()> {
    let limit = Instant::now() + KNOWN_LIMIT;
    for number in 0..sessions {
        let key = fixture::key(number)?;
        while reserver.lookup(task, &key).is_none() {
            ensure!(Instant::now() < limit, "the router does not hear of session {key}");
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

fn time(reserver: &Reserver, task: &TaskId, sessions: usize) -> Result<Measured> {
    let keys = (0..sessions).map(fixture::key).collect::<Result<Vec<_>>>()?;
    let mut times = Vec::with_capacity(LOOKUPS);
    let mut at = 0;
    for _ in 0..LOOKUPS {
        // A prime step meets all of them in no order that the memory has.
        at = (at + 7_919) % keys.len();
        let begun = Instant::now();
        let found = reserver.lookup(task, &keys[at]);
        times.push(begun.elapsed());
        ensure!(found.is_some(), "session {} was lost", keys[at]);
    }
    times.sort_unstable();
    let microseconds = |percent: usize| times[LOOKUPS * percent / 100].as_secs_f64() * 1e6;
    let (p50_us, p99_us) = (microseconds(50), microseconds(99));
    Ok(Measured { sessions, p50_us, p99_us, memory_bytes: 0 })
}

/// Without the pages of files.
fn own_memory() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("a line is missing")?;
    Ok(line.split_whitespace().next().context("a number is missing")?.parse::<u64>()? * 1024)
}
