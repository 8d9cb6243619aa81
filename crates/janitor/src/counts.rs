//! What the janitor counts.

use agentcube_operator::metrics::{Counter, Family, Gauge, Registry};

use crate::removals::Removals;

pub(crate) struct Counts {
    pub(crate) removals: Removals,
    scans: Family<Counter>,
    suspects: Family<Gauge>,
}

impl Counts {
    pub(crate) fn new(metrics: &Registry) -> Self {
        let scans = "Scans by how they ended: done, unanswered (the API server) or failed (containerd).";
        let suspects = "Containers that are nobody's as far as is known.";
        Self {
            removals: Removals::new(metrics),
            scans: metrics.counter("agentcube_janitor_scans_total", scans, &["outcome"]),
            suspects: metrics.gauge("agentcube_janitor_suspects", suspects, &[]),
        }
    }

    pub(crate) fn scanned(&self, outcome: &str) {
        self.scans.with(&[outcome]).inc();
    }

    pub(crate) fn suspects(&self, count: usize) {
        self.suspects.with(&[]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
