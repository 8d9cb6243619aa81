//! The API server as a whole: store, API, background controllers, and a TLS socket on loopback.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::Service;

use crate::api::Api;
use crate::controllers;
use crate::credentials::Credentials;
use crate::faults::Faults;
use crate::http::{Front, ReplyBody};
use crate::status::Status;
use crate::store::{OpenError, Retention, Store};

/// Connections at once; more wait to be accepted.
const MOST_CONNECTIONS: usize = 8192;
/// Requests at once on one HTTP/2 connection; watches are among them.
const MOST_STREAMS: u32 = 1000;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const HEADER_LIMIT: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Failure to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot prepare certificates in {path}: {reason}")]
    Credentials { path: String, reason: String },
}

/// How to run.
#[derive(Debug, Clone)]
pub struct Builder {
    data_dir: Option<PathBuf>,
    listen: SocketAddr,
    retention: Retention,
}

impl Default for Builder {
    fn default() -> Self {
        Self { data_dir: None, listen: (Ipv4Addr::LOCALHOST, 0).into(), retention: Retention::default() }
    }
}

impl Builder {
    /// Objects live as long as the process.
    #[must_use]
    pub fn memory(mut self) -> Self {
        self.data_dir = None;
        self
    }

    /// Objects, certificates and the token live in a directory.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Where to listen; loopback and any free port unless said otherwise.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// How much history is kept for watches and pages.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Starts without a socket: for use inside a process, through [`Server::front`].
    pub async fn embed(self) -> Result<Server, StartError> {
        let store = match &self.data_dir {
            Some(path) => Store::durable(path, self.retention)?,
            None => Store::memory(self.retention),
        };
        let api = Api::new(store, Faults::default());
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        controllers::start(&api, &mut tasks, &stopped).await;
        Ok(Server { api, stop, tasks })
    }

    /// Starts and serves over TLS.
    pub async fn start(self) -> Result<Handle, StartError> {
        let credentials = Credentials::load(self.data_dir.as_deref()).map_err(|reason| {
            let path = self.data_dir.as_deref().unwrap_or(Path::new("memory")).display().to_string();
            StartError::Credentials { path, reason }
        })?;
        let address = self.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { address, source })?;
        let mut server = self.embed().await?;
        let credentials = Arc::new(credentials);
        let acceptor = TlsAcceptor::from(credentials.tls.clone());
        let accepting =
            accept(listener, acceptor, server.front(), credentials.clone(), server.stop.subscribe());
        server.tasks.spawn(accepting);
        Ok(Handle { server, address, credentials })
    }
}

/// A running API server without a socket.
pub struct Server {
    api: Api,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Server {
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The service that answers requests; `kube::Client::new(server.front(), "default")` needs no socket.
    pub fn front(&self) -> Front {
        Front::new(self.api.clone())
    }

    /// Stops the controllers and waits for them, then closes the store.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        self.api.store().close().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Observers hold the API, which holds the store, which holds the observers.
        self.api.store().release();
    }
}

/// A running API server with its socket.
pub struct Handle {
    server: Server,
    address: SocketAddr,
    credentials: Arc<Credentials>,
}

impl Handle {
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    pub fn token(&self) -> &str {
        &self.credentials.token
    }

    pub fn ca_pem(&self) -> &str {
        &self.credentials.ca_pem
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What `kubectl` and `kube::Config` need to connect.
    pub fn kubeconfig_yaml(&self) -> String {
        self.credentials.kubeconfig(self.address)
    }

    pub async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

/// Returns when the server is told to stop, or is gone.
pub(crate) async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the same news.
    let _gone = stopped.wait_for(|stop| *stop).await.is_err();
}

/// Accepts connections until told to stop. A client that misbehaves costs its own connection only.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    front: Front,
    credentials: Arc<Credentials>,
    stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut told = stopped.clone();
    loop {
        let room = connections.len() < MOST_CONNECTIONS;
        tokio::select! {
            accepted = listener.accept(), if room => {
                let Ok((stream, _)) = accepted else {
                    // Out of descriptors, most likely: give connections time to close.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                // Small answers must not wait for more to come; a socket that refuses is only slower.
                let _slower = stream.set_nodelay(true);
                let service = Guard { front: front.clone(), credentials: credentials.clone() };
                connections.spawn(serve(stream, acceptor.clone(), service, stopped.clone()));
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = told_to_stop(&mut told) => break,
        }
    }
    connections.shutdown().await;
}

async fn serve(
    stream: tokio::net::TcpStream,
    acceptor: TlsAcceptor,
    service: Guard,
    mut stopped: watch::Receiver<bool>,
) {
    let stream = match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!("TLS handshake took too long");
            return;
        }
    };
    let service = hyper::service::service_fn(move |request| service.clone().call(request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(MOST_STREAMS);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = told_to_stop(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// Lets nobody in without the token.
#[derive(Clone)]
struct Guard {
    front: Front,
    credentials: Arc<Credentials>,
}

impl Guard {
    async fn call(mut self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Infallible> {
        let presented = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let open = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz" | "/version");
        if open || presented.is_some_and(|value| self.credentials.admits(value)) {
            return self.front.call(request).await;
        }
        Ok(crate::http::refuse(&Status::unauthorized()))
    }
}
