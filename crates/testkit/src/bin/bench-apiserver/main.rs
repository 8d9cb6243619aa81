//! Measures the embedded API server against kube-apiserver with etcd, in one run on one machine:
//! `bench-apiserver AGENTCUBE_PROGRAM [--json] [--enforce]`. Both sides get the same client, the same objects
//! and the same time, each server in a process of its own.

mod load;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use agentcube_testkit::cluster::process::{ServerProcess, Storage};
use agentcube_testkit::cluster::real::Real;
use agentcube_testkit::suite::Options;
use anyhow::{Context, Result};

use load::Measured;

fn main() -> ExitCode {
    let options = Options::from_environment();
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    match runtime.block_on(run(&options)) {
        Ok(results) => report::print(&results, flag("--json"), flag("--enforce")),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was measured of each server.
pub(crate) struct Results {
    pub(crate) memory: Measured,
    pub(crate) durable: Measured,
    pub(crate) real: Measured,
}

async fn run(options: &Options) -> Result<Results> {
    let program = PathBuf::from(options.filter.as_ref().context("name the agentcube program")?);
    let binaries = options.binaries()?;
    eprintln!("embedded, in memory");
    let server = ServerProcess::start(&program, Storage::Memory).await?;
    let memory = load::measure(&server.http, server.start_time, || server.resident_bytes()).await?;
    server.kill();
    eprintln!("embedded, durable");
    let directory = tempfile::tempdir()?;
    let server = ServerProcess::start(&program, Storage::Directory(directory.path())).await?;
    let durable = load::measure(&server.http, server.start_time, || server.resident_bytes()).await?;
    server.kill();
    eprintln!("kube-apiserver and etcd");
    let server = Real::start_api(&binaries).await?;
    let real = load::measure(&server.client()?, server.start_time(), || server.resident_bytes()).await?;
    Ok(Results { memory, durable, real })
}
