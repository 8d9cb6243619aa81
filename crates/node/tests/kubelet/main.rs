//! The kubelet with everything that it uses for real: the embedded API server, the spawner, the native runtime, the
//! network, and the machine's own files as image. The programs in the Pods are this one again.

mod cases;
mod cluster;
mod inside;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agentcube_runtime::spawner::{Options, Spawner};
use anyhow::{Context, Result};
use tokio::task::JoinSet;

use cluster::Cluster;

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

type Case = (&'static str, fn(Arc<Cluster>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), |cluster| Box::pin(cases::$name(cluster)))),*]
    };
}

const CASES: &[Case] = cases![
    runs_to_completion,
    fails_and_stays_failed,
    backs_off,
    init_containers_in_order,
    readiness_follows_the_probe,
    liveness_restarts,
    exec_probes_and_hooks,
    terminates_gracefully,
    kills_what_does_not_end,
    runs_out_of_memory,
    deleted_while_starting,
    cannot_be_executed,
    bad_images,
    missing_configuration,
    refused,
    environment_and_files,
    sidecars_serve_and_end,
    deadlines_end_pods,
    gates_hold_readiness,
    many_at_once,
    registers_the_node,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__spawner"] => agentcube_runtime::spawner::main(),
        ["inside", words @ ..] => inside::main(words),
        // What tools ask test binaries for.
        ["--list", ..] => ExitCode::SUCCESS,
        words => {
            let filter = words.iter().find(|word| !word.starts_with('-')).copied().unwrap_or_default();
            match outside(filter) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error:?}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// Runs the tests: all at once on one node, then the one that restarts its node on another.
fn outside(filter: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = std::env::current_exe()?;
    let start = |name: &str| -> Result<Spawner> {
        let node = format!("kubelet-test-{}-{name}", std::process::id());
        let options = Options::new(node, directory.path().join(name));
        Spawner::start(Path::new(&program), &options).context("the spawner does not start")
    };
    let (shared, restarted) = (start("shared")?, start("restarted")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut told = Told::default();
        let cluster = Arc::new(Cluster::start(shared.into_handle()?, directory.path().join("a")).await?);
        let mut running = JoinSet::new();
        for (name, case) in CASES.iter().filter(|(name, _)| name.contains(filter)) {
            let case = case(cluster.clone());
            running.spawn(async move {
                let outcome = tokio::time::timeout(LIMIT, case).await.context("it hangs");
                (*name, outcome.and_then(|outcome| outcome))
            });
        }
        while let Some(ended) = running.join_next().await {
            let (name, outcome) = ended?;
            told.tell(name, &outcome);
        }
        if let Some(cluster) = Arc::into_inner(cluster) {
            told.tell("nothing_is_left", &cluster.stop().await);
        }
        let name = "a_restart_starts_pods_again";
        if name.contains(filter) {
            let (spawner, place) = (restarted.into_handle()?, directory.path().join("b"));
            let case = Box::pin(cases::a_restart_starts_pods_again(spawner, place));
            let outcome =
                tokio::time::timeout(LIMIT, case).await.context("it hangs").and_then(|outcome| outcome);
            told.tell(name, &outcome);
        }
        told.conclude()
    })
}

/// What was said of the tests so far, in the words of other test programs.
#[derive(Default)]
struct Told {
    passed: usize,
    failures: Vec<&'static str>,
}

impl Told {
    fn tell(&mut self, name: &'static str, outcome: &Result<()>) {
        match outcome {
            Ok(()) => {
                println!("test {name} ... ok");
                self.passed += 1;
            }
            Err(error) => {
                println!("test {name} ... FAILED: {error:?}");
                self.failures.push(name);
            }
        }
    }

    fn conclude(self) -> Result<()> {
        let verdict = if self.failures.is_empty() { "ok" } else { "FAILED" };
        let (passed, failed) = (self.passed, self.failures.len());
        println!(
            "test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
        );
        anyhow::ensure!(self.failures.is_empty(), "failed: {}", self.failures.join(", "));
        Ok(())
    }
}
