//! What a router has done, for metrics: by Task, with series that are found once for each and go with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentcube_operator::metrics::{Counter, Family, Gauge, Histogram, Registry, Subject};

use crate::identity::TaskId;
use crate::provider::Path;

/// Bounds for getting an instance, in seconds: from memory in microseconds, cold in seconds.
const SECONDS: &[f64] = &[0.0001, 0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
const TASK: &[&str] = &["namespace", "task"];

/// How often each thing happened.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Of all Tasks; not among the metrics, where they are by Task.
    paths: [Counter; 4],
    took: Family<Histogram>,
    waiting: Family<Gauge>,
    sessions: Family<Gauge>,
    started: Counter,
    flushed: Counter,
}

impl Counts {
    pub(super) fn new(registry: &Registry) -> Counts {
        let help = "How long requests took to get an instance, by how they got it, or that they got none";
        let took =
            registry.histogram("agentcube_reserve_seconds", help, &["namespace", "task", "path"], SECONDS);
        let help = "Requests that wait for an instance";
        let waiting = registry.gauge("agentcube_reserve_waiting", help, TASK);
        let help = "Sessions that this router knows of";
        let sessions = registry.gauge("agentcube_sessions", help, TASK);
        let help = "Instances that were started for requests";
        let started = registry.counter("agentcube_instances_started_total", help, &[]);
        let help = "Writes of activity to sessions and instances";
        let flushed = registry.counter("agentcube_activity_writes_total", help, &[]);
        Counts {
            paths: Default::default(),
            took,
            waiting,
            sessions,
            started: started.with(&[]),
            flushed: flushed.with(&[]),
        }
    }

    pub(super) fn served(&self, path: Path) {
        self.paths[index(path)].inc();
    }

    pub(super) fn started(&self) {
        self.started.inc();
    }

    pub(super) fn flushed(&self) {
        self.flushed.inc();
    }

    /// Requests that were given an instance in this way.
    pub fn requests(&self, path: Path) -> u64 {
        self.paths[index(path)].get()
    }

    /// Instances that were started for requests, and Jobs that were scaled up.
    pub fn starts(&self) -> u64 {
        self.started.get()
    }

    /// Writes of activity.
    pub fn flushes(&self) -> u64 {
        self.flushed.get()
    }

    /// What is counted of one Task.
    pub(super) fn of_task(&self, task: &TaskId) -> Arc<OfTask> {
        let subject = Subject::new(&[&task.namespace, &task.name]);
        let (waiting, sessions) = (OnceLock::new(), OnceLock::new());
        Arc::new(OfTask { subject, counts: self.clone(), took: Default::default(), waiting, sessions })
    }
}

fn index(path: Path) -> usize {
    match path {
        Path::Reused => 0,
        Path::Bound => 1,
        Path::Waited => 2,
        Path::Rebound => 3,
    }
}

/// What is counted of one Task. Series are made when there is something to count.
#[derive(Debug)]
pub(super) struct OfTask {
    subject: Subject,
    counts: Counts,
    /// By path, and those who got none.
    took: [OnceLock<Histogram>; 5],
    waiting: OnceLock<Gauge>,
    sessions: OnceLock<Gauge>,
}

impl OfTask {
    /// A request got an instance in this way, or none.
    pub(super) fn took(&self, path: Option<Path>, time: Duration) {
        let (at, name) = match path {
            Some(path) => (index(path), path.as_str()),
            None => (4, "refused"),
        };
        self.took[at].get_or_init(|| self.subject.of(&self.counts.took, &[name])).took(time);
    }

    /// A request waits, until what it is given is dropped.
    pub(super) fn wait(&self) -> Waiting {
        let gauge = self.waiting.get_or_init(|| self.subject.of(&self.counts.waiting, &[]));
        gauge.add(1);
        Waiting(gauge.clone())
    }

    /// So many sessions are known.
    pub(super) fn sessions(&self, count: i64) {
        // There are far more Tasks than Tasks with sessions.
        if count > 0 || self.sessions.get().is_some() {
            self.sessions.get_or_init(|| self.subject.of(&self.counts.sessions, &[])).set(count);
        }
    }

    /// The Task is gone.
    pub(super) fn forget(&self) {
        self.subject.forget(|task| {
            self.counts.took.forget(task);
            self.counts.waiting.forget(task);
            self.counts.sessions.forget(task);
        });
    }
}

/// A request that waits.
pub(super) struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
