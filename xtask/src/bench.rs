//! Measurements, run as release builds in processes of their own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process::{cargo, succeeds};
use crate::{Settings, setup};

/// The embedded API server against kube-apiserver with etcd.
pub(crate) fn apiserver(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::run(settings)?;
    let program = Some(agentcube(settings)?);
    run(settings, Bench { name: "bench-apiserver", features: &[], program }, json, enforce)
}

/// Our containers against those of `runc` and `crun`, where the machine has them.
pub(crate) fn runtime(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    small_program(settings)?;
    setup::oci::run(settings)?;
    run(settings, Bench { name: "bench-runtime", features: &[], program: None }, json, enforce)
}

/// Sandboxes by the fast path against objects, `runc`, `crun` and `ctr`, where the machine has them.
pub(crate) fn fastpath(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    small_program(settings)?;
    setup::oci::run(settings)?;
    setup::containerd::run(settings)?;
    let program = Some(agentcube(settings)?);
    run(settings, Bench { name: "bench-fastpath", features: &["fastpath"], program }, json, enforce)
}

/// `agentcube up`: its start, and what it costs when idle.
pub(crate) fn up(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    let program = Some(agentcube(settings)?);
    run(settings, Bench { name: "bench-up", features: &[], program }, json, enforce)
}

/// Reservations: in memory, on kube-apiserver, and a hundred cold starts at once.
pub(crate) fn reserve(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::run(settings)?;
    let program = Some(agentcube(settings)?);
    run(settings, Bench { name: "bench-reserve", features: &["tasks"], program }, json, enforce)
}

/// Requests of bound sessions: behind Envoy over an external processor that does nothing, and through the built-in
/// gateway over Envoy alone.
pub(crate) fn router(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::proxy::run(settings)?;
    let program = Some(agentcube(settings)?);
    run(settings, Bench { name: "bench-router", features: &["router"], program }, json, enforce)
}

/// A thousand Tasks on kube-apiserver, and a thousand idle instances.
pub(crate) fn tasks(settings: &Settings, json: bool, enforce: bool) -> Result<bool> {
    setup::run(settings)?;
    run(settings, Bench { name: "bench-tasks", features: &["tasks"], program: None }, json, enforce)
}

/// Builds the program that is measured.
fn agentcube(settings: &Settings) -> Result<PathBuf> {
    build(settings, "agentcube", &[])?;
    Ok(settings.root.join("target/release/agentcube"))
}

/// The program in the measured containers, which is made of nothing but itself.
fn small_program(settings: &Settings) -> Result<()> {
    let release = settings.root.join("target/release");
    std::fs::create_dir_all(&release)?;
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.current_dir(&settings.root).arg("crates/testkit/bench-program/main.rs");
    rustc.args(["--edition=2024", "-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols"]);
    rustc.args(["-Ctarget-feature=+crt-static", "-Crelocation-model=static"]);
    rustc.args(["-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib", "-Clink-arg=-Wl,--build-id=none"]);
    ensure!(succeeds(rustc.arg("-o").arg(release.join("bench-program")))?, "bench-program does not build");
    Ok(())
}

fn build(settings: &Settings, package: &str, what: &[&str]) -> Result<()> {
    let mut command = cargo(&settings.root);
    command.args(["build", "--quiet", "--release", "-p", package]).args(what);
    ensure!(succeeds(&mut command)?, "{package} does not build");
    Ok(())
}

/// A program to be measured, and what it is measured by.
struct Bench {
    name: &'static str,
    /// Features of the crate that it needs.
    features: &'static [&'static str],
    program: Option<PathBuf>,
}

fn run(settings: &Settings, bench: Bench, json: bool, enforce: bool) -> Result<bool> {
    let mut command = cargo(&settings.root);
    command.args(["run", "--quiet", "--release", "-p", "agentcube-testkit", "--bin", bench.name]);
    command.args(bench.features.iter().flat_map(|feature| ["--features", feature])).arg("--");
    command.args(bench.program).env("AGENTCUBE_CACHE", &settings.cache);
    add_peers(settings, &mut command)?;
    command.args(json.then_some("--json")).args(enforce.then_some("--enforce"));
    succeeds(&mut command)
}

/// What is measured against is what setup has got, and only behind that what the user has: so each machine measures
/// against the same.
fn add_peers(settings: &Settings, command: &mut Command) -> Result<()> {
    let (mut programs, mut libraries) = (Vec::new(), Vec::new());
    for directory in [setup::oci::DIRECTORY, setup::containerd::DIRECTORY] {
        let (more_programs, more_libraries) = setup::debian::unpacked(&settings.cache.join(directory));
        programs.extend(more_programs);
        libraries.extend(more_libraries);
    }
    // What is not Debian's, and what the others are for whoever does not know where their libraries are.
    programs.push(settings.cache.join(setup::oci::DIRECTORY));
    programs.extend(std::env::split_paths(&settings.path));
    libraries.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    command.env("PATH", std::env::join_paths(programs)?);
    command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
    Ok(())
}
