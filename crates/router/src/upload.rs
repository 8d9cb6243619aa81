//! The body of a request, from the client to the instance: read ahead a little while there is no instance yet, then
//! passed on frame by frame. Each byte tells the reservation that its session is active.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use agentcube_instance::reserve::InUse;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, timeout_at};

use crate::body::Error;
use crate::protocol::json;
use crate::room::Taken;

/// How much is read before there is an instance, in bytes.
const READ_AHEAD: usize = 64 << 10;
/// What a frame counts for beside its bytes.
const FRAME: usize = 64;

/// A body whose request waits for an instance.
pub(crate) struct Received {
    inner: Incoming,
    early: VecDeque<Frame<Bytes>>,
    size: usize,
    ended: bool,
    /// The room that what was read takes up.
    room: Option<Taken>,
}

/// Why a body was not read as a whole.
#[derive(Debug)]
pub(crate) enum Unread {
    TooLarge,
    /// There is no room for it at present.
    NoRoom,
    /// Nothing came for so long.
    Stalled(Duration),
    /// All of it together took longer than it may.
    Slow,
    Broken(hyper::Error),
    /// Whoever looks at it does not want it.
    Unwanted(json::Error),
}

impl Received {
    pub(crate) fn new(inner: Incoming) -> Received {
        let ended = inner.is_end_stream();
        Received { inner, early: VecDeque::new(), size: 0, ended, room: None }
    }

    /// Reads all of it until a deadline, shows it to `look`, and keeps it in this room to be passed on.
    pub(crate) async fn read_whole(
        &mut self,
        limit: usize,
        idle: Option<Duration>,
        deadline: Instant,
        mut room: Taken,
        mut look: impl FnMut(&[u8]) -> Result<(), json::Error>,
    ) -> Result<(), Unread> {
        if self.inner.size_hint().lower() > limit as u64 {
            return Err(Unread::TooLarge);
        }
        while !self.ended {
            let silence = idle.map(|idle| Instant::now() + idle);
            let until = silence.map_or(deadline, |silence| silence.min(deadline));
            let frame = timeout_at(until, self.inner.frame()).await.map_err(|_| match idle {
                Some(idle) if until < deadline => Unread::Stalled(idle),
                _ => Unread::Slow,
            })?;
            let Some(frame) = frame.transpose().map_err(Unread::Broken)? else {
                self.ended = true;
                break;
            };
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.size += FRAME + length;
            if self.size > limit {
                return Err(Unread::TooLarge);
            }
            if !room.grow(self.size) {
                return Err(Unread::NoRoom);
            }
            if let Some(bytes) = frame.data_ref() {
                look(bytes).map_err(Unread::Unwanted)?;
            }
            self.early.push_back(frame);
            self.ended = self.inner.is_end_stream();
        }
        self.room = Some(room);
        Ok(())
    }

    /// Comes back only if the body breaks off, as when the client leaves. That shows by reading alone, so some is read
    /// while this is polled.
    pub(crate) async fn broken(&mut self) -> hyper::Error {
        while !self.ended && self.size < READ_AHEAD {
            match self.inner.frame().await {
                Some(Ok(frame)) => {
                    self.size += FRAME + frame.data_ref().map_or(0, Bytes::len);
                    self.early.push_back(frame);
                    self.ended = self.inner.is_end_stream();
                }
                Some(Err(error)) => return error,
                None => self.ended = true,
            }
        }
        std::future::pending().await
    }
}

/// How far a request has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ended: OnceLock<Instant>,
    stalled: OnceLock<Duration>,
    received: AtomicU64,
}

impl Progress {
    /// How many bytes of its body went on.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn passed(&self, frame: &Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// When it had been received as a whole.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.ended.get().copied()
    }

    /// The limit that its client has overstepped by sending nothing.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        self.stalled.get().copied()
    }
}

/// The body of a request that goes to an instance.
pub(crate) struct Sent {
    /// What was read before there was an instance.
    early: VecDeque<Frame<Bytes>>,
    /// None if it has ended already, or is sent again, which is done without a body only.
    inner: Option<Incoming>,
    in_use: Arc<InUse>,
    progress: Arc<Progress>,
    limit: Option<Duration>,
    /// Runs only while the client is waited for: the instance may take its time.
    waiting: Option<Pin<Box<Sleep>>>,
    _room: Option<Taken>,
    /// Dropped with the body, which tells whoever waits.
    _over: Option<oneshot::Sender<()>>,
}

impl Sent {
    pub(crate) fn new(
        received: Received,
        in_use: Arc<InUse>,
        progress: Arc<Progress>,
        limit: Option<Duration>,
    ) -> (Sent, oneshot::Receiver<()>) {
        let (sender, over) = oneshot::channel();
        if received.ended {
            let _ = progress.ended.set(Instant::now());
        }
        let inner = (!received.ended).then_some(received.inner);
        let (early, _room) = (received.early, received.room);
        (Sent { early, inner, in_use, progress, limit, waiting: None, _room, _over: Some(sender) }, over)
    }

    pub(crate) fn empty(in_use: Arc<InUse>) -> Sent {
        let (early, progress) = (VecDeque::new(), Arc::default());
        Sent { early, inner: None, in_use, progress, limit: None, waiting: None, _room: None, _over: None }
    }

    /// Waits for the client no longer than it may take.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let Some(limit) = self.limit else { return Poll::Pending };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(waiting.poll_unpin(cx));
        let _ = self.progress.stalled.set(limit);
        Poll::Ready(Error::Stalled(limit))
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let _ = self.progress.ended.set(Instant::now());
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(frame) = self.early.pop_front() {
            self.in_use.active();
            self.progress.passed(&frame);
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) else {
            return self.poll_stalled(cx).map(|error| Some(Err(error)));
        };
        self.waiting = None;
        match &frame {
            Some(Ok(frame)) => {
                self.in_use.active();
                self.progress.passed(frame);
            }
            Some(Err(_)) | None => drop(self.progress.ended.set(Instant::now())),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.early.is_empty() && self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let early: usize = self.early.iter().filter_map(Frame::data_ref).map(Bytes::len).sum();
        let early = early as u64;
        let rest = self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(early));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(early));
        }
        hint
    }
}
