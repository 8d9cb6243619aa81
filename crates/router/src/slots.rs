//! How many connections clients may have: all of them together, and those of one address, so that one client alone
//! cannot keep all others out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for connections.
pub(crate) struct Slots {
    all: Arc<Semaphore>,
    /// The most that one address may have.
    each: usize,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place for one more, whoever it is for.
pub(crate) struct Free {
    _permit: OwnedSemaphorePermit,
}

/// The place of a connection, until it is dropped.
pub(crate) struct Slot {
    address: IpAddr,
    by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _place: Free,
}

impl Slots {
    pub(crate) fn new(all: usize, each: usize) -> Slots {
        let all = Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS)));
        Slots { all, each, by_address: Arc::default() }
    }

    /// A place, if there is one.
    pub(crate) fn try_wait(&self) -> Option<Free> {
        self.all.clone().try_acquire_owned().ok().map(|permit| Free { _permit: permit })
    }

    /// A place, when there is one.
    pub(crate) async fn wait(&self) -> Free {
        let permit = self.all.clone().acquire_owned().await;
        Free { _permit: permit.expect("the semaphore is never closed") }
    }

    /// The place for a connection of this address; none if it has as many as it may have.
    pub(crate) fn take(&self, place: Free, address: IpAddr) -> Option<Slot> {
        let address = neighbourhood(address);
        let mut counts = self.by_address.lock();
        let count = counts.entry(address).or_default();
        // Where none are allowed the entry would stay.
        if *count >= self.each.max(1) {
            return None;
        }
        *count += 1;
        Some(Slot { address, by_address: self.by_address.clone(), _place: place })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.by_address.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Whoever has one address of IPv6 has all of its network.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_more_than_its_share() {
        let slots = Slots::new(5, 2);
        let take = |address: &str| slots.take(slots.try_wait()?, address.parse().unwrap());
        let (first, second) = (take("10.0.0.1").unwrap(), take("::ffff:10.0.0.1").unwrap());
        assert!(take("10.0.0.1").is_none(), "they are the same");
        let (_third, _fourth) = (take("2001:db8::1").unwrap(), take("2001:db8::ff:2").unwrap());
        assert!(take("2001:db8::3").is_none(), "of one network");
        let _fifth = take("2001:db8:0:1::1").unwrap();
        assert!(slots.try_wait().is_none(), "there are no more");
        drop(first);
        assert!(take("10.0.0.1").is_some());
        drop(second);
        assert_eq!(slots.by_address.lock().len(), 2, "who has none is forgotten");
    }
}
