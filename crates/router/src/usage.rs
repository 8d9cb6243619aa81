//! Whether a client's connection is in use: from the head of a request to the last byte of its response. One that is not
//! is kept for a while only.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Either;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::body::Reply;
use crate::observe::Sight;

/// The use of a connection.
pub(crate) struct Use {
    state: Mutex<State>,
    /// Tells that the last exchange has ended.
    rested: Notify,
}

struct State {
    exchanges: usize,
    /// Whether there ever was one.
    ever: bool,
    since: Instant,
}

impl Use {
    pub(crate) fn new() -> Use {
        let state = State { exchanges: 0, ever: false, since: Instant::now() };
        Use { state: Mutex::new(state), rested: Notify::new() }
    }

    /// Comes back when the connection has not been used for so long; says whether it ever was.
    pub(crate) async fn idle_for(&self, limit: Duration) -> bool {
        loop {
            let (until, ever) = {
                let state = self.state.lock();
                ((state.exchanges == 0).then(|| state.since + limit), state.ever)
            };
            match until {
                Some(until) if Instant::now() >= until => return ever,
                Some(until) => tokio::time::sleep_until(until).await,
                // Whoever was told and went away again had looked at the state before.
                None => self.rested.notified().await,
            }
        }
    }
}

/// A request and its response.
pub(crate) struct Exchange(Arc<Use>);

impl Exchange {
    pub(crate) fn begin(connection: &Arc<Use>) -> Exchange {
        let mut state = connection.state.lock();
        state.exchanges += 1;
        state.ever = true;
        Exchange(connection.clone())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.exchanges -= 1;
        if state.exchanges == 0 {
            state.since = Instant::now();
            self.0.rested.notify_one();
        }
    }
}

/// The body of a response, which ends its exchange, and tells what became of it.
pub(crate) struct Counted {
    body: Reply,
    _exchange: Exchange,
    seen: Arc<Sight>,
    /// Dropped with this, which ends the wait for it.
    _over: Option<oneshot::Sender<()>>,
}

impl Counted {
    /// A word of the gateway itself has to be taken within the limit, or the connection is closed: HTTP/2 lets a client
    /// leave it for as long as it likes. What an instance says has the limits of its Task.
    pub(crate) fn new(
        body: Reply,
        exchange: Exchange,
        seen: Arc<Sight>,
        (limit, connection): (Duration, &CancellationToken),
    ) -> Counted {
        if body.is_end_stream() {
            seen.whole();
        }
        let unread = matches!(body, Either::Right(_)) && !body.is_end_stream();
        let over = unread.then(|| {
            let (over, ended) = oneshot::channel::<()>();
            let connection = connection.clone();
            tokio::spawn(async move {
                if tokio::time::timeout(limit, ended).await.is_err() {
                    connection.cancel();
                }
            });
            over
        });
        Counted { body, _exchange: exchange, seen, _over: over }
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                self.seen.sent(frame.data_ref().map_or(0, |data| data.len() as u64));
                if self.body.is_end_stream() {
                    self.seen.whole();
                }
            }
            Some(Err(error)) => self.seen.broke(&**error),
            None => self.seen.whole(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use agentcube_operator::metrics::Registry;

    use super::*;
    use crate::observe::Observer;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_its_last_exchange_has_ended() {
        let (connection, begun) = (Arc::new(Use::new()), Instant::now());
        let limit = Duration::from_secs(60);
        assert!(!connection.idle_for(limit).await, "it was never used");
        assert_eq!(begun.elapsed(), limit);
        let (first, second) = (Exchange::begin(&connection), Exchange::begin(&connection));
        let using = async {
            tokio::time::sleep(Duration::from_secs(500)).await;
            drop(first);
            tokio::time::sleep(Duration::from_secs(500)).await;
            drop(second);
        };
        let (used, ()) = tokio::join!(connection.idle_for(limit), using);
        assert!(used);
        assert_eq!(begun.elapsed(), limit + Duration::from_secs(1000) + limit);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_taken_in_time_or_the_connection_ends() {
        let (usage, limit) = (Arc::new(Use::new()), Duration::from_secs(60));
        let refusal = || Either::Right(http_body_util::Full::new(Bytes::from("no")));
        let connection = CancellationToken::new();
        let observer = Observer::new("gateway", &Registry::new(), None);
        let counted = || {
            let (exchange, seen) = (Exchange::begin(&usage), Sight::begin(&observer));
            Counted::new(refusal(), exchange, seen, (limit, &connection))
        };
        let taken = counted();
        tokio::time::sleep(limit / 2).await;
        drop(taken);
        tokio::time::sleep(limit).await;
        assert!(!connection.is_cancelled());
        let begun = Instant::now();
        let _unread = counted();
        connection.cancelled().await;
        assert_eq!(begun.elapsed(), limit);
    }
}
