//! What there is of one ReplicaSet: itself, the Pods that are or may become its own, and those of its siblings.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt;
use kube::core::Selector;

use super::super::ownership::controller_of;
use super::super::{Caches, Key};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("ReplicaSet {key} has a selector that cannot be read: {reason}")]
    Selector { key: Key, reason: String },
}

#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) set: Arc<ReplicaSet>,
    pub(super) selector: Selector,
    /// Pods that the ReplicaSet controls, and those that nobody does.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Pods of all ReplicaSets with the same controller.
    pub(super) related: Vec<Arc<Pod>>,
}

impl Observed {
    pub(super) fn replicas(&self) -> usize {
        let replicas = self.set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        usize::try_from(replicas).unwrap_or(0)
    }

    pub(super) fn min_ready_seconds(&self) -> i32 {
        self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    pub(super) fn template(&self) -> Option<&PodTemplateSpec> {
        self.set.spec.as_ref()?.template.as_ref()
    }
}

pub(super) fn observe(caches: &Caches, key: &Key) -> Result<Option<Observed>, Error> {
    let Some(set) = caches.replica_sets.get(&key.namespace, &key.name) else { return Ok(None) };
    let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|error| Error::Selector { key: key.clone(), reason: error.to_string() })?;
    let uid = set.uid().unwrap_or_default();
    let mut pods = caches.pods.owned_by(&uid);
    pods.extend(caches.pods.orphans(&key.namespace));
    let siblings = controller_of(&set.metadata).map(|owner| caches.replica_sets.owned_by(&owner.uid));
    let siblings = siblings.unwrap_or_else(|| vec![set.clone()]);
    let related =
        siblings.iter().flat_map(|set| caches.pods.owned_by(&set.uid().unwrap_or_default())).collect();
    Ok(Some(Observed { set, selector, pods, related }))
}
