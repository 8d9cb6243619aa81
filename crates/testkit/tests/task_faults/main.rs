//! Tries to break the invariants 1 to 5 of Tasks on the real code: routers, lifecycle manager and API server under faults
//! of every kind (`docs/decisions/0011-reservation.md`).
//!
//! `--only real|embedded` runs one server. For longer campaigns: `TASK_FAULTS_SECONDS` (how long a storm lasts),
//! `TASK_FAULTS_ROUNDS` (how many there are) and `TASK_FAULTS_SEED`. A failure names its seed.

mod book;
mod kills;
mod random;
mod storm;
mod wire;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::Kind;
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result};

use storm::Storm;
use world::World;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = number("TASK_FAULTS_SEED").unwrap_or(1);
    let rounds = number("TASK_FAULTS_ROUNDS").unwrap_or(1);
    let lasts = number("TASK_FAULTS_SECONDS").map(Duration::from_secs);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(async {
        if options.wants(Kind::Embedded) {
            killed(&options, &mut report).await;
            for seed in seed..seed + rounds {
                for reuse in [true, false] {
                    let lasts = lasts.unwrap_or(Duration::from_secs(15));
                    let storm = Storm { seed, lasts, keys: 200, clients: 32, reuse };
                    let name = format!("a storm on the embedded server, {}", named(&storm));
                    if options.selects(&name) {
                        report.note(&name, embedded(storm).await.with_context(|| format!("{storm:?}")));
                    }
                }
            }
        }
        let storm = Storm {
            seed,
            lasts: lasts.unwrap_or(Duration::from_secs(8)),
            keys: 60,
            clients: 16,
            reuse: true,
        };
        let name = format!("a storm on the real server, {}", named(&storm));
        if options.wants(Kind::Real) && options.selects(&name) {
            match options.binaries() {
                Ok(binaries) => {
                    let outcome = async {
                        storm::run(World::real(&binaries, storm::scaling(&storm)).await?, storm).await
                    };
                    report.note(&name, outcome.await.with_context(|| format!("{storm:?}")));
                }
                Err(error) => report.skip(&name, 1, &format!("{error:#}")),
            }
        }
    });
    runtime.shutdown_background();
    report.close(options.strict)
}

fn named(storm: &Storm) -> String {
    format!("reusePolicy {}, seed {}", if storm.reuse { "Always" } else { "Never" }, storm.seed)
}

async fn embedded(storm: Storm) -> Result<()> {
    storm::run(World::embedded(storm::scaling(&storm)).await?, storm).await
}

async fn killed(options: &Options, report: &mut Report) {
    for reuse in [true, false] {
        let policy = if reuse { "Always" } else { "Never" };
        let name = format!("a router killed after every write, reusePolicy {policy}");
        if options.selects(&name) {
            report.note(&name, kills::of_routers(reuse).await);
        }
        let name = format!("a manager killed after every write, reusePolicy {policy}");
        if options.selects(&name) {
            report.note(&name, kills::of_managers(reuse).await);
        }
    }
}
