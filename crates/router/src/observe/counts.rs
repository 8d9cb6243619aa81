//! Requests as numbers. Each Task has its own series, which its route holds, so that a request finds them without a lock;
//! they go with the Task.

use std::sync::{Arc, OnceLock};

use agentcube_operator::metrics::{Counter, Family, Gauge, Histogram, Registry, Subject};

use super::{Outcome, Record};

/// Agents take from milliseconds to minutes.
const SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What an instance did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It did not take a connection.
    Connect,
    /// It closed the connection before it answered.
    Closed,
    /// It did not answer, or not go on, in time.
    Timeout,
    /// Its answer broke off.
    Broken,
}

impl Trouble {
    fn as_str(self) -> &'static str {
        match self {
            Trouble::Connect => "connect",
            Trouble::Closed => "closed",
            Trouble::Timeout => "timeout",
            Trouble::Broken => "broken",
        }
    }
}

/// All that is counted of requests.
#[derive(Debug)]
pub struct Counts {
    requests: Family<Counter>,
    seconds: Family<Histogram>,
    first_byte: Family<Histogram>,
    in_flight: Family<Gauge>,
    troubles: Family<Counter>,
}

impl Counts {
    pub fn new(metrics: &Registry) -> Arc<Counts> {
        const TASK: &[&str] = &["namespace", "task"];
        let outcomes = &["namespace", "task", "outcome", "reason", "status"];
        let help = "Requests that have ended, by what became of them";
        let requests = metrics.counter("agentcube_requests_total", help, outcomes);
        let help = "How long requests that instances answered took, to the last byte";
        let seconds = metrics.histogram("agentcube_request_seconds", help, TASK, SECONDS);
        let help = "How long it took from a request's head to the first byte of its instance's answer";
        let first_byte = metrics.histogram("agentcube_request_first_byte_seconds", help, TASK, SECONDS);
        let help = "Requests on their way";
        let in_flight = metrics.gauge("agentcube_requests_in_flight", help, TASK);
        let help = "Times that an instance could not be talked to, whatever became of the request";
        let kinds = &["namespace", "task", "kind"];
        let troubles = metrics.counter("agentcube_upstream_errors_total", help, kinds);
        Arc::new(Counts { requests, seconds, first_byte, in_flight, troubles })
    }

    /// Those of a Task.
    pub fn of(self: &Arc<Counts>, namespace: &str, task: &str) -> Arc<OfTask> {
        Arc::new(OfTask {
            subject: Subject::new(&[namespace, task]),
            counts: self.clone(),
            passed: Default::default(),
            seconds: OnceLock::new(),
            first_byte: OnceLock::new(),
            in_flight: OnceLock::new(),
        })
    }
}

/// What is counted of one Task. Series are made when there is something to count.
#[derive(Debug)]
pub struct OfTask {
    subject: Subject,
    counts: Arc<Counts>,
    /// By class of status; the others are rare.
    passed: [OnceLock<Counter>; CLASSES.len()],
    seconds: OnceLock<Histogram>,
    first_byte: OnceLock<Histogram>,
    in_flight: OnceLock<Gauge>,
}

/// What is counted of a Task says nothing of the Task.
impl PartialEq for OfTask {
    fn eq(&self, _: &OfTask) -> bool {
        true
    }
}

impl OfTask {
    /// A request is on its way, until what it is given is dropped.
    pub fn begin(&self) -> InFlight {
        let gauge = self.in_flight.get_or_init(|| self.subject.of(&self.counts.in_flight, &[]));
        gauge.add(1);
        InFlight(gauge.clone())
    }

    pub(super) fn ended(&self, record: &Record) {
        let class = record.status.map_or(0, |status| usize::from(status / 100));
        let class = if class < CLASSES.len() { class } else { 0 };
        let counter = |outcome: Outcome| {
            self.subject.of(&self.counts.requests, &[outcome.as_str(), &record.reason, CLASSES[class]])
        };
        match record.outcome {
            Outcome::Passed => self.passed[class].get_or_init(|| counter(Outcome::Passed)).inc(),
            other => counter(other).inc(),
        }
        if let Some(first) = record.first_byte {
            self.first_byte.get_or_init(|| self.subject.of(&self.counts.first_byte, &[])).took(first);
        }
        if record.outcome == Outcome::Passed {
            self.seconds.get_or_init(|| self.subject.of(&self.counts.seconds, &[])).took(record.total);
        }
    }

    pub(super) fn trouble(&self, trouble: Trouble) {
        self.subject.of(&self.counts.troubles, &[trouble.as_str()]).inc();
    }

    /// The Task is gone.
    pub fn forget(&self) {
        self.subject.forget(|task| {
            let Counts { requests, seconds, first_byte, in_flight, troubles } = &*self.counts;
            requests.forget(task);
            seconds.forget(task);
            first_byte.forget(task);
            in_flight.forget(task);
            troubles.forget(task);
        });
    }
}

/// A request on its way.
#[derive(Debug)]
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
