//! Who waits for an instance of one Task, and whose turn it is: first come first served while there is enough for all,
//! and in turn over the tenants while there is not. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A place in the queue. Earlier ones are smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

type Tenant = Option<Arc<str>>;

/// The waiting of one tenant. `turn` is when it is next served, counted in rounds: a tenant that was just served, or
/// that comes back, never gets ahead of the others' present round.
#[derive(Debug, Default)]
struct Line {
    places: BTreeSet<Place>,
    turn: u64,
}

/// All who wait for one Task.
#[derive(Debug, Default)]
pub struct Queue {
    places: BTreeSet<Place>,
    tenants: HashMap<Place, Tenant>,
    lines: HashMap<Tenant, Line>,
    round: u64,
    last: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A place at the end.
    pub fn join(&mut self, tenant: Option<&str>) -> Place {
        self.last += 1;
        let place = Place(self.last);
        self.rejoin(place, tenant);
        place
    }

    /// Gives somebody who was served for nothing the old place back.
    pub fn rejoin(&mut self, place: Place, tenant: Option<&str>) {
        let tenant: Tenant = tenant.map(Into::into);
        let round = self.round;
        let line = self.lines.entry(tenant.clone()).or_default();
        line.turn = line.turn.max(round);
        line.places.insert(place);
        self.places.insert(place);
        self.tenants.insert(place, tenant);
    }

    /// Goes away without having been served.
    pub fn leave(&mut self, place: Place) {
        self.remove(place);
    }

    /// Whose turn it is; in turn over the tenants if there is not enough for all.
    pub fn next(&self, scarce: bool) -> Option<Place> {
        if !scarce {
            return self.places.first().copied();
        }
        let waiting = self.lines.values().filter_map(|line| Some((line.turn, *line.places.first()?)));
        waiting.min().map(|(_, place)| place)
    }

    /// Takes the one out whose turn it is.
    pub fn serve(&mut self, scarce: bool) -> Option<Place> {
        let place = self.next(scarce)?;
        if let Some(line) = self.tenants.get(&place).and_then(|tenant| self.lines.get_mut(tenant)) {
            self.round = self.round.max(line.turn);
            line.turn += 1;
        }
        self.remove(place);
        Some(place)
    }

    fn remove(&mut self, place: Place) {
        let Some(tenant) = self.tenants.remove(&place) else { return };
        self.places.remove(&place);
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.places.remove(&place);
        }
        // Remembering who was served in a round that is over would change nothing.
        let round = if self.places.is_empty() { u64::MAX } else { self.round };
        self.lines.retain(|_, line| !line.places.is_empty() || line.turn > round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve_all(queue: &mut Queue, scarce: bool) -> Vec<Place> {
        std::iter::from_fn(|| queue.serve(scarce)).collect()
    }

    #[test]
    fn first_come_first_served() {
        let mut queue = Queue::default();
        let places: Vec<_> =
            [Some("a"), Some("a"), None, Some("b")].into_iter().map(|t| queue.join(t)).collect();
        queue.leave(places[1]);
        assert_eq!(serve_all(&mut queue, false), [places[0], places[2], places[3]]);
        assert!(queue.is_empty() && queue.lines.is_empty() && queue.tenants.is_empty());
    }

    #[test]
    fn tenants_take_turns_when_there_is_not_enough() {
        let mut queue = Queue::default();
        let loud: Vec<_> = (0..4).map(|_| queue.join(Some("loud"))).collect();
        let quiet: Vec<_> = (0..2).map(|_| queue.join(Some("quiet"))).collect();
        let other = queue.join(None);
        assert_eq!(
            serve_all(&mut queue, true),
            [loud[0], quiet[0], other, loud[1], quiet[1], loud[2], loud[3]]
        );
    }

    #[test]
    fn coming_back_is_no_way_to_get_ahead() {
        let mut queue = Queue::default();
        let patient: Vec<_> = (0..3).map(|_| queue.join(Some("patient"))).collect();
        let mut served = Vec::new();
        // One at a time, again and again: gets every other turn and no more.
        for _ in 0..3 {
            queue.join(Some("eager"));
            served.extend([queue.serve(true).unwrap(), queue.serve(true).unwrap()]);
        }
        for place in patient {
            assert!(served.contains(&place));
        }
    }

    #[test]
    fn served_for_nothing_is_first_again() {
        let mut queue = Queue::default();
        let (first, second) = (queue.join(None), queue.join(None));
        assert_eq!(queue.serve(false), Some(first));
        queue.rejoin(first, None);
        assert_eq!(serve_all(&mut queue, false), [first, second]);
    }
}
