//! How the controllers run: times and limits in one place.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::log::Log;

/// Whether this process leads at this very moment. Asked before every effect.
#[derive(Clone)]
pub struct Leading(Arc<dyn Fn() -> bool + Send + Sync>);

impl Leading {
    pub fn new(leads: impl Fn() -> bool + Send + Sync + 'static) -> Leading {
        Leading(Arc::new(leads))
    }

    pub(crate) fn now(&self) -> bool {
        (self.0)()
    }
}

impl Default for Leading {
    /// Where there is only one process.
    fn default() -> Leading {
        Leading::new(|| true)
    }
}

impl fmt::Debug for Leading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leading").field(&self.now()).finish()
    }
}

/// Options of [`crate::Controllers`].
#[derive(Clone, Debug)]
pub struct Options {
    pub leading: Leading,
    /// The leader's term: agents refuse older ones.
    pub term: u64,
    /// How long a create waits for an agent that was just added. Members are there at once, Pods are not.
    pub wait_for_agent: Duration,
    pub timing: Timing,
    pub limits: Limits,
    /// With it, what FAST has acknowledged outlives the controller and the agent. Only this controller's, and those of
    /// its kind before it: the log does not know what another did meanwhile.
    pub log: Option<Log>,
    /// Requests that the API server is sent at once.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            leading: Leading::default(),
            term: 1,
            wait_for_agent: Duration::ZERO,
            timing: Timing::default(),
            limits: Limits::default(),
            log: None,
            concurrency: 32,
        }
    }
}

/// Times of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a Sync waits for news.
    pub sync: Duration,
    /// How long the answer of an agent may take beyond what it was asked to wait.
    pub call: Duration,
    /// An agent that is silent for so long gets no new runs.
    pub unhealthy: Duration,
    /// One that is silent for so long has lost its sandboxes.
    pub dropped: Duration,
    /// How long the start of a sandbox may take: it may have to fetch an image.
    pub start: Duration,
    /// How long an answer of the API server may take.
    pub api: Duration,
    /// A request to the API server that was sent does not take effect later than this. Nothing at all where the server
    /// ends with this process.
    pub late: Duration,
    /// How long answered failures to make an object are put up with.
    pub object_budget: Duration,
    /// The longest wait between tries to make an object.
    pub object_retry: Duration,
    /// How long a stopped program has to end by itself.
    pub grace: Duration,
    /// For how long a refused create counts as demand for agents.
    pub demand: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            sync: Duration::from_secs(2),
            call: Duration::from_secs(5),
            unhealthy: Duration::from_secs(10),
            dropped: Duration::from_secs(15),
            start: Duration::from_secs(60),
            api: Duration::from_secs(10),
            late: Duration::from_secs(90),
            object_budget: Duration::from_secs(300),
            object_retry: Duration::from_secs(5),
            grace: Duration::from_secs(1),
            demand: Duration::from_secs(30),
        }
    }
}

impl Timing {
    /// How long after an agent was last heard of its runs are certain to stand still.
    pub(crate) fn fenced_after(&self, recovery_timeout_seconds: i32) -> Duration {
        Duration::from_secs(recovery_timeout_seconds.max(0).unsigned_abs().into()).max(self.dropped)
    }
}

/// What anybody may ask for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one request.
    pub message: usize,
    pub creates: usize,
    pub creates_per_namespace: usize,
    pub watches_per_namespace: usize,
    /// Commands and followed logs together.
    pub streams: usize,
    /// Creates whose object is still to be made.
    pub pending: usize,
    pub default_deadline: Duration,
    pub longest_deadline: Duration,
    /// Items of one list.
    pub list: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message: 1 << 20,
            creates: 1024,
            creates_per_namespace: 256,
            watches_per_namespace: 64,
            streams: 1024,
            pending: 50_000,
            default_deadline: Duration::from_secs(30),
            longest_deadline: Duration::from_secs(300),
            list: 500,
        }
    }
}
