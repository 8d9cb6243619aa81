//! Whether what a router remembers may still be served from. Others take a router for dead when it has not renewed its
//! Lease for long, and go on without it. So it serves only for a time after it sent the last renewal that succeeded, and
//! after that not before it has renewed the Lease and read everything anew.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::Clock;
use crate::identity::Kind;

#[derive(Debug, Default)]
struct State {
    /// When the last renewal that succeeded was sent; none before the first.
    renewed: Option<Duration>,
    /// Counts how often contact was lost: what was begun before says nothing of the present.
    epoch: u64,
    leases: bool,
    pods: bool,
    sandboxes: bool,
}

/// When the router's Lease was last renewed, and whether memory is whole.
#[derive(Debug)]
pub(super) struct Contact {
    clock: Clock,
    limit: Duration,
    state: Mutex<State>,
    /// The present epoch: whoever watches begins anew with each.
    pub(super) epoch: watch::Sender<u64>,
    /// Memory of Sandboxes is whole. Apart from the rest, which needs nobody who may see Sandboxes.
    pub(super) sandboxes: watch::Sender<bool>,
    /// Memory is whole, apart from that.
    pub(super) whole: watch::Sender<bool>,
    /// Memory was whole once.
    pub(super) begun: watch::Sender<bool>,
}

impl Contact {
    pub(super) fn new(clock: Clock, limit: Duration) -> Contact {
        let (state, epoch) = (Mutex::default(), watch::Sender::new(0));
        let (whole, begun) = (watch::Sender::new(false), watch::Sender::new(false));
        Contact { clock, limit, state, epoch, sandboxes: watch::Sender::new(false), whole, begun }
    }

    /// A renewal that was sent then has succeeded.
    pub(super) fn renewed(&self, sent: Duration) {
        let mut state = self.state.lock();
        // Also when nobody noticed in between: this process may have stood still.
        if state.renewed.is_some_and(|last| sent.saturating_sub(last) >= self.limit) {
            self.forget(&mut state);
            state.epoch += 1;
            self.epoch.send_replace(state.epoch);
        }
        state.renewed = state.renewed.max(Some(sent));
    }

    fn forget(&self, state: &mut State) {
        (state.leases, state.pods, state.sandboxes) = (false, false, false);
        self.sandboxes.send_replace(false);
        self.whole.send_replace(false);
    }

    pub(super) fn leases_listed(&self, epoch: u64) {
        self.listed(epoch, |state| state.leases = true);
    }

    pub(super) fn instances_listed(&self, kind: Kind, epoch: u64) {
        self.listed(epoch, |state| match kind {
            Kind::Pod => state.pods = true,
            Kind::Sandbox => state.sandboxes = true,
        });
    }

    fn listed(&self, epoch: u64, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        if state.epoch == epoch {
            change(&mut state);
            if state.leases && state.pods {
                self.whole.send_replace(true);
                self.begun.send_replace(true);
            }
            self.sandboxes.send_if_modified(|listed| !std::mem::replace(listed, state.sandboxes) && *listed);
        }
    }

    /// Until when memory may be served from, if nothing is heard.
    pub(super) fn good_until(&self) -> Duration {
        self.state.lock().renewed.unwrap_or_else(|| self.clock.now()) + self.limit
    }

    /// Whether contact is lost just now.
    pub(super) fn lost(&self) -> bool {
        let mut state = self.state.lock();
        let lost = state.renewed.is_some_and(|last| self.clock.now().saturating_sub(last) >= self.limit);
        if lost {
            self.forget(&mut state);
        }
        lost
    }

    /// Waits until memory is whole again.
    pub(super) async fn regained(&self) {
        // The sender is ours.
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
    }

    /// Whether memory may be served from.
    pub(super) fn is_good(&self) -> bool {
        *self.whole.borrow() && self.clock.now() < self.good_until()
    }

    /// The same for instances of a kind.
    pub(super) fn is_good_for(&self, kind: Kind) -> bool {
        self.is_good() && (kind == Kind::Pod || *self.sandboxes.borrow())
    }

    /// Whether everything is known of instances of a kind.
    pub(super) fn knows_already(&self, kind: Kind) -> bool {
        kind != Kind::Sandbox || *self.sandboxes.borrow()
    }

    /// Waits until everything is known of instances of a kind.
    pub(super) async fn knows(&self, kind: Kind) {
        if kind == Kind::Sandbox {
            // The sender is ours.
            let _ = self.sandboxes.subscribe().wait_for(|listed| *listed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_silence_everything_is_read_anew() {
        let contact = Contact::new(Clock::start(), Duration::from_secs(9));
        contact.renewed(contact.clock.now());
        contact.leases_listed(0);
        assert!(!contact.is_good());
        contact.instances_listed(Kind::Pod, 0);
        assert!(contact.is_good());
        tokio::time::advance(Duration::from_secs(8)).await;
        contact.renewed(contact.clock.now());
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(contact.is_good() && !contact.lost());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!contact.is_good() && contact.lost());
        // A list that was begun before is not enough, and neither is a renewal alone.
        contact.leases_listed(0);
        contact.renewed(contact.clock.now());
        contact.instances_listed(Kind::Pod, 0);
        assert!(!contact.is_good());
        assert_eq!(*contact.epoch.borrow(), 1);
        contact.leases_listed(1);
        contact.instances_listed(Kind::Pod, 1);
        assert!(contact.is_good());
    }

    #[tokio::test(start_paused = true)]
    async fn standing_still_is_noticed_and_a_late_answer_counts_from_when_it_was_sent() {
        let contact = Contact::new(Clock::start(), Duration::from_secs(9));
        contact.renewed(contact.clock.now());
        contact.leases_listed(0);
        contact.instances_listed(Kind::Pod, 0);
        let sent = contact.clock.now() + Duration::from_secs(1);
        tokio::time::advance(Duration::from_secs(8)).await;
        contact.renewed(sent);
        assert!(contact.is_good());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!contact.is_good());
        // Nobody looked; the next renewal finds out.
        contact.renewed(contact.clock.now());
        assert!(!contact.is_good());
        assert_eq!(*contact.epoch.borrow(), 1);
    }
}
