//! Commands beside a run. One whose client has left is killed.

use std::future::Future;

use agentcube_protos::agent::ExecRequest;
use agentcube_protos::link::Answers;
use agentcube_protos::session::exec_input::Input as Said;
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecOutput, ExecStart, Exit};
use agentcube_runtime::session::{self, Input, Killer, Pipes, Terminal, Told};
use agentcube_runtime::{ExecSpec, Process, Stdio};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;

use crate::agent::{Inner, unix_ms};
use crate::run::Living;

/// Frames that wait for the other side.
const AHEAD: usize = 16;
const MOST_WORDS: usize = 320;
const MOST_BYTES: usize = 256 << 10;

/// Starts what the first message asks for.
pub(crate) async fn begin(
    inner: &Inner,
    mut input: BoxStream<'static, ExecRequest>,
) -> Result<Answers<ExecOutput>, Status> {
    let first = input.next().await.ok_or_else(|| Status::invalid_argument("nothing is said to run"))?;
    let start = first.start.ok_or_else(|| Status::invalid_argument("the first message says what to run"))?;
    check(&start)?;
    let (living, turn) = inner
        .read(|state| {
            let run = state.runs.get(&first.run_id)?;
            Some((run.living.get()?.clone(), run.commands.clone().try_acquire_owned()))
        })
        .ok_or_else(|| Status::not_found(format!("run {:?} does not run", first.run_id)))?;
    let turn = turn.map_err(|_| Status::resource_exhausted("too many commands run beside it already"))?;
    let (output, outputs) = mpsc::channel(AHEAD);
    let (told, tells) = mpsc::channel(AHEAD);
    let session = run(&living, start, output, tells, turn).await?;
    let feeding = async move {
        while let Some(said) = input.next().await {
            let Some(said) = said.input.and_then(|input| input.input).and_then(tell) else { continue };
            if told.send(said).await.is_err() {
                return;
            }
        }
        // That nothing more is said is the end of the input, not of the command.
        let _ended = told.send(Told::StdinClosed).await;
        told.closed().await;
    };
    // It ends with the client: its answers are dropped, and with them this.
    let guard = Guard(vec![tokio::spawn(session), tokio::spawn(feeding)]);
    let frames = stream::unfold((outputs, guard), |(mut outputs, guard)| async move {
        let output = outputs.recv().await?;
        Some((Ok(ExecOutput { output: Some(output) }), (outputs, guard)))
    });
    Ok(frames.boxed())
}

struct Guard(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

fn check(start: &ExecStart) -> Result<(), Status> {
    let words = || start.command.iter().chain(&start.envs);
    if start.command.is_empty() {
        return Err(Status::invalid_argument("no command specified"));
    }
    if words().count() > MOST_WORDS || words().map(String::len).sum::<usize>() > MOST_BYTES {
        return Err(Status::invalid_argument("the command is too long"));
    }
    if words().chain([&start.working_dir]).any(|word| word.contains('\0')) {
        return Err(Status::invalid_argument("words cannot have NUL bytes"));
    }
    if start.envs.iter().any(|variable| variable.split_once('=').is_none_or(|(name, _)| name.is_empty())) {
        return Err(Status::invalid_argument("a variable is not of the form NAME=value"));
    }
    Ok(())
}

fn spec(living: &Living, start: &ExecStart) -> ExecSpec {
    let own = start.envs.iter().filter_map(|variable| variable.split_once('='));
    let mut env = living.env.as_ref().clone();
    for (name, value) in own {
        env.retain(|(known, _)| known != name);
        env.push((name.to_owned(), value.to_owned()));
    }
    let cwd = Some(&start.working_dir).filter(|path| !path.is_empty());
    ExecSpec {
        args: start.command.clone(),
        env,
        cwd: cwd.map(|path| std::path::Path::new("/").join(path)),
        user: None,
        terminal: start.tty,
    }
}

/// The command, until it has ended or its client has left.
async fn run(
    living: &Living,
    start: ExecStart,
    output: mpsc::Sender<Output>,
    tells: mpsc::Receiver<Told>,
    turn: OwnedSemaphorePermit,
) -> Result<impl Future<Output = ()> + Send + use<>, Status> {
    let internal = |error: std::io::Error| Status::internal(error.to_string());
    let (stdio, pipes) = match start.tty {
        true => (Stdio::default(), Pipes::default()),
        false => Pipes::open(start.stdin, true, true).map_err(internal)?,
    };
    let executed = living.runtime.exec(&living.place.container, spec(living, &start), stdio).await;
    let mut process = executed.map_err(|error| Status::failed_precondition(error.to_string()))?;
    let killer = Killer(process.pid);
    let terminal = process.terminal.take().map(Terminal::new).transpose().map_err(internal)?;
    let screen = terminal.as_ref().map(Terminal::screen).transpose().map_err(internal)?;
    if let Some(terminal) = &terminal
        && start.columns > 0
        && start.rows > 0
    {
        terminal.resize(cells(start.columns), cells(start.rows));
    }
    Ok(async move {
        let ended = match (terminal, screen) {
            (Some(terminal), Some(screen)) => {
                let outward = session::forward(Some(screen), output.clone(), stdout);
                let input = Input::Terminal { terminal, keys: start.stdin };
                conclude(process, outward, Some(input), tells, output).await
            }
            _ => {
                let Pipes { stdin, stdout: out, stderr: err } = pipes;
                let outward = both(out, err, output.clone());
                conclude(process, outward, stdin.map(Input::Pipe), tells, output).await
            }
        };
        if ended {
            killer.disarm();
        }
        drop(turn);
    }
    .boxed())
}

async fn both(out: Option<pipe::Receiver>, err: Option<pipe::Receiver>, output: mpsc::Sender<Output>) {
    let errors = session::forward(err, output.clone(), |data| Output::Stderr(data.to_vec()));
    tokio::join!(session::forward(out, output, stdout), errors);
}

fn stdout(data: Bytes) -> Output {
    Output::Stdout(data.to_vec())
}

/// Tells the client how the command ended, unless the client left first. True if it has ended.
async fn conclude(
    process: Process,
    outward: impl Future<Output = ()>,
    input: Option<Input>,
    tells: mpsc::Receiver<Told>,
    output: mpsc::Sender<Output>,
) -> bool {
    let inward = session::feed(input, tells, Some);
    let Some(exit) = session::conclude(process, outward, inward).await else { return false };
    let (code, reason) = match exit {
        Some(exit) if exit.out_of_memory => (exit.code, "OutOfMemory"),
        Some(exit) => (exit.code, "Exited"),
        // The spawner is gone, and the kernel has killed it.
        None => (137, "Stopped"),
    };
    let exit = Exit { code, reason: reason.into(), ended_unix_ms: unix_ms() };
    // A client that left meanwhile does not need to hear it.
    let _left = output.send(Output::Exit(exit)).await;
    true
}

fn tell(said: Said) -> Option<Told> {
    match said {
        Said::Stdin(data) => Some(Told::Stdin(data.into())),
        Said::StdinClosed(true) => Some(Told::StdinClosed),
        Said::StdinClosed(false) => None,
        Said::Resize(size) => Some(Told::Resize { columns: cells(size.columns), rows: cells(size.rows) }),
    }
}

fn cells(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
