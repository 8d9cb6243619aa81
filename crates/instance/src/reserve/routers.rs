//! The routers that there are: how many share the work, and where those are that can be told of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::seat::Seat;
use crate::record::RouterLease;

/// Where processes of other routers are reached, by the name that each has among all.
pub type Peers = BTreeMap<Arc<str>, SocketAddr>;

/// The routers that are there, by the names of their Leases.
#[derive(Debug)]
pub(super) struct Routers {
    /// The operator's namespace. Whoever may write Leases elsewhere is no router for that.
    namespace: String,
    /// This router's own Lease.
    own: String,
    seat: Arc<Seat>,
    known: Mutex<BTreeMap<Arc<str>, Known>>,
    peers: watch::Sender<Peers>,
}

#[derive(Debug)]
struct Known {
    version: u64,
    /// When it was last heard of, on our own clock.
    heard: Duration,
    peer: Option<(Arc<str>, SocketAddr)>,
}

impl Routers {
    pub(super) fn new(namespace: String, own: String, seat: Arc<Seat>) -> Routers {
        Routers { namespace, own, seat, known: Mutex::default(), peers: watch::Sender::default() }
    }

    pub(super) fn put(&self, router: RouterLease, now: Duration) {
        if *router.namespace != *self.namespace {
            return;
        }
        let mut known = self.known.lock();
        if known.get(&router.name).is_none_or(|before| before.version < router.version) {
            let RouterLease { name, version, peer, .. } = router;
            known.insert(name, Known { version, heard: now, peer });
            self.publish(&known);
        }
    }

    /// These are all that there are.
    pub(super) fn list(&self, routers: Vec<RouterLease>, now: Duration) {
        let names: BTreeSet<Arc<str>> = routers.iter().map(|router| router.name.clone()).collect();
        self.known.lock().retain(|name, _| names.contains(name));
        routers.into_iter().for_each(|router| self.put(router, now));
        self.publish(&self.known.lock());
    }

    pub(super) fn remove(&self, namespace: &str, name: &str) {
        if namespace == self.namespace {
            let mut known = self.known.lock();
            known.remove(name);
            self.publish(&known);
        }
    }

    fn publish(&self, known: &BTreeMap<Arc<str>, Known>) {
        self.seat.set(known.keys().position(|name| **name == *self.own).unwrap_or(0), known.len());
        let peers: Peers = known.values().filter_map(|router| router.peer.clone()).collect();
        self.peers.send_if_modified(|before| {
            let changed = *before != peers;
            *before = peers;
            changed
        });
    }

    /// Where they are reached, this one among them.
    pub(super) fn peers(&self) -> watch::Receiver<Peers> {
        self.peers.subscribe()
    }

    /// The number of this router among those that live, and how many they are.
    pub(super) fn rank(&self, now: Duration, silent: Duration) -> (usize, usize) {
        let known = self.known.lock();
        let alive = known.iter().filter(|(_, router)| now.saturating_sub(router.heard) < silent);
        let names: Vec<&str> = alive.map(|(name, _)| &**name).collect();
        (names.iter().position(|name| *name == self.own).unwrap_or(0), names.len().max(1))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn lease(namespace: &str, name: &str, version: u64, peer: Option<(&str, u16)>) -> RouterLease {
        RouterLease {
            namespace: namespace.into(),
            name: name.into(),
            version,
            renewed: Timestamp::UNIX_EPOCH,
            peer: peer.map(|(process, port)| (process.into(), ([127, 0, 0, 1], port).into())),
            seen_leases: 0,
            seen_pods: 0,
            seen_sandboxes: 0,
        }
    }

    #[test]
    fn peers_are_those_of_the_newest_leases_in_our_namespace() {
        let seat = Arc::<Seat>::default();
        let routers = Routers::new("system".into(), "router-b".into(), seat.clone());
        let mut peers = routers.peers();
        let mut now = || peers.borrow_and_update().keys().map(|name| name.to_string()).collect::<Vec<_>>();
        routers.put(lease("system", "router-a", 5, Some(("one", 1))), Duration::ZERO);
        routers.put(lease("system", "router-b", 6, None), Duration::ZERO);
        routers.put(lease("tenant", "router-c", 7, Some(("mine", 2))), Duration::ZERO);
        assert_eq!(now(), ["one"]);
        assert!(seat.view().down, "it is the second of two");
        assert_eq!(routers.rank(Duration::ZERO, Duration::from_secs(1)), (1, 2));
        routers.put(lease("system", "router-a", 8, Some(("two", 1))), Duration::ZERO);
        routers.put(lease("system", "router-a", 5, Some(("one", 1))), Duration::ZERO);
        routers.remove("tenant", "router-a");
        assert_eq!(now(), ["two"]);
        routers.list(vec![lease("system", "router-b", 9, None)], Duration::ZERO);
        assert!(now().is_empty(), "what a list does not have is gone");
        routers.put(lease("system", "router-a", 10, Some(("three", 1))), Duration::ZERO);
        assert_eq!(now(), ["three"]);
        routers.remove("system", "router-a");
        assert!(now().is_empty());
    }
}
