//! `--access-log`, of whatever serves requests.

use std::path::{Path, PathBuf};

use agentcube_operator::metrics::Registry;
use agentcube_router::observe::{AccessLog, Destination, Hiding};
use anyhow::Context;
use clap::Args;

#[derive(Args, Clone)]
#[group(id = "access_log_arguments")]
pub(crate) struct Arguments {
    /// Write a line of JSON for each request to this file, or to standard output if it is `-`; session ids are hidden
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
}

impl Arguments {
    /// Whether lines are to go to standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.destination() == Some(Destination::Stdout)
    }

    /// What was given.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.access_log.as_deref()
    }

    fn destination(&self) -> Option<Destination> {
        let path = self.access_log.as_ref()?;
        Some(if path.as_os_str() == "-" { Destination::Stdout } else { Destination::File(path.clone()) })
    }

    /// Opens the log, if one is wanted.
    pub(crate) fn open(&self, hiding: &Hiding, metrics: &Registry) -> anyhow::Result<Option<AccessLog>> {
        let Some(destination) = self.destination() else { return Ok(None) };
        let opened = AccessLog::open(&destination, hiding.clone(), metrics);
        opened.map(Some).with_context(|| format!("cannot open the access log {destination:?}"))
    }
}
