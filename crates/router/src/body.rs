//! The body of a response on its way through the gateway, frame by frame and never collected. Each byte tells the
//! reservation that its session is active, and the reservation ends with the last of them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use agentcube_instance::reserve::InUse;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::converse::Early;
use crate::ending::Ending;
use crate::pool::Lent;
use crate::watch::Watch;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("no byte came for {0:?}, the Task's limit")]
    Silent(Duration),
    #[error("the client sent nothing for {0:?}, though its request had not ended")]
    Stalled(Duration),
    #[error("the response took longer than the Task allows")]
    TooLong,
    #[error("the router has lost touch with the API server, and may serve no more")]
    Revoked,
}

/// What a client gets: a response on its way, or a word of the gateway itself.
pub(crate) type Reply = Either<Passing, Full<Bytes>>;

/// The body of a response.
pub(crate) struct Passing {
    /// What was read of it already.
    early: Early,
    inner: Incoming,
    /// Given back when the last byte is through, in this order: the connection, then the reservation.
    lent: Option<Lent>,
    in_use: Option<Arc<InUse>>,
    /// After both of them, the session, if it is over with this.
    ending: Option<Ending>,
    /// None once the last byte is through.
    watch: Option<Watch>,
}

impl Passing {
    /// The connection is the client's, and closed if it does not take the response in time.
    pub(crate) fn new(
        inner: Incoming,
        early: Early,
        lent: Lent,
        in_use: Arc<InUse>,
        ending: Option<Ending>,
        watch: impl FnOnce(Arc<InUse>) -> Watch,
    ) -> Passing {
        if inner.is_end_stream() && early.is_empty() {
            lent.done();
            drop(in_use);
            return Passing { early, inner, lent: None, in_use: None, ending, watch: None };
        }
        let watch = Some(watch(in_use.clone()));
        Passing { early, inner, lent: Some(lent), in_use: Some(in_use), ending, watch }
    }

    fn through(&mut self) {
        if let Some(lent) = self.lent.take() {
            lent.done();
        }
        self.watch = None;
        self.in_use = None;
        self.ending = None;
    }

    /// Closing the connection tells the instance that nobody listens any more.
    fn broken(&mut self) {
        self.lent = None;
        self.watch = None;
        self.in_use = None;
        self.ending = None;
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
        // First, since an instance that never stops is never waited for.
        if let Some(watch) = &mut this.watch
            && let Poll::Ready(error) = watch.poll_broken(cx)
        {
            this.broken();
            return Poll::Ready(Some(Err(error)));
        }
        let frame = match this.early.pop_front() {
            Some(frame) => Some(Ok(frame)),
            None => ready!(Pin::new(&mut this.inner).poll_frame(cx)),
        };
        match &frame {
            Some(Ok(_)) => {
                if let Some(in_use) = &this.in_use {
                    in_use.active();
                }
                if let Some(watch) = &this.watch {
                    watch.alive();
                }
                if this.is_end_stream() {
                    this.through();
                }
            }
            Some(Err(_)) => this.broken(),
            None => this.through(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.early.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let early: usize = self.early.iter().filter_map(Frame::data_ref).map(Bytes::len).sum();
        let (early, rest) = (early as u64, self.inner.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(early));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(early));
        }
        hint
    }
}
