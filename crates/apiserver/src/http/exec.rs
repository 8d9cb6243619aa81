//! `exec` and `attach` over WebSocket, in the channel protocols that `kubectl` speaks (`v5` and `v4`).

use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ring::digest;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::reply::{self, ReplyBody};
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
/// The largest message that a client may send.
const MESSAGE_LIMIT: usize = 1 << 20;
/// How long a client may take to answer that it heard the end.
const PARTING: Duration = Duration::from_secs(5);

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
    let header =
        |name: header::HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let key = header(header::SEC_WEBSOCKET_KEY).to_owned();
    let Some(upgrade) = parts.extensions.get::<OnUpgrade>().cloned().filter(|_| !key.is_empty()) else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    let offered = header(header::SEC_WEBSOCKET_PROTOCOL);
    let Some(protocol) = PROTOCOLS.iter().find(|p| offered.split(',').any(|o| o.trim() == **p)) else {
        return Err(Status::bad_request(format!("unable to upgrade: none of {offered:?} is spoken here")));
    };
    let session = api.exec(pod, options).await?;
    tokio::spawn(async move {
        match upgrade.await {
            Ok(stream) => {
                let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_LIMIT));
                let socket =
                    WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, Some(config)).await;
                relay(socket, session).await;
            }
            Err(error) => tracing::debug!(%error, "a client left before its exec session began"),
        }
    });
    let mut response = reply::text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.clear();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    if let Ok(accept) = HeaderValue::from_str(&accept_key(&key)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(response)
}

/// RFC 6455: proves that the handshake was read.
fn accept_key(key: &str) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(hash.finish())
}

/// Carries frames both ways until the command ends or the client leaves; dropping the session stops it.
async fn relay<S>(socket: WebSocketStream<S>, mut session: ExecSession)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
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
    // The client may be gone already; there is nobody left to tell.
    let _gone =
        sink.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))).await;
    // What the client still sends is read, or the kernel would reset the connection and with it the last words.
    let parting = async { while let Some(Ok(_)) = source.next().await {} };
    let _impolite = tokio::time::timeout(PARTING, parting).await;
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
