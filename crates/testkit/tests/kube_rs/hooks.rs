//! A pretended node: logs that a trial dictates, and commands that are a few lines of Rust.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use agentcube_apiserver::hooks::{
    Connect, Connection, Exec, ExecFrame, ExecOptions, ExecSession, Hooks, LogOptions, Logs,
};
use agentcube_apiserver::status::Status;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// Followers that a log may have behind by so many lines.
const BEHIND: usize = 1024;

#[derive(Default)]
struct Log {
    lines: Vec<String>,
    followers: Vec<mpsc::Sender<Bytes>>,
    asked: Vec<LogOptions>,
}

/// The node of one server; each Pod, by `namespace/name`, has a log of its own.
#[derive(Default)]
pub(crate) struct Node {
    logs: Mutex<HashMap<String, Log>>,
    running: watch::Sender<usize>,
}

impl Node {
    pub(crate) fn hooks(self: &Arc<Self>) -> Hooks {
        Hooks {
            logs: Some(self.clone()),
            exec: Some(self.clone()),
            connect: Some(self.clone()),
            ..Hooks::default()
        }
    }

    /// Adds a line to a Pod's log.
    pub(crate) fn say(&self, pod: &str, line: &str) {
        let mut logs = self.logs.lock();
        let log = logs.entry(pod.to_owned()).or_default();
        log.lines.push(line.to_owned());
        let bytes = Bytes::from(format!("{line}\n"));
        log.followers.retain(|follower| follower.try_send(bytes.clone()).is_ok());
    }

    /// Ends the streams of whoever follows the Pod's log.
    pub(crate) fn end(&self, pod: &str) {
        self.logs.lock().entry(pod.to_owned()).or_default().followers.clear();
    }

    /// Waits until nobody follows the Pod's log any more.
    pub(crate) async fn abandoned(&self, pod: &str) {
        let followers = std::mem::take(&mut self.logs.lock().entry(pod.to_owned()).or_default().followers);
        for follower in followers {
            follower.closed().await;
        }
    }

    /// How many commands run.
    pub(crate) fn running(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    /// What was asked of the Pod's log so far.
    pub(crate) fn asked(&self, pod: &str) -> Vec<LogOptions> {
        self.logs.lock().entry(pod.to_owned()).or_default().asked.clone()
    }

    fn read(&self, pod: &Value, options: LogOptions) -> Result<mpsc::Receiver<Bytes>, Status> {
        let mut logs = self.logs.lock();
        let log = logs.entry(key(pod)).or_default();
        log.asked.push(options.clone());
        if options.previous {
            let name = options.container.unwrap_or_default();
            return Err(Status::bad_request(format!("previous terminated container {name:?} not found")));
        }
        let tail =
            options.tail_lines.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
        let shown = &log.lines[log.lines.len().saturating_sub(tail)..];
        let (sender, receiver) = mpsc::channel(BEHIND);
        for line in shown {
            sender.try_send(Bytes::from(format!("{line}\n"))).map_err(Status::internal)?;
        }
        if options.follow {
            log.followers.push(sender);
        }
        Ok(receiver)
    }
}

fn key(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

impl Logs for Node {
    fn logs(&self, pod: Value, options: LogOptions) -> Answer<mpsc::Receiver<Bytes>> {
        let outcome = self.read(&pod, options);
        Box::pin(async { outcome })
    }
}

impl Exec for Node {
    fn exec(&self, _: Value, options: ExecOptions) -> Answer<ExecSession> {
        // Channels of one: a server that waits on one side while the other is full gets stuck.
        let (to_container, stdin) = mpsc::channel(1);
        let (stdout, from_container) = mpsc::channel(1);
        let running = self.running.clone();
        running.send_modify(|commands| *commands += 1);
        tokio::spawn(async move {
            command(options, stdin, stdout).await;
            running.send_modify(|commands| *commands -= 1);
        });
        Box::pin(async { Ok(ExecSession { to_container, from_container }) })
    }
}

/// The port on which every Pod returns what it hears; on 80 it answers HTTP, and on the others it refuses.
pub(crate) const ECHO_PORT: u16 = 7;

impl Connect for Node {
    fn pod(&self, _: Value, port: u16) -> Answer<Connection> {
        let (near, mut far) = tokio::io::duplex(1024);
        match port {
            ECHO_PORT => {
                tokio::spawn(async move {
                    let (mut reader, mut writer) = tokio::io::split(&mut far);
                    let _left = tokio::io::copy(&mut reader, &mut writer).await;
                });
            }
            80 => {
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(recite);
                    let served = hyper::server::conn::http1::Builder::new();
                    let _left = served.serve_connection(TokioIo::new(far), service).await;
                });
            }
            _ => {
                let refusal = Status::service_unavailable("dial tcp: connection refused");
                return Box::pin(async { Err(refusal) });
            }
        }
        Box::pin(async { Ok(Box::new(near) as Connection) })
    }

    fn service(&self, _: Value, port: Value) -> Answer<Connection> {
        self.pod(Value::Null, port["targetPort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0))
    }
}

/// Answers with what was asked.
async fn recite(
    request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let secret = parts.headers.contains_key(http::header::AUTHORIZATION);
    let told = json!({
        "method": parts.method.as_str(), "path": parts.uri.to_string(), "body": body.len(), "secret": secret,
    });
    let mut answer = http::Response::new(Full::new(Bytes::from(told.to_string())));
    *answer.status_mut() = http::StatusCode::IM_A_TEAPOT;
    Ok(answer)
}

/// A client that leaves makes the sends fail; the command then ends for want of readers.
async fn command(options: ExecOptions, mut stdin: mpsc::Receiver<ExecFrame>, out: mpsc::Sender<ExecFrame>) {
    let container = options.container.clone().unwrap_or_default();
    let name = if options.attach { "attached" } else { options.command.first().map_or("", String::as_str) };
    let text = |text: String| ExecFrame::Stdout(Bytes::from(text));
    let sent = match name {
        "attached" => out.send(text(format!("attached to {container}\n"))).await,
        "say" => out.send(text(format!("{} in {container}\n", options.command[1..].join(" ")))).await,
        "echo" => echo(&mut stdin, &out).await,
        "size" => loop {
            match stdin.recv().await {
                Some(ExecFrame::Resize { columns, rows }) if columns > 0 => {
                    break out.send(text(format!("{columns}x{rows}\n"))).await;
                }
                Some(_) => {}
                None => return,
            }
        },
        _ => out.send(ExecFrame::Stderr(Bytes::from_static(b"no such command\n"))).await,
    };
    let ended = match name {
        "attached" | "say" | "echo" | "size" => json!({"metadata": {}, "status": "Success"}),
        _ => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code: exit status 3",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
        }),
    };
    if sent.is_ok() {
        let _left = out.send(ExecFrame::Ended(ended)).await;
    }
}

async fn echo(
    stdin: &mut mpsc::Receiver<ExecFrame>,
    out: &mpsc::Sender<ExecFrame>,
) -> Result<(), mpsc::error::SendError<ExecFrame>> {
    while let Some(frame) = stdin.recv().await {
        match frame {
            ExecFrame::Stdin(data) => out.send(ExecFrame::Stdout(data)).await?,
            ExecFrame::StdinClosed => break,
            _ => {}
        }
    }
    out.send(ExecFrame::Stderr(Bytes::from_static(b"the end\n"))).await
}
