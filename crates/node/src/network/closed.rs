//! The addresses that no guest reaches, however far it gets: those that somebody named, and those of whoever was heard to
//! decide over this node. Pure.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use super::addresses::Range;

/// Who decides that are kept in mind: there is one, and a new one before the old one has gone.
const MOST_HEARD: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Closed {
    ranges: Vec<Range>,
    /// Who was heard last comes last, so whoever goes on speaking is never forgotten.
    heard: VecDeque<Ipv4Addr>,
}

impl Closed {
    pub(super) fn new(ranges: Vec<Range>) -> Self {
        Self { ranges, heard: VecDeque::new() }
    }

    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        self.ranges.iter().any(|range| range.contains(address)) || self.heard.contains(&address)
    }

    /// Whether hearing of this address would change nothing.
    pub(super) fn knows(&self, address: Ipv4Addr) -> bool {
        self.heard.back() == Some(&address)
    }

    pub(super) fn hear(&mut self, address: Ipv4Addr) {
        self.heard.retain(|heard| *heard != address);
        self.heard.push_back(address);
        if self.heard.len() > MOST_HEARD {
            self.heard.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_goes_on_speaking_is_never_forgotten() {
        let mut closed = Closed::new(vec!["10.96.0.0/16".parse().unwrap()]);
        let (controller, other) = (Ipv4Addr::new(10, 0, 0, 1), |n: u8| Ipv4Addr::new(10, 1, 0, n));
        assert!(!closed.contains(controller) && !closed.knows(controller));
        for number in 0..200 {
            closed.hear(controller);
            assert!(closed.knows(controller));
            closed.hear(other(number));
            assert!(closed.contains(controller) && closed.contains(other(number)));
        }
        assert_eq!(closed.heard.len(), MOST_HEARD);
        assert!(!closed.contains(other(0)) && closed.contains(Ipv4Addr::new(10, 96, 255, 1)));
    }
}
