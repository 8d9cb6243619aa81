//! Regenerates the golden files. What is generated comes from programs of the workspace or from the real
//! server, never from here. With `check`, nothing is written and a difference is a failure.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::{cargo, quietly, succeeds};
use crate::suites::{self, Tools};
use crate::{Settings, setup};

/// Regenerates all, or says whether anything would change.
pub(crate) fn run(settings: &Settings, check: bool) -> Result<bool> {
    let real = setup::run(settings);
    if let Err(error) = &real {
        eprintln!(
            "SKIPPED: the built-in schemas and transcripts, which need a real kube-apiserver: {error:#}"
        );
        if settings.strict {
            return Ok(false);
        }
    }
    let Tools { product, generator } = suites::tools(settings)?;
    let mut well = generated(settings, &generator, "definitions", check)?;
    well &= generated(settings, &generator, "protos", check)?;
    well &= command_line(settings, &product, check)?;
    if !check {
        well &= sessions(settings)?;
    }
    if real.is_ok() {
        well &= generated(settings, &generator, "schemas", check)?;
        if !check {
            well &= record(settings)?;
        }
    }
    Ok(well)
}

fn generated(settings: &Settings, generator: &Path, what: &str, check: bool) -> Result<bool> {
    let mut command = Command::new(generator);
    command.arg(what).current_dir(&settings.root).env("AGENTCUBE_CACHE", &settings.cache);
    succeeds(if check { command.arg("--check") } else { &mut command })
}

/// The reference of the command line, as the program prints it.
fn command_line(settings: &Settings, product: &Path, check: bool) -> Result<bool> {
    let text = quietly(Command::new(product).arg("__reference"))?;
    let path = settings.root.join("docs/CLI.md");
    if std::fs::read_to_string(&path).unwrap_or_default() == text {
        return Ok(true);
    }
    if check {
        eprintln!("    {} is not what would be generated", path.display());
        return Ok(false);
    }
    std::fs::write(&path, text)?;
    eprintln!("    {} written", path.display());
    Ok(true)
}

/// What commands print, committed as sessions; and the definitions as the program has them built in.
fn sessions(settings: &Settings) -> Result<bool> {
    let args = ["test", "--quiet", "-p", "agentcube", "--test", "cli", "--", "sessions", "definitions"];
    succeeds(cargo(&settings.root).args(args).env("AGENTCUBE_RECORD", "1"))
}

/// The transcripts are checked by their suites, which run them on the real server anyway.
fn record(settings: &Settings) -> Result<bool> {
    let mut well = true;
    for suite in ["conformance", "kubectl"] {
        let args = ["test", "--quiet", "-p", "agentcube-testkit", "--test", suite, "--", "--record"];
        well &= succeeds(cargo(&settings.root).args(args).env("AGENTCUBE_CACHE", &settings.cache))?;
    }
    Ok(well)
}
