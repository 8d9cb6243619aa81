//! What every TCP connection of the gateway is told: send small writes at once, and notice when the other side is gone
//! without a word, as after a power cut.

use std::time::Duration;

use rustix::io;
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// A silent peer is asked whether it is there after this, then this often, and given up after so many questions.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_COUNT: u32 = 3;

/// How long a client may leave bytes unread that were sent to it.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_secs(120);
/// The same for an instance: it may be busy with another request before it turns to this one.
pub(crate) const INSTANCE_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Prepares a connection. Where the system refuses something the connection works without it.
pub(crate) fn prepare(stream: &TcpStream, patience: Duration) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection sends small writes late");
    }
    if let Err(error) = watch(stream, patience) {
        tracing::debug!(%error, "a connection is not watched for a peer that is gone");
    }
}

fn watch(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_watched() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream, CLIENT_PATIENCE);
        assert!(stream.nodelay().unwrap());
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_COUNT);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 120_000);
    }
}
