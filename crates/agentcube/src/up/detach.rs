//! `up --detach`: starts this program once more in the background and waits until it is ready or has failed.
//!
//! The child's standard output is a pipe to us: it prints what the foreground would print, and lets go of it.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::{Arguments, log};
use crate::cli::{BACKGROUND_LOG, DEFAULT_LOG};
use crate::exit::Outcome;
use crate::output;
use crate::paths::DataDir;

/// How much of the log is searched for the reason of a failure.
const TAIL: u64 = 64 << 10;

pub(super) fn run(arguments: &Arguments, log_filter: &str, data: &DataDir) -> anyhow::Result<Outcome> {
    let path = data.log();
    let log = log::open(&path).with_context(|| format!("cannot open the log {}", path.display()))?;
    let begin = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    let log_filter = if log_filter == DEFAULT_LOG { BACKGROUND_LOG } else { log_filter };
    command.args(["--log", log_filter, "up", "--background", "--listen", &arguments.listen.to_string()]);
    if let Some(path) = &arguments.data_dir {
        command.arg("--data-dir").arg(path);
    }
    command.args(["--gateway-listen", &arguments.gateway_listen.to_string()]);
    command.args(["--console-listen", &arguments.console_listen.to_string()]);
    if let Some(path) = arguments.access_log.given() {
        command.arg("--access-log").arg(path);
    }
    if arguments.memory {
        command.arg("--memory");
    }
    for directory in &arguments.host_image_dir {
        command.arg("--host-image-dir").arg(directory);
    }
    for directory in &arguments.oci_runtime_dir {
        command.arg("--oci-runtime-dir").arg(directory);
    }
    if let Some(bundler) = &arguments.bundler {
        command.arg("--bundler").arg(bundler);
    }
    if arguments.no_egress {
        command.arg("--no-egress");
    }
    if arguments.no_middleware {
        command.arg("--no-middleware");
    }
    if arguments.no_forge {
        command.arg("--no-forge");
    }
    if arguments.merge_kubeconfig {
        command.arg("--merge-kubeconfig");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().context("cannot start agentcube in the background")?;
    let mut said = Vec::new();
    child.stdout.take().context("the child has a standard output")?.read_to_end(&mut said)?;
    if said.is_empty() {
        let status = child.wait()?;
        bail!("{}", failure(&path, begin).unwrap_or_else(|| format!("agentcube ended at once ({status})")));
    }
    output::write(&said)?;
    Ok(Outcome::Done)
}

/// Why the child failed: the last error in what it wrote to the log.
fn failure(path: &Path, begin: u64) -> Option<String> {
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(begin.max(length.saturating_sub(TAIL)).min(length))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let error = text.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
    error.or_else(|| {
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(format!("agentcube did not start: {last} (log: {})", path.display()))
    })
}

/// The child's side: tells the parent, which waits for the end of our output, that it may go.
pub(super) fn let_go() -> anyhow::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(null).context("cannot let go of standard output")
}
