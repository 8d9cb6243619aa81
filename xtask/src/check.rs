//! Everything that can be said about a change without running it: format, lints, golden files, dependencies.

use anyhow::Result;

use crate::process::{cargo, succeeds};
use crate::{Settings, console, generate, policy};

/// Runs every check, also after one has failed; `false` when any did.
pub(crate) fn run(settings: &Settings) -> Result<bool> {
    let mut failed = Vec::new();
    eprintln!("== format");
    if !succeeds(cargo(&settings.root).args(["fmt", "--all", "--check"]))? {
        failed.push("format: run `cargo fmt --all`".to_owned());
    }
    eprintln!("== lints");
    let lints = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    if !succeeds(cargo(&settings.root).args(lints))? {
        failed.push("lints".to_owned());
    }
    eprintln!("== dependency policy");
    let violations = policy::violations(&settings.root)?;
    for violation in &violations {
        eprintln!("    {violation}");
    }
    if !violations.is_empty() {
        failed.push(format!("dependency policy: {} violations", violations.len()));
    }
    eprintln!("== console");
    if !console::check(settings)? {
        failed.push("console: run `node console/build.mjs`, and look at what tsc says".to_owned());
    }
    eprintln!("== golden files");
    if !generate::run(settings, true)? {
        failed.push("golden files: run `cargo xtask gen`".to_owned());
    }
    for failure in &failed {
        eprintln!("check failed: {failure}");
    }
    if failed.is_empty() {
        eprintln!("check: all well");
    }
    Ok(failed.is_empty())
}
