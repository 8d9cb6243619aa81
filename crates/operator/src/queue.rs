//! A work queue of keys. A key waits at most once, is never handled twice at once, and comes back later and
//! later while its handling fails. It never forgets a key that was added while it was being handled.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const FIRST_BACK_OFF: Duration = Duration::from_millis(5);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60);

/// What may be queued.
pub trait Key: Clone + Debug + Eq + Hash + Send + 'static {}

impl<K: Clone + Debug + Eq + Hash + Send + 'static> Key for K {}

/// When a key that was handled well is to be handled again, if nothing else asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    No,
    After(Duration),
}

/// How the handling of a key went; an error is reported by whoever handled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(Requeue),
    Failed,
}

/// A handle on the queue; cheap to clone.
#[derive(Debug)]
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

#[derive(Debug)]
struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    /// Every key in `ready`, and those to be handled again after the handling under way.
    wanted: HashSet<K>,
    active: HashSet<K>,
    /// Keys for later; the number tells apart what is due at the same instant.
    later: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    sequence: u64,
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            wanted: HashSet::new(),
            active: HashSet::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        };
        Queue { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }) }
    }
}

impl<K: Key> Queue<K> {
    pub fn new() -> Queue<K> {
        Queue::default()
    }

    /// Has the key handled as soon as possible.
    pub fn add(&self, key: K) {
        self.shared.state.lock().add(key);
        self.shared.changed.notify_one();
    }

    /// Has the key handled after a while; of several such wishes for one key the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.shared.state.lock().add_at(key, Instant::now() + delay);
        self.shared.changed.notify_one();
    }

    /// Handles keys, at most `concurrency` at once, until the shutdown; then waits for those under way.
    /// There is one runner of a queue.
    pub async fn run<H, F>(&self, concurrency: usize, shutdown: CancellationToken, handle: H)
    where
        H: Fn(K) -> F,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(_) = running.join_next() => {}
                ticket = self.next(), if running.len() < concurrency => {
                    let handling = handle(ticket.key.clone());
                    running.spawn(async move { ticket.finish(handling.await) });
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn next(&self) -> Ticket<K> {
        loop {
            let due = {
                let mut state = self.shared.state.lock();
                if let Some(key) = state.take(Instant::now()) {
                    return Ticket { queue: self.clone(), key, outcome: Outcome::Failed };
                }
                state.later.keys().next().map(|(instant, _)| *instant)
            };
            let changed = self.shared.changed.notified();
            match due {
                None => changed.await,
                Some(due) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
            }
        }
    }
}

/// A key that is being handled. Released when dropped, as a failure unless finished: a panic or an abort of
/// the handling leaves no key stuck.
struct Ticket<K: Key> {
    queue: Queue<K>,
    key: K,
    outcome: Outcome,
}

impl<K: Key> Ticket<K> {
    fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<K: Key> Drop for Ticket<K> {
    fn drop(&mut self) {
        self.queue.shared.state.lock().release(&self.key, self.outcome, Instant::now());
        self.queue.shared.changed.notify_one();
    }
}

impl<K: Key> State<K> {
    fn add(&mut self, key: K) {
        if self.wanted.insert(key.clone()) && !self.active.contains(&key) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: K, instant: Instant) {
        if let Some(earlier) = self.due.get(&key) {
            if earlier.0 <= instant {
                return;
            }
            self.later.remove(earlier);
        }
        self.sequence += 1;
        self.due.insert(key.clone(), (instant, self.sequence));
        self.later.insert((instant, self.sequence), key);
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.wanted.remove(&key);
        self.active.insert(key.clone());
        Some(key)
    }

    fn release(&mut self, key: &K, outcome: Outcome, now: Instant) {
        self.active.remove(key);
        if self.wanted.contains(key) {
            self.ready.push_back(key.clone());
        }
        match outcome {
            Outcome::Done(requeue) => {
                self.failures.remove(key);
                if let Requeue::After(delay) = requeue {
                    self.add_at(key.clone(), now + delay);
                }
            }
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                let delay = back_off(*failures);
                *failures = failures.saturating_add(1);
                self.add_at(key.clone(), now + delay);
            }
        }
    }
}

/// The wait after this many failures before.
fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(2u32.saturating_pow(failures)).min(LONGEST_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// What was handled, and when, counted from the start of the test.
    type Log = Arc<Mutex<Vec<(&'static str, Duration)>>>;

    /// Runs the queue until no key is ready or due; the outcome of each handling comes from `outcome`.
    async fn handled(
        queue: &Queue<&'static str>,
        concurrency: usize,
        until: Duration,
        outcome: impl Fn(usize) -> Outcome + Clone + Send + 'static,
    ) -> Vec<(&'static str, Duration)> {
        let (log, begun) = (Log::default(), Instant::now());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::time::sleep(until).await;
            stop.cancel();
        });
        let handle = |key: &'static str| {
            let (log, outcome) = (log.clone(), outcome.clone());
            async move {
                let count = {
                    let mut log = log.lock();
                    log.push((key, begun.elapsed()));
                    log.len()
                };
                outcome(count)
            }
        };
        queue.run(concurrency, shutdown, handle).await;
        std::mem::take(&mut *log.lock())
    }

    const DONE: Outcome = Outcome::Done(Requeue::No);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once() {
        let queue = Queue::new();
        for key in ["a", "b", "a", "a"] {
            queue.add(key);
        }
        let log = handled(&queue, 1, ms(10), |_| DONE).await;
        assert_eq!(log, [("a", ms(0)), ("b", ms(0))]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_and_later_and_success_resets() {
        let queue = Queue::new();
        queue.add("a");
        // Fails three times, succeeds once with a wish to come back, fails once more.
        let outcome = |count| match count {
            4 => Outcome::Done(Requeue::After(ms(100))),
            6.. => DONE,
            _ => Outcome::Failed,
        };
        let log = handled(&queue, 1, ms(1000), outcome).await;
        let times: Vec<Duration> = log.into_iter().map(|(_, at)| at).collect();
        // Tokio's clock wakes on whole milliseconds, never early.
        assert_eq!(times, [ms(0), ms(5), ms(15), ms(35), ms(135), ms(140)]);
    }

    #[test]
    fn the_wait_has_a_limit() {
        assert_eq!(back_off(0), FIRST_BACK_OFF);
        assert_eq!(back_off(u32::MAX), LONGEST_BACK_OFF);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_wish_counts() {
        let queue = Queue::new();
        queue.add_after("a", ms(50));
        queue.add_after("a", ms(20));
        queue.add_after("a", ms(80));
        assert_eq!(handled(&queue, 1, ms(200), |_| DONE).await, [("a", ms(20))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_handled_twice_at_once_and_never_forgotten() {
        let queue: Queue<u32> = Queue::new();
        let shutdown = CancellationToken::new();
        let (at_once, most, total) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Semaphore::new(0));
        queue.add(1);
        let handle = |key: u32| {
            let (queue, shutdown, gate) = (queue.clone(), shutdown.clone(), gate.clone());
            let (at_once, most, total) = (at_once.clone(), most.clone(), total.clone());
            async move {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if total.fetch_add(1, Ordering::SeqCst) == 0 {
                    // Added while it is being handled: must come again, but only after this.
                    queue.add(key);
                    queue.add(key);
                    let _ = tokio::time::timeout(ms(50), gate.acquire()).await;
                } else {
                    shutdown.cancel();
                }
                at_once.fetch_sub(1, Ordering::SeqCst);
                DONE
            }
        };
        queue.run(4, shutdown.clone(), handle).await;
        assert_eq!((most.load(Ordering::SeqCst), total.load(Ordering::SeqCst)), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_limit_run_at_once() {
        let queue: Queue<u32> = Queue::new();
        let shutdown = CancellationToken::new();
        let (at_once, most, left) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(10)));
        (0..10).for_each(|key| queue.add(key));
        let handle = |_| {
            let (shutdown, at_once, most, left) =
                (shutdown.clone(), at_once.clone(), most.clone(), left.clone());
            async move {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(ms(10)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    shutdown.cancel();
                }
                DONE
            }
        };
        queue.run(3, shutdown.clone(), handle).await;
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_leaves_no_key_stuck() {
        let queue = Queue::new();
        queue.add("a");
        let outcome = |count| match count {
            1 => panic!("as a bug would"),
            _ => DONE,
        };
        assert_eq!(handled(&queue, 1, ms(50), outcome).await, [("a", ms(0)), ("a", ms(5))]);
    }
}
