//! The workload controllers, ours over the embedded API server and the real ones over the real: each case is a
//! user and a kubelet with a script, and records what the cluster comes to rest in. What the real one came to is
//! committed; both must still come to exactly that.
//!
//! `--record` writes the golden files from the real cluster; `--only real|embedded` runs one of them.

mod cases;
mod cases_deployment;
mod cases_replicaset;
mod cases_services;
mod stage;
mod view;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agentcube_node::controllers::{Caches, spawn};
use agentcube_testkit::cluster::real::Controllers;
use agentcube_testkit::difference::differences;
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind, golden};
use anyhow::{Context, Result, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use cases::Case;
use stage::Stage;

/// Cases in flight at once: most of a case is waiting.
const CONCURRENCY: usize = 6;
/// Differences printed for one failed case.
const SHOWN: usize = 12;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| options.selects(&case.id())).collect();
    let binaries = match options.binaries() {
        Ok(binaries) => binaries,
        Err(error) => return report.skip("workloads on both", 2 * cases.len(), &format!("{error:#}")),
    };
    if options.wants(Kind::Real) || options.record {
        match Cluster::real_with(&binaries, Controllers::Workloads).await {
            Err(error) => report.note("the real control plane starts", Err(error)),
            Ok(cluster) => run_on(&cluster, &binaries.kubectl, &cases, options, report).await,
        }
    }
    if options.wants(Kind::Embedded) && !options.record {
        match embedded().await {
            Err(error) => report.note("the embedded control plane starts", Err(error)),
            Ok((cluster, shutdown, mut controllers)) => {
                run_on(&cluster, &binaries.kubectl, &cases, options, report).await;
                shutdown.cancel();
                while controllers.join_next().await.is_some() {}
            }
        }
    }
    if options.filter.is_none() && options.only.is_none() && !options.record {
        report.note("no golden file without a case", no_strays(&cases));
    }
}

/// The embedded API server with our controllers in this process.
async fn embedded() -> Result<(Cluster, CancellationToken, JoinSet<()>)> {
    let cluster = Cluster::embedded().await?;
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = kube::Client::try_from(config)?;
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let caches = Caches::start(&client, &mut tasks, &shutdown);
    spawn(&client, &caches, &mut tasks, &shutdown);
    Ok((cluster, shutdown, tasks))
}

async fn run_on(
    cluster: &Cluster,
    kubectl: &std::path::Path,
    cases: &[Case],
    options: &Options,
    report: &mut Report,
) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut running = JoinSet::new();
    for (number, case) in cases.iter().enumerate() {
        let (case, http, permits, kind) = (*case, cluster.http.clone(), permits.clone(), cluster.kind);
        let (kubectl, kubeconfig) = (kubectl.to_owned(), cluster.kubeconfig().to_owned());
        let record = options.record;
        running.spawn(async move {
            let _permit = permits.acquire().await;
            let outcome = async {
                let mut stage = Stage::open(http, &kubectl, &kubeconfig, &format!("case-{number}")).await?;
                (case.run)(&mut stage).await?;
                judge(&case, &stage.close(), record)
            };
            (format!("{kind}/{}", case.id()), outcome.await)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => report.note("a case panicked", Err(error.into())),
        }
    }
    outcomes.sort_by(|left, right| left.0.cmp(&right.0));
    for (name, outcome) in outcomes {
        report.note(&name, outcome);
    }
}

fn golden_path(case: &Case) -> PathBuf {
    golden::root().join("workloads").join(case.area).join(format!("{}.json", case.name))
}

fn judge(case: &Case, recorded: &Value, record: bool) -> Result<()> {
    let path = golden_path(case);
    if record {
        return golden::write_json(&path, recorded);
    }
    let found = differences(&golden::read_json(&path)?, recorded);
    if found.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = found.iter().take(SHOWN).map(|difference| format!("    {difference}")).collect();
    bail!("{} differences\n{}", found.len(), shown.join("\n"))
}

fn no_strays(cases: &[Case]) -> Result<()> {
    let root = golden::root().join("workloads");
    for area in std::fs::read_dir(&root).context("no golden files")? {
        for file in std::fs::read_dir(area?.path())? {
            let path = file?.path();
            ensure!(cases.iter().any(|case| golden_path(case) == path), "{} has no case", path.display());
        }
    }
    Ok(())
}
