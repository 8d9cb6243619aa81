//! The limits of a response, kept by a task of their own. A body is not asked for bytes while its client reads none, so
//! one that looked at its limits only when asked would last for as long as such a client likes.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use agentcube_instance::reserve::InUse;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::body::Error;

/// A response that is over its limit is broken off by its body if the client reads, and else, after this, by closing
/// the connection.
const GRACE: Duration = Duration::from_secs(1);

/// How long a response may take; none is without limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) silence: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
}

/// Waits for a reservation to be revoked, and holds it meanwhile. Out of its place as soon as the response is over, so
/// that the reservation ends then and not when the task comes to run.
type Revocation = Arc<Mutex<Option<BoxFuture<'static, ()>>>>;

/// A response that is watched until this is dropped.
pub(crate) struct Watch {
    last: Arc<Mutex<Instant>>,
    revocation: Revocation,
    broken: oneshot::Receiver<Error>,
    /// Dropped with this, which ends the task.
    _over: oneshot::Sender<()>,
}

impl Watch {
    /// Watches; closes the connection if need be.
    pub(crate) fn start(in_use: Arc<InUse>, limits: Limits, connection: CancellationToken) -> Watch {
        let last = Arc::new(Mutex::new(Instant::now()));
        let revoked: BoxFuture<'static, ()> = Box::pin(async move { in_use.revoked().await });
        let revocation: Revocation = Arc::new(Mutex::new(Some(revoked)));
        let (tell, broken) = oneshot::channel();
        let (over, mut ended) = oneshot::channel::<()>();
        let watched = (last.clone(), revocation.clone());
        tokio::spawn(async move {
            let error = tokio::select! {
                _ = &mut ended => return,
                error = overdue(limits, &watched.0, &watched.1) => error,
            };
            tracing::debug!(%error, "a response is broken off");
            let _ = tell.send(error);
            if tokio::time::timeout(GRACE, ended).await.is_err() {
                connection.cancel();
            }
        });
        Watch { last, revocation, broken, _over: over }
    }

    /// A byte went through.
    pub(crate) fn alive(&self) {
        *self.last.lock() = Instant::now();
    }

    /// Why the response has to end now, if it has.
    pub(crate) fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        match self.broken.poll_unpin(cx) {
            Poll::Ready(Ok(error)) => Poll::Ready(error),
            // The task has told already, or ended with its runtime.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let held = self.revocation.lock().take();
        drop(held);
    }
}

async fn overdue(limits: Limits, last: &Mutex<Instant>, revocation: &Revocation) -> Error {
    let revoked = std::future::poll_fn(|cx| match revocation.lock().as_mut() {
        Some(revoked) => revoked.poll_unpin(cx),
        None => Poll::Pending,
    });
    let late = async {
        match limits.deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = revoked => Error::Revoked,
        limit = silent_for(limits.silence, last) => Error::Silent(limit),
        () = late => Error::TooLong,
    }
}

/// Comes back when nothing has been heard for as long as that.
pub(crate) async fn silent_for(limit: Option<Duration>, last: &Mutex<Instant>) -> Duration {
    let Some(limit) = limit else { return std::future::pending().await };
    loop {
        let until = *last.lock() + limit;
        if Instant::now() >= until {
            return limit;
        }
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_response_that_nobody_reads_ends_with_its_connection() {
        for (silence, deadline) in [(Some(5), None), (None, Some(5)), (Some(60), Some(5))] {
            let limits = Limits {
                silence: silence.map(Duration::from_secs),
                deadline: deadline.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            };
            let connection = CancellationToken::new();
            let begun = Instant::now();
            let _unread = Watch::start(Arc::new(InUse::detached()), limits, connection.clone());
            connection.cancelled().await;
            assert_eq!(begun.elapsed().as_secs(), 6);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_read_ends_by_itself_and_its_connection_stays() {
        let limits = Limits { silence: Some(Duration::from_secs(5)), deadline: None };
        let connection = CancellationToken::new();
        let in_use = Arc::new(InUse::detached());
        let mut watch = Watch::start(in_use.clone(), limits, connection.clone());
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(4)).await;
            watch.alive();
        }
        let error = std::future::poll_fn(|cx| watch.poll_broken(cx)).await;
        assert!(matches!(error, Error::Silent(_)), "{error}");
        drop(watch);
        assert_eq!(Arc::strong_count(&in_use), 1, "the reservation is given back at once");
        assert!(tokio::time::timeout(Duration::from_secs(60), connection.cancelled()).await.is_err());
    }
}
