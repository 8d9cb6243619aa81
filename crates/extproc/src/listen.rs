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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::tls::Certificates;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// After running out of descriptors, connections get this time to close.
const BREATH: Duration = Duration::from_millis(20);

/// A connection, and its place among those that there may be.
pub(crate) struct Connection {
    io: Box<dyn Io>,
    peer: SocketAddr,
    _slot: OwnedSemaphorePermit,
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
                    match shake_hands(stream, certificates).await {
                        Ok(io) => drop(sender.send(Connection { io, peer, _slot: slot }).await),
                        Err(error) => tracing::info!(%peer, %error, "no TLS with a peer"),
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

async fn shake_hands(
    stream: TcpStream,
    certificates: Option<Arc<Mutex<Certificates>>>,
) -> io::Result<Box<dyn Io>> {
    let Some(certificates) = certificates else { return Ok(Box::new(stream)) };
    let acceptor = TlsAcceptor::from(certificates.lock().current());
    let shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
    Ok(Box::new(shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
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
