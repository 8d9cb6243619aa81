//! `agentcube exec`: runs a command in a container over a WebSocket, and ends as it ends.

pub(crate) mod terminal;

use anyhow::{Context, bail};
use clap::Args;
use futures_util::SinkExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, AttachedProcess, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Connection, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::pods::{self, Target};
use terminal::Raw;

/// How much of each stream is held between the network and us.
const BUFFER: usize = 64 << 10;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube exec web-0 -- ls /
  agentcube exec -it web-0 -- sh
  agentcube exec deploy/web -c sidecar -- date
  tar c . | agentcube exec -i web-0 -- tar x -C /tmp

Exits with the code of the command. `~` has no special meaning: end a stuck session by closing the terminal.")]
pub(crate) struct Arguments {
    /// A Pod, or KIND/NAME of what has Pods
    #[arg(value_name = "POD")]
    target: String,
    /// The container; needed when a Pod has several
    #[arg(short, long)]
    container: Option<String>,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let pod = pod(&arguments.target, &server).await?;
    let tty = arguments.tty && environment.stdin.terminal;
    if arguments.tty && !tty {
        say("standard input is no terminal, so the command gets none either");
    }
    let params = AttachParams {
        container: arguments.container.clone(),
        stdin: arguments.stdin,
        stdout: true,
        // A terminal is one stream.
        stderr: !tty,
        tty,
        max_stdin_buf_size: Some(BUFFER),
        max_stdout_buf_size: Some(BUFFER),
        max_stderr_buf_size: Some(BUFFER),
    };
    let api: Api<Pod> = Api::namespaced(server.client(), &server.namespace);
    let process = match api.exec(&pod, &arguments.command, &params).await {
        Ok(process) => process,
        Err(error) => return Err(why_not(&arguments, &server, &pod, error).await),
    };
    let raw = if tty { Some(Raw::enter()?) } else { None };
    let status = tokio::select! {
        status = converse(process, arguments.stdin, tty) => status?,
        code = ended_by_signal(), if tty => return Ok(Outcome::Remote(code)),
    };
    drop(raw);
    outcome(status)
}

/// The Pod that is named, or a running one of the workload that is.
async fn pod(target: &str, server: &Server) -> anyhow::Result<String> {
    let target = Target::find(server, target).await?;
    match &target {
        Target::Pod(name) => Ok(name.clone()),
        Target::Owner { called, .. } => {
            let pods = target.pods(server).await?;
            let running = pods.iter().find(|pod| pods::is_running(pod)).map(|pod| pods::name(pod).to_owned());
            running.ok_or_else(|| Absent(format!("{called} has no running Pod")).into())
        }
    }
}

async fn why_not(arguments: &Arguments, server: &Server, pod: &str, error: kube::Error) -> anyhow::Error {
    let mut options = vec![("stdout", Some("true")), ("container", arguments.container.as_deref())];
    options.extend(arguments.command.iter().map(|word| ("command", Some(word.as_str()))));
    let path = Kind::pods().path(Some(&server.namespace), Some(pod));
    let path = format!("{path}/exec{}", query(&options));
    server.why_not_upgraded(&path, &format!("run a command in {pod}"), error).await
}

/// Carries the streams until the command has ended.
async fn converse(mut process: AttachedProcess, stdin: bool, tty: bool) -> anyhow::Result<Option<Status>> {
    let status = process.take_status().context("a session ends with a status")?;
    if stdin && let Some(writer) = process.stdin() {
        tokio::spawn(send(writer));
    }
    if tty && let Some(sizes) = process.terminal_size() {
        tokio::spawn(resize(sizes));
    }
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let out = receive(stdout, crate::output::write);
    let err = receive(stderr, |bytes| std::io::Write::write_all(&mut std::io::stderr().lock(), bytes));
    tokio::try_join!(out, err)?;
    let status = status.await;
    if status.is_none() {
        process.join().await.context("the session broke off")?;
    }
    Ok(status)
}

/// Ends with our input, or when the session does not take more.
async fn send(mut writer: impl tokio::io::AsyncWrite + Unpin) {
    let mut input = tokio::io::stdin();
    // Either side may be gone; the session's end tells what there is to tell.
    let _gone = tokio::io::copy(&mut input, &mut writer).await;
    let _gone = writer.shutdown().await;
}

async fn receive(
    reader: Option<impl AsyncRead + Unpin>,
    write: impl Fn(&[u8]) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let Some(mut reader) = reader else { return Ok(()) };
    let mut buffer = vec![0; BUFFER];
    loop {
        match reader.read(&mut buffer).await? {
            0 => return Ok(()),
            length => write(&buffer[..length])?,
        }
    }
}

/// Tells the size of our terminal, now and whenever it changes.
async fn resize(mut sizes: impl futures_util::Sink<TerminalSize> + Unpin) {
    let Ok(mut changed) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Some((width, height)) = terminal::size()
            && sizes.send(TerminalSize { width, height }).await.is_err()
        {
            return;
        }
        if changed.recv().await.is_none() {
            return;
        }
    }
}

/// While the terminal is raw, a signal must not end us before it is put right.
pub(crate) async fn ended_by_signal() -> u8 {
    let listen = |kind: SignalKind| async move {
        match signal(kind) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    let number = tokio::select! {
        _ = listen(SignalKind::terminate()) => SignalKind::terminate(),
        _ = listen(SignalKind::hangup()) => SignalKind::hangup(),
        _ = listen(SignalKind::interrupt()) => SignalKind::interrupt(),
        _ = listen(SignalKind::quit()) => SignalKind::quit(),
    };
    u8::try_from(128 + number.as_raw_value()).unwrap_or(u8::MAX)
}

fn outcome(status: Option<Status>) -> anyhow::Result<Outcome> {
    let Some(status) = status else { bail!("the connection ended before the command did") };
    if status.status.as_deref() == Some("Success") {
        return Ok(Outcome::Done);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    match code.and_then(|cause| cause.message.as_deref()?.parse::<i32>().ok()) {
        Some(code) => Ok(Outcome::Remote(u8::try_from(code & 0xff).unwrap_or(1))),
        None => bail!("{}", status.message.unwrap_or_else(|| "the command failed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn statuses_become_exit_codes() {
        let status = |value: Value| outcome(Some(serde_json::from_value(value).unwrap()));
        assert_eq!(status(json!({"status": "Success"})).unwrap(), Outcome::Done);
        let ended = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}});
        assert_eq!(status(ended).unwrap(), Outcome::Remote(42));
        let failed = status(json!({"status": "Failure", "message": "no such file"})).unwrap_err();
        assert_eq!(failed.to_string(), "no such file");
        assert!(outcome(None).is_err());
    }
}
