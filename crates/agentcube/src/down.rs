//! `agentcube down`: asks the `up` of a data directory to stop, and waits until it has.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use rustix::process::Signal;

use crate::environment::Environment;
use crate::exit::{Absent, Outcome};
use crate::output::{self, progress};
use crate::paths::{self, DataDir};
use crate::up::running::Running;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube down
  agentcube down --data-dir ./data
  agentcube down --now              # do not let anything finish

Exits with 3 when it does not run.")]
pub(crate) struct Arguments {
    /// The data directory of the `up` to stop
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Kill it instead of letting it drain; data that was acknowledged is kept
    #[arg(long)]
    now: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 90, value_name = "SECONDS")]
    timeout: u64,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let data = match &arguments.data_dir {
        Some(path) => DataDir::new(path),
        None => paths::default_data_dir(environment),
    };
    let Some(running) = Running::find(&data)? else {
        let place = data.path().display();
        return Err(Absent(format!("agentcube does not run on {place}: `agentcube up` starts it")).into());
    };
    let pid = running.record.pid;
    running.signal(if arguments.now { Signal::KILL } else { Signal::TERM })?;
    let waiting = tokio::time::timeout(Duration::from_secs(arguments.timeout), running.ended());
    match progress::during(environment, "waiting for agentcube to stop", waiting).await {
        Ok(ended) => ended?,
        Err(_) => {
            bail!("process {pid} still stops after {} s: `agentcube down --now` kills it", arguments.timeout)
        }
    }
    output::write(format!("agentcube (process {pid}) has stopped\n").as_bytes())?;
    Ok(Outcome::Done)
}
