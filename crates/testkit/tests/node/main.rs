//! `agentcube up` with real Pods, as a process of its own: what users do with kubectl works, with and without root, and
//! whoever is killed at whatever moment, nothing acknowledged is lost and nothing is left over.

mod kills;
mod manifests;
mod spawner;
mod traces;
mod workload;

use std::process::ExitCode;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::suite::{Options, Report};

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
    if options.selects("spawner") {
        report.note("the spawner is killed", spawner::run(&program).await);
    }
    if options.selects("kills") {
        kills::run(&program, report).await;
    }
}
