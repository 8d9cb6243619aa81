//! What is counted of the fast path.

use std::time::Duration;

use agentcube_operator::metrics::{Counter, Family, Gauge, Histogram, Registry};

/// Buckets for what should take milliseconds, in seconds.
const QUICK: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Debug)]
pub(crate) struct Counts {
    creates: Family<Counter>,
    took: Family<Histogram>,
    refusals: Family<Counter>,
    pub(crate) adopted: Family<Counter>,
    pub(crate) lost: Family<Counter>,
    pub(crate) fenced: Family<Counter>,
    pub(crate) agents: Family<Gauge>,
    pub(crate) slots: Family<Gauge>,
    pub(crate) objects_pending: Family<Gauge>,
    pub(crate) log_open: Family<Gauge>,
    pub(crate) log_broken: Family<Gauge>,
    pub(crate) mismatch: Family<Gauge>,
}

impl Counts {
    pub(crate) fn new(metrics: &Registry) -> Counts {
        let counter = |name: &str, help: &str, labels| {
            metrics.counter(&format!("agentcube_sandbox_{name}"), help, labels)
        };
        let gauge = |name: &str, help: &str, labels| {
            metrics.gauge(&format!("agentcube_sandbox_{name}"), help, labels)
        };
        let took = "How long creates on the fast path took.";
        Counts {
            creates: counter("creates_total", "Creates on the fast path.", &["mode", "outcome"]),
            took: metrics.histogram("agentcube_sandbox_create_seconds", took, &["mode"], QUICK),
            refusals: counter("refusals_total", "Starts that agents refused.", &["reason"]),
            adopted: counter("adopted_total", "Objects made from agents' records.", &[]),
            lost: counter("lost_total", "Sandboxes whose agents fell silent or died.", &[]),
            fenced: counter("fenced_total", "Runs that stood still and were let go on.", &[]),
            agents: gauge("agents", "Agents.", &["state"]),
            slots: gauge("slots", "Slots of agents.", &["state"]),
            objects_pending: gauge("objects_pending", "Creates whose object is still to be made.", &[]),
            log_open: gauge("log_open", "What the log of the fast path has still to see to.", &[]),
            log_broken: gauge("log_broken", "1 while the log cannot be written.", &[]),
            mismatch: gauge("registry_audit_mismatch", "Agents whose slots are miscounted; stays 0.", &[]),
        }
    }

    pub(crate) fn created(&self, mode: &str, outcome: &str, took: Duration) {
        self.creates.with(&[mode, outcome]).inc();
        self.took.with(&[mode]).took(took);
    }

    pub(crate) fn refused(&self, reason: &str) {
        self.refusals.with(&[reason]).inc();
    }
}
