//! The server's side of a WebSocket: the handshake, and parting without losing the last words.

use std::future::Future;
use std::time::Duration;

use base64::Engine;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::reply::{self, ReplyBody};
use crate::status::Status;

/// The largest message that a client may send.
const MESSAGE_LIMIT: usize = 1 << 20;
/// How long a client may take to answer that it heard the end.
const PARTING: Duration = Duration::from_secs(5);

pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A client that asked for a WebSocket and speaks one of our protocols.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    key: String,
    protocol: &'static str,
}

impl Handshake {
    pub(super) fn read(parts: &Parts, protocols: &[&'static str]) -> Result<Self, Status> {
        let header = |name: header::HeaderName| {
            parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
        };
        let key = header(header::SEC_WEBSOCKET_KEY).to_owned();
        let Some(upgrade) = parts.extensions.get::<OnUpgrade>().cloned().filter(|_| !key.is_empty()) else {
            return Err(Status::bad_request("Upgrade request required"));
        };
        let offered = header(header::SEC_WEBSOCKET_PROTOCOL);
        let Some(protocol) = protocols.iter().find(|p| offered.split(',').any(|o| o.trim() == **p)) else {
            return Err(Status::bad_request(format!(
                "unable to upgrade: none of {offered:?} is spoken here"
            )));
        };
        Ok(Self { upgrade, key, protocol })
    }

    /// Says yes, and serves once the client has heard it.
    pub(super) fn accept<F, S>(self, serve: S) -> Response<ReplyBody>
    where
        S: FnOnce(Socket) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let upgrade = self.upgrade;
        tokio::spawn(async move {
            match upgrade.await {
                Ok(stream) => {
                    let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_LIMIT));
                    let stream = TokioIo::new(stream);
                    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
                    serve(socket).await;
                }
                Err(error) => tracing::debug!(%error, "a client left before its session began"),
            }
        });
        let mut response = reply::text(StatusCode::SWITCHING_PROTOCOLS, "");
        let headers = response.headers_mut();
        headers.clear();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol));
        if let Ok(accept) = HeaderValue::from_str(&accept_key(&self.key)) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        response
    }
}

/// RFC 6455: proves that the handshake was read.
fn accept_key(key: &str) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(hash.finish())
}

/// Says that it is over, and reads what the client still sends: otherwise the kernel would reset the connection, and
/// with it the last words.
pub(super) async fn part(mut sink: SplitSink<Socket, Message>, mut source: SplitStream<Socket>) {
    // The client may be gone already; there is nobody left to tell.
    let _gone =
        sink.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))).await;
    let parting = async { while let Some(Ok(_)) = source.next().await {} };
    let _impolite = tokio::time::timeout(PARTING, parting).await;
}
