//! Running other programs: what is run is said, what fails is named.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Cargo itself, as the toolchain file of the workspace picks it.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root);
    // What `cargo run` says of this program. Build scripts that watch these variables (ring's does) would run again, and
    // half of the tree be built again, each time that people and this program take turns at building.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_package.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command with its output shown; an exit code other than 0 is `false`.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(status.success())
}

/// Runs a command with its output hidden unless it fails.
pub(crate) fn quietly(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "{:?} failed ({})\n{text}{}",
            command.get_program(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(text)
}

/// Says what is being done and how long it took.
pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("    {what} ...");
    let begun = Instant::now();
    let result = work().with_context(|| what.to_owned())?;
    eprintln!("    {what}: done in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(result)
}

/// A program of this name in the directories of `path`.
pub(crate) fn find_program(path: &std::ffi::OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}
