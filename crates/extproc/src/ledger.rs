//! Which requests are on their way through Envoy. A router sees a request only when it picks its instance; of the rest
//! it hears by the access log, which may lose entries. So each is a lease, never a count: it ends when its end is heard
//! of, lasts longer when it is heard of otherwise, and else runs out. Pure; times are those of one monotonic clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The id of a pick.
pub type Pick = Arc<str>;

/// Requests on their way, each with what it holds.
#[derive(Debug)]
pub struct Ledger<H> {
    lease: Duration,
    most: usize,
    held: HashMap<Pick, Held<H>>,
    /// By when each runs out; the number tells those of one moment apart.
    by_deadline: BTreeMap<(Duration, u64), Pick>,
    next: u64,
}

#[derive(Debug)]
struct Held<H> {
    hold: H,
    deadline: (Duration, u64),
}

impl<H> Ledger<H> {
    /// A ledger in which requests run out this long after they were last heard of, and of which it holds so many.
    pub fn new(lease: Duration, most: usize) -> Ledger<H> {
        Ledger { lease, most, held: HashMap::new(), by_deadline: BTreeMap::new(), next: 0 }
    }

    /// A request begins. Gives back what it had to let go of: more than the most would be a leak, and what is heard of
    /// next to never would have run out first.
    pub fn begin(&mut self, pick: Pick, hold: H, now: Duration) -> Option<H> {
        let before = self.end(&pick);
        let deadline = self.deadline(now);
        self.by_deadline.insert(deadline, pick.clone());
        self.held.insert(pick, Held { hold, deadline });
        if self.held.len() <= self.most {
            return before;
        }
        let (_, oldest) = self.by_deadline.pop_first()?;
        self.held.remove(&oldest).map(|held| held.hold)
    }

    fn deadline(&mut self, now: Duration) -> (Duration, u64) {
        self.next += 1;
        (now + self.lease, self.next)
    }

    /// A request was heard of: its lease begins anew. False if it is not known.
    pub fn heard(&mut self, pick: &str, now: Duration) -> bool {
        let deadline = self.deadline(now);
        let Some(held) = self.held.get_mut(pick) else { return false };
        if let Some(pick) = self.by_deadline.remove(&held.deadline) {
            self.by_deadline.insert(deadline, pick);
        }
        held.deadline = deadline;
        true
    }

    /// What a request holds, if it is known.
    pub fn get(&self, pick: &str) -> Option<&H> {
        self.held.get(pick).map(|held| &held.hold)
    }

    /// A request has ended. Gives what it held, if it is known.
    pub fn end(&mut self, pick: &str) -> Option<H> {
        let held = self.held.remove(pick)?;
        self.by_deadline.remove(&held.deadline);
        Some(held.hold)
    }

    /// What has run out by now.
    pub fn run_out(&mut self, now: Duration) -> Vec<H> {
        let mut over = Vec::new();
        while let Some(first) = self.by_deadline.first_entry() {
            if first.key().0 > now {
                break;
            }
            let pick = first.remove();
            over.extend(self.held.remove(&pick).map(|held| held.hold));
        }
        over
    }

    /// When the next runs out.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.by_deadline.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ledger() -> Ledger<u32> {
        Ledger::new(seconds(30), 3)
    }

    #[test]
    fn a_request_ends_when_it_is_said_and_once() {
        let mut ledger = ledger();
        ledger.begin("a".into(), 1, seconds(0));
        assert_eq!((ledger.end("a"), ledger.end("a")), (Some(1), None));
        assert!(ledger.next_deadline().is_none() && ledger.run_out(seconds(100)).is_empty());
    }

    #[test]
    fn who_is_not_heard_of_runs_out_and_who_is_does_not() {
        let mut ledger = ledger();
        ledger.begin("a".into(), 1, seconds(0));
        ledger.begin("b".into(), 2, seconds(0));
        assert!(ledger.heard("b", seconds(20)) && !ledger.heard("c", seconds(20)));
        assert!(ledger.run_out(seconds(29)).is_empty());
        assert_eq!((ledger.next_deadline(), ledger.run_out(seconds(30))), (Some(seconds(30)), vec![1]));
        assert_eq!((ledger.next_deadline(), ledger.run_out(seconds(50))), (Some(seconds(50)), vec![2]));
        assert!(ledger.is_empty() && !ledger.heard("b", seconds(51)));
    }

    #[test]
    fn there_is_a_most() {
        let mut ledger = ledger();
        for (at, pick) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(ledger.begin(pick.into(), at as u32, seconds(at as u64)), None);
        }
        ledger.heard("a", seconds(10));
        assert_eq!(ledger.begin("d".into(), 9, seconds(11)), Some(1));
        assert_eq!(ledger.len(), 3);
    }

    proptest! {
        #[test]
        fn every_hold_comes_back_once(steps in prop::collection::vec((0..4_u8, 0..6_u8, 0..20_u64), 0..60)) {
            let mut ledger = ledger();
            let (mut now, mut given, mut back) = (Duration::ZERO, 0, Vec::new());
            for (what, who, later) in steps {
                now += seconds(later);
                let pick = who.to_string();
                match what {
                    0 => {
                        given += 1;
                        back.extend(ledger.begin(pick.into(), given, now));
                    }
                    1 => drop(ledger.heard(&pick, now)),
                    2 => back.extend(ledger.end(&pick)),
                    _ => back.extend(ledger.run_out(now)),
                }
                prop_assert!(ledger.len() <= 3);
                prop_assert_eq!(ledger.held.len(), ledger.by_deadline.len());
            }
            back.extend(ledger.run_out(now + seconds(30)));
            back.sort_unstable();
            prop_assert!(ledger.is_empty());
            prop_assert_eq!(back, (1..=given).collect::<Vec<_>>());
        }
    }
}
