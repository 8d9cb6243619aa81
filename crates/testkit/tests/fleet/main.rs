//! The fast path as separate processes, under kills: an API server, controllers, and agents that are Pods. What was
//! acknowledged stays, nothing runs that should not, and in the end the registry, the objects, the agents and the kernel
//! say the same.
//!
//! Without `--whole` it is a short campaign.

mod agents;
mod alone;
mod book;
mod certificates;
mod client;
mod deaths;
mod image;
mod kernel;
mod reach;
mod storm;
mod ways;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result};

use storm::Size;
use ways::Way;

/// Longer than anything takes that goes right.
const LIMIT: Duration = Duration::from_secs(3600);
const OUTLIVES: &str = "what it runs outlives its worker, and nothing its keeper";

const SHORT: Size = Size {
    sandboxes: 160,
    clients: 6,
    controller_kills: 4,
    worker_kills: 2,
    keeper_kills: 1,
    away: Duration::from_secs(5),
    late: Duration::from_secs(3),
};
const WHOLE: Size = Size {
    sandboxes: 10_000,
    clients: 12,
    controller_kills: 20,
    worker_kills: 3,
    keeper_kills: 2,
    away: Duration::from_secs(60),
    late: Duration::from_secs(15),
};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let options = Options::from_environment();
    let size = if std::env::args().any(|argument| argument == "--whole") { WHOLE } else { SHORT };
    let mut report = Report::default();
    runtime.block_on(run(&options, size, &mut report));
    runtime.shutdown_background();
    report.close(options.strict)
}

async fn run(options: &Options, size: Size, report: &mut Report) {
    if !rustix::process::geteuid().is_root() {
        return report.skip("the fast path as processes", 1, "kernel objects are counted as root only");
    }
    let program = match build_program() {
        Ok(program) => program,
        Err(error) => return report.note("agentcube builds", Err(error)),
    };
    macro_rules! trials {
        ($($name:literal => $trial:expr),* $(,)?) => {
            $(if options.selects($name) {
                report.note($name, limited($trial).await);
            })*
        };
    }
    in_other_ways(options, &program, report).await;
    trials! {
        "an agent alone: what it runs outlives its worker, and nothing its keeper" => alone::outlives(&program, &Way::native()),
        "an agent alone: what it refuses, and what it says" => alone::refuses(&program),
        "an agent alone: its worker dies after each of its effects" => deaths::after_each_effect(&program),
        "certificates instead of tokens: who is known is served, and nobody else" => certificates::are_shown(&program),
        "an agent alone: what its sandboxes cannot reach" => reach::reach(&program),
        "a campaign: the controller, which has a log, and agents are killed" => storm::campaign(&program, size, 1),
        "a campaign: controllers, of which one stands by, and agents are killed" => storm::campaign(&program, size, 2),
        "the API server is away: FAST creates go on" => storm::away(&program, size),
    }
}

/// What holds natively holds however sandboxes are isolated.
async fn in_other_ways(options: &Options, program: &Path, report: &mut Report) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (kind, runtime) in ways::oci(&options.cache, &path) {
        let name = format!("an agent alone, by {kind}: {OUTLIVES}");
        match runtime {
            _ if !options.selects(&name) => {}
            None => report.skip(&name, 1, "it is not installed; `cargo xtask setup` gets it"),
            Some(runtime) => report.note(&name, limited(ways::by_oci(program, &runtime)).await),
        }
    }
    let name = format!("an agent alone, by containerd: {OUTLIVES}");
    match ways::containerd() {
        _ if !options.selects(&name) => {}
        None => report.skip(&name, 1, "it is not installed; `cargo xtask setup` gets it"),
        Some(programs) => report.note(&name, limited(ways::by_containerd(program, &programs)).await),
    }
}

async fn limited(tried: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::time::timeout(LIMIT, Box::pin(tried)).await.context("it does not come to an end")?
}
