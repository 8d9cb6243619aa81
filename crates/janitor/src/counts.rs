//! What the janitor counts.

use agentcube_operator::metrics::{Counter, Family, Gauge, Registry};

use crate::plan::Reason;

pub(crate) struct Counts {
    removed: Family<Counter>,
    failed: Family<Counter>,
    scans: Family<Counter>,
    suspects: Family<Gauge>,
}

impl Counts {
    pub(crate) fn new(metrics: &Registry) -> Self {
        let removed = "Containers that were nobody's and were removed.";
        let failed = "Removals that failed and are tried again.";
        let scans = "Scans by how they ended: done, unanswered (the API server) or failed (containerd).";
        let suspects = "Containers that are nobody's as far as is known.";
        let counts = Self {
            removed: metrics.counter("agentcube_janitor_removed_total", removed, &["reason"]),
            failed: metrics.counter("agentcube_janitor_failed_removals_total", failed, &["reason"]),
            scans: metrics.counter("agentcube_janitor_scans_total", scans, &["outcome"]),
            suspects: metrics.gauge("agentcube_janitor_suspects", suspects, &[]),
        };
        // Shown from the beginning: what is not there cannot be told from what is broken.
        for reason in Reason::ALL {
            counts.removed.with(&[reason.as_str()]).add(0);
        }
        counts
    }

    pub(crate) fn removed(&self, reason: Reason) {
        self.removed.with(&[reason.as_str()]).inc();
    }

    pub(crate) fn failed(&self, reason: Reason) {
        self.failed.with(&[reason.as_str()]).inc();
    }

    pub(crate) fn scanned(&self, outcome: &str) {
        self.scans.with(&[outcome]).inc();
    }

    pub(crate) fn suspects(&self, count: usize) {
        self.suspects.with(&[]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
