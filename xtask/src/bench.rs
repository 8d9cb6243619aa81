//! Measurements, run as release builds in processes of their own.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::process::{cargo, succeeds};
use crate::{Settings, setup};

/// The embedded API server against kube-apiserver with etcd.
pub(crate) fn apiserver(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::run(settings)?;
    run(settings, "bench-apiserver", Some(agentcube(settings)?), json, enforce)
}

/// Our containers against those of `runc` and `crun`, where the machine has them.
pub(crate) fn runtime(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    build(settings, "agentcube-testkit", &["--bin", "bench-program"])?;
    run(settings, "bench-runtime", None, json, enforce)
}

/// `agentcube up`: its start, and what it costs when idle.
pub(crate) fn up(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    run(settings, "bench-up", Some(agentcube(settings)?), json, enforce)
}

/// Builds the program that is measured.
fn agentcube(settings: &Settings) -> Result<PathBuf> {
    build(settings, "agentcube", &[])?;
    Ok(settings.root.join("target/release/agentcube"))
}

fn build(settings: &Settings, package: &str, what: &[&str]) -> Result<()> {
    let mut command = cargo(&settings.root);
    command.args(["build", "--quiet", "--release", "-p", package]).args(what);
    ensure!(succeeds(&mut command)?, "{package} does not build");
    Ok(())
}

fn run(
    settings: &Settings,
    bench: &str,
    program: Option<PathBuf>,
    json: bool,
    enforce: bool,
) -> Result<bool> {
    let mut command = cargo(&settings.root);
    command.args(["run", "--quiet", "--release", "-p", "agentcube-testkit", "--bin", bench, "--"]);
    command.args(program).env("AGENTCUBE_CACHE", &settings.cache);
    command.args(json.then_some("--json")).args(enforce.then_some("--enforce"));
    succeeds(&mut command)
}
