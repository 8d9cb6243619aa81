//! Cases of a crate's own tests once more on a real kube-apiserver, by the same bodies.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Instant;

use crate::cluster::real::Controllers;
use crate::suite::{Options, Report};
use crate::{Cluster, Kind};

/// The name of a case, and its body.
pub type Case = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Runs those that are wanted, on a server whose kubeconfig `use_server` gets.
pub fn run(
    options: &Options,
    suite: &str,
    cases: impl Iterator<Item = Case>,
    use_server: fn(PathBuf),
) -> ExitCode {
    let mut report = Report::default();
    let cases: Vec<Case> = cases.filter(|(name, _)| options.selects(name)).collect();
    if options.wants(Kind::Real) && !cases.is_empty() {
        on_a_server(suite, options, &cases, use_server, &mut report);
    }
    report.close(options.strict)
}

fn on_a_server(suite: &str, options: &Options, cases: &[Case], use_server: fn(PathBuf), report: &mut Report) {
    let binaries = match options.binaries() {
        Ok(binaries) => binaries,
        Err(error) => return report.skip(suite, cases.len(), &format!("{error:#}")),
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let cluster = match runtime.block_on(Cluster::real_with(&binaries, Controllers::Api)) {
        Ok(cluster) => cluster,
        Err(error) => return report.note("kube-apiserver starts", Err(error)),
    };
    use_server(cluster.kubeconfig().into());
    // One after the other: the controllers of each look after all namespaces.
    for case in cases {
        let begun = Instant::now();
        let outcome = on_a_runtime_of_its_own(case);
        println!("    {:.1} s", begun.elapsed().as_secs_f64());
        report.note(&format!("real/{}", case.0), outcome);
    }
}

/// As a test of the standard harness: what a case has left running ends with it.
fn on_a_runtime_of_its_own((_, body): &Case) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(body())));
    ran.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        anyhow::anyhow!(text.unwrap_or_else(|| "it panicked".into()))
    })
}
