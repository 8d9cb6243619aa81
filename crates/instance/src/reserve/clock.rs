//! The router's own monotonic clock. Wall-clock time is only ever written down, compared with only to guess when to write next.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Counts from when it was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(super) fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The moment as others know it.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.origin + at
    }

    /// The moment of a time of day that somebody wrote down, as well as one can tell; the beginning if it was before.
    pub(super) fn moment(&self, time: Timestamp) -> Duration {
        let ago = Timestamp::now().duration_since(time);
        self.now().saturating_sub(Duration::try_from(ago).unwrap_or_default())
    }

    /// The time of day at a moment that has passed.
    pub(super) fn time_of_day(&self, at: Duration) -> Timestamp {
        let ago = self.now().saturating_sub(at);
        let now = Timestamp::now();
        now.checked_sub(ago).unwrap_or(now)
    }
}
