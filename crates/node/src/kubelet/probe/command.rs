//! Probes and hooks that run a command in the container.

use std::os::fd::OwnedFd;
use std::time::Duration;

use agentcube_runtime::{ExecSpec, Stdio};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::Target;
use crate::kubelet::machine::Verdict;

/// More of what a command says is thrown away.
const MOST_BYTES: usize = 10 << 10;

pub(super) async fn probe(command: &[String], target: &Target, limit: Duration) -> Verdict {
    match run(command, target, limit).await {
        Ok((0, _)) => Verdict::Success,
        Ok((_, output)) => Verdict::Failure(output),
        Err(message) => Verdict::Failure(message),
    }
}

/// Runs a command; its code, and the beginning of what it said.
pub(super) async fn run(
    command: &[String],
    target: &Target,
    limit: Duration,
) -> Result<(i32, String), String> {
    let (output, mut reader) = pipe_pair().map_err(|error| format!("cannot make a pipe: {error}"))?;
    let errors = output.try_clone().map_err(|error| format!("cannot make a pipe: {error}"))?;
    let stdio = Stdio { stdin: None, stdout: Some(output), stderr: Some(errors), ..Stdio::default() };
    let env = target.env.as_ref().clone();
    let spec = ExecSpec { args: command.to_vec(), env, cwd: None, user: None, terminal: false };
    let process = target.runtime.exec(&target.id, spec, stdio).await.map_err(|error| error.to_string())?;
    let mut killer = Killer(Some(process.pid));
    let finishing = async {
        // A child that holds the pipe open must not keep the answer back.
        let exit = process.exit;
        tokio::pin!(exit);
        let mut text = Vec::new();
        let exit = tokio::select! {
            exit = &mut exit => exit,
            () = read(&mut reader, &mut text) => exit.await,
        };
        while let Ok(1..) = reader.try_read_buf(&mut text) {
            if text.len() >= MOST_BYTES {
                break;
            }
        }
        (exit, text)
    };
    let (exit, text) = tokio::time::timeout(limit, finishing).await.map_err(|_| {
        format!("command timed out: \"{}\" timed out after {}s", command.join(" "), limit.as_secs())
    })?;
    killer.0 = None;
    let exit = exit.map_err(|_| "the node lost sight of the command".to_owned())?;
    let end = text.len().min(MOST_BYTES);
    Ok((exit.code, String::from_utf8_lossy(&text[..end]).into_owned()))
}

/// Reads until the end, and keeps the beginning.
async fn read(reader: &mut pipe::Receiver, text: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut buffer).await {
        let room = MOST_BYTES.saturating_sub(text.len()).min(count);
        text.extend_from_slice(&buffer[..room]);
    }
}

/// Kills a command that nobody waits for any more.
struct Killer(Option<u32>);

impl Drop for Killer {
    fn drop(&mut self) {
        let pid = self.0.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended just now.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn pipe_pair() -> std::io::Result<(OwnedFd, pipe::Receiver)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((sender.into_blocking_fd()?, receiver))
}
