//! `agentcube sandbox exec`, `shell` and `logs`: streams between our terminal and a sandbox.

use agentcube_protos::fastpath::{ExecRequest, LogsRequest};
use agentcube_protos::session::exec_input::Input;
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecInput, ExecOutput, ExecStart, LogOptions, Size};
use anyhow::bail;
use clap::Args;
use futures_util::stream;
use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::refusal;
use crate::client::Connection;
use crate::environment::Environment;
use crate::exec::{ended_by_signal, terminal};
use crate::exit::{Outcome, Usage, say};
use crate::output;

/// How much of our input is sent at once.
const CHUNK: usize = 32 << 10;
/// Messages that wait to be sent.
const WAITING: usize = 16;
/// The best shell that there is.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox exec NAME -- ls /
  agentcube sandbox exec -it NAME -- python3
  tar c . | agentcube sandbox exec -i NAME -- tar x -C /tmp

Exits with the code of the command.")]
pub(super) struct ExecArguments {
    /// The sandbox
    name: String,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// A variable, NAME=VALUE
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    envs: Vec<String>,
    /// The directory in which the command starts
    #[arg(short, long)]
    workdir: Option<String>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox shell NAME")]
pub(super) struct ShellArguments {
    /// The sandbox
    name: String,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox logs NAME
  agentcube sandbox logs NAME -f --tail 20")]
pub(super) struct LogsArguments {
    /// The sandbox
    name: String,
    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,
    /// Only so many last lines
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only what is newer than so long: 30s, 10m, 1h30m
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// The time in front of each line
    #[arg(long)]
    timestamps: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn logs(arguments: LogsArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let since_unix_ms = match &arguments.since {
        Some(text) => Timestamp::now().as_millisecond() - milliseconds(text)?,
        None => 0,
    };
    let options = LogOptions {
        follow: arguments.follow,
        tail: arguments.tail,
        since_unix_ms,
        timestamps: arguments.timestamps,
        limit_bytes: 0,
    };
    let (mut fast_path, namespace) = arguments.connection.fast_path(environment).await?;
    let request = LogsRequest { sandbox_id: arguments.name, namespace, options: Some(options) };
    let mut log = fast_path.logs(request).await.map_err(|status| refusal(&status))?.into_inner();
    while let Some(chunk) = log.message().await.map_err(|status| refusal(&status))? {
        output::write(&chunk.content)?;
    }
    Ok(Outcome::Done)
}

fn milliseconds(text: &str) -> Result<i64, Usage> {
    let wrong = || Usage(format!("--since {text:?} is not a duration like 30s, 10m or 1h30m"));
    Ok(text.parse::<agentcube_api::GoDuration>().map_err(|_| wrong())?.as_nanos() / 1_000_000)
}

pub(super) async fn shell(arguments: ShellArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let ShellArguments { name, connection } = arguments;
    let command = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
    let (stdin, tty) = (true, environment.stdin.terminal);
    let arguments = ExecArguments { name, stdin, tty, envs: Vec::new(), workdir: None, command, connection };
    exec(arguments, environment).await
}

pub(super) async fn exec(arguments: ExecArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let tty = arguments.tty && environment.stdin.terminal;
    if arguments.tty && !tty {
        say("standard input is no terminal, so the command gets none either");
    }
    if let Some(wrong) = arguments.envs.iter().find(|pair| !pair.contains('=')) {
        return Err(Usage(format!("--env {wrong:?} is not NAME=VALUE")).into());
    }
    let (mut fast_path, namespace) = arguments.connection.fast_path(environment).await?;
    let (columns, rows) = terminal::size().filter(|_| tty).unwrap_or_default();
    let start = ExecStart {
        command: arguments.command,
        stdin: arguments.stdin,
        tty,
        columns: columns.into(),
        rows: rows.into(),
        envs: arguments.envs,
        working_dir: arguments.workdir.unwrap_or_default(),
    };
    let (sender, receiver) = mpsc::channel(WAITING);
    let first = ExecRequest { sandbox_id: arguments.name, namespace, start: Some(start), input: None };
    sender.try_send(first).expect("a new channel has room for one message");
    let requests = stream::unfold(receiver, |mut receiver| async move {
        let request = receiver.recv().await?;
        Some((request, receiver))
    });
    let answers = fast_path.exec(requests).await.map_err(|status| refusal(&status))?.into_inner();
    // Without our input nobody would read the keys: they keep their meaning here.
    let raw = if tty && arguments.stdin { Some(terminal::Raw::enter()?) } else { None };
    if arguments.stdin {
        tokio::spawn(send_input(sender.clone()));
    }
    if tty {
        tokio::spawn(send_sizes(sender.clone()));
    }
    let code = tokio::select! {
        code = receive(answers) => code?,
        code = ended_by_signal(), if tty => code,
    };
    // What was sent last must not be cut off by the end of the requests.
    drop(sender);
    drop(raw);
    Ok(if code == 0 { Outcome::Done } else { Outcome::Remote(code) })
}

fn input(input: Input) -> ExecRequest {
    ExecRequest { input: Some(ExecInput { input: Some(input) }), ..ExecRequest::default() }
}

/// Ends with our input, or when the session does not take more.
async fn send_input(sender: mpsc::Sender<ExecRequest>) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
        if sender.send(input(Input::Stdin(buffer[..length].to_vec()))).await.is_err() {
            return;
        }
    }
    let _ended = sender.send(input(Input::StdinClosed(true))).await;
}

/// Tells the size of our terminal whenever it changes.
async fn send_sizes(sender: mpsc::Sender<ExecRequest>) {
    let Ok(mut changed) = signal(SignalKind::window_change()) else { return };
    while changed.recv().await.is_some() {
        let Some((columns, rows)) = terminal::size() else { continue };
        let size = Size { columns: columns.into(), rows: rows.into() };
        if sender.send(input(Input::Resize(size))).await.is_err() {
            return;
        }
    }
}

/// Shows what comes until the command has ended.
async fn receive(mut answers: Streaming<ExecOutput>) -> anyhow::Result<u8> {
    while let Some(answer) = answers.message().await.map_err(|status| refusal(&status))? {
        match answer.output {
            Some(Output::Stdout(bytes)) => output::write(&bytes)?,
            Some(Output::Stderr(bytes)) => std::io::Write::write_all(&mut std::io::stderr().lock(), &bytes)?,
            Some(Output::Exit(exit)) => return Ok(u8::try_from(exit.code & 0xff).unwrap_or(1)),
            None => {}
        }
    }
    bail!("the connection ended before the command did")
}
