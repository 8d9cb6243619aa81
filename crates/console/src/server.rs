//! The socket: takes connections in until it is told to stop, and leads each request to whoever answers it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{self, Answer};
use crate::frames::{self, Frames};
use crate::guard::{self, Names};
use crate::login::Mistakes;
use crate::session::Sessions;
use crate::{Options, assets, extension, invoke, kube_api, live, login, terminal};

const MOST_CONNECTIONS: usize = 256;
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_SIZE: usize = 64 << 10;
/// The largest object that the API server takes is half of this.
const BODY_SIZE: usize = 3 << 20;
const BODY_LIMIT: Duration = Duration::from_secs(30);
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);
/// How long requests may take to end when the console stops.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// What all requests share.
pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) sessions: Sessions,
    pub(crate) mistakes: Mistakes,
    pub(crate) frames: Frames,
    names: Names,
}

/// A console on a socket.
pub struct Console {
    listener: TcpListener,
    state: Arc<State>,
}

impl Console {
    /// A console on a socket that is bound already.
    pub fn new(listener: TcpListener, options: Options) -> io::Result<Console> {
        let address = listener.local_addr()?;
        let state = State {
            sessions: Sessions::new(address.port(), options.behind_tls),
            mistakes: Mistakes::default(),
            frames: Frames::default(),
            names: Names::of(address),
            options,
        };
        Ok(Console { listener, state: Arc::new(state) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let (places, connections) = (Arc::new(Semaphore::new(MOST_CONNECTIONS)), TaskTracker::new());
        loop {
            let accepting = async {
                let place = places.clone().acquire_owned().await;
                (place, self.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepting => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            let (state, stop) = (self.state.clone(), stop.clone());
            connections.spawn(async move {
                let _place = place;
                connection(stream, state, stop).await;
            });
        }
        connections.close();
        self.state.sessions.end_all();
        let _cut = tokio::time::timeout(DRAIN_LIMIT, connections.wait()).await;
    }
}

async fn connection(stream: TcpStream, state: Arc<State>, stop: CancellationToken) {
    // A socket that refuses is only slower.
    let _slower = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(route(&state, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT).max_buf_size(HEADER_SIZE);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the console ended");
    }
}

async fn route(state: &Arc<State>, request: Request<Incoming>) -> Answer {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let page = assets::answer(&path, &parts.headers);
    let is_frame = path.starts_with(frames::ROOT);
    if let Some(why) =
        guard::stranger(&state.names, &parts.method, &parts.headers, page.is_some() || is_frame)
    {
        return answer::refuse(StatusCode::FORBIDDEN, why);
    }
    if is_frame {
        return match parts.method {
            Method::GET => state.frames.answer(&path),
            _ => answer::refuse(StatusCode::METHOD_NOT_ALLOWED, "frames are only read"),
        };
    }
    if let Some(page) = page {
        return match parts.method {
            Method::GET | Method::HEAD => page,
            _ => answer::refuse(StatusCode::METHOD_NOT_ALLOWED, "pages are only read"),
        };
    }
    if path == "/healthz" {
        return answer::json(StatusCode::OK, &serde_json::json!({}));
    }
    if path == "/live" || path == "/terminal" {
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let Some(session) = state.sessions.unproven(&parts.headers) else {
            return answer::refuse(StatusCode::UNAUTHORIZED, "nobody is logged in");
        };
        return match path.as_str() {
            "/live" => live::answer(state, session, &parts.headers, upgrade),
            _ => terminal::answer(state, session, &parts.headers, upgrade),
        };
    }
    let is_login = path == "/session";
    let session = state.sessions.proven(&parts.headers);
    // A stranger's body is not even read, but for the login.
    if session.is_none() && !is_login {
        return answer::refuse(StatusCode::UNAUTHORIZED, "log in first");
    }
    let body = match read(body).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let Some(session) = session.filter(|_| !is_login) else {
        return login::answer(state, &parts.method, &parts.headers, body).await;
    };
    let target = parts.uri.path_and_query().map_or(path.as_str(), |target| target.as_str());
    if let Some(target) = target.strip_prefix("/kube") {
        return kube_api::answer(state, &session, parts.method, target, &parts.headers, body).await;
    }
    if let Some(task) = path.strip_prefix("/invoke/") {
        return invoke::answer(state, &session, &parts.method, task, &body).await;
    }
    if let Some(bundle) = path.strip_prefix("/extension/") {
        return extension::answer(state, &session, &parts.method, bundle, &parts.headers, &body).await;
    }
    answer::refuse(StatusCode::NOT_FOUND, "there is nothing here")
}

async fn read(body: Incoming) -> Result<Bytes, Answer> {
    let reading = Limited::new(body, BODY_SIZE).collect();
    match tokio::time::timeout(BODY_LIMIT, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(answer::refuse(StatusCode::PAYLOAD_TOO_LARGE, "no object may be larger than 3 MiB"))
        }
        Ok(Err(_)) => Err(answer::refuse(StatusCode::BAD_REQUEST, "the request broke off")),
        Err(_) => Err(answer::refuse(StatusCode::REQUEST_TIMEOUT, "the request took too long")),
    }
}
