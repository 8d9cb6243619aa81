//! Connections that are no longer HTTP, WebSockets above all: bytes are copied both ways until both sides are done, and
//! each of them keeps the session alive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use agentcube_instance::reserve::InUse;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::observe::Sight;
use crate::watch::silent_for;

/// Copies between client and instance until both have ended, nothing is said for too long, or the gateway stops.
pub(crate) async fn run(
    client: OnUpgrade,
    instance: OnUpgrade,
    in_use: Arc<InUse>,
    silence: Option<Duration>,
    stop: CancellationToken,
    seen: Arc<Sight>,
) {
    let (client, instance) = match tokio::try_join!(client, instance) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
    };
    let mut client = TokioIo::new(client);
    let last = Arc::new(Mutex::new(Instant::now()));
    let mut instance =
        Lively { inner: TokioIo::new(instance), in_use: in_use.clone(), last: last.clone(), seen };
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut client, &mut instance) => {
            if let Err(error) = copied {
                tracing::debug!(%error, "an upgraded connection broke");
            }
        }
        _ = silent_for(silence, &last) => tracing::debug!("an upgraded connection was silent for too long"),
        () = in_use.revoked() => tracing::debug!("an upgraded connection may be served no more"),
        () = stop.cancelled() => {}
    }
}

/// Tells of every byte, either way.
struct Lively<T> {
    inner: T,
    in_use: Arc<InUse>,
    last: Arc<Mutex<Instant>>,
    seen: Arc<Sight>,
}

impl<T> Lively<T> {
    fn alive(&self) {
        self.in_use.active();
        *self.last.lock() = Instant::now();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Lively<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.alive();
            self.seen.sent(read as u64);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Lively<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.alive();
        self.seen.received(written as u64);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
