//! Where requests end that Envoy has no instance for: answers everything with 503. Routes of Tasks name it as their back end,
//! and it is reached only if the picked instance was not put in its place.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// How many connections there may be; more wait.
const CONNECTIONS: usize = 256;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// However long a connection is used, it ends then.
const LONGEST: Duration = Duration::from_secs(300);
const BREATH: Duration = Duration::from_millis(50);

/// Serves until the shutdown.
pub(crate) async fn serve(listener: TcpListener, shutdown: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepting = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            accepted = accepting => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let stop = shutdown.clone();
        tokio::spawn(async move {
            let answering = service_fn(|_: Request<Incoming>| async { Ok::<_, Infallible>(refusal()) });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), answering);
            let _ended = stop.run_until_cancelled(tokio::time::timeout(LONGEST, connection)).await;
            drop(slot);
        });
    }
}

fn refusal() -> Response<Full<Bytes>> {
    let message = "no instance was found for this request; try again";
    let body = json!({ "error": { "code": "NotRouted", "message": message } });
    let mut response = Response::new(Full::new(Bytes::from(format!("{body}\n"))));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
