//! How much an instance gets at once, where its Task says so: requests beyond that wait for their turn, and beyond what may
//! wait they are refused. Counted by each gateway process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use agentcube_api::agentcube::request::CircuitBreakerSpec;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests that may wait for an instance when the Task does not say; what Envoy has.
const PENDING: usize = 1024;
/// The map is swept when it has grown to this, and then when it has doubled.
const FIRST_SWEEP: usize = 64;

/// What a Task allows; none is without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Requests to one instance at a time. Each has a connection of its own, so this bounds connections too.
    pub parallel: Option<usize>,
    /// Requests that may wait for that.
    pub pending: usize,
    /// Requests on one connection before it is closed.
    pub per_connection: Option<u32>,
}

impl Breaker {
    /// Reads what a Task says. Without sessions, reservation keeps to `maxParallelRequests` itself.
    pub(crate) fn read(spec: Option<&CircuitBreakerSpec>, by_session: bool) -> Breaker {
        let number = |number: Option<i32>| number.and_then(|number| usize::try_from(number).ok());
        let parallel = spec.and_then(|spec| number(spec.max_parallel_requests)).filter(|_| by_session);
        let connections = spec.and_then(|spec| number(spec.max_connections));
        Breaker {
            parallel: parallel.into_iter().chain(connections).min(),
            pending: spec.and_then(|spec| number(spec.max_pending_requests)).unwrap_or(PENDING),
            per_connection: spec
                .and_then(|spec| spec.max_requests_per_connection)
                .and_then(|most| u32::try_from(most).ok()),
        }
    }
}

/// The places of all instances that have few.
#[derive(Default)]
pub(crate) struct Breakers(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    /// By the UID of the instance and the number of its places: one that changes is another.
    by_instance: HashMap<(Arc<str>, usize), Weak<Queue>>,
    sweep_at: usize,
}

struct Queue {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A place at an instance, until it is dropped.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    /// Keeps the count for as long as anybody counts.
    _queue: Arc<Queue>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// As many wait as may.
    Pending(usize),
    /// It took too long.
    Slow(Duration),
}

/// Counts somebody who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Breakers {
    /// A place at an instance, at once or in turn; none if there is no limit to them.
    pub(crate) async fn enter(
        &self,
        instance: &Arc<str>,
        breaker: Breaker,
        patience: Duration,
    ) -> Result<Option<Place>, Full> {
        let Some(parallel) = breaker.parallel else { return Ok(None) };
        let queue = self.queue(instance, parallel);
        if let Ok(permit) = queue.places.clone().try_acquire_owned() {
            return Ok(Some(Place { _permit: permit, _queue: queue }));
        }
        let before = queue.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&queue.waiting);
        if before >= breaker.pending {
            return Err(Full::Pending(breaker.pending));
        }
        let turn = tokio::time::timeout(patience, queue.places.clone().acquire_owned()).await;
        drop(waiting);
        let permit = turn.map_err(|_| Full::Slow(patience))?.expect("the semaphore is never closed");
        Ok(Some(Place { _permit: permit, _queue: queue }))
    }

    fn queue(&self, instance: &Arc<str>, parallel: usize) -> Arc<Queue> {
        let mut queues = self.0.lock();
        let key = (instance.clone(), parallel);
        if let Some(queue) = queues.by_instance.get(&key).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.by_instance.len() >= queues.sweep_at {
            queues.by_instance.retain(|_, queue| queue.strong_count() > 0);
            queues.sweep_at = (2 * queues.by_instance.len()).max(FIRST_SWEEP);
        }
        let places = Arc::new(Semaphore::new(parallel.min(Semaphore::MAX_PERMITS)));
        let queue = Arc::new(Queue { places, waiting: AtomicUsize::new(0) });
        queues.by_instance.insert(key, Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn breaker(parallel: usize, pending: usize) -> Breaker {
        Breaker { parallel: Some(parallel), pending, per_connection: None }
    }

    #[test]
    fn the_stricter_of_two_counts() {
        let read = |spec: serde_json::Value, by_session: bool| {
            Breaker::read(Some(&serde_json::from_value(spec).unwrap()), by_session)
        };
        let both = json!({ "maxConnections": 5, "maxParallelRequests": 3, "maxPendingRequests": 0 });
        assert_eq!(read(both.clone(), true), breaker(3, 0));
        assert_eq!(read(both, false), breaker(5, 0), "reservation keeps to the other");
        assert_eq!(read(json!({}), true), Breaker { parallel: None, ..breaker(1, PENDING) });
        assert_eq!(Breaker::read(None, true).parallel, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_too_late_waits_and_beyond_that_is_refused() {
        let (breakers, one, two): (_, Arc<str>, Arc<str>) = (Breakers::default(), "1".into(), "2".into());
        let patience = Duration::from_secs(5);
        let enter = |instance: &Arc<str>| {
            let instance = instance.clone();
            let breakers = &breakers;
            async move { breakers.enter(&instance, breaker(1, 1), patience).await }
        };
        let first = enter(&one).await.ok().flatten().unwrap();
        assert!(enter(&two).await.is_ok(), "another instance has places of its own");
        let second = async {
            let place = enter(&one).await;
            assert!(place.is_ok(), "its turn comes");
        };
        let third = async {
            tokio::task::yield_now().await;
            assert_eq!(enter(&one).await.err(), Some(Full::Pending(1)));
            drop(first);
        };
        tokio::join!(second, third);
        let _held = enter(&one).await.ok().flatten().unwrap();
        assert_eq!(enter(&one).await.err(), Some(Full::Slow(patience)));
        let free = Breaker { parallel: None, ..breaker(1, 1) };
        assert!(breakers.enter(&one, free, patience).await.is_ok_and(|place| place.is_none()));
    }

    #[tokio::test]
    async fn instances_that_are_gone_are_forgotten() {
        let breakers = Breakers::default();
        for n in 0..1000 {
            let instance: Arc<str> = n.to_string().into();
            drop(breakers.enter(&instance, breaker(1, 0), Duration::ZERO).await);
        }
        assert!(breakers.0.lock().by_instance.len() <= FIRST_SWEEP);
    }
}
