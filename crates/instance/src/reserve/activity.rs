//! Who uses what, and since when not: requests in flight per session or instance, and when it was last active. Written
//! to the server in batches, never once per request. A request in flight is activity, however long it lasts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::index::SessionId;
use super::waiting::Grant;
use crate::identity::InstanceId;
use crate::provider::Path;

/// The soonest that activity is written after it began.
const SOONEST: Duration = Duration::from_millis(250);
/// After so many failures in a row retries come half as often, and so on for so many steps.
const FAILURES_PER_STEP: u32 = 16;
const STEPS: u32 = 7;

/// What is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A session, by its Lease.
    Session(SessionId),
    /// An instance of a Oneshot.
    Instance(InstanceId),
}

/// The use that this router makes of a session or an instance. Times are milliseconds of its clock.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) subject: Subject,
    /// How often it is written, in milliseconds.
    interval: u32,
    in_flight: AtomicU32,
    last: AtomicU64,
    written: AtomicU64,
    /// Is in the heap of what is to be written.
    queued: AtomicBool,
    /// How the last request came by its instance: one more than the place of its path in [`PATHS`].
    path: AtomicU8,
}

const PATHS: [Path; 4] = [Path::Reused, Path::Bound, Path::Waited, Path::Rebound];

impl Use {
    /// A use of something whose activity up to `written` has been written down.
    pub(super) fn new(subject: Subject, interval: Duration, written: Duration) -> Use {
        Use {
            subject,
            interval: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
            in_flight: AtomicU32::new(0),
            last: AtomicU64::new(0),
            written: AtomicU64::new(millis(written)),
            queued: AtomicBool::new(false),
            path: AtomicU8::new(0),
        }
    }

    /// A request came by its instance in this way.
    pub(super) fn came_by(&self, path: Path) {
        let at = PATHS.iter().position(|one| *one == path).map_or(0, |at| at + 1);
        self.path.store(u8::try_from(at).unwrap_or_default(), Ordering::Relaxed);
    }

    /// How the last request came by its instance; none if there was none.
    pub(super) fn last_path(&self) -> Option<Path> {
        let at = usize::from(self.path.load(Ordering::Relaxed)).checked_sub(1)?;
        PATHS.get(at).copied()
    }

    /// How many requests are in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// A request begins. To be followed by [`Activity::guard`].
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval.into())
    }

    /// Whether requests are in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) > 0
    }

    /// Whether it is used, or was used later than what was written says.
    pub(super) fn is_active(&self) -> bool {
        self.is_in_flight() || self.last.load(Ordering::SeqCst) > self.written.load(Ordering::SeqCst)
    }

    /// When it was last active.
    pub(super) fn last_active(&self, now: Duration) -> Duration {
        match self.in_flight.load(Ordering::SeqCst) {
            0 => Duration::from_millis(self.last.load(Ordering::SeqCst)),
            _ => now,
        }
    }

    /// Activity up to then has been written.
    pub(super) fn wrote(&self, at: Duration) {
        self.written.fetch_max(millis(at), Ordering::SeqCst);
    }
}

fn millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

/// By when to write, with what.
struct Due {
    at: Duration,
    usage: Arc<Use>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// All uses whose activity has to be written.
pub(super) struct Activity {
    clock: Clock,
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    pub(super) sooner: Notify,
    /// Requests in flight, of everything.
    in_flight: AtomicUsize,
    /// Cancelled when requests in flight have to end.
    revocation: Mutex<CancellationToken>,
    /// Writes in a row that the API server did not take.
    failures: AtomicU32,
}

impl Debug for Activity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity").finish_non_exhaustive()
    }
}

impl Activity {
    pub(super) fn new(clock: Clock) -> Activity {
        Activity {
            clock,
            due: Mutex::default(),
            sooner: Notify::new(),
            in_flight: AtomicUsize::new(0),
            revocation: Mutex::default(),
            failures: AtomicU32::new(0),
        }
    }

    /// The guard of a request that has [begun](Use::begin).
    pub(super) fn guard(self: &Arc<Self>, usage: Arc<Use>, claim: Claim) -> InUse {
        self.touch(&usage);
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let revocation = self.revocation.lock().clone();
        InUse { hold: Some(Held { usage, activity: self.clone(), revocation, claim }) }
    }

    /// Requests in flight have to end: what they rest on is no longer known to be so.
    pub(super) fn revoke(&self) {
        std::mem::take(&mut *self.revocation.lock()).cancel();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    fn touch(&self, usage: &Arc<Use>) {
        // Later than anything written in the same millisecond.
        let now = millis(self.clock.now()) + 1;
        usage.last.fetch_max(now, Ordering::SeqCst);
        if !usage.queued.swap(true, Ordering::SeqCst) {
            let written = Duration::from_millis(usage.written.load(Ordering::SeqCst));
            let due = (written + usage.interval()).max(self.clock.now() + SOONEST);
            self.push(usage.clone(), due);
        }
    }

    fn push(&self, usage: Arc<Use>, at: Duration) {
        let mut due = self.due.lock();
        let first = due.peek().is_none_or(|Reverse(first)| at < first.at);
        due.push(Reverse(Due { at, usage }));
        if first {
            self.sooner.notify_one();
        }
    }

    /// What is to be written by now, and when there will be more.
    pub(super) fn take_due(&self, now: Duration) -> (Vec<Arc<Use>>, Option<Duration>) {
        let mut due = self.due.lock();
        let mut taken = Vec::new();
        while due.peek().is_some_and(|Reverse(first)| first.at <= now) {
            taken.extend(due.pop().map(|Reverse(first)| first.usage));
        }
        (taken, due.peek().map(|Reverse(first)| first.at))
    }

    /// A use that was taken as due could not be written: again soon, or, while the API server takes no writes at all,
    /// the later the longer that lasts.
    pub(super) fn failed(&self, usage: Arc<Use>, refused: bool) {
        let failures = if refused { self.failures.fetch_add(1, Ordering::SeqCst) } else { 0 };
        let rest = SOONEST.saturating_mul(1 << (failures / FAILURES_PER_STEP).min(STEPS));
        self.push(usage, self.clock.now() + rest);
    }

    /// A use that was taken as due has been written: again later if it goes on.
    pub(super) fn done(&self, usage: Arc<Use>) {
        let now = self.clock.now();
        self.failures.store(0, Ordering::SeqCst);
        usage.queued.store(false, Ordering::SeqCst);
        // Looked at after the flag fell: whoever touches it from now on queues it.
        if usage.is_active() && !usage.queued.swap(true, Ordering::SeqCst) {
            let interval = usage.interval();
            self.push(usage, now + interval);
        }
    }
}

/// A request's hold on its instance, given back when dropped. While there is any, its session is not idle.
pub struct InUse {
    hold: Option<Held>,
}

struct Held {
    usage: Arc<Use>,
    activity: Arc<Activity>,
    revocation: CancellationToken,
    claim: Claim,
}

/// By what right a request uses its instance.
pub(super) enum Claim {
    /// Its session has it: UID of the Lease.
    Session(Arc<str>),
    /// It was given room on it.
    Room(#[expect(dead_code, reason = "gives the room back when dropped")] Grant),
}

impl Debug for InUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("InUse").finish_non_exhaustive()
    }
}

impl InUse {
    /// A hold on nothing: for instances that are not kept count of.
    pub fn detached() -> InUse {
        InUse { hold: None }
    }

    pub(super) fn usage(&self) -> Option<&Arc<Use>> {
        self.hold.as_ref().map(|held| &held.usage)
    }

    /// UID of the Lease of the session that is used; none for a Oneshot.
    pub(super) fn lease(&self) -> Option<&Arc<str>> {
        match &self.hold.as_ref()?.claim {
            Claim::Session(lease) => Some(lease),
            Claim::Room(_) => None,
        }
    }

    /// Waits until the request has to end although it is not done: the router has lost touch, and others may count on
    /// it to serve no more. Whoever passes bytes on breaks off then.
    pub async fn revoked(&self) {
        match &self.hold {
            Some(held) => held.revocation.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Bytes flow. Cheap; to be called as often as one likes.
    pub fn active(&self) {
        if let Some(held) = &self.hold {
            let now = millis(held.activity.clock.now()) + 1;
            held.usage.last.fetch_max(now, Ordering::SeqCst);
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(held) = &self.hold {
            held.activity.touch(&held.usage);
            held.usage.in_flight.fetch_sub(1, Ordering::SeqCst);
            held.activity.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity() -> (Arc<Activity>, Arc<Use>) {
        let id = InstanceId::pod("agent-0", "p1");
        let usage = Use::new(Subject::Instance(id), Duration::from_secs(10), Duration::ZERO);
        (Arc::new(Activity::new(Clock::start())), Arc::new(usage))
    }

    fn begin(activity: &Arc<Activity>, usage: &Arc<Use>) -> InUse {
        usage.begin();
        activity.guard(usage.clone(), Claim::Session("l1".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn activity_is_written_in_batches_and_to_the_end() {
        let (activity, usage) = activity();
        let requests: Vec<_> = (0..5).map(|_| begin(&activity, &usage)).collect();
        assert!(activity.take_due(activity.clock.now()).0.is_empty());
        tokio::time::advance(Duration::from_secs(10)).await;
        let now = activity.clock.now();
        let (due, later) = activity.take_due(now);
        assert_eq!((due.len(), later), (1, None));
        usage.wrote(usage.last_active(now));
        activity.done(usage.clone());

        // In flight is active, though nothing new happened.
        assert!(usage.is_active());
        let (due, later) = activity.take_due(now);
        assert_eq!((due.len(), later), (0, Some(now + Duration::from_secs(10))));
        tokio::time::advance(Duration::from_secs(10)).await;
        drop(requests);
        let now = activity.clock.now();
        assert_eq!(activity.take_due(now).0.len(), 1);
        let last = usage.last_active(now);
        usage.wrote(last);
        activity.done(usage.clone());
        assert!(!usage.is_active());
        assert_eq!(activity.take_due(Duration::MAX).0.len(), 0);
        // And it begins anew.
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(begin(&activity, &usage));
        assert!(usage.is_active());
        assert_eq!(activity.take_due(Duration::MAX).0.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_are_revoked_and_later_ones_are_not() {
        let (activity, usage) = activity();
        let before = begin(&activity, &usage);
        activity.revoke();
        let after = begin(&activity, &usage);
        before.revoked().await;
        let limit = tokio::time::timeout(Duration::from_secs(60), after.revoked()).await;
        assert!(limit.is_err() && !activity.is_idle());
        drop((before, after));
        assert!(activity.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_tried_again_soon() {
        let (activity, usage) = activity();
        drop(begin(&activity, &usage));
        tokio::time::advance(Duration::from_secs(10)).await;
        let now = activity.clock.now();
        assert_eq!(activity.take_due(now).0.len(), 1);
        activity.failed(usage.clone(), true);
        assert_eq!(activity.take_due(now).1, Some(now + SOONEST));
        assert!(usage.is_active());
        // While nothing can be written, less and less often.
        tokio::time::advance(SOONEST).await;
        assert_eq!(activity.take_due(activity.clock.now()).0.len(), 1);
        for _ in 0..1000 {
            activity.failed(usage.clone(), true);
        }
        activity.take_due(Duration::MAX);
        activity.failed(usage.clone(), true);
        assert_eq!(activity.take_due(now).1, Some(activity.clock.now() + SOONEST * 128));
        activity.take_due(Duration::MAX);
        activity.done(usage.clone());
        activity.failed(usage.clone(), true);
        assert_eq!(activity.take_due(now).1, Some(activity.clock.now() + SOONEST));
    }
}
