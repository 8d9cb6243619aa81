//! Obtains the official Python libraries of MCP and A2A, clients and servers: conversations through our gateways are
//! held by them. They are kept in the cache and are no part of this repository.

use std::process::Command;

use anyhow::Result;

use super::python;
use crate::Settings;
use crate::process::{quietly, timed};

/// Where they are in the cache; the tests know it too.
const DIRECTORY: &str = "protocols-mcp-2.3.0-a2a-1.3.0";
const PACKAGES: [&str; 2] = ["mcp==2.3.0", "a2a-sdk[http-server]==1.3.0"];

/// Makes sure that the libraries are there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let target = settings.cache.join(DIRECTORY);
    if target.is_dir() {
        eprintln!("    libraries of MCP and A2A: present");
        return Ok(());
    }
    let python = python(settings)?;
    let unfinished = settings.cache.join(format!(".{DIRECTORY}.{}", std::process::id()));
    std::fs::create_dir_all(&unfinished)?;
    timed("installing the libraries of MCP and A2A", || {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&unfinished);
        quietly(command.args(PACKAGES))
    })?;
    std::fs::rename(&unfinished, target)?;
    Ok(())
}
