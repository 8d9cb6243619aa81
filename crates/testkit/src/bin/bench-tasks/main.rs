//! Measures Tasks on a real API server: a thousand of them applied until all are served, and what the controllers and a
//! router cost with a thousand idle instances: `bench-tasks [--json] [--enforce]`. Controllers and router are processes
//! of their own.

#[path = "../bench-up/idle.rs"]
mod idle;
#[path = "../bench-reserve/kubelet.rs"]
mod kubelet;
mod load;
mod report;
mod roles;

use std::path::Path;
use std::process::ExitCode;

use agentcube_testkit::suite::Options;
use anyhow::Result;

fn main() -> ExitCode {
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [roles::CONTROLLER, kubeconfig] => {
            runtime.block_on(roles::controller(Path::new(kubeconfig))).map(|()| ExitCode::SUCCESS)
        }
        [roles::ROUTER, kubeconfig] => {
            runtime.block_on(roles::router(Path::new(kubeconfig))).map(|()| ExitCode::SUCCESS)
        }
        _ => runtime
            .block_on(run(&Options::from_environment()))
            .map(|measured| report::print(&measured, flag("--json"), flag("--enforce"))),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(options: &Options) -> Result<load::Measured> {
    load::measure(&options.binaries()?).await
}
