//! Ranges of addresses, and the one from which Pods get theirs. Pure; nothing here touches the network.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A range like `10.244.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: u32,
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IPv4 range: write it like 10.244.0.0/16")]
pub struct InvalidRange(String);

impl Range {
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.base
    }

    /// The first address that a host can have.
    pub fn first(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base | 1)
    }

    fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    fn last(&self) -> u32 {
        self.base | !self.mask()
    }
}

/// Of this address alone.
impl From<Ipv4Addr> for Range {
    fn from(address: Ipv4Addr) -> Self {
        Self { base: address.to_bits(), prefix: 32 }
    }
}

impl FromStr for Range {
    type Err = InvalidRange;

    fn from_str(text: &str) -> Result<Self, InvalidRange> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
            let range = Range { base: address.parse::<Ipv4Addr>().ok()?.to_bits(), prefix };
            Some(Range { base: range.base & range.mask(), prefix })
        };
        parse().ok_or_else(|| InvalidRange(text.to_owned()))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.base), self.prefix)
    }
}

/// Hands out the addresses of a range in turn, so that a freed one comes back as late as possible: whoever still
/// talks to the old Pod must not reach a new one.
#[derive(Debug)]
pub(super) struct Pool {
    range: Range,
    previous: u32,
    taken: BTreeSet<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("all addresses of {0} are in use; delete Pods or use a larger range")]
pub struct Exhausted(Range);

impl Pool {
    /// The first address of the range is the gateway's and never handed out.
    pub(super) fn new(range: Range) -> Self {
        Self { range, previous: range.base | 1, taken: BTreeSet::new() }
    }

    pub(super) fn allocate(&mut self) -> Result<Ipv4Addr, Exhausted> {
        let (first, last) = ((self.range.base | 1).saturating_add(1), self.range.last().saturating_sub(1));
        let after = self.previous.saturating_add(1)..=last;
        let free = after.chain(first..=self.previous.min(last)).find(|address| !self.taken.contains(address));
        let address = free.ok_or(Exhausted(self.range))?;
        self.taken.insert(address);
        self.previous = address;
        Ok(Ipv4Addr::from_bits(address))
    }

    /// Goes on after an address that a Pod of an earlier run had: others may still remember it.
    pub(super) fn skip(&mut self, address: Ipv4Addr) {
        if self.range.contains(address) {
            self.previous = self.previous.max(address.to_bits());
        }
    }

    /// Takes an address that somebody has already. `false` if it is not to be had.
    pub(super) fn take(&mut self, address: Ipv4Addr) -> bool {
        self.range.contains(address) && self.taken.insert(address.to_bits())
    }

    pub(super) fn free(&mut self, address: Ipv4Addr) {
        self.taken.remove(&address.to_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(pool: &mut Pool, count: usize) -> Vec<String> {
        (0..count).map(|_| pool.allocate().unwrap().to_string()).collect()
    }

    #[test]
    fn ranges_are_read_and_written() {
        let range: Range = "10.244.7.9/16".parse().unwrap();
        assert_eq!(range.to_string(), "10.244.0.0/16");
        assert_eq!(range.first(), Ipv4Addr::new(10, 244, 0, 1));
        assert!(range.contains(Ipv4Addr::new(10, 244, 255, 255)));
        assert!(!range.contains(Ipv4Addr::new(10, 245, 0, 0)));
        let everything: Range = "0.0.0.0/0".parse().unwrap();
        assert!(everything.contains(Ipv4Addr::BROADCAST));
        let one: Range = "1.2.3.4/32".parse().unwrap();
        assert!(one.contains(Ipv4Addr::new(1, 2, 3, 4)) && !one.contains(Ipv4Addr::new(1, 2, 3, 5)));
        assert_eq!(Range::from(Ipv4Addr::new(1, 2, 3, 4)), one);
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/0", "10.0.0.0/-1"] {
            assert_eq!(wrong.parse::<Range>(), Err(InvalidRange(wrong.into())));
        }
    }

    #[test]
    fn a_freed_address_returns_only_after_the_others() {
        let mut pool = Pool::new("10.0.0.0/29".parse().unwrap());
        assert_eq!(addresses(&mut pool, 2), ["10.0.0.2", "10.0.0.3"]);
        pool.free(Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(addresses(&mut pool, 4), ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.2"]);
        assert!(pool.allocate().is_err());
        pool.free(Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(addresses(&mut pool, 1), ["10.0.0.2"]);
    }

    #[test]
    fn addresses_of_an_earlier_run_come_last() {
        let mut pool = Pool::new("10.0.0.0/29".parse().unwrap());
        pool.skip(Ipv4Addr::new(10, 0, 0, 3));
        pool.skip(Ipv4Addr::new(10, 0, 0, 2));
        pool.skip(Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(addresses(&mut pool, 5), ["10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.2", "10.0.0.3"]);
        assert!(pool.allocate().is_err());
    }
}
