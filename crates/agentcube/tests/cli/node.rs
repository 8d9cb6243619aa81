//! A node that pretends: logs that are always the same, and commands that are a few lines of Rust.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use agentcube_apiserver::hooks::{Exec, ExecFrame, ExecOptions, ExecSession, Hooks, LogOptions, Logs};
use agentcube_apiserver::status::Status;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

struct Node(Handle);

pub(crate) fn hooks(runtime: Handle) -> Hooks {
    let node = Arc::new(Node(runtime));
    Hooks { logs: Some(node.clone()), exec: Some(node), ..Hooks::default() }
}

impl Logs for Node {
    /// Five lines, and what was asked for; a follower hears no end.
    fn logs(&self, pod: Value, options: LogOptions) -> Answer<mpsc::Receiver<Bytes>> {
        let container = options.container.clone().unwrap_or_default();
        if options.previous {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let message = format!("previous terminated container {container:?} in pod {name:?} not found");
            return Box::pin(async { Err(Status::bad_request(message)) });
        }
        let (sender, receiver) = mpsc::channel(16);
        self.0.spawn(async move {
            let tail = options.tail_lines.map_or(5, |lines| lines.min(5));
            let stamp = if options.timestamps { "2026-01-02T03:04:05Z " } else { "" };
            let since = options.since_seconds.map(|s| format!(" since {s} s")).unwrap_or_default();
            for line in 5 - tail..5 {
                let text = format!("{stamp}line {line} of {container}{since}\n");
                if sender.send(text.into()).await.is_err() {
                    return;
                }
            }
            if options.follow {
                sender.closed().await;
            }
        });
        Box::pin(async { Ok(receiver) })
    }
}

impl Exec for Node {
    fn exec(&self, _: Value, options: ExecOptions) -> Answer<ExecSession> {
        let (to_container, stdin) = mpsc::channel(1);
        let (stdout, from_container) = mpsc::channel(1);
        self.0.spawn(command(options, stdin, stdout));
        Box::pin(async { Ok(ExecSession { to_container, from_container }) })
    }
}

async fn command(options: ExecOptions, mut stdin: mpsc::Receiver<ExecFrame>, out: mpsc::Sender<ExecFrame>) {
    let words: Vec<&str> = options.command.iter().map(String::as_str).collect();
    let mut code = 0;
    match words.as_slice() {
        ["say", rest @ ..] => {
            let text = format!("{} in {}\n", rest.join(" "), options.container.unwrap_or_default());
            let _left = out.send(ExecFrame::Stdout(text.into())).await;
        }
        ["cat"] => {
            while let Some(ExecFrame::Stdin(data)) = stdin.recv().await {
                if out.send(ExecFrame::Stdout(data)).await.is_err() {
                    return;
                }
            }
        }
        ["size"] => {
            while let Some(frame) = stdin.recv().await {
                if let ExecFrame::Resize { columns, rows } = frame {
                    let _left = out.send(ExecFrame::Stdout(format!("{columns}x{rows}\r\n").into())).await;
                    break;
                }
            }
        }
        ["wait"] => {
            let _left = out.send(ExecFrame::Stdout("waiting\r\n".into())).await;
            return out.closed().await;
        }
        ["exit", number] => {
            code = number.parse().unwrap();
            let _left = out.send(ExecFrame::Stderr("about to fail\n".into())).await;
        }
        _ => {
            let ended = json!({"status": "Failure", "message": "no such program", "reason": "InternalError"});
            let _left = out.send(ExecFrame::Ended(ended)).await;
            return;
        }
    }
    let ended = match code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
    };
    let _left = out.send(ExecFrame::Ended(ended)).await;
}
