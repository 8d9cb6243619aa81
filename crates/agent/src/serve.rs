//! An agent behind gRPC, for a controller of another process: with a token, or with certificates on both sides. Its
//! health may be asked for by whoever reaches it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use agentcube_protos::agent::agent_server::AgentServer;
use agentcube_protos::link::{AgentApi, LONGEST_MESSAGE, Served};
use futures_util::Stream;
use ring::digest::{SHA256, digest};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

/// An agent has one controller, and a new one before the old one has gone.
const MOST_CONNECTIONS: usize = 64;
const MOST_STREAMS: u32 = 2_048;
/// How long a peer may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long calls on their way may go on after the shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Who may call.
#[derive(Clone)]
pub enum Access {
    /// Whoever says this as a bearer token. For tests, and where something else encrypts.
    Token(String),
    /// Whoever has a certificate that this configuration trusts; see [`mutual`]. Asked for anew at each connection, so
    /// that certificates may be renewed.
    Certificates(Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>),
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what} cannot be read: {error}")]
    Pem { what: &'static str, error: rustls_pki_types::pem::Error },
    #[error("the certificates cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("the authorities of clients cannot be used: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// A server that shows `chain`, and lets in clients with a certificate of `authorities`. All are PEM.
pub fn mutual(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<ServerConfig, Error> {
    let read = |what, pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, Error> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        all.map_err(|error| Error::Pem { what, error })
    };
    let mut roots = RootCertStore::empty();
    for certificate in read("the authorities of clients", authorities)? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| Error::Pem { what: "the key", error })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(read("the certificate", chain)?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Serves an agent until the shutdown. The agent goes on; [`crate::Agent::shutdown`] ends it. `heard` is told, before each
/// call that is let in, from where it comes.
pub async fn serve<A: AgentApi>(
    agent: A,
    listener: TcpListener,
    access: Access,
    heard: impl Fn(IpAddr) + Clone + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<AgentServer<Served<A>>>().await;
    let (token, certificates) = match access {
        Access::Token(token) => (Some(digest(&SHA256, format!("Bearer {token}").as_bytes())), None),
        Access::Certificates(certificates) => (None, Some(certificates)),
    };
    let check = move |request: Request<()>| -> Result<Request<()>, Status> {
        if let Some(token) = &token {
            let said = request.metadata().get("authorization").map(|said| digest(&SHA256, said.as_bytes()));
            if said.is_none_or(|said| said.as_ref() != token.as_ref()) {
                return Err(Status::unauthenticated("this agent's token is missing or another one"));
            }
        }
        let peer: &SocketAddr = request.extensions().get().expect("every connection has a peer");
        heard(peer.ip());
        Ok(request)
    };
    let service = AgentServer::new(Served(agent))
        .max_decoding_message_size(LONGEST_MESSAGE)
        .max_encoding_message_size(LONGEST_MESSAGE);
    let serving = Server::builder()
        .max_concurrent_streams(MOST_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(health_service)
        .add_service(InterceptedService::new(service, check))
        .serve_with_incoming_shutdown(
            connections(listener, certificates),
            shutdown.clone().cancelled_owned(),
        );
    let late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        // Whoever waits for news, or follows a log, does not keep the process.
        () = late => Ok(()),
    }
}

type Certificates = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, and its place among those that there may be.
struct Connection {
    io: Box<dyn Io>,
    peer: SocketAddr,
    _slot: OwnedSemaphorePermit,
}

/// Takes connections in for as long as somebody wants them. Who is slow to shake hands delays nobody else.
fn connections(
    listener: TcpListener,
    certificates: Option<Certificates>,
) -> impl Stream<Item = io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = accept(listener, certificates, sender) => {}
            () = closed.closed() => {}
        }
    });
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let connection = receiver.recv().await?;
        Some((Ok(connection), receiver))
    })
}

async fn accept(listener: TcpListener, certificates: Option<Certificates>, sender: mpsc::Sender<Connection>) {
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection in");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let _slower = stream.set_nodelay(true);
        let (sender, certificates) = (sender.clone(), certificates.clone());
        tokio::spawn(async move {
            let greeting = tokio::time::timeout(HANDSHAKE, greet(stream, certificates)).await;
            match greeting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(io) => drop(sender.send(Connection { io, peer, _slot: slot }).await),
                Err(error) => tracing::info!(%peer, %error, "a peer was not let in"),
            }
        });
    }
}

async fn greet(stream: TcpStream, certificates: Option<Certificates>) -> io::Result<Box<dyn Io>> {
    match certificates {
        None => Ok(Box::new(stream)),
        Some(certificates) => Ok(Box::new(TlsAcceptor::from(certificates()).accept(stream).await?)),
    }
}

impl Connected for Connection {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
