//! `agentcube up` with real Pods, as a process of its own: what users do with kubectl works, with and without root, and
//! whoever is killed at whatever moment, nothing acknowledged is lost and nothing is left over.
//!
//! `--seed=NUMBER` has the kills fall at other moments.

mod kills;
mod kubectl;
mod manifests;
mod session;
mod spawner;
mod traces;
mod workload;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::suite::{Options, Report};

/// Nobody's number, for the session without root.
const SOMEBODY: u32 = 12_347;
const STEPS: usize = 13;
const SEED: u64 = 0x5eed_0003;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    let program = match build_program() {
        Ok(program) => program,
        Err(error) => return report.note("agentcube builds", Err(error)),
    };
    match options.binaries() {
        Err(error) => report.skip("kubectl sessions", 2 * STEPS, &format!("{error:#}")),
        Ok(binaries) => {
            if options.selects("session") {
                in_place(Place::new(&program), &binaries.kubectl, "session", report).await;
            }
            if options.selects("rootless") {
                rootless(&program, &binaries.kubectl, report).await;
            }
        }
    }
    if options.selects("spawner") {
        report.note("the spawner is killed", spawner::run(&program).await);
    }
    if options.selects("kills") {
        kills::run(&program, seed(), report).await;
    }
}

fn seed() -> u64 {
    std::env::args().find_map(|arg| arg.strip_prefix("--seed=")?.parse().ok()).unwrap_or(SEED)
}

async fn in_place(place: anyhow::Result<Place>, kubectl: &Path, who: &str, report: &mut Report) {
    match place {
        Ok(place) => session::run(&place, kubectl, who, report).await,
        Err(error) => report.note(&format!("{who}: a place"), Err(error)),
    }
}

/// As somebody without rights, if the machine lets such a one have namespaces of its own.
async fn rootless(program: &Path, kubectl: &Path, report: &mut Report) {
    if !rustix::process::geteuid().is_root() {
        return report.skip("rootless", STEPS, "the sessions before were without root");
    }
    if let Err(error) = user_namespaces() {
        return report.skip("rootless", STEPS, &format!("no user namespaces: {error:#}"));
    }
    in_place(Place::unprivileged(program, SOMEBODY), kubectl, "rootless", report).await;
}

fn user_namespaces() -> anyhow::Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "true"]).uid(SOMEBODY).gid(SOMEBODY).current_dir("/");
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
