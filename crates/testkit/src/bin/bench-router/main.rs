//! Measures requests of bound sessions through every front, and what they cost: `bench-router AGENTCUBE_PROGRAM
//! [--json] [--enforce] [--quick] [--seconds=S] [--rounds=N]`. All contenders take turns, so that whatever else the
//! machine does meets all of them alike.

mod backend;
#[path = "../bench-reserve/fixture.rs"]
mod fixture;
#[path = "../bench-up/idle.rs"]
mod idle;
#[path = "../bench-reserve/kubelet.rs"]
mod kubelet;
mod load;
mod nothing;
mod report;
mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::envoy::Program;
use agentcube_testkit::gateway;
use agentcube_testkit::suite::Options;
use anyhow::{Context, Result};

use load::Slice;
use stage::Stage;

pub(crate) const SESSIONS: usize = 1_000;
/// Each has sessions of its own, so these divide their number.
pub(crate) const CLIENTS: [usize; 4] = [1, 10, 50, 200];

/// How long is measured.
struct Effort {
    rounds: usize,
    /// Of each contender with each number of clients, in each round.
    slice: Duration,
}

/// All slices of a contender with so many clients, one for each round.
pub(crate) struct Measured {
    pub(crate) front: &'static str,
    pub(crate) clients: usize,
    pub(crate) slices: Vec<Slice>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|arg| arg == name);
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [backend::ROLE] => single().block_on(backend::run()).map(|()| ExitCode::SUCCESS),
        // As the program runs its router.
        [nothing::ROLE] => several().block_on(nothing::run(None)).map(|()| ExitCode::SUCCESS),
        [nothing::ROLE, port] => {
            several().block_on(async { nothing::run(Some(port.parse()?)).await }).map(|()| ExitCode::SUCCESS)
        }
        [gateway::ROLE, kubeconfig, address, name] => several()
            .block_on(async { gateway::run(Path::new(kubeconfig), address.parse()?, name).await })
            .map(|()| ExitCode::SUCCESS),
        _ => effort(&arguments).and_then(|effort| {
            let results = single().block_on(run(&Options::from_environment(), &effort))?;
            Ok(report::print(&results, flag("--json"), flag("--enforce")))
        }),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn single() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime can be started")
}

fn several() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("threads can be started")
}

fn effort(arguments: &[String]) -> Result<Effort> {
    let value = |name: &str| arguments.iter().find_map(|arg| arg.strip_prefix(name));
    let quick = arguments.iter().any(|arg| arg == "--quick");
    let (rounds, seconds) = if quick { (1, 0.3) } else { (9, 1.0) };
    let rounds = value("--rounds=").map_or(Ok(rounds), str::parse).context("--rounds")?;
    let seconds = value("--seconds=").map_or(Ok(seconds), str::parse::<f64>).context("--seconds")?;
    Ok(Effort { rounds, slice: Duration::try_from_secs_f64(seconds).context("--seconds")? })
}

async fn run(options: &Options, effort: &Effort) -> Result<Vec<Measured>> {
    let program = PathBuf::from(options.filter.as_ref().context("name the agentcube program")?);
    let stage = Stage::set(&program, &Program::find(&options.cache)?).await?;
    let mut results: Vec<Measured> = Vec::new();
    for clients in CLIENTS {
        let of_front = |front: &stage::Front| Measured { front: front.name, clients, slices: Vec::new() };
        results.extend(stage.fronts.iter().map(of_front));
    }
    let (fronts, levels) = (stage.fronts.len(), CLIENTS.len());
    for round in 0..effort.rounds {
        eprintln!("round {} of {}", round + 1, effort.rounds);
        for level in 0..levels {
            // Nobody always comes after the same one.
            for turn in 0..fronts {
                let number = (turn * if round % 2 == 0 { 1 } else { fronts - 1 } + round) % fronts;
                let front = &stage.fronts[number];
                let slice = load::measure(front, stage.port, CLIENTS[level], effort.slice).await;
                let slice = slice.with_context(|| format!("{}: {}", front.name, stage.told(front)))?;
                results[level * fronts + number].slices.push(slice);
            }
        }
    }
    Ok(results)
}
