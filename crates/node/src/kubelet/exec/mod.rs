//! Commands in running containers, for the API server's `exec` and `attach`. A command whose client has left is killed.

use std::pin::Pin;

use agentcube_apiserver::hooks::{Exec, ExecFrame, ExecOptions, ExecSession};
use agentcube_apiserver::status::Status;
use agentcube_runtime::session::{self, Input, Killer, Pipes, Terminal, Told};
use agentcube_runtime::{ExecSpec, Exit, Process, Stdio};
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::living::{Living, Run};
use super::logs::{Logs, Run as LogRun, Selection};

/// Frames that wait for the other side.
const AHEAD: usize = 16;

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

fn open() -> (ExecSession, Near) {
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
    let (stdio, pipes) = match options.tty {
        true => (Stdio::default(), Pipes::default()),
        false => Pipes::open(options.stdin, options.stdout, options.stderr).map_err(Status::internal)?,
    };
    let mut process = run
        .runtime
        .exec(&run.id, spec, stdio)
        .await
        .map_err(|error| Status::internal(format!("error executing command in container: {error}")))?;
    let (session, near) = open();
    let opened = process.terminal.take().map(|master| {
        let terminal = Terminal::new(master)?;
        let screen = terminal.screen()?;
        Ok::<_, std::io::Error>((terminal, screen))
    });
    let terminal = opened.transpose().map_err(Status::internal)?;
    let killer = Killer(process.pid);
    tokio::spawn(async move {
        let ended = match terminal {
            Some((terminal, screen)) => in_terminal(terminal, screen, process, near, options.stdin).await,
            None => in_pipes(pipes, process, near).await,
        };
        if ended {
            killer.disarm();
        }
    });
    Ok(session)
}

async fn in_pipes(pipes: Pipes, process: Process, near: Near) -> bool {
    let Near { input, output } = near;
    let stdout = session::forward(pipes.stdout, output.clone(), ExecFrame::Stdout);
    let stderr = session::forward(pipes.stderr, output.clone(), ExecFrame::Stderr);
    let both = async { tokio::join!(stdout, stderr) };
    let inward = session::feed(pipes.stdin.map(Input::Pipe), input, told);
    conclude(process, both, inward, output).await
}

async fn in_terminal(
    terminal: Terminal,
    screen: pipe::Receiver,
    process: Process,
    near: Near,
    stdin: bool,
) -> bool {
    let Near { input, output } = near;
    let outward = session::forward(Some(screen), output.clone(), ExecFrame::Stdout);
    let inward = session::feed(Some(Input::Terminal { terminal, keys: stdin }), input, told);
    conclude(process, outward, inward, output).await
}

/// Tells the client how the command ended, unless the client left first. True if it has ended.
async fn conclude<T>(
    process: Process,
    outward: impl Future<Output = T>,
    inward: impl Future<Output = ()>,
    output: mpsc::Sender<ExecFrame>,
) -> bool {
    let Some(exit) = session::conclude(process, outward, inward).await else { return false };
    // A client that left meanwhile does not need to hear it.
    let _left = output.send(ExecFrame::Ended(ended(exit))).await;
    true
}

/// What of a client's frames is for the command.
fn told(frame: ExecFrame) -> Option<Told> {
    match frame {
        ExecFrame::Stdin(data) => Some(Told::Stdin(data)),
        ExecFrame::StdinClosed => Some(Told::StdinClosed),
        ExecFrame::Resize { columns, rows } => Some(Told::Resize { columns, rows }),
        _ => None,
    }
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
    let (session, near) = open();
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
            () = session::feed(input, near.input, told) => return,
        }
        let _left = near.output.send(ExecFrame::Ended(json!({"metadata": {}, "status": "Success"}))).await;
    });
    Ok(session)
}
