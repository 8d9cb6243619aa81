//! Whether what a router remembers may still be served from. Others take a router for dead after a long silence and go
//! on without it; so after such a silence it serves nothing until it has read everything anew.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::Clock;

#[derive(Debug, Default)]
struct State {
    /// Counts the silences: what was begun in an earlier one says nothing of the present.
    epoch: u64,
    leases: bool,
    pods: bool,
}

/// When the server was last heard of, and whether memory is whole.
#[derive(Debug)]
pub(super) struct Contact {
    clock: Clock,
    limit: Duration,
    last: AtomicU64,
    state: Mutex<State>,
    /// The present epoch: whoever watches begins anew with each.
    pub(super) epoch: watch::Sender<u64>,
    /// Memory is whole.
    pub(super) whole: watch::Sender<bool>,
}

impl Contact {
    pub(super) fn new(clock: Clock, limit: Duration) -> Contact {
        let (last, state) = (AtomicU64::new(0), Mutex::default());
        Contact { clock, limit, last, state, epoch: watch::Sender::new(0), whole: watch::Sender::new(false) }
    }

    /// The server was heard of.
    pub(super) fn heard(&self) {
        let now = self.clock.now();
        let last = self.last.fetch_max(nanos(now), Ordering::SeqCst);
        if now.saturating_sub(Duration::from_nanos(last)) >= self.limit {
            let mut state = self.state.lock();
            *state = State { epoch: state.epoch + 1, leases: false, pods: false };
            self.whole.send_replace(false);
            self.epoch.send_replace(state.epoch);
            tracing::warn!("the API server was not heard of for {:?}; reading everything anew", self.limit);
        }
    }

    pub(super) fn leases_listed(&self, epoch: u64) {
        self.listed(epoch, |state| state.leases = true);
    }

    pub(super) fn pods_listed(&self, epoch: u64) {
        self.listed(epoch, |state| state.pods = true);
    }

    fn listed(&self, epoch: u64, change: impl FnOnce(&mut State)) {
        // A list that was asked for before the silence and arrives after it begins a new epoch here.
        self.heard();
        let mut state = self.state.lock();
        if state.epoch == epoch {
            change(&mut state);
            if state.leases && state.pods {
                self.whole.send_replace(true);
            }
        }
    }

    /// Whether memory may be served from.
    pub(super) fn is_good(&self) -> bool {
        let last = Duration::from_nanos(self.last.load(Ordering::SeqCst));
        *self.whole.borrow() && self.clock.now().saturating_sub(last) < self.limit
    }
}

fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_silence_everything_is_read_anew() {
        let contact = Contact::new(Clock::start(), Duration::from_secs(9));
        assert!(!contact.is_good());
        contact.leases_listed(0);
        assert!(!contact.is_good());
        contact.pods_listed(0);
        assert!(contact.is_good());
        tokio::time::advance(Duration::from_secs(8)).await;
        contact.heard();
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(contact.is_good());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!contact.is_good());
        // Being heard of again is not enough, and neither is a list that was begun before.
        contact.heard();
        contact.leases_listed(0);
        contact.pods_listed(0);
        assert!(!contact.is_good());
        assert_eq!(*contact.epoch.borrow(), 1);
        contact.leases_listed(1);
        contact.pods_listed(1);
        assert!(contact.is_good());
    }
}
