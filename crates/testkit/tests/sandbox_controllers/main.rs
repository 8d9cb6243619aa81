//! The controllers of Sandboxes and the fast path on a real kube-apiserver: the cases of `crates/sandbox/tests/cases`, by
//! the same bodies that run there on the embedded one.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../sandbox/tests/cases/mod.rs"]
mod cases;
#[path = "../../../sandbox/tests/stage/mod.rs"]
mod stage;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use agentcube_testkit::cluster::real::Controllers;
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind};

use cases::Case;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let mut report = Report::default();
    run(&options, &mut report);
    report.close(options.strict)
}

fn run(options: &Options, report: &mut Report) {
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| options.selects(case.name)).collect();
    if !options.wants(Kind::Real) || cases.is_empty() {
        return;
    }
    let binaries = match options.binaries() {
        Ok(binaries) => binaries,
        Err(error) => return report.skip("sandbox-controllers", cases.len(), &format!("{error:#}")),
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let cluster = match runtime.block_on(Cluster::real_with(&binaries, Controllers::Api)) {
        Ok(cluster) => cluster,
        Err(error) => return report.note("kube-apiserver starts", Err(error)),
    };
    stage::server::use_server(cluster.kubeconfig().into());
    // One after the other: the controllers of each look after all namespaces.
    for case in cases {
        let begun = Instant::now();
        let outcome = on_a_runtime_of_its_own(&case);
        println!("    {:.1} s", begun.elapsed().as_secs_f64());
        report.note(&format!("real/{}", case.name), outcome);
    }
}

/// As a test of the standard harness: what a case has left running ends with it.
fn on_a_runtime_of_its_own(case: &Case) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on((case.run)())));
    ran.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        anyhow::anyhow!(text.unwrap_or_else(|| "it panicked".into()))
    })
}
