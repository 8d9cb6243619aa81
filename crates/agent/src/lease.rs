//! How long this agent may go on without its controller. Counted from when an answer was sent that the controller has
//! said to have received: it cannot have heard from us earlier than that, so what it waits for is over later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Answers whose time is kept. More are not under way: the controller asks one thing after the other.
const MOST_ANSWERS: usize = 64;

/// When a run must stand still after the last contact: before the controller may start it elsewhere, even if our clock
/// is slower than its by a tenth.
fn fence_after(recovery: Duration, dropped: Duration) -> Duration {
    recovery.max(dropped) / 10 * 9
}

#[derive(Debug)]
pub(crate) struct Lease {
    /// No controller takes an agent for lost before this.
    dropped: Duration,
    last: u64,
    sent: VecDeque<(u64, Instant)>,
    contact: Option<Instant>,
}

impl Lease {
    pub(crate) fn new(dropped: Duration) -> Self {
        Self { dropped, last: 0, sent: VecDeque::new(), contact: None }
    }

    /// Goes on from an earlier process: its last contact, and numbers above all that it can have used.
    pub(crate) fn resume(&mut self, last: u64, contact: Option<Instant>) {
        (self.last, self.contact) = (self.last.max(last), contact);
    }

    pub(crate) fn contact(&self) -> Option<Instant> {
        self.contact
    }

    /// The number of an answer that is sent now.
    pub(crate) fn answered(&mut self, now: Instant) -> u64 {
        self.last += 1;
        self.sent.push_back((self.last, now));
        if self.sent.len() > MOST_ANSWERS {
            self.sent.pop_front();
        }
        self.last
    }

    /// The controller has received this answer. Numbers that we never sent, or long ago, say nothing.
    pub(crate) fn acknowledged(&mut self, seq: u64) {
        let Some((_, sent)) = self.sent.iter().find(|(known, _)| *known == seq) else { return };
        self.contact = self.contact.max(Some(*sent));
        self.sent.retain(|(known, _)| *known >= seq);
    }

    /// How long after the last contact a run may go on.
    pub(crate) fn goes_on_for(&self, recovery: Duration) -> Duration {
        fence_after(recovery, self.dropped)
    }

    /// When a run must stand still, if nothing is heard until then. None: nobody has ever said to hear us.
    pub(crate) fn fence_at(&self, recovery: Duration) -> Option<Instant> {
        self.contact?.checked_add(fence_after(recovery, self.dropped))
    }

    /// Whether a run may go on now. Where it may not, it is not started or thawed either: the word to do so may have
    /// been under way for as long as we were out of reach.
    pub(crate) fn holds(&self, recovery: Duration, now: Instant) -> bool {
        self.fence_at(recovery).is_some_and(|at| now < at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DROPPED: Duration = Duration::from_secs(15);

    #[test]
    fn frozen_before_anybody_may_start_it_elsewhere() {
        for (recovery, expected) in [(0, 13_500), (15, 13_500), (60, 54_000), (86_400, 77_760_000)] {
            let after = fence_after(Duration::from_secs(recovery), DROPPED);
            assert_eq!(after, Duration::from_millis(expected), "{recovery}");
        }
    }

    #[test]
    fn contact_is_when_the_acknowledged_answer_was_sent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut lease = Lease::new(DROPPED);
        assert_eq!(lease.fence_at(Duration::ZERO), None, "nobody has ever asked");
        let first = lease.answered(at(1));
        let second = lease.answered(at(5));
        assert_eq!(lease.contact, None, "that we sent it does not mean that it arrived");
        assert!(!lease.holds(Duration::ZERO, at(5)));
        lease.acknowledged(second);
        assert_eq!(lease.contact, Some(at(5)));
        assert!(lease.holds(Duration::ZERO, at(18)));
        assert!(!lease.holds(Duration::ZERO, at(19)));
        for nonsense in [0, first, second, 99] {
            lease.acknowledged(nonsense);
            assert_eq!(lease.contact, Some(at(5)), "{nonsense}");
        }
    }

    proptest! {
        /// Whatever is acknowledged in whatever order, contact is never later than the latest answer that was, and
        /// never goes back.
        #[test]
        fn never_more_hopeful_than_the_controller(steps in proptest::collection::vec((any::<bool>(), 0_u64..200), 0..200)) {
            let start = Instant::now();
            let mut lease = Lease::new(DROPPED);
            let (mut sent, mut truth) = (Vec::new(), None);
            for (number, (answers, seq)) in steps.into_iter().enumerate() {
                let now = start + Duration::from_secs(number as u64);
                if answers {
                    sent.push((lease.answered(now), now));
                } else {
                    lease.acknowledged(seq);
                    truth = truth.max(sent.iter().find(|(known, _)| *known == seq).map(|(_, at)| *at));
                }
                prop_assert!(lease.contact <= truth);
                prop_assert!(lease.sent.len() <= MOST_ANSWERS);
            }
        }
    }
}
