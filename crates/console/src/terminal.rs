//! `/terminal`: a WebSocket of its own for each terminal, in a Pod by the API server or in a sandbox by the fast path, as
//! whoever logged in: whether that may have one is for them to say.
//!
//! The first message of a page is its proof, the second names what to open. Then bytes go both ways as binary messages, and
//! a text from the page is a new size. A text to the page is `{"open": true}` when there is a terminal, and
//! `{"end": "…"}` when there is none any more.

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request};
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_tungstenite::tungstenite::Message;

use crate::answer::Answer;
use crate::sandboxes::{Input, Opened, Output, What, Wish};
use crate::server::State;
use crate::session::Session;
use crate::socket::{self, PING, SILENCE, Socket};

/// The largest message of a page: something pasted.
const MESSAGE_LIMIT: usize = 256 << 10;
/// Messages that wait for a slow side; after that, the other waits.
const WAITING: usize = 32;
/// The best shell that there is, in colours that every terminal has.
const SHELL: &str = "TERM=xterm-256color; export TERM; \
    if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";
/// Channels of Kubernetes' protocol.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;

/// What a page wants to have a terminal in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    kind: Kind,
    namespace: String,
    name: String,
    #[serde(default)]
    container: Option<String>,
    columns: u16,
    rows: u16,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Pod,
    Sandbox,
}

#[derive(Clone, Copy, Deserialize)]
struct Size {
    columns: u16,
    rows: u16,
}

/// Says yes to a terminal, and serves it.
pub(crate) fn answer(
    state: &Arc<State>,
    session: Arc<Session>,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
) -> Answer {
    let state = state.clone();
    socket::open(session, headers, upgrade, MESSAGE_LIMIT, move |socket, session| async move {
        let (mut sink, mut source) = socket.split();
        let why = match begin(&mut source, &state, &session).await {
            Some(Ok(opened)) => carry(&mut sink, &mut source, opened).await,
            Some(Err(why)) => why,
            None => return,
        };
        // Whoever is gone needs no end.
        let _gone = sink.send(Message::text(json!({ "end": why }).to_string())).await;
        let _gone = sink.close().await;
    })
}

/// Hears the proof and the wish; nothing when they are not what they should be.
async fn begin(
    source: &mut SplitStream<Socket>,
    state: &State,
    session: &Session,
) -> Option<Result<Opened, String>> {
    let first = tokio::time::timeout(SILENCE, text(source)).await.ok()??;
    if !session.proven_by(&first) {
        return None;
    }
    let wanted = tokio::time::timeout(SILENCE, text(source)).await.ok()??;
    let wanted: Wanted = serde_json::from_str(&wanted).ok()?;
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
    };
    if !plain(&wanted.namespace) || !plain(&wanted.name) || !wanted.container.as_deref().is_none_or(plain) {
        return Some(Err("nothing has such a name".to_owned()));
    }
    Some(match wanted.kind {
        Kind::Pod => pod(state, session, &wanted).await,
        Kind::Sandbox => {
            let Wanted { namespace, name, columns, rows, .. } = wanted;
            let command = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
            let what = What::Shell { command, columns, rows };
            (state.options.sandboxes)(Wish { token: session.token(), namespace, name, what }).await
        }
    })
}

async fn text(source: &mut SplitStream<Socket>) -> Option<String> {
    loop {
        match source.next().await?.ok()? {
            Message::Text(text) => return Some(text.as_str().to_owned()),
            Message::Ping(_) | Message::Pong(_) => {}
            _ => return None,
        }
    }
}

/// Carries bytes until one of the two ends; why it ended.
async fn carry(
    sink: &mut SplitSink<Socket, Message>,
    source: &mut SplitStream<Socket>,
    mut opened: Opened,
) -> String {
    let gone = || "the page is gone".to_owned();
    if sink.send(Message::text(json!({ "open": true }).to_string())).await.is_err() {
        return gone();
    }
    let (mut ping, mut heard) = (tokio::time::interval(PING), Instant::now());
    loop {
        tokio::select! {
            message = source.next() => {
                let Some(Ok(message)) = message else { return gone() };
                heard = Instant::now();
                let input = match message {
                    Message::Binary(bytes) => Input::Bytes(bytes),
                    Message::Text(text) => match serde_json::from_str(text.as_str()) {
                        Ok(Size { columns, rows }) => Input::Resize { columns, rows },
                        Err(_) => return "the page said what is no size".to_owned(),
                    },
                    Message::Close(_) => return gone(),
                    _ => continue,
                };
                // What has ended takes nothing, and says itself that it has.
                let _ended = opened.input.send(input).await;
            }
            output = opened.output.recv() => match output {
                Some(Output::Bytes(bytes)) => {
                    let sent = tokio::time::timeout(SILENCE, sink.send(Message::Binary(bytes))).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        return gone();
                    }
                }
                Some(Output::End { code: Some(code), .. }) => return format!("the shell has ended with {code}"),
                Some(Output::End { why, .. }) => return why,
                None => return "the connection to the terminal broke".to_owned(),
            },
            _ = ping.tick() => {
                if heard.elapsed() > SILENCE || sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return gone();
                }
            }
        }
    }
}

/// A shell in a container, by the API server's own WebSocket.
async fn pod(state: &State, session: &Session, wanted: &Wanted) -> Result<Opened, String> {
    let Wanted { namespace, name, container, columns, rows, .. } = wanted;
    let command: String =
        ["/bin/sh", "-c", SHELL].iter().map(|word| format!("&command={}", encoded(word))).collect();
    let container = container.as_deref().map(|name| format!("&container={name}")).unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{name}/exec?stdin=true&stdout=true&tty=true{container}{command}"
    );
    let authorization = session.authorization().ok_or("the session has no token")?;
    let request = Request::get(path).header(AUTHORIZATION, authorization).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let connection = state.options.api.connect(request).await;
    let connection = connection.map_err(|error| format!("the API server gives no terminal: {error}"))?;
    let (input, inputs) = mpsc::channel(WAITING);
    let (outputs, output) = mpsc::channel(WAITING);
    // The size comes before anything that is drawn by it.
    input.try_send(Input::Resize { columns: *columns, rows: *rows }).ok();
    tokio::spawn(converse(connection.into_stream(), inputs, outputs));
    Ok(Opened { input, output })
}

/// Speaks the protocol of Kubernetes until the shell has ended, or nobody listens.
async fn converse<S>(
    stream: tokio_tungstenite::WebSocketStream<S>,
    mut inputs: Receiver<Input>,
    outputs: Sender<Output>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut sink, mut source) = stream.split();
    let broken = || Output::End { code: None, why: "the API server broke off".to_owned() };
    let end = loop {
        tokio::select! {
            input = inputs.recv() => {
                let Some(input) = input else { break None };
                if sink.send(Message::Binary(to_channel(input))).await.is_err() {
                    break Some(broken());
                }
            }
            message = source.next() => {
                let output = match message {
                    Some(Ok(Message::Binary(bytes))) => from_channel(bytes),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => Some(broken()),
                    Some(Ok(_)) => None,
                };
                match output {
                    Some(output @ Output::End { .. }) => break Some(output),
                    Some(output) => {
                        let heard = outputs.send(output).await;
                        if heard.is_err() {
                            break None;
                        }
                    }
                    None => {}
                }
            }
        }
    };
    if let Some(end) = end {
        // Whoever is gone needs no end.
        let _gone = outputs.send(end).await;
    }
    let _gone = sink.close().await;
}

fn to_channel(input: Input) -> Bytes {
    let mut message = BytesMut::new();
    match input {
        Input::Bytes(bytes) => {
            message.put_u8(STDIN);
            message.extend_from_slice(&bytes);
        }
        Input::Resize { columns, rows } => {
            message.put_u8(RESIZE);
            message.extend_from_slice(json!({ "Width": columns, "Height": rows }).to_string().as_bytes());
        }
    }
    message.freeze()
}

fn from_channel(mut bytes: Bytes) -> Option<Output> {
    if bytes.is_empty() {
        return None;
    }
    let rest = bytes.split_off(1);
    match bytes[0] {
        STDOUT | STDERR if !rest.is_empty() => Some(Output::Bytes(rest)),
        STATUS => Some(ended(&serde_json::from_slice(&rest).unwrap_or_default())),
        _ => None,
    }
}

/// How a shell ended, by the Status of the API server.
fn ended(status: &Value) -> Output {
    if status["status"] == "Success" {
        return Output::End { code: Some(0), why: String::new() };
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
    let code = code.and_then(|cause| cause["message"].as_str()?.parse().ok());
    let why = status["message"].as_str().unwrap_or("the shell failed").to_owned();
    Output::End { code, why }
}

/// A word as it stands in a query.
fn encoded(word: &str) -> String {
    word.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_those_of_kubernetes() {
        assert_eq!(to_channel(Input::Bytes(Bytes::from_static(b"ls"))), &b"\0ls"[..]);
        let size = to_channel(Input::Resize { columns: 80, rows: 24 });
        assert_eq!(
            serde_json::from_slice::<Value>(&size[1..]).unwrap(),
            json!({ "Width": 80, "Height": 24 })
        );
        assert_eq!(size[0], RESIZE);
        assert!(
            matches!(from_channel(Bytes::from_static(b"\x01out")), Some(Output::Bytes(out)) if out == "out")
        );
        assert!(from_channel(Bytes::from_static(b"\x01")).is_none());
        assert!(from_channel(Bytes::new()).is_none());
        let ended = |text: &str| match from_channel(Bytes::from([b"\x03", text.as_bytes()].concat())) {
            Some(Output::End { code, why }) => (code, why),
            other => panic!("{other:?}"),
        };
        assert_eq!(ended(r#"{"status":"Success"}"#).0, Some(0));
        let failed = r#"{"status":"Failure","message":"x","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(ended(failed).0, Some(3));
        assert_eq!(ended(r#"{"status":"Failure","message":"no shell"}"#), (None, "no shell".to_owned()));
        assert_eq!(ended("nonsense").0, None);
    }

    #[test]
    fn a_wish_names_what_and_how_large() {
        let wish = r#"{"kind":"pod","namespace":"a","name":"b","container":"c","columns":80,"rows":24}"#;
        assert!(serde_json::from_str::<Wanted>(wish).is_ok());
        assert!(
            serde_json::from_str::<Wanted>(
                r#"{"kind":"node","namespace":"a","name":"b","columns":1,"rows":1}"#
            )
            .is_err()
        );
        assert_eq!(encoded("a b;c"), "a%20b%3Bc");
    }
}
