//! What commands print: tables for people, JSON and YAML for machines. Everything goes to standard output here, where
//! a closed pipe is an error that ends the command silently.

pub(crate) mod age;
mod colour;
pub(crate) mod progress;
mod table;

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::Value;

pub(crate) use colour::Paint;
pub(crate) use table::{Table, width};

/// Formats for machines; they stay as they are from release to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Machine {
    Json,
    Yaml,
}

impl Machine {
    pub(crate) fn print(self, value: &Value) -> io::Result<()> {
        write(self.render(value).as_bytes())
    }

    pub(crate) fn render(self, value: &Value) -> String {
        match self {
            Machine::Json => format!("{value:#}\n"),
            Machine::Yaml => agentcube_api::yaml::render(value),
        }
    }
}

/// Writes to standard output at once.
pub(crate) fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
