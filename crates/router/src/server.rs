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
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::decide::HEADER_LIMIT;
use crate::proxy::{Client, Proxy};
use crate::slots::{Free, Slots};
use crate::socket;
use crate::tls::{Greeting, Listeners};
use crate::usage::{Counted, Exchange, Use};

/// How long a client may take to agree on TLS.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const MOST_STREAMS: u32 = 256;
/// How long a client may take to take leave, after it was idle for too long.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
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
    pub(crate) fn serve(
        listener: TcpListener,
        port: u16,
        proxy: Arc<Proxy>,
        tls: Option<Arc<Listeners>>,
    ) -> io::Result<Port> {
        let address = listener.local_addr()?;
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        let accepting = accept(listener, port, proxy, tls, stop.clone(), connections.clone());
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
    tls: Option<Arc<Listeners>>,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let (mut failing, mut full) = (false, false);
    loop {
        let taking_in = async {
            let slot = slot(&proxy.slots, &mut full, port).await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            // Another may have the socket by then.
            biased;
            () = stop.cancelled() => return,
            taken = taking_in => taken,
        };
        match accepted {
            Ok((stream, client)) => {
                failing = false;
                let Some(slot) = proxy.slots.take(slot, client.ip()) else {
                    tracing::debug!(port, client = %client.ip(), "closed: it has as many connections as it may");
                    continue;
                };
                socket::prepare(&stream, socket::CLIENT_PATIENCE);
                let cut = CancellationToken::new();
                let (address, slot) = (client.ip(), Arc::new(slot));
                let client = Client { port, address, tls: None, cut, slot };
                match tls.clone() {
                    None => connections.spawn(connection(stream, client, proxy.clone(), stop.clone())),
                    Some(tls) => {
                        connections.spawn(encrypted(stream, tls, client, proxy.clone(), stop.clone()))
                    }
                };
            }
            Err(error) => {
                // It is tried many times a second, and said once.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, port, "cannot take connections in");
                }
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// A place for one more connection.
async fn slot(slots: &Slots, full: &mut bool, port: u16) -> Free {
    if let Some(slot) = slots.try_wait() {
        *full = false;
        return slot;
    }
    if !std::mem::replace(full, true) {
        tracing::warn!(port, "there are as many connections as there may be: new ones wait");
    }
    slots.wait().await
}

/// Agrees with a client on TLS, by the name that it asks for, and serves it.
async fn encrypted(
    stream: TcpStream,
    tls: Arc<Listeners>,
    client: Client,
    proxy: Arc<Proxy>,
    stop: CancellationToken,
) {
    let agreeing = async {
        let greeted = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let greeting = Greeting::new(greeted.client_hello().server_name(), tls);
        let config = greeting.config();
        let config = config.ok_or_else(|| io::Error::other("no listener has the name that it asks for"))?;
        Ok::<_, io::Error>((greeted.into_stream(config).await?, greeting))
    };
    let limit = HANDSHAKE_LIMIT.min(proxy.head_timeout);
    let agreed = tokio::select! {
        agreed = tokio::time::timeout(limit, agreeing) => agreed,
        () = stop.cancelled() => return,
    };
    match agreed {
        Ok(Ok((stream, greeting))) => {
            let client = Client { tls: Some(greeting), ..client };
            Box::pin(connection(stream, client, proxy, stop)).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a client's handshake failed"),
        Err(_) => tracing::debug!("a client's handshake took too long"),
    }
}

async fn connection<S>(stream: S, client: Client, proxy: Arc<Proxy>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (cut_all, head_timeout) = (proxy.cut.clone(), proxy.head_timeout);
    let cut = client.cut.clone();
    let client = Arc::new(client);
    let usage = Arc::new(Use::new());
    let used = usage.clone();
    let service = service_fn(move |request| {
        let (proxy, client, exchange) = (proxy.clone(), client.clone(), Exchange::begin(&used));
        async move {
            let seen = proxy.see();
            let response = proxy.answer(&client, request, &seen).await;
            let counted = |body| Counted::new(body, exchange, seen, (head_timeout, &client.cut));
            Ok::<_, Infallible>(response.map(counted))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(2 * HEADER_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(u32::try_from(2 * HEADER_LIMIT).unwrap_or(u32::MAX));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let (mut stopping, mut leaving) = (false, false);
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
            // HTTP/1.1 ends by itself when no head comes. That begins when it is known which HTTP is spoken, which
            // needs some bytes; and HTTP/2 would stay for ever.
            used = usage.idle_for(head_timeout), if !leaving => {
                if !used {
                    return;
                }
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = usage.idle_for(head_timeout + LEAVE_LIMIT), if leaving => return,
            () = cut.cancelled() => return tracing::debug!("a client does not take its response in time"),
            () = cut_all.cancelled() => return,
        }
    }
}
