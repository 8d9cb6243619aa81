//! WebSockets of pages: the handshake, and that each counts among those of its session and ends with it. Whoever serves one
//! asks for the proof first.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::answer::{self, Answer, full};
use crate::session::Session;

/// Pages are asked whether they are there.
pub(crate) const PING: Duration = Duration::from_secs(20);
/// Who was silent for so long is gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(75);

pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Says yes to a WebSocket, and has it served.
pub(crate) fn open<S, F>(
    session: Arc<Session>,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
    message_limit: usize,
    serve: S,
) -> Answer
where
    S: FnOnce(Socket, Arc<Session>) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let (Some(upgrade), Some(key)) = (upgrade, headers.get(SEC_WEBSOCKET_KEY)) else {
        return answer::refuse(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket");
    };
    let Ok(place) = session.sockets.clone().try_acquire_owned() else {
        return answer::refuse(StatusCode::TOO_MANY_REQUESTS, "too many tabs are open");
    };
    let accept = accept_key(key);
    tokio::spawn(async move {
        let _place = place;
        let stream = match upgrade.await {
            Ok(stream) => TokioIo::new(stream),
            Err(error) => return tracing::debug!(%error, "a tab left before it began"),
        };
        let config = WebSocketConfig::default().max_message_size(Some(message_limit));
        let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
        let ended = session.ended.clone();
        tokio::select! {
            () = serve(socket, session) => {}
            () = ended.cancelled() => {}
        }
    });
    let mut answer = answer::data(StatusCode::SWITCHING_PROTOCOLS, "text/plain", full(Bytes::new()));
    let headers = answer.headers_mut();
    headers.clear();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.extend(HeaderValue::from_str(&accept).ok().map(|value| (SEC_WEBSOCKET_ACCEPT, value)));
    answer
}

/// RFC 6455: proves that the handshake was read.
fn accept_key(key: &HeaderValue) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(hash.finish())
}
