//! What a process beside a cluster shows to operators over HTTP: `/metrics`, and `/debug/sessions` to whoever has the
//! token. Never for clients: it listens on loopback, or asks for the token. Only whether it lives and is ready (`/healthz`,
//! `/readyz`) it tells everybody: nodes ask without a token.

use std::convert::Infallible;
use std::fmt::{self, Debug, Formatter};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agentcube_operator::metrics::Registry;
use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// How many connections there may be; more wait.
const CONNECTIONS: usize = 32;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// However long a connection is used, it ends then.
const LONGEST: Duration = Duration::from_secs(300);
const BREATH: Duration = Duration::from_millis(50);
const PLAIN: &str = "text/plain; charset=utf-8";

/// What opens it.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Debug for Secret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// White space around it does not count; nothing if there is too little of it to be a secret.
    pub fn new(text: &str) -> Option<Secret> {
        let text = text.trim();
        (text.len() >= 16).then(|| Secret(text.as_bytes().into()))
    }

    /// Compares digests in constant time, so that the answer's delay says nothing of the token.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return false };
        let Some((scheme, token)) = given.as_bytes().split_at_checked(7) else { return false };
        let (shown, wanted) = (digest(&SHA256, token.trim_ascii()), digest(&SHA256, &self.0));
        let differing =
            shown.as_ref().iter().zip(wanted.as_ref()).fold(0, |sum, (one, other)| sum | (one ^ other));
        scheme.eq_ignore_ascii_case(b"bearer ") && differing == 0
    }
}

/// Shows sessions, given a query.
pub type Sessions = Arc<dyn Fn(Option<&str>) -> Result<Value, String> + Send + Sync>;

/// Whether the process can do its work, or why not.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What is shown.
#[derive(Clone)]
pub struct Admin {
    pub metrics: Registry,
    pub sessions: Sessions,
    pub ready: Ready,
    /// Without one nobody sees sessions.
    pub token: Option<Secret>,
}

impl Admin {
    /// Serves until the shutdown.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        // Whoever is not on this machine needs the token for everything.
        let open = listener.local_addr().is_ok_and(|address| is_local(&address));
        loop {
            let accepting = async {
                let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
                (slot, listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                accepted = accepting => accepted,
                () = shutdown.cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (admin, stop) = (self.clone(), shutdown.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = admin.connection(stream, open) => {}
                            () = stop.cancelled() => {}
                        }
                        drop(slot);
                    });
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    }

    async fn connection(self, stream: TcpStream, open: bool) {
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let answer = self.answer(&request, open);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let _ended = tokio::time::timeout(LONGEST, connection).await;
    }

    fn answer<B>(&self, request: &Request<B>, open: bool) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/healthz" => return respond(StatusCode::OK, PLAIN, "ok\n".into()),
            "/readyz" => {
                return match (self.ready)() {
                    Ok(()) => respond(StatusCode::OK, PLAIN, "ok\n".into()),
                    Err(why) => respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
                };
            }
            _ => {}
        }
        let known = self.token.as_ref().is_some_and(|token| token.admits(request.headers()));
        let path = request.uri().path();
        let is_open = open && path == "/metrics";
        if !known && !is_open {
            let mut response = said(StatusCode::UNAUTHORIZED, "show the token of --admin-token-file");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "there is only something to read");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/metrics" => {
                let text = "text/plain; version=0.0.4; charset=utf-8";
                respond(StatusCode::OK, text, self.metrics.encode())
            }
            "/debug/sessions" => match (self.sessions)(request.uri().query()) {
                Ok(page) => respond(StatusCode::OK, "application/json", format!("{page}\n")),
                Err(why) => said(StatusCode::BAD_REQUEST, &why),
            },
            _ => said(StatusCode::NOT_FOUND, "there are /metrics, /debug/sessions, /healthz and /readyz"),
        }
    }
}

/// Whether only this machine can reach an address.
pub fn is_local(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn said(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    respond(status, "application/json", format!("{}\n", json!({ "error": { "message": message } })))
}

fn respond(status: StatusCode, content: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn status(token: Option<&str>, open: bool, path: &str, authorization: &[&str]) -> u16 {
        let sessions: Sessions = Arc::new(|query| match query {
            None => Ok(json!({ "sessions": [] })),
            Some(query) => Err(query.to_owned()),
        });
        let ready: Ready = Arc::new(|| Err("not yet".into()));
        let admin = Admin { metrics: Registry::new(), sessions, ready, token: token.and_then(Secret::new) };
        let mut request = Request::get(path);
        for value in authorization {
            request = request.header(AUTHORIZATION, *value);
        }
        admin.answer(&request.body(()).unwrap(), open).status().as_u16()
    }

    #[test]
    fn only_whoever_has_the_token_gets_in() {
        let right = &*format!("Bearer {TOKEN}");
        for (token, open, path, shown, expected) in [
            (Some(TOKEN), true, "/debug/sessions", &[right][..], 200),
            (Some(TOKEN), false, "/debug/sessions", &[&right.replace("Bearer", "bearer")], 200),
            (Some(TOKEN), true, "/debug/sessions", &[], 401),
            (Some(TOKEN), true, "/debug/sessions", &[right, right], 401),
            (Some(TOKEN), true, "/debug/sessions", &["Bearer 0123456789abcdeX"], 401),
            (Some(TOKEN), true, "/debug/sessions", &["Bearer "], 401),
            (Some(TOKEN), true, "/debug/sessions", &["Basic 0123456789abcdef"], 401),
            (Some(TOKEN), true, "/debug/sessions?x", &[right], 400),
            (None, true, "/debug/sessions", &[right], 401),
            (None, true, "/metrics", &[], 200),
            (None, false, "/metrics", &[], 401),
            (Some(TOKEN), false, "/metrics", &[], 401),
            (Some(TOKEN), false, "/metrics", &[right], 200),
            (Some(TOKEN), false, "/healthz", &[], 200),
            (Some(TOKEN), false, "/readyz", &[], 503),
            (Some(TOKEN), true, "/other", &[right], 404),
            (Some(TOKEN), true, "/other", &[], 401),
        ] {
            assert_eq!(status(token, open, path, shown), expected, "{path} {shown:?} {open}");
        }
        assert!(Secret::new("short").is_none() && Secret::new(&format!(" {TOKEN}\n")).is_some());
    }
}
