//! `/live`: one WebSocket for each tab, by which it follows any number of watches and logs. A browser opens only six
//! plain connections to a host, which as many watches would take up for good.
//!
//! The first message of a tab is its proof. Then it sends `{"open": 1, "path": "…"}` (with `"metadata": true` for the
//! metadata of objects alone) and `{"close": 1}`, and is sent
//! `1 <line>` for every line, and `1! <Status>` when there are no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::AbortHandle;
use tokio_tungstenite::tungstenite::Message;

use crate::answer::Answer;
use crate::kube_api::{self, Use};
use crate::server::State;
use crate::session::Session;
use crate::socket::{self, PING, SILENCE, Socket};
use crate::{figures, sandboxes};

/// The largest message of a tab.
const MESSAGE_LIMIT: usize = 16 << 10;
/// What a tab may follow at a time.
const MOST_STREAMS: usize = 32;
/// The longest line: an object is at most so large, and a line holds one.
const LINE_LIMIT: usize = 8 << 20;
/// What is kept of a refusal.
const REFUSAL_LIMIT: usize = 64 << 10;
/// Lines that wait for a slow tab; after that, the API server waits.
const WAITING: usize = 64;
/// Instead of objects, what names them.
const ONLY_METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");

/// What a tab asks for.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wish {
    Open {
        open: u32,
        path: String,
        /// Only the metadata of objects.
        #[serde(default)]
        metadata: bool,
    },
    Close {
        close: u32,
    },
}

/// Says yes to a tab, and serves it.
pub(crate) fn answer(
    state: &Arc<State>,
    session: Arc<Session>,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
) -> Answer {
    let state = state.clone();
    socket::open(session, headers, upgrade, MESSAGE_LIMIT, move |socket, session| {
        serve(socket, state, session)
    })
}

/// Streams of a tab; those that run end with it.
#[derive(Default)]
struct Streams(BTreeMap<u32, AbortHandle>);

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in self.0.values() {
            stream.abort();
        }
    }
}

async fn serve(socket: Socket, state: Arc<State>, session: Arc<Session>) {
    let (mut sink, mut source) = socket.split();
    let (lines, mut waiting) = mpsc::channel::<Message>(WAITING);
    let mut streams = Streams::default();
    let (mut proven, mut heard) = (false, Instant::now());
    let mut ping = tokio::time::interval(PING);
    loop {
        tokio::select! {
            message = source.next() => {
                let Some(Ok(message)) = message else { return };
                heard = Instant::now();
                let Message::Text(text) = message else { continue };
                if !proven {
                    proven = session.proven_by(text.as_str());
                    if !proven {
                        return;
                    }
                    continue;
                }
                let Ok(wish) = serde_json::from_str(text.as_str()) else { return };
                obey(wish, &mut streams, &state, &session, &lines);
            }
            Some(line) = waiting.recv() => {
                if tokio::time::timeout(SILENCE, sink.send(line)).await.is_err() {
                    return;
                }
            }
            _ = ping.tick() => {
                if heard.elapsed() > SILENCE || sink.send(Message::Ping(Bytes::new())).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn obey(
    wish: Wish,
    streams: &mut Streams,
    state: &Arc<State>,
    session: &Arc<Session>,
    lines: &Sender<Message>,
) {
    streams.0.retain(|_, stream| !stream.is_finished());
    match wish {
        Wish::Close { close } => {
            if let Some(stream) = streams.0.remove(&close) {
                stream.abort();
            }
        }
        Wish::Open { open, path, metadata } => {
            let full = streams.0.len() >= MOST_STREAMS;
            let (state, session, lines) = (state.clone(), session.clone(), lines.clone());
            let running = tokio::spawn(async move {
                let (code, why) = match full {
                    true => (429, "this tab follows as much as it may".to_owned()),
                    false => {
                        follow(&path, metadata, &state, &session, &Lines { id: open, to: lines.clone() })
                            .await
                    }
                };
                let end = json!({ "kind": "Status", "code": code, "message": why });
                // Whoever is gone needs no end.
                let _gone = lines.send(Message::text(format!("{open}! {end}"))).await;
            });
            if let Some(before) = streams.0.insert(open, running.abort_handle()) {
                before.abort();
            }
        }
    }
}

/// Where the lines of a stream go.
pub(crate) struct Lines {
    id: u32,
    to: Sender<Message>,
}

/// Nobody listens any more.
pub(crate) struct Gone;

impl Lines {
    pub(crate) async fn send(&self, line: &[u8]) -> Result<(), Gone> {
        let text = format!("{} {}", self.id, String::from_utf8_lossy(line));
        self.to.send(Message::text(text)).await.map_err(|_| Gone)
    }
}

/// Passes lines on until there are no more; how it ended. Besides paths of the API server, there are two of our own.
async fn follow(
    path: &str,
    metadata: bool,
    state: &State,
    session: &Session,
    lines: &Lines,
) -> (u16, String) {
    if path == figures::PATH {
        return figures::follow(state, session, lines).await;
    }
    if let Some(place) = path.strip_prefix(sandboxes::LOGS) {
        return sandboxes::follow_log(place, state, session, lines).await;
    }
    if let Some(why) = kube_api::refused(&Method::GET, path, Use::Stream) {
        return (403, why.to_owned());
    }
    let mut headers = HeaderMap::new();
    if metadata {
        headers.insert(ACCEPT, ONLY_METADATA);
    }
    let answered = kube_api::send(state, session, Method::GET, path, &headers, Bytes::new()).await;
    let answered = match answered {
        Ok(answered) => answered,
        Err(why) => return (502, why),
    };
    let status = answered.status();
    let mut body = answered.into_body();
    let mut split = Split::default();
    let mut refusal = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return (502, format!("the API server broke off: {error}")),
        };
        let Ok(data) = frame.into_data() else { continue };
        if !status.is_success() {
            refusal.extend_from_slice(&data);
            if refusal.len() > REFUSAL_LIMIT {
                break;
            }
        } else if let Err(end) = split.pass(&data, lines).await {
            return end;
        }
    }
    if !status.is_success() {
        let refusal: Option<serde_json::Value> = serde_json::from_slice(&refusal).ok();
        let message = refusal.as_ref().and_then(|refusal| refusal["message"].as_str());
        return (status.as_u16(), message.map_or_else(|| status.to_string(), str::to_owned));
    }
    split.finish(lines).await
}

/// Bytes as they come, cut into lines.
#[derive(Default)]
pub(crate) struct Split(BytesMut);

impl Split {
    /// Sends the lines that are whole; how the stream ends if it must.
    pub(crate) async fn pass(&mut self, data: &[u8], lines: &Lines) -> Result<(), (u16, String)> {
        let pending = &mut self.0;
        // Only what is new can hold the end of a line.
        let mut searched = pending.len();
        pending.extend_from_slice(data);
        while let Some(at) = pending[searched..].iter().position(|byte| *byte == b'\n') {
            let line = pending.split_to(searched + at + 1);
            searched = 0;
            if lines.send(&line[..line.len() - 1]).await.is_err() {
                return Err((200, "nobody listens".to_owned()));
            }
        }
        match pending.len() > LINE_LIMIT {
            true => Err((502, format!("a line is longer than {LINE_LIMIT} bytes"))),
            false => Ok(()),
        }
    }

    /// Sends what is left; how the stream ended.
    pub(crate) async fn finish(self, lines: &Lines) -> (u16, String) {
        if !self.0.is_empty() && lines.send(&self.0).await.is_err() {
            return (200, "nobody listens".to_owned());
        }
        (200, "the server ended it".to_owned())
    }
}
