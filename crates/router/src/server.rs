//! The sockets of the gateway: each takes connections in until it is told to stop, and then lets requests that have
//! begun come to their end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::proxy::{HEADER_LIMIT, Proxy};

/// How long a client may take to send the head of a request, and may be silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const MOST_STREAMS: u32 = 256;
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);

/// A port that is served.
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl Port {
    /// Serves a socket under a port number, by which its routes are found.
    pub(crate) fn serve(listener: TcpListener, port: u16, proxy: Arc<Proxy>) -> io::Result<Port> {
        let address = listener.local_addr()?;
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        let accepting = accept(listener, port, proxy, stop.clone(), connections.clone());
        connections.spawn(accepting);
        Ok(Port { address, stop, connections })
    }

    /// Takes no more connections, and no more requests on those there are.
    pub(crate) fn close(&self) {
        self.stop.cancel();
        self.connections.close();
    }

    /// Whether the last request has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.connections.is_closed() && self.connections.is_empty()
    }

    /// Comes back when the last request has ended; to be called after [`Port::close`].
    pub(crate) async fn drained(&self) {
        self.connections.wait().await;
    }
}

async fn accept(
    listener: TcpListener,
    port: u16,
    proxy: Arc<Proxy>,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, client)) => {
                let _ = stream.set_nodelay(true);
                let serving = connection(stream, client, port, proxy.clone(), stop.clone());
                connections.spawn(serving);
            }
            Err(error) => {
                tracing::warn!(%error, port, "cannot take a connection in");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    client: SocketAddr,
    port: u16,
    proxy: Arc<Proxy>,
    stop: CancellationToken,
) {
    let cut = proxy.cut.clone();
    let service = service_fn(move |request| {
        let proxy = proxy.clone();
        async move { Ok::<_, Infallible>(proxy.answer(port, client.ip(), request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(2 * HEADER_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(u32::try_from(2 * HEADER_LIMIT).unwrap_or(u32::MAX));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(error, "a client's connection ended");
                }
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
        }
    }
}
