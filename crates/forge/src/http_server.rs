//! A small HTTP server: takes connections in until it is told to stop, and has each request answered.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const MOST_CONNECTIONS: usize = 256;
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_SIZE: usize = 64 << 10;
const BODY_LIMIT: Duration = Duration::from_secs(30);
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);
/// How long requests may take to end when the server stops.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

pub(crate) type Answer = Response<Full<Bytes>>;

/// Serves until it is told to stop.
pub(crate) async fn serve<H, F>(listener: TcpListener, handle: H, stop: CancellationToken)
where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (places, connections) = (Arc::new(Semaphore::new(MOST_CONNECTIONS)), TaskTracker::new());
    let handle = Arc::new(handle);
    loop {
        let accepting = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepting => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let (handle, stop) = (handle.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            connection(stream, handle, stop).await;
        });
    }
    connections.close();
    let _cut = tokio::time::timeout(DRAIN_LIMIT, connections.wait()).await;
}

async fn connection<H, F>(stream: TcpStream, handle: Arc<H>, stop: CancellationToken)
where
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    // A socket that refuses is only slower.
    let _slower = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let answering = handle(request);
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT).max_buf_size(HEADER_SIZE);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

/// The body of a request, if it is not too large and comes in time.
pub(crate) async fn body(body: Incoming, most: usize) -> Result<Bytes, Answer> {
    let reading = Limited::new(body, most).collect();
    match tokio::time::timeout(BODY_LIMIT, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("no more than {most} bytes are taken")))
        }
        Ok(Err(_)) => Err(refuse(StatusCode::BAD_REQUEST, "the request broke off")),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, "the request took too long")),
    }
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Answer {
    bytes(status, "application/json", Bytes::from(value.to_string()))
}

pub(crate) fn bytes(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

/// A refusal in the form of the API server's own, so that all clients read it alike.
pub(crate) fn refuse(status: StatusCode, message: &str) -> Answer {
    json(
        status,
        &json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": status.canonical_reason().unwrap_or_default().replace(' ', ""),
            "message": message, "code": status.as_u16(),
        }),
    )
}
