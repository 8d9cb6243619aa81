//! Commands in running containers, for the API server's `exec` and `attach`. A command whose client has left is killed.

mod stream;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use agentcube_apiserver::hooks::{Exec, ExecFrame, ExecOptions, ExecSession};
use agentcube_apiserver::status::Status;
use agentcube_runtime::{ExecSpec, Exit, Process, Stdio};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::living::{Living, Run};
use super::logs::{Logs, Run as LogRun, Selection};
use stream::{Input, Terminal};

/// Frames that wait for the other side.
const AHEAD: usize = 16;
/// How long a command that has ended may leave its output to others that still write to it.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Answers for the Pods of this node.
pub struct PodExec {
    living: Living,
    logs: Logs,
}

impl PodExec {
    pub fn new(living: Living, logs: Logs) -> Self {
        Self { living, logs }
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

impl Exec for PodExec {
    fn exec(&self, pod: Value, options: ExecOptions) -> Answer<ExecSession> {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let container = options.container.clone().unwrap_or_default();
        let Some(run) = self.living.get(&uid, &container) else {
            let message = format!("unable to upgrade connection: container not found ({container:?})");
            return Box::pin(async { Err(Status::internal(message)) });
        };
        if options.attach {
            let log = log_run(&pod, uid, container);
            let logs = self.logs.clone();
            return Box::pin(async move { attach(&run, &logs, &log, &options) });
        }
        Box::pin(async move { begin(run, options).await })
    }
}

/// The log of a container that runs now.
fn log_run(pod: &Value, pod_uid: String, container: String) -> LogRun {
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let restarts = statuses
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten())
        .find(|status| status["name"] == container.as_str())
        .and_then(|status| status["restartCount"].as_u64());
    let attempt = restarts.and_then(|restarts| u32::try_from(restarts).ok()).unwrap_or(0);
    LogRun { pod_uid, container, attempt }
}

/// The near ends of a session.
struct Near {
    input: mpsc::Receiver<ExecFrame>,
    output: mpsc::Sender<ExecFrame>,
}

fn session() -> (ExecSession, Near) {
    let (to_container, input) = mpsc::channel(AHEAD);
    let (output, from_container) = mpsc::channel(AHEAD);
    (ExecSession { to_container, from_container }, Near { input, output })
}

async fn begin(run: Run, options: ExecOptions) -> Result<ExecSession, Status> {
    let spec = ExecSpec {
        args: options.command.clone(),
        env: run.env.as_ref().clone(),
        cwd: None,
        user: None,
        terminal: options.tty,
    };
    let (stdio, pipes) =
        if options.tty { (Stdio::default(), Pipes::default()) } else { Pipes::open(&options)? };
    let mut process = run
        .runtime
        .exec(&run.id, spec, stdio)
        .await
        .map_err(|error| Status::internal(format!("error executing command in container: {error}")))?;
    let (session, near) = session();
    let opened = process.terminal.take().map(|master| {
        let terminal = Terminal::new(master)?;
        let screen = terminal.screen()?;
        Ok::<_, std::io::Error>((terminal, screen))
    });
    let terminal = opened.transpose().map_err(Status::internal)?;
    let killer = Killer(process.pid);
    tokio::spawn(async move {
        match terminal {
            Some((terminal, screen)) => in_terminal(terminal, screen, process, near, options.stdin).await,
            None => in_pipes(pipes, process, near).await,
        }
        drop(killer);
    });
    Ok(session)
}

/// Our ends of a command's pipes.
#[derive(Default)]
struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
}

impl Pipes {
    fn open(options: &ExecOptions) -> Result<(Stdio, Self), Status> {
        let (mut stdio, mut pipes) = (Stdio::default(), Self::default());
        let outward = |wanted: bool| -> std::io::Result<(Option<OwnedFd>, Option<pipe::Receiver>)> {
            if !wanted {
                return Ok((None, None));
            }
            let (sender, receiver) = pipe::pipe()?;
            Ok((Some(sender.into_blocking_fd()?), Some(receiver)))
        };
        (stdio.stdout, pipes.stdout) = outward(options.stdout).map_err(Status::internal)?;
        (stdio.stderr, pipes.stderr) = outward(options.stderr).map_err(Status::internal)?;
        if options.stdin {
            let (sender, receiver) = pipe::pipe().map_err(Status::internal)?;
            stdio.stdin = Some(receiver.into_blocking_fd().map_err(Status::internal)?);
            pipes.stdin = Some(sender);
        }
        Ok((stdio, pipes))
    }
}

async fn in_pipes(pipes: Pipes, process: Process, near: Near) {
    let Near { input, output } = near;
    let stdout = stream::forward(pipes.stdout, output.clone(), ExecFrame::Stdout);
    let stderr = stream::forward(pipes.stderr, output.clone(), ExecFrame::Stderr);
    let both = async { tokio::join!(stdout, stderr) };
    let inward = stream::feed(pipes.stdin.map(Input::Pipe), input);
    conclude(process, both, inward, output).await;
}

async fn in_terminal(terminal: Terminal, screen: pipe::Receiver, process: Process, near: Near, stdin: bool) {
    let Near { input, output } = near;
    let outward = stream::forward(Some(screen), output.clone(), ExecFrame::Stdout);
    let inward = stream::feed(Some(Input::Terminal { terminal, keys: stdin }), input);
    conclude(process, outward, inward, output).await;
}

/// Waits for the command's end and its last words, unless the client leaves first.
async fn conclude<T>(
    process: Process,
    outward: impl Future<Output = T>,
    inward: impl Future<Output = ()>,
    output: mpsc::Sender<ExecFrame>,
) {
    let ending = async {
        let mut exit = process.exit;
        tokio::pin!(outward);
        tokio::select! {
            exit = &mut exit => {
                let _unsaid = tokio::time::timeout(LAST_WORDS, outward).await;
                exit
            }
            _ = &mut outward => exit.await,
        }
    };
    tokio::pin!(ending, inward);
    let exit = tokio::select! {
        exit = &mut ending => exit,
        // Ends only when the client has left.
        () = inward => return,
    };
    // A client that left meanwhile does not need to hear it.
    let _left = output.send(ExecFrame::Ended(ended(exit.ok()))).await;
}

/// The `Status` that ends a session, as the real kubelet sends it.
fn ended(exit: Option<Exit>) -> Value {
    match exit {
        Some(Exit { code: 0, .. }) => json!({"metadata": {}, "status": "Success"}),
        Some(Exit { code, .. }) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        None => Status::internal("the node lost sight of the command").to_json(),
    }
}

/// Joins a container's own program: its output from now on, and its input if it has one.
fn attach(run: &Run, logs: &Logs, log: &LogRun, options: &ExecOptions) -> Result<ExecSession, Status> {
    let input = match (&run.terminal, &run.stdin) {
        (Some(terminal), _) => {
            let terminal = terminal.try_clone().and_then(Terminal::new).map_err(Status::internal)?;
            Some(Input::Terminal { terminal, keys: options.stdin })
        }
        (None, Some(stdin)) if options.stdin => {
            let stdin = stdin.try_clone().and_then(pipe::Sender::from_owned_fd).map_err(Status::internal)?;
            Some(Input::Pipe(stdin))
        }
        _ => None,
    };
    let selection = Selection { follow: true, tail_lines: Some(0), ..Selection::default() };
    let mut lines = logs.read(log, selection);
    let (session, near) = session();
    tokio::spawn(async move {
        let outward = async {
            while let Some(chunk) = lines.recv().await {
                if near.output.send(ExecFrame::Stdout(chunk)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = outward => {}
            () = stream::feed(input, near.input) => return,
        }
        let _left = near.output.send(ExecFrame::Ended(json!({"metadata": {}, "status": "Success"}))).await;
    });
    Ok(session)
}

/// Kills a command when its session is over; one that has ended is gone already.
struct Killer(u32);

impl Drop for Killer {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
