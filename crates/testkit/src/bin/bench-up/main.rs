//! Measures `agentcube up`: how soon it is ready and has a Pod answer, and what it costs when nothing happens:
//! `bench-up AGENTCUBE_PROGRAM [--json] [--enforce]`.

mod idle;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agentcube_testkit::Request;
use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::suite::Options;
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::json;

const STARTS: usize = 9;
/// How long it has been idle before it is looked at, and how long it is looked at.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_micros(500);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const PODS: &str = "/api/v1/namespaces/default/pods";

/// What was measured.
#[derive(Default)]
pub(crate) struct Measured {
    /// From its start until it says that it is ready: on an empty data directory, and on one that was used.
    pub(crate) ready_fresh: Vec<Duration>,
    pub(crate) ready_again: Vec<Duration>,
    /// From its start to the first answer of a Pod: one that is created as soon as it is ready, and one that was there.
    pub(crate) served_fresh: Vec<Duration>,
    pub(crate) served_again: Vec<Duration>,
    pub(crate) idle: idle::Idle,
}

fn main() -> ExitCode {
    let options = Options::from_environment();
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    match runtime.block_on(run(&options)) {
        Ok(measured) => report::print(&measured, flag("--json"), flag("--enforce")),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<Measured> {
    let program = PathBuf::from(options.filter.as_ref().context("name the agentcube program")?);
    let mut measured = Measured::default();
    eprintln!("starts");
    for _ in 0..STARTS {
        starts(&program, &mut measured).await?;
    }
    eprintln!("idle");
    let place = Place::new(&program)?;
    let up = place.start().await?;
    tokio::time::sleep(SETTLE).await;
    measured.idle = idle::measure(&[up.pid(), place.spawner()?], IDLE).await?;
    up.down(&place)?;
    Ok(measured)
}

async fn starts(program: &Path, measured: &mut Measured) -> Result<()> {
    let place = Place::new(program)?;
    let up = place.start().await?;
    measured.ready_fresh.push(up.ready_after);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"},
        "spec": {"containers": [{
            "name": "agent", "image": "host", "command": ["/.agentcube/agentcube", "sample-agent"],
        }]},
    });
    let reply = up.http.send(Request::new(Method::POST, PODS).json(&pod)).await?;
    ensure!(reply.status == 201, "{}", reply.value());
    measured.served_fresh.push(served(&up).await?);
    up.down(&place)?;
    let up = place.start().await?;
    measured.ready_again.push(up.ready_after);
    measured.served_again.push(served(&up).await?);
    up.down(&place)
}

/// Asks the Pod, through the API server, until it answers.
async fn served(up: &Up) -> Result<Duration> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    loop {
        let reply =
            up.http.send(Request::new(Method::GET, format!("{PODS}/agent:8080/proxy/healthz"))).await?;
        if reply.status == 200 {
            return Ok(up.begun.elapsed());
        }
        ensure!(Instant::now() < deadline, "the Pod does not answer: {}", reply.value());
        tokio::time::sleep(POLL).await;
    }
}
