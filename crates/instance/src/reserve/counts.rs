//! What a router has done, for metrics.

use std::time::Duration;

use agentcube_operator::metrics::{Counter, Family, Histogram, Registry, SECONDS};

use crate::provider::{Path, ReserveError};

/// How often each thing happened.
#[derive(Clone, Debug)]
pub struct Counts {
    reused: Counter,
    bound: Counter,
    waited: Counter,
    rebound: Counter,
    refused: Family<Counter>,
    took: Histogram,
    started: Counter,
    flushed: Counter,
}

impl Counts {
    pub(super) fn new(registry: &Registry) -> Counts {
        let help = "Requests that were given an instance, by how it was found";
        let by_path = registry.counter("agentcube_reserve_total", help, &["path"]);
        let help = "Requests that got no instance, by why";
        let refused = registry.counter("agentcube_reserve_refused_total", help, &["reason"]);
        let help = "How long requests of unbound sessions, and Oneshots, took to get an instance";
        let took = registry.histogram("agentcube_reserve_seconds", help, &[], SECONDS);
        let help = "Instances that were started for requests";
        let started = registry.counter("agentcube_instances_started_total", help, &[]);
        let help = "Writes of activity to sessions and instances";
        let flushed = registry.counter("agentcube_activity_writes_total", help, &[]);
        Counts {
            reused: by_path.with(&["reused"]),
            bound: by_path.with(&["bound"]),
            waited: by_path.with(&["waited"]),
            rebound: by_path.with(&["rebound"]),
            refused,
            took: took.with(&[]),
            started: started.with(&[]),
            flushed: flushed.with(&[]),
        }
    }

    pub(super) fn served(&self, path: Path) {
        self.of(path).inc();
    }

    pub(super) fn took(&self, time: Duration) {
        self.took.took(time);
    }

    pub(super) fn refused(&self, error: &ReserveError) {
        let reason = match error {
            ReserveError::NoSuchTask => "no_such_task",
            ReserveError::NotReady(_) => "not_ready",
            ReserveError::Timeout { .. } => "timeout",
            ReserveError::TooManyWaiting => "too_many_waiting",
            ReserveError::OutOfTouch => "out_of_touch",
            ReserveError::ShuttingDown => "shutting_down",
            ReserveError::NoSuchSession => "no_such_session",
        };
        self.refused.with(&[reason]).inc();
    }

    pub(super) fn started(&self) {
        self.started.inc();
    }

    pub(super) fn flushed(&self) {
        self.flushed.inc();
    }

    fn of(&self, path: Path) -> &Counter {
        match path {
            Path::Reused => &self.reused,
            Path::Bound => &self.bound,
            Path::Waited => &self.waited,
            Path::Rebound => &self.rebound,
        }
    }

    /// Requests that were given an instance in this way.
    pub fn requests(&self, path: Path) -> u64 {
        self.of(path).get()
    }

    /// Instances that were started for requests, and Jobs that were scaled up.
    pub fn starts(&self) -> u64 {
        self.started.get()
    }

    /// Writes of activity.
    pub fn flushes(&self) -> u64 {
        self.flushed.get()
    }
}
