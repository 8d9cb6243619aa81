//! The conformance suite: each case sends the same requests to the real kube-apiserver and to the embedded
//! one. What the real one answered is committed as a golden transcript; both must still give exactly that.
//!
//! `--record` writes the golden transcripts from the real server; `--only real|embedded` runs one server.

mod apply;
mod builtin;
mod cases;
mod crd;
mod create;
mod delete;
mod fixtures;
mod known;
mod lifecycle;
mod malformed;
mod patch;
mod read;
mod representation;
mod subresource;
mod update;
mod validation;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agentcube_testkit::difference::differences;
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind, Tape, golden};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use cases::Case;

/// Cases in flight at once: enough to hide waits, few enough for two cores.
const CONCURRENCY: usize = 8;
/// Kinds that somebody works on, on a whole cluster.
const WORKED_ON: [&str; 15] = [
    "pods",
    "deployments",
    "replicasets",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
    "services",
    "endpoints",
    "endpointslices",
    "persistentvolumeclaims",
    "persistentvolumes",
    "serviceaccounts",
    "nodes",
    "poddisruptionbudgets",
];
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
    let wanted = |case: &Case| options.selects(&case.id()) && (!options.cluster || is_quiet(case));
    let cases: Vec<Case> = cases::all().into_iter().filter(wanted).collect();
    if options.wants(Kind::Real) || options.record {
        match options.binaries() {
            Err(error) => {
                report.skip("conformance on the real kube-apiserver", cases.len(), &format!("{error:#}"))
            }
            Ok(binaries) => match Cluster::real(&binaries).await {
                Err(error) => report.note("real kube-apiserver starts", Err(error)),
                Ok(cluster) => run_on(&cluster, &cases, options, report).await,
            },
        }
    }
    if options.wants(Kind::Embedded) && !options.record {
        match Cluster::embedded().await {
            Err(error) => report.note("embedded server starts", Err(error)),
            Ok(cluster) => run_on(&cluster, &cases, options, report).await,
        }
    }
    if options.filter.is_none() && options.only.is_none() && !options.record {
        report.note("no golden transcript without a case", no_strays(&cases));
        report.note("docs/CONFORMANCE.md is in step", known::check_document(&cases));
    }
    if options.filter.is_none() && options.record {
        report.note("docs/CONFORMANCE.md", known::write_document(&cases));
    }
}

/// Whether nobody else has a hand in what a case does: on a whole cluster controllers and a kubelet work on some kinds, and
/// every namespace has a ConfigMap of its own.
fn is_quiet(case: &Case) -> bool {
    let text = std::fs::read_to_string(golden_path(case)).unwrap_or_default();
    let transcript: Value = serde_json::from_str(&text).unwrap_or_default();
    let requests = transcript.as_array().into_iter().flatten().filter_map(|entry| entry["request"].as_str());
    requests.into_iter().all(|request| {
        let (method, path) = request.split_once(' ').unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let worked_on = path.split('/').any(|part| WORKED_ON.contains(&part));
        !worked_on && (method == "POST" || !path.ends_with("/configmaps"))
    })
}

async fn run_on(cluster: &Cluster, cases: &[Case], options: &Options, report: &mut Report) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut running = JoinSet::new();
    for case in cases {
        let (case, http, permits, kind) = (*case, cluster.http.clone(), permits.clone(), cluster.kind);
        let record = options.record;
        running.spawn(async move {
            let _permit = permits.acquire().await;
            let namespace = case.namespace();
            let outcome = match Tape::new(http, &namespace).await {
                Err(error) => Err(error),
                Ok(mut tape) => {
                    let ran = (case.run)(&mut tape).await;
                    let transcript = tape.finish().await;
                    ran.and_then(|()| judge(&case, kind, &transcript, record))
                }
            };
            (format!("{}/{}", kind, case.id()), outcome)
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
    golden::root().join("conformance").join(case.area).join(format!("{}.json", case.name))
}

fn judge(case: &Case, kind: Kind, transcript: &Value, record: bool) -> Result<()> {
    let path = golden_path(case);
    if record {
        return golden::write_json(&path, transcript);
    }
    let expected = golden::read_json(&path)?;
    let mut found = differences(&expected, transcript);
    if kind == Kind::Embedded {
        for known in known::DIFFERENCES.iter().filter(|known| known.case == case.id()) {
            let before = found.len();
            found.retain(|difference| !difference.pointer.starts_with(known.pointer));
            ensure!(
                found.len() < before,
                "known difference at {} no longer occurs: remove it",
                known.pointer
            );
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = found.iter().take(SHOWN).map(|difference| format!("    {difference}")).collect();
    bail!("{} differences from {}\n{}", found.len(), case.id(), shown.join("\n"))
}

fn no_strays(cases: &[Case]) -> Result<()> {
    let root = golden::root().join("conformance");
    for area in std::fs::read_dir(&root).context("no golden transcripts")? {
        for file in std::fs::read_dir(area?.path())? {
            let path = file?.path();
            ensure!(cases.iter().any(|case| golden_path(case) == path), "{} has no case", path.display());
        }
    }
    Ok(())
}
