//! Which endpoint of a Service is next: by turns, or the same for a client that keeps to one. Pure; time comes in.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use super::view::Key;

/// Clients that one port of a Service remembers; beyond them the memory of all is dropped.
const MOST_CLIENTS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Balancer {
    ports: HashMap<(Key, u16), Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    next: usize,
    kept: HashMap<Ipv4Addr, (SocketAddrV4, Instant)>,
}

impl Balancer {
    /// The endpoints in the order in which to try them; the first is the one whose turn it is. `affinity` is for how
    /// long after its last connection a client keeps its endpoint.
    pub(super) fn order(
        &mut self,
        service: (Key, u16),
        mut endpoints: Vec<SocketAddrV4>,
        client: Ipv4Addr,
        affinity: Option<Duration>,
        now: Instant,
    ) -> Vec<SocketAddrV4> {
        let turns = self.ports.entry(service).or_default();
        if endpoints.is_empty() {
            return endpoints;
        }
        // Slices come in no particular order, and turns need one.
        endpoints.sort_unstable();
        let kept = affinity.and_then(|time| {
            let (endpoint, last) = turns.kept.get(&client)?;
            let is_fresh = now.saturating_duration_since(*last) < time;
            endpoints.iter().position(|one| is_fresh && one == endpoint)
        });
        let first = kept.unwrap_or_else(|| {
            turns.next = turns.next.wrapping_add(1);
            turns.next % endpoints.len()
        });
        endpoints.rotate_left(first);
        if affinity.is_some() {
            if turns.kept.len() >= MOST_CLIENTS {
                turns.kept.clear();
            }
            turns.kept.insert(client, (endpoints[0], now));
        }
        endpoints
    }

    /// Forgets a Service that is gone.
    pub(super) fn forget(&mut self, service: &Key) {
        self.ports.retain(|(key, _), _| key != service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 9);

    fn endpoint(last: u8) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 244, 0, last), 80)
    }

    fn service() -> (Key, u16) {
        (("default".into(), "web".into()), 80)
    }

    #[test]
    fn everyone_has_a_turn_whatever_the_order_of_slices() {
        let mut balancer = Balancer::default();
        let mut counts = HashMap::new();
        for turn in 0..30 {
            let mut endpoints = vec![endpoint(2), endpoint(3), endpoint(4)];
            endpoints.rotate_left(turn % 3);
            let order = balancer.order(service(), endpoints, CLIENT, None, Instant::now());
            assert_eq!(order.len(), 3);
            *counts.entry(order[0]).or_insert(0) += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [10, 10, 10]);
    }

    #[test]
    fn a_client_keeps_its_endpoint_for_the_time_of_affinity() {
        let mut balancer = Balancer::default();
        let (mut now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut first = |now, endpoints| balancer.order(service(), endpoints, CLIENT, Some(hour), now)[0];
        let all = || vec![endpoint(2), endpoint(3)];
        let kept = first(now, all());
        for _ in 0..5 {
            now += hour - Duration::from_secs(1);
            assert_eq!(first(now, all()), kept);
        }
        now += hour;
        let other = first(now, all());
        assert_ne!(other, kept);
        // An endpoint that is gone keeps nobody.
        assert_eq!(first(now, vec![kept]), kept);
    }

    #[test]
    fn without_endpoints_there_is_nothing_to_try() {
        assert!(Balancer::default().order(service(), Vec::new(), CLIENT, None, Instant::now()).is_empty());
    }
}
