//! Logs and terminals of sandboxes for the console: the fast path, as whoever logged in there.

use std::sync::Arc;

use agentcube_console::sandboxes::{Input, Open, Opened, Output, What, Wish};
use agentcube_protos::fastpath::{ExecRequest, LogsRequest};
use agentcube_protos::session::exec_output::Output as Said;
use agentcube_protos::session::{ExecInput, ExecStart, LogOptions, Size, exec_input};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::client::grpc::{self, FastPath};
use crate::sandbox::refusal;

/// Messages that wait for a slow side; after that, the other waits.
const WAITING: usize = 32;

/// The way to the sandboxes of an API server.
pub(super) fn of(config: kube::Config) -> Open {
    Arc::new(move |wish| {
        let config = config.clone();
        async move { open(config, wish).await.map_err(|error| format!("{error:#}")) }.boxed()
    })
}

async fn open(mut config: kube::Config, wish: Wish) -> anyhow::Result<Opened> {
    config.auth_info.token = Some(wish.token);
    let fast_path = grpc::connect(&config).await?;
    let (namespace, sandbox_id) = (wish.namespace, wish.name);
    let (input, inputs) = mpsc::channel(WAITING);
    let (outputs, output) = mpsc::channel(WAITING);
    match wish.what {
        What::Log { tail } => {
            let options = LogOptions { follow: true, tail: Some(tail), ..LogOptions::default() };
            log(fast_path, LogsRequest { sandbox_id, namespace, options: Some(options) }, outputs).await?;
        }
        What::Shell { command, columns, rows } => {
            let (columns, rows) = (columns.into(), rows.into());
            let start = ExecStart { command, stdin: true, tty: true, columns, rows, ..ExecStart::default() };
            let start = ExecRequest { sandbox_id, namespace, start: Some(start), input: None };
            shell(fast_path, start, inputs, outputs).await?;
        }
    }
    Ok(Opened { input, output })
}

async fn log(mut fast_path: FastPath, request: LogsRequest, outputs: Sender<Output>) -> anyhow::Result<()> {
    let mut chunks = fast_path.logs(request).await.map_err(|status| refusal(&status))?.into_inner();
    tokio::spawn(async move {
        let end = loop {
            match chunks.message().await {
                Ok(Some(chunk)) => {
                    if outputs.send(Output::Bytes(Bytes::from(chunk.content))).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break Output::End { code: None, why: String::new() },
                Err(status) => break Output::End { code: None, why: refusal(&status).to_string() },
            }
        };
        // Whoever is gone needs no end.
        let _gone = outputs.send(end).await;
    });
    Ok(())
}

async fn shell(
    mut fast_path: FastPath,
    start: ExecRequest,
    inputs: Receiver<Input>,
    outputs: Sender<Output>,
) -> anyhow::Result<()> {
    // Ends when the page does: then nobody holds the other end of its inputs.
    let requests = stream::unfold((Some(start), inputs), |(start, mut inputs)| async move {
        let request = match start {
            Some(start) => start,
            None => ExecRequest { input: Some(typed(inputs.recv().await?)), ..ExecRequest::default() },
        };
        Some((request, (None, inputs)))
    });
    let mut answers = fast_path.exec(requests).await.map_err(|status| refusal(&status))?.into_inner();
    tokio::spawn(async move {
        let end = loop {
            let said = match answers.message().await {
                Ok(Some(answer)) => answer.output,
                Ok(None) => break (None, "the connection ended before the shell did".to_owned()),
                Err(status) => break (None, refusal(&status).to_string()),
            };
            let bytes = match said {
                Some(Said::Stdout(bytes) | Said::Stderr(bytes)) => bytes,
                Some(Said::Exit(exit)) => break (Some(exit.code), String::new()),
                None => continue,
            };
            if outputs.send(Output::Bytes(Bytes::from(bytes))).await.is_err() {
                return;
            }
        };
        let (code, why) = end;
        // Whoever is gone needs no end.
        let _gone = outputs.send(Output::End { code, why }).await;
    });
    Ok(())
}

fn typed(input: Input) -> ExecInput {
    let input = match input {
        Input::Bytes(bytes) => exec_input::Input::Stdin(bytes.to_vec()),
        Input::Resize { columns, rows } => {
            exec_input::Input::Resize(Size { columns: columns.into(), rows: rows.into() })
        }
    };
    ExecInput { input: Some(input) }
}
