//! Measurements, run as release builds in processes of their own.

use anyhow::{Result, ensure};

use crate::process::{cargo, succeeds};
use crate::{Settings, setup};

/// The embedded API server against kube-apiserver with etcd.
pub(crate) fn apiserver(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::run(settings)?;
    let built = succeeds(cargo(&settings.root).args(["build", "--quiet", "--release", "-p", "agentcube"]))?;
    ensure!(built, "agentcube does not build");
    let mut command = cargo(&settings.root);
    command.args([
        "run",
        "--quiet",
        "--release",
        "-p",
        "agentcube-testkit",
        "--bin",
        "bench-apiserver",
        "--",
    ]);
    command.arg(settings.root.join("target/release/agentcube")).env("AGENTCUBE_CACHE", &settings.cache);
    if json {
        command.arg("--json");
    }
    if enforce {
        command.arg("--enforce");
    }
    succeeds(&mut command)
}
