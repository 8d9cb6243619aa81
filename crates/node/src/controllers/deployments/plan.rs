//! What to do about one Deployment. Decides one step at a time: each step is written through, and its change
//! asks for the next.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::super::ownership::{Claim, claim, controller_reference};
use super::observe::{HASH_LABEL, Observed, actual, is_observed, same_template, size, wanted};
use super::revision::{self, Annotations, DESIRED, noted};
use super::status::{self, Next};
use super::{hash, limits, proportion, rollout};
use agentcube_operator::controller::Requeue;

/// The longest name of a ReplicaSet.
const LONGEST_NAME: usize = 253;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Adopt(Arc<ReplicaSet>),
    Release(Arc<ReplicaSet>),
    Create(Box<ReplicaSet>),
    /// Brings the number, the copied annotations and the minimum of readiness up to date.
    Annotate {
        set: Arc<ReplicaSet>,
        annotations: Annotations,
        min_ready_seconds: i32,
    },
    Scale {
        set: Arc<ReplicaSet>,
        to: i32,
        annotations: [(String, String); 2],
    },
    Delete(Arc<ReplicaSet>),
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) operations: Vec<Operation>,
    /// What the Deployment reports once the operations are done.
    pub(super) next: Next,
    pub(super) requeue: Requeue,
}

/// The Deployment's own ReplicaSets, each list from the oldest to the newest.
#[derive(Clone, Debug)]
pub(super) struct Sets {
    /// The one of the present template.
    pub(super) new: Option<Arc<ReplicaSet>>,
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    pub(super) fn of(observed: &Observed) -> Sets {
        let owner = &observed.deployment.metadata;
        let held =
            observed.sets.iter().filter(|set| claim(owner, &observed.selector, &set.metadata) == Claim::Held);
        let mut old: Vec<Arc<ReplicaSet>> = held.cloned().collect();
        let template = template(&observed.deployment);
        let is_new = |set: &Arc<ReplicaSet>| {
            let held = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
            held.zip(template).is_some_and(|(held, wanted)| same_template(held, wanted))
        };
        let new = old.iter().position(is_new).map(|index| old.remove(index));
        Sets { new, old }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }
}

pub(super) fn template(deployment: &Deployment) -> Option<&PodTemplateSpec> {
    deployment.spec.as_ref().map(|spec| &spec.template)
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let deployment = &*observed.deployment;
    let claims = claims(observed);
    let sets = Sets::of(observed);
    let mut next = Next::of(deployment);
    if !claims.is_empty() {
        return Plan { operations: claims, next, requeue: Requeue::No };
    }
    if deployment.metadata.deletion_timestamp.is_some() {
        next.count(deployment, &sets, now);
        return Plan { operations: Vec::new(), next, requeue: Requeue::No };
    }
    next.note_pause(deployment, now);
    if let Some(operation) = annotate(deployment, &sets) {
        next.count(deployment, &sets, now);
        return Plan { operations: vec![operation], next, requeue: Requeue::No };
    }
    if let Some(new) = &sets.new {
        next.note_new(deployment, new, now);
    }
    if is_paused(deployment) || is_being_scaled(deployment, &sets) {
        let mut operations = proportion::operations(deployment, &sets);
        if operations.is_empty() && is_paused(deployment) {
            operations = superfluous(deployment, &sets);
        }
        next.count(deployment, &sets, now);
        return Plan { operations, next, requeue: Requeue::No };
    }
    let operations = match limits::is_rolling(deployment) {
        true => rollout::rolling(observed, &sets),
        false => rollout::recreate(observed, &sets),
    };
    if let [Operation::Create(created)] = &operations[..] {
        next.note_created(deployment, created, now);
    }
    next.count(deployment, &sets, now);
    next.note_progress(deployment, &sets, now);
    let requeue = status::deadline(deployment, &next, now);
    Plan { operations, next, requeue }
}

fn claims(observed: &Observed) -> Vec<Operation> {
    let one =
        |set: &Arc<ReplicaSet>| match claim(&observed.deployment.metadata, &observed.selector, &set.metadata)
        {
            Claim::Adopt => Some(Operation::Adopt(set.clone())),
            Claim::Release => Some(Operation::Release(set.clone())),
            Claim::Held | Claim::Foreign => None,
        };
    observed.sets.iter().filter_map(one).collect()
}

fn is_paused(deployment: &Deployment) -> bool {
    deployment.spec.as_ref().is_some_and(|spec| spec.paused == Some(true))
}

/// Whether the Deployment asks for another size than its ReplicaSets were scaled for. Several that are to be
/// replaced at once by one are not scaled in proportion: the rollout itself brings the size. (Kubernetes takes
/// that for scaling, does nothing about it, and never goes on.)
fn is_being_scaled(deployment: &Deployment, sets: &Sets) -> bool {
    let active: Vec<&Arc<ReplicaSet>> = sets.all().filter(|set| size(set) > 0).collect();
    let otherwise =
        active.iter().filter_map(|set| noted(set, DESIRED)).any(|size| size != wanted(deployment));
    otherwise && (limits::is_rolling(deployment) || active.len() <= 1)
}

/// Brings the new ReplicaSet's annotations up to date.
fn annotate(deployment: &Deployment, sets: &Sets) -> Option<Operation> {
    let set = sets.new.clone()?;
    let number = revision::after(sets.old.iter().map(|set| &**set));
    let annotations = revision::annotations(deployment, set.annotations(), number);
    let min_ready_seconds = min_ready_seconds(deployment).unwrap_or(0);
    let held = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let current = annotations == *set.annotations() && held == min_ready_seconds;
    (!current).then_some(Operation::Annotate { set, annotations, min_ready_seconds })
}

fn min_ready_seconds(deployment: &Deployment) -> Option<i32> {
    deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds)
}

/// Scales a ReplicaSet, if its size or what is noted about it has to change.
pub(super) fn scale(deployment: &Deployment, set: &Arc<ReplicaSet>, to: i32) -> Option<Operation> {
    let annotations = revision::sizes(deployment);
    let noted = annotations.iter().all(|(key, value)| set.annotations().get(key) == Some(value));
    (size(set) != to || !noted).then(|| Operation::Scale { set: set.clone(), to, annotations })
}

/// The new ReplicaSet of a Deployment that has none, of this size.
pub(super) fn new_set(deployment: &Deployment, sets: &Sets, replicas: i32) -> Option<ReplicaSet> {
    let mut template = template(deployment)?.clone();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash::of(&template, collisions);
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = deployment.spec.as_ref()?.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let number = revision::after(sets.old.iter().map(|set| &**set));
    let mut annotations = revision::annotations(deployment, &Annotations::new(), number);
    annotations.extend(revision::sizes(deployment));
    Some(ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(&deployment.name_any(), &hash)),
            namespace: deployment.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: min_ready_seconds(deployment),
            selector,
            template: Some(template),
        }),
        status: None,
    })
}

fn set_name(deployment: &str, hash: &str) -> String {
    // Names are ASCII, so any place is good to cut.
    let kept = deployment.get(..LONGEST_NAME - hash.len() - 1).unwrap_or(deployment);
    format!("{kept}-{hash}")
}

/// Old ReplicaSets beyond those that are kept to go back to.
pub(super) fn superfluous(deployment: &Deployment, sets: &Sets) -> Vec<Operation> {
    let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
    let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else { return Vec::new() };
    let mut alive: Vec<&Arc<ReplicaSet>> =
        sets.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
    let excess = alive.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    // Stable: of the same number, the oldest first.
    alive.sort_by_key(|set| revision::number(set).unwrap_or(0));
    let unused = |set: &ReplicaSet| size(set) == 0 && actual(set) == 0 && is_observed(set);
    let excess = alive.into_iter().take(excess);
    excess.filter(|set| unused(set)).cloned().map(Operation::Delete).collect()
}

#[cfg(test)]
mod tests;
