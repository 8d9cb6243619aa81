//! Bodies on their way through the gateway, frame by frame and never collected. Each byte tells the reservation that
//! its session is active, and the reservation ends with the last of them.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use agentcube_instance::reserve::InUse;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::pool::Lent;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("no byte came for {0:?}, the Task's limit")]
    Silent(Duration),
    #[error("the response took longer than the Task allows")]
    TooLong,
    #[error("the router has lost touch with the API server, and may serve no more")]
    Revoked,
}

/// What a client gets: a response on its way, or a word of the gateway itself.
pub(crate) type Reply = Either<Passing, Full<Bytes>>;

/// When a request had been received as a whole.
#[derive(Debug, Default)]
pub(crate) struct Ended(OnceLock<Instant>);

impl Ended {
    pub(crate) fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

/// The body of a request.
pub(crate) struct Sent {
    /// None for a request that is sent again, which never has a body.
    inner: Option<Incoming>,
    in_use: Arc<InUse>,
    ended: Arc<Ended>,
    /// Dropped with the body, which tells whoever waits.
    _over: Option<oneshot::Sender<()>>,
}

impl Sent {
    pub(crate) fn new(
        inner: Incoming,
        in_use: Arc<InUse>,
        ended: Arc<Ended>,
    ) -> (Sent, oneshot::Receiver<()>) {
        let (sender, over) = oneshot::channel();
        if inner.is_end_stream() {
            let _ = ended.0.set(Instant::now());
        }
        (Sent { inner: Some(inner), in_use, ended, _over: Some(sender) }, over)
    }

    pub(crate) fn empty(in_use: Arc<InUse>) -> Sent {
        Sent { inner: None, in_use, ended: Arc::default(), _over: None }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let _ = self.ended.0.set(Instant::now());
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(inner).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.in_use.active(),
            Some(Err(_)) | None => drop(self.ended.0.set(Instant::now())),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The body of a response.
pub(crate) struct Passing {
    inner: Incoming,
    /// Given back when the last byte is through, in this order: the connection, then the reservation.
    lent: Option<Lent>,
    in_use: Option<Arc<InUse>>,
    silence: Option<(Duration, Pin<Box<Sleep>>)>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// None once the last byte is through.
    revoked: Option<BoxFuture<'static, ()>>,
}

impl Passing {
    pub(crate) fn new(
        inner: Incoming,
        lent: Lent,
        in_use: Arc<InUse>,
        silence: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Passing {
        let silence = silence.map(|limit| (limit, Box::pin(tokio::time::sleep(limit))));
        let deadline = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        let revocation = in_use.clone();
        let revoked: BoxFuture<'static, ()> = Box::pin(async move { revocation.revoked().await });
        let revoked = Some(revoked);
        let mut passing =
            Passing { inner, lent: Some(lent), in_use: Some(in_use), silence, deadline, revoked };
        if passing.inner.is_end_stream() {
            passing.through();
        }
        passing
    }

    fn through(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.done();
        }
        self.in_use = None;
        self.silence = None;
        self.deadline = None;
        self.revoked = None;
    }

    /// Closing the connection tells the instance that nobody listens any more.
    fn broken(&mut self) {
        self.lent = None;
        self.in_use = None;
        self.revoked = None;
    }

    fn overdue(&mut self, cx: &mut Context<'_>) -> Option<Error> {
        if let Some((limit, sleep)) = &mut self.silence
            && sleep.poll_unpin(cx).is_ready()
        {
            return Some(Error::Silent(*limit));
        }
        if self.revoked.as_mut().is_some_and(|revoked| revoked.poll_unpin(cx).is_ready()) {
            return Some(Error::Revoked);
        }
        let deadline = self.deadline.as_mut()?;
        deadline.poll_unpin(cx).is_ready().then_some(Error::TooLong)
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            let Some(error) = this.overdue(cx) else { return Poll::Pending };
            this.broken();
            return Poll::Ready(Some(Err(error)));
        };
        match &frame {
            Some(Ok(_)) => {
                if let Some(in_use) = &this.in_use {
                    in_use.active();
                }
                if let Some((limit, sleep)) = &mut this.silence {
                    sleep.as_mut().reset(Instant::now() + *limit);
                }
                if this.inner.is_end_stream() {
                    this.through();
                }
            }
            Some(Err(_)) => this.broken(),
            None => this.through(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
