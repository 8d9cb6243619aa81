//! Carries the bytes of one Pod's outgoing connections. It connects only where [`decide`](super::decide) says.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Network;
use super::decide::{Decision, Reason};

/// Per connection and direction.
const BUFFER: usize = 16 * 1024;
/// Endpoints of a Service that are tried for one connection.
const ATTEMPTS: usize = 3;
/// How long a Pod takes at most to accept: its kernel does it, so only a full backlog or a busy spawner makes it wait.
const POD_DEADLINE: Duration = Duration::from_secs(10);
const EGRESS_DEADLINE: Duration = Duration::from_secs(30);
/// After this silence a peer outside is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Pause when the process has no file descriptor left for another connection.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// What one Pod's connections have done so far.
#[derive(Debug, Default)]
pub struct Counters {
    pub opened: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub queries: AtomicU64,
}

/// Serves the connections that the Pod at `source` opens, for ever. Dropping the future ends them all.
pub(super) async fn serve(
    network: Network,
    source: Ipv4Addr,
    listener: TcpListener,
    counters: Arc<Counters>,
) {
    network.ready().await;
    let slots = Arc::new(Semaphore::new(network.shared.options.connections_per_pod));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%source, "cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%source, "refused: too many connections");
            reset(stream);
            continue;
        };
        let (network, counters) = (network.clone(), counters.clone());
        connections.spawn(async move {
            carry(&network, source, stream, &counters).await;
            drop(slot);
        });
    }
}

async fn carry(network: &Network, source: Ipv4Addr, mut client: TcpStream, counters: &Counters) {
    let to = match sockopt::ip_original_dst(&client) {
        Ok(to) => to,
        Err(error) => {
            tracing::debug!(%source, "a connection has no destination: {error}");
            counters.failed.fetch_add(1, Ordering::Relaxed);
            return reset(client);
        }
    };
    let mut server = match open(network, source, to).await {
        Ok(Opened::Connection(server)) => server,
        Ok(Opened::NameServer) => {
            return network.shared.dns.serve_stream(network, source, client, counters).await;
        }
        Err(Failure::Refused(reason)) => {
            tracing::debug!(%source, %to, "refused: {reason}");
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return reset(client);
        }
        Err(Failure::Failed(error)) => {
            tracing::debug!(%source, %to, "cannot connect: {error}");
            counters.failed.fetch_add(1, Ordering::Relaxed);
            return reset(client);
        }
    };
    counters.opened.fetch_add(1, Ordering::Relaxed);
    // Small writes must not wait for each other; without the option they only would be slower.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    match tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await {
        Ok((sent, received)) => {
            counters.sent_bytes.fetch_add(sent, Ordering::Relaxed);
            counters.received_bytes.fetch_add(received, Ordering::Relaxed);
        }
        // A side that was reset must not look to the other as if it had ended well.
        Err(_) => {
            reset(client);
            reset(server);
        }
    }
}

enum Opened {
    Connection(TcpStream),
    NameServer,
}

enum Failure {
    Refused(Reason),
    Failed(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

async fn open(network: &Network, source: Ipv4Addr, to: SocketAddrV4) -> Result<Opened, Failure> {
    let stream = match network.decide(source, to) {
        Decision::Refused(reason) => return Err(Failure::Refused(reason)),
        Decision::NameServer => return Ok(Opened::NameServer),
        Decision::ApiServer => {
            let address = network.shared.options.api_server.ok_or(Failure::Refused(Reason::ApiServer))?;
            within(EGRESS_DEADLINE, TcpStream::connect(address)).await?
        }
        Decision::Platform => {
            let (_, address) = network.shared.options.platform.ok_or(Failure::Refused(Reason::NoService))?;
            within(EGRESS_DEADLINE, TcpStream::connect(address)).await?
        }
        Decision::Pod(to) => network.dial(to, source).await?,
        Decision::Egress(to) => leave(to).await?,
        Decision::Service { key, port, affinity, endpoints } => {
            let order = network.order((key, port), endpoints, source, affinity);
            first(network, order, source).await?
        }
    };
    Ok(Opened::Connection(stream))
}

/// A connection to the first of these endpoints that takes one.
pub(super) async fn first(
    network: &Network,
    endpoints: Vec<SocketAddrV4>,
    source: Ipv4Addr,
) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::ConnectionRefused.into();
    for endpoint in endpoints.into_iter().take(ATTEMPTS) {
        let opened = match network.shared.plan.pods.contains(*endpoint.ip()) {
            true => network.dial(endpoint, source).await,
            false => leave(endpoint).await,
        };
        match opened {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects a socket of the target's own namespace, once there is one.
pub(super) async fn enter(
    socket: impl Future<Output = Result<OwnedFd, agentcube_runtime::Error>>,
    to: SocketAddrV4,
) -> io::Result<TcpStream> {
    within(POD_DEADLINE, async {
        let socket = socket.await.map_err(io::Error::other)?;
        tokio::net::TcpSocket::from_std_stream(socket.into()).connect(to.into()).await
    })
    .await
}

/// Connects through the host's own network.
async fn leave(to: SocketAddrV4) -> io::Result<TcpStream> {
    let stream = within(EGRESS_DEADLINE, TcpStream::connect(SocketAddr::from(to))).await?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    Ok(stream)
}

async fn within(
    deadline: Duration,
    connecting: impl Future<Output = io::Result<TcpStream>>,
) -> io::Result<TcpStream> {
    timeout(deadline, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Ends a connection so that the other side sees an error, not an end.
fn reset(stream: TcpStream) {
    // If it cannot be set, the connection ends politely instead.
    let _ = stream.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_to_the_outside_are_kept_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("an IPv4 address") };
        let stream = leave(to).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), to.into());
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        drop(listener);
        assert_eq!(leave(to).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_answer_is_given_up() {
        let never = std::future::pending::<Result<OwnedFd, agentcube_runtime::Error>>();
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 244, 0, 2), 80);
        assert_eq!(enter(never, to).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_reset_is_seen_as_an_error() {
        use tokio::io::AsyncReadExt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        reset(listener.accept().await.unwrap().0);
        assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
