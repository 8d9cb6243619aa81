//! Connections of Envoys: taken in up to a limit, with TLS if that is asked for. A peer that is slow to shake hands
//! delays nobody else.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::tls::{Certificates, Error, Tls};

/// How long a peer may take to shake hands, and to say that it speaks HTTP/2.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How much a peer of HTTP/2 sends first, in bytes.
const PREFACE: usize = 24;
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);

/// A connection, and its place among those that there may be.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    /// What was read of it already.
    early: Early,
    peer: SocketAddr,
    _slot: OwnedSemaphorePermit,
}

/// The first bytes of a connection, and how many of them were passed on.
struct Early {
    bytes: [u8; PREFACE],
    passed: usize,
}

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Takes connections in for as long as somebody wants them.
pub(crate) fn connections(
    listener: TcpListener,
    certificates: Option<Certificates>,
    most: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    let certificates = certificates.map(|certificates| Arc::new(Mutex::new(certificates)));
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = accept(listener, certificates, Arc::new(Semaphore::new(most)), sender) => {}
            () = closed.closed() => {}
        }
    });
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let connection = receiver.recv().await?;
        Some((Ok(connection), receiver))
    })
}

/// The same without certificates, for servers of others that are to be compared with this one.
pub fn incoming(
    listener: TcpListener,
    most: usize,
) -> impl Stream<Item = io::Result<impl AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static>> {
    connections(listener, None, most)
}

/// The same with certificates from files, for servers of others that need them.
pub fn incoming_with(
    listener: TcpListener,
    tls: Option<Tls>,
    most: usize,
) -> Result<
    impl Stream<Item = io::Result<impl AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static>>,
    Error,
> {
    Ok(connections(listener, tls.map(Certificates::read).transpose()?, most))
}

async fn accept(
    listener: TcpListener,
    certificates: Option<Arc<Mutex<Certificates>>>,
    slots: Arc<Semaphore>,
    sender: mpsc::Sender<Connection>,
) {
    let mut failing = false;
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                failing = false;
                let _ = stream.set_nodelay(true);
                let (sender, certificates) = (sender.clone(), certificates.clone());
                tokio::spawn(async move {
                    // Whoever says nothing takes up a place for no longer than this.
                    let greeting = tokio::time::timeout(HANDSHAKE, greet(stream, certificates)).await;
                    match greeting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        Ok((io, early)) => {
                            drop(sender.send(Connection { io, early, peer, _slot: slot }).await);
                        }
                        Err(error) => tracing::info!(%peer, %error, "a peer does not begin to speak HTTP/2"),
                    }
                });
            }
            Err(error) => {
                // It is tried many times a second, and said once.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot take connections in");
                }
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Shakes hands, if there is a certificate to show, and reads how the peer begins.
async fn greet(
    stream: TcpStream,
    certificates: Option<Arc<Mutex<Certificates>>>,
) -> io::Result<(Box<dyn Io>, Early)> {
    let mut io: Box<dyn Io> = match certificates {
        None => Box::new(stream),
        Some(certificates) => {
            let acceptor = TlsAcceptor::from(certificates.lock().current());
            Box::new(acceptor.accept(stream).await?)
        }
    };
    let mut bytes = [0; PREFACE];
    io.read_exact(&mut bytes).await?;
    Ok((io, Early { bytes, passed: 0 }))
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
        let Early { bytes, passed } = &mut self.early;
        if *passed < PREFACE {
            let rest = &bytes[*passed..];
            let some = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..some]);
            *passed += some;
            return Poll::Ready(Ok(()));
        }
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::StreamExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_is_one_when_its_peer_begins_to_speak() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // Two places: one is taken by a peer that says next to nothing, which is no connection.
        let mut connections = std::pin::pin!(connections(listener, None, 2));
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"PRI * HTTP").await.unwrap();
        let mut speaking = TcpStream::connect(address).await.unwrap();
        let said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand more";
        speaking.write_all(said).await.unwrap();
        let mut connection = connections.next().await.unwrap().unwrap();
        assert_eq!(connection.peer, speaking.local_addr().unwrap());
        let mut heard = vec![0; said.len()];
        connection.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, said);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_does_not_keep_its_place() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let _connections = connections(listener, None, 1);
        let mut silent = TcpStream::connect(address).await.unwrap();
        // Time goes on when nothing else does; then the only place is free again.
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
