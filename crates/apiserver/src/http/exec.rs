//! `exec` and `attach` over WebSocket, in the channel protocols that `kubectl` speaks (`v5` and `v4`).

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::Response;
use http::request::Parts;
use tokio_tungstenite::tungstenite::Message;

use super::reply::ReplyBody;
use super::websocket::{self, Handshake, Socket};
use crate::api::{Api, Name};
use crate::hooks::{ExecFrame, ExecOptions, ExecSession};
use crate::request::Query;
use crate::resource::Resource;
use crate::status::Status;

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

pub(super) async fn serve(
    api: &Api,
    resource: &Resource,
    named: &Name<'_>,
    parts: &Parts,
    query: &Query,
    subresource: &str,
) -> Result<Response<ReplyBody>, Status> {
    let mut options = ExecOptions {
        container: Some(query.get("container")).filter(|c| !c.is_empty()).map(str::to_owned),
        command: query.all("command").to_vec(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr"),
        tty: query.flag("tty"),
        attach: subresource == "attach",
    };
    if !options.attach && options.command.is_empty() {
        return Err(Status::bad_request("you must specify at least 1 command for the container"));
    }
    // Before the connection is looked at: a client that tries another protocol must hear what is wrong.
    let pod = api.exec_target(resource, named, &mut options)?;
    let handshake = Handshake::read(parts, &PROTOCOLS)?;
    let session = api.exec(pod, options).await?;
    Ok(handshake.accept(move |socket| relay(socket, session)))
}

/// Carries frames both ways until the command ends or the client leaves; dropping the session stops it.
async fn relay(socket: Socket, mut session: ExecSession) {
    let (mut sink, mut source) = socket.split();
    // Each way on its own: a command that waits for its output to be read must not keep it from being read.
    let inward = async {
        while let Some(Ok(message)) = source.next().await {
            if let Some(frame) = incoming(&message) {
                // A command that no longer reads may still speak, so this goes on.
                let _unread = session.to_container.send(frame).await;
            }
        }
    };
    let outward = async {
        while let Some(frame) = session.from_container.recv().await {
            let last = matches!(frame, ExecFrame::Ended(_));
            let gone = match outgoing(frame) {
                Some(message) => sink.send(message).await.is_err(),
                None => false,
            };
            if last || gone {
                break;
            }
        }
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    websocket::part(sink, source).await;
}

fn incoming(message: &Message) -> Option<ExecFrame> {
    let Message::Binary(data) = message else { return None };
    let (channel, rest) = data.split_first()?;
    match *channel {
        STDIN => Some(ExecFrame::Stdin(Bytes::copy_from_slice(rest))),
        CLOSE if rest.first() == Some(&STDIN) => Some(ExecFrame::StdinClosed),
        RESIZE => {
            let size: serde_json::Value = serde_json::from_slice(rest).ok()?;
            let side = |key: &str| u16::try_from(size[key].as_u64()?).ok();
            Some(ExecFrame::Resize { columns: side("Width")?, rows: side("Height")? })
        }
        _ => None,
    }
}

fn outgoing(frame: ExecFrame) -> Option<Message> {
    let (channel, data) = match frame {
        ExecFrame::Stdout(data) => (STDOUT, data),
        ExecFrame::Stderr(data) => (STDERR, data),
        ExecFrame::Ended(status) => (ERROR, serde_json::to_vec(&status).ok()?.into()),
        ExecFrame::Stdin(_) | ExecFrame::StdinClosed | ExecFrame::Resize { .. } => return None,
    };
    let mut bytes = Vec::with_capacity(data.len() + 1);
    bytes.push(channel);
    bytes.extend_from_slice(&data);
    Some(Message::Binary(bytes.into()))
}
