//! What runs in instances: a server that tells what it was asked, speaks as it is told to, and mirrors what it hears.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What all instances share.
pub(crate) struct Shared {
    /// What streams of events are to say.
    pub(crate) say: broadcast::Sender<&'static str>,
    /// How many streams are open.
    pub(crate) open: watch::Sender<usize>,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared { say: broadcast::Sender::new(64), open: watch::Sender::new(0) }
    }
}

/// Counts a stream for as long as it lives.
struct Open(Arc<Shared>);

impl Open {
    fn begin(shared: &Arc<Shared>) -> Open {
        shared.open.send_modify(|count| *count += 1);
        Open(shared.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|count| *count -= 1);
    }
}

/// Serves at an address until the task is aborted.
pub(crate) async fn serve(address: SocketAddr, name: String, shared: Arc<Shared>) -> Result<JoinHandle<()>> {
    let listener = TcpListener::bind(address).await?;
    Ok(tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (name, shared) = (name.clone(), shared.clone());
            let service = hyper::service::service_fn(move |request| {
                let (name, shared) = (name.clone(), shared.clone());
                async move { Ok::<_, Infallible>(answer(request, &name, &shared).await) }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            connections.spawn(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
        }
    }))
}

async fn answer(request: Request<Incoming>, name: &str, shared: &Arc<Shared>) -> Response<Body> {
    match request.uri().path() {
        "/mirror" => Response::new(request.into_body().map_err(std::io::Error::other).boxed_unsync()),
        "/events" => events(shared),
        "/talk" => talk(request, shared),
        _ => echo(request, name).await,
    }
}

async fn echo(request: Request<Incoming>, name: &str) -> Response<Body> {
    let headers: BTreeMap<String, String> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let seen = json!({ "instance": name, "target": request.uri().to_string(), "headers": headers });
    whole(&seen.to_string())
}

fn whole(text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(text.to_owned()));
    Response::new(body.map_err(|never| match never {}).boxed_unsync())
}

/// Says what it is told, until it is told to stop.
fn events(shared: &Arc<Shared>) -> Response<Body> {
    let state = (shared.say.subscribe(), Open::begin(shared));
    let frames = futures_util::stream::unfold(state, |(mut told, open)| async move {
        match told.recv().await {
            Ok("stop") | Err(_) => None,
            Ok(text) => Some((Ok(Frame::data(Bytes::from_static(text.as_bytes()))), (told, open))),
        }
    });
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"data: hello\n\n")))]);
    let mut response = Response::new(StreamBody::new(first.chain(frames)).boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/event-stream"));
    response
}

/// Agrees to speak WebSocket, and then repeats what it hears in capitals. Frames are no concern of a gateway's.
fn talk(mut request: Request<Incoming>, shared: &Arc<Shared>) -> Response<Body> {
    let mut response = whole("");
    let open = Open::begin(shared);
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(&mut request).await else { return };
        let (mut io, mut bytes) = (TokioIo::new(upgraded), [0; 64]);
        while let Ok(read @ 1..) = io.read(&mut bytes).await {
            bytes[..read].make_ascii_uppercase();
            if io.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
        drop(open);
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", http::HeaderValue::from_static("upgrade"));
    response.headers_mut().insert("upgrade", http::HeaderValue::from_static("websocket"));
    response
}
