//! What there is of one Deployment: itself, the ReplicaSets that are or may become its own, and their Pods.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt;
use kube::core::Selector;

use super::super::{Caches, Key};

/// The label that tells the ReplicaSets of a Deployment apart.
pub(super) const HASH_LABEL: &str = "pod-template-hash";

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("Deployment {key} has a selector that cannot be read: {reason}")]
    Selector { key: Key, reason: String },
}

#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) deployment: Arc<Deployment>,
    pub(super) selector: Selector,
    /// ReplicaSets that the Deployment controls, and those that nobody does; oldest first.
    pub(super) sets: Vec<Arc<ReplicaSet>>,
    /// The Pods of those that it controls.
    pub(super) pods: Vec<Arc<Pod>>,
}

pub(super) fn observe(caches: &Caches, key: &Key) -> Result<Option<Observed>, Error> {
    let Some(deployment) = caches.deployments.get(&key.namespace, &key.name) else { return Ok(None) };
    let selector = deployment.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|error| Error::Selector { key: key.clone(), reason: error.to_string() })?;
    let own = caches.replica_sets.owned_by(&deployment.uid().unwrap_or_default());
    let pods = own.iter().flat_map(|set| caches.pods.owned_by(&set.uid().unwrap_or_default())).collect();
    let mut sets = own;
    sets.extend(caches.replica_sets.orphans(&key.namespace));
    sets.sort_by_key(|set| age_order(set));
    Ok(Some(Observed { deployment, selector, sets, pods }))
}

/// Orders ReplicaSets from the oldest to the newest.
pub(super) fn age_order(set: &ReplicaSet) -> (Option<jiff::Timestamp>, String) {
    (set.metadata.creation_timestamp.as_ref().map(|time| time.0), set.name_any())
}

/// How many Pods the Deployment asks for.
pub(super) fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// How many Pods the ReplicaSet asks for.
pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// How many Pods of the ReplicaSet are available.
pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// How many Pods the ReplicaSet has.
pub(super) fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

/// Whether the ReplicaSet reports of what it asks for now.
pub(super) fn is_observed(set: &ReplicaSet) -> bool {
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    set.metadata.generation <= observed
}

/// Whether two templates are the same but for the label that is made of them.
pub(super) fn same_template(one: &PodTemplateSpec, other: &PodTemplateSpec) -> bool {
    let bare = |template: &PodTemplateSpec| {
        let mut meta = template.metadata.clone().unwrap_or_default();
        meta.labels.get_or_insert_default().remove(HASH_LABEL);
        meta
    };
    one.spec == other.spec && bare(one) == bare(other)
}
