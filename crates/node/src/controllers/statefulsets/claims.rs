//! Who owns the claims of a StatefulSet's Pods, by its retention policy: nobody, the set, or, once it is scaled away,
//! the Pod. Claims that somebody else controls are left alone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use crate::controllers::ownership::controller_reference;

/// What becomes of claims when the set is scaled down, and when it is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) delete_when_scaled: bool,
    pub(super) delete_when_deleted: bool,
}

impl Policy {
    pub(super) fn of(set: &StatefulSet) -> Self {
        let policy =
            set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |choice: Option<&String>| choice.is_some_and(|choice| choice == "Delete");
        Self {
            delete_when_scaled: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
            delete_when_deleted: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        }
    }

    fn retains(self) -> bool {
        !self.delete_when_scaled && !self.delete_when_deleted
    }
}

/// Whom a claim of a Pod of the set should belong to.
pub(super) fn owner(set: &StatefulSet, pod: Owner<'_>) -> Option<OwnerReference> {
    let policy = Policy::of(set);
    match pod {
        Owner::Replica => policy.delete_when_deleted.then(|| controller_reference(set)),
        Owner::Condemned(pod) if policy.delete_when_scaled => Some(controller_reference(pod)),
        // Scaled away but to be kept until the set goes.
        Owner::Condemned(_) => policy.delete_when_deleted.then(|| controller_reference(set)),
    }
}

/// The Pod that uses a claim, as far as ownership is concerned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner<'a> {
    /// One of the ordinals that the set wants; it need not exist yet.
    Replica,
    /// One that is to be scaled away.
    Condemned(&'a Pod),
}

/// The owners that a claim should have instead of those that it has; `None` if all is well, or not ours to touch.
pub(super) fn corrected(
    claim: &PersistentVolumeClaim,
    set: &StatefulSet,
    pod_name: &str,
    pod_uid: Option<&str>,
    owner: Option<OwnerReference>,
) -> Option<Vec<OwnerReference>> {
    let held: &[OwnerReference] = claim.metadata.owner_references.as_deref().unwrap_or_default();
    let set_uid = set.uid().unwrap_or_default();
    let of_set = |one: &OwnerReference| names(one, "apps/v1", "StatefulSet", &set.name_any());
    let of_pod = |one: &OwnerReference| names(one, "v1", "Pod", pod_name);
    // Of an earlier set or Pod of this name: the garbage collector will see to it.
    let stale = |one: &OwnerReference| {
        (of_set(one) && one.uid != set_uid) || (of_pod(one) && pod_uid.is_some_and(|uid| one.uid != uid))
    };
    if held.iter().any(stale) {
        return None;
    }
    let ours = |one: &OwnerReference| of_set(one) || of_pod(one);
    let foreign: Vec<OwnerReference> = held.iter().filter(|one| !ours(one)).cloned().collect();
    let contested = !Policy::of(set).retains() && foreign.iter().any(|one| one.controller == Some(true));
    let wanted: Vec<OwnerReference> = foreign.into_iter().chain(owner.filter(|_| !contested)).collect();
    let same = wanted.len() == held.len()
        && wanted
            .iter()
            .all(|one| held.iter().any(|held| held.uid == one.uid && held.controller == one.controller));
    (!same).then_some(wanted)
}

/// A claim that will go with an earlier Pod of this name: nothing may be built on it.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod_name: &str) -> bool {
    claim.metadata.owner_references.iter().flatten().any(|one| names(one, "v1", "Pod", pod_name))
}

fn names(reference: &OwnerReference, version: &str, kind: &str, name: &str) -> bool {
    reference.api_version == version && reference.kind == kind && reference.name == name
}
