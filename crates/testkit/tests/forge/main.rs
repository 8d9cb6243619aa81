//! Front ends: the controllers and the runner on the embedded API server and on kube-apiserver, by the same bodies; the build
//! service as a process, with the real esbuild, under what strangers send and under kills; and all of it in `agentcube up`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod builds;
mod cases;
mod deaths;
mod jobs;
mod process;
mod stage;
mod up;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::cluster::real::Controllers;
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind};
use anyhow::{Context, Result};
use futures_util::FutureExt;

/// What everything runs by.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) program: PathBuf,
    pub(crate) bundler: PathBuf,
}

impl Tools {
    /// esbuild is among the console's modules.
    fn find() -> Result<Tools> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let named = root.join("console/node_modules/esbuild/bin/esbuild");
        let bundler = agentcube_forge::service::find_bundler(Some(&named), &[]);
        let bundler = bundler.with_context(|| format!("there is no {}", named.display()))?;
        Ok(Tools { program: build_program()?, bundler })
    }
}

fn main() -> ExitCode {
    let options = Options::from_environment();
    let mut report = Report::default();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    match Tools::find() {
        Ok(tools) => runtime.block_on(run(&options, &tools, &mut report)),
        Err(error) => {
            let why = format!("{error:#}: `cargo xtask test forge` gets it");
            report.skip("front ends", 1, &why);
        }
    }
    runtime.shutdown_background();
    report.close(options.strict)
}

async fn run(options: &Options, tools: &Tools, report: &mut Report) {
    if options.wants(Kind::Embedded) {
        for (name, trial) in builds::all() {
            one(options, report, &format!("builds/{name}"), trial(tools.clone())).await;
        }
        for (name, case) in cases::all() {
            let place = stage::Place::Embedded;
            one(options, report, &format!("embedded/{name}"), case(tools.clone(), place)).await;
        }
        one(options, report, "embedded/controllers_that_die", deaths::after_every_write(tools.clone())).await;
        one(options, report, "process/exit_codes", process::exit_codes(tools.clone())).await;
        one(options, report, "up/front_ends", up::front_ends(tools.clone())).await;
    }
    let wanted: Vec<_> =
        cases::all().into_iter().filter(|(name, _)| options.selects(&format!("real/{name}"))).collect();
    if !options.wants(Kind::Real) || wanted.is_empty() {
        return;
    }
    let cluster = match options.binaries() {
        Ok(binaries) => Cluster::real_with(&binaries, Controllers::Api).await,
        Err(error) => {
            return report.skip("front ends on kube-apiserver", wanted.len(), &format!("{error:#}"));
        }
    };
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => return report.note("kube-apiserver starts", Err(error)),
    };
    for (name, case) in wanted {
        let place = stage::Place::Real(cluster.kubeconfig().into());
        one(options, report, &format!("real/{name}"), case(tools.clone(), place)).await;
    }
}

/// One trial, if it is wanted. What panics has failed.
async fn one(options: &Options, report: &mut Report, name: &str, trial: impl Future<Output = ()>) {
    if !options.selects(name) {
        return;
    }
    let outcome = AssertUnwindSafe(trial).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        anyhow::anyhow!(text.unwrap_or_else(|| "it panicked".into()))
    });
    report.note(name, outcome);
}
