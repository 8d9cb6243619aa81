//! What was removed: counted by reasons, and told of by an Event on its Sandbox.

use agentcube_api::Sandbox;
use agentcube_operator::events::{Recorder, Severity};
use agentcube_operator::metrics::{Counter, Family, Registry};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

use crate::plan::{Container, Reason, Removal};

/// Removals and those that failed, as metrics.
pub struct Removals {
    removed: Family<Counter>,
    failed: Family<Counter>,
}

impl Removals {
    pub fn new(metrics: &Registry) -> Self {
        let removed = "Containers that were nobody's and were removed.";
        let failed = "Removals that failed and are tried again.";
        let removals = Self {
            removed: metrics.counter("agentcube_janitor_removed_total", removed, &["reason"]),
            failed: metrics.counter("agentcube_janitor_failed_removals_total", failed, &["reason"]),
        };
        // Shown from the beginning: what is not there cannot be told from what is broken.
        for reason in Reason::ALL {
            removals.removed.with(&[reason.as_str()]).add(0);
        }
        removals
    }

    pub fn removed(&self, removal: &Removal) {
        let Removal { container, reason } = removal;
        self.removed.with(&[reason.as_str()]).inc();
        tracing::info!(
            container = container.id,
            reason = reason.as_str(),
            "removed a container that is nobody's"
        );
    }

    pub fn failed(&self, removal: &Removal, error: &dyn std::fmt::Display, next: &str) {
        self.failed.with(&[removal.reason.as_str()]).inc();
        tracing::warn!(
            container = removal.container.id,
            "it could not be removed: {error}; the next {next} tries again"
        );
    }
}

impl Removal {
    /// Says on its Sandbox that it was removed.
    pub fn tell(&self, events: &Recorder) {
        let Removal { container, reason } = self;
        let message = format!(
            "Removed container {} of agent {}, which nobody claims any more",
            container.id, container.agent.name
        );
        events.record(about(container), Severity::Normal, reason.as_str(), message);
    }
}

/// The sandbox, also if there is none any more: this is where somebody looks.
fn about(container: &Container) -> ObjectReference {
    ObjectReference {
        api_version: Some(Sandbox::api_version(&()).into_owned()),
        kind: Some(Sandbox::kind(&()).into_owned()),
        namespace: Some(container.sandbox.namespace.clone()),
        name: Some(container.sandbox.name.clone()),
        uid: Some(container.sandbox_uid.clone()).filter(|uid| !uid.is_empty()),
        ..ObjectReference::default()
    }
}
