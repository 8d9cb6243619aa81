//! The next step of a rollout, within the limits of its strategy.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;

use super::super::ownership::controller_of;
use super::super::pods::is_finished;
use super::limits::{max_unavailable, most};
use super::observe::{Observed, actual, available, is_observed, size, wanted};
use super::plan::{Operation, Sets, new_set, scale, superfluous};
use super::status::is_complete;

/// Grows the new ReplicaSet as far as the surge allows, then shrinks the old ones as far as availability does.
pub(super) fn rolling(observed: &Observed, sets: &Sets) -> Vec<Operation> {
    let deployment = &*observed.deployment;
    let Some(new) = &sets.new else {
        let size = room(deployment, sets).min(wanted(deployment));
        return create(deployment, sets, size);
    };
    let target = match size(new) > wanted(deployment) {
        true => wanted(deployment),
        false => size(new).saturating_add(room(deployment, sets)).min(wanted(deployment)),
    };
    if target != size(new) {
        return scale(deployment, new, target).into_iter().collect();
    }
    let down = shrink(deployment, sets, new);
    if !down.is_empty() {
        return down;
    }
    finish(deployment, sets)
}

/// Ends the old Pods before the new ones are made.
pub(super) fn recreate(observed: &Observed, sets: &Sets) -> Vec<Operation> {
    let deployment = &*observed.deployment;
    let active = sets.old.iter().filter(|set| size(set) > 0);
    let down: Vec<Operation> = active.filter_map(|set| scale(deployment, set, 0)).collect();
    if !down.is_empty() || old_pods_run(observed, sets) {
        return down;
    }
    match &sets.new {
        None => create(deployment, sets, wanted(deployment)),
        Some(new) if size(new) != wanted(deployment) => {
            scale(deployment, new, wanted(deployment)).into_iter().collect()
        }
        Some(_) => finish(deployment, sets),
    }
}

fn create(deployment: &Deployment, sets: &Sets, size: i32) -> Vec<Operation> {
    new_set(deployment, sets, size).map(|set| Operation::Create(Box::new(set))).into_iter().collect()
}

fn finish(deployment: &Deployment, sets: &Sets) -> Vec<Operation> {
    let complete = deployment.status.as_ref().is_some_and(|status| is_complete(deployment, status));
    if complete { superfluous(deployment, sets) } else { Vec::new() }
}

/// How many more Pods there may be.
fn room(deployment: &Deployment, sets: &Sets) -> i32 {
    most(deployment).saturating_sub(total(sets.all(), size)).max(0)
}

fn total<'a>(sets: impl Iterator<Item = &'a Arc<ReplicaSet>>, count: fn(&ReplicaSet) -> i32) -> i32 {
    sets.map(|set| count(set)).fold(0, i32::saturating_add)
}

/// Shrinks the old ReplicaSets: first by what is not available anyway, then by what the available ones spare.
fn shrink(deployment: &Deployment, sets: &Sets, new: &ReplicaSet) -> Vec<Operation> {
    // What a ReplicaSet reports of an earlier size would be counted twice.
    if sets.all().any(|set| size(set) > 0 && !is_observed(set)) {
        return Vec::new();
    }
    let mut old: Vec<(&Arc<ReplicaSet>, i32)> =
        sets.old.iter().map(|set| (set, size(set))).filter(|(_, size)| *size > 0).collect();
    let least = wanted(deployment) - max_unavailable(deployment);
    let new_unavailable = size(new) - available(new);
    let mut spare = total(sets.all(), size) - least - new_unavailable;
    if spare <= 0 {
        return Vec::new();
    }
    for (set, size) in &mut old {
        let unhealthy = (*size - available(set)).clamp(0, spare.max(0));
        *size -= unhealthy;
        spare -= unhealthy;
    }
    let active = old.iter().map(|(set, _)| *set);
    let mut spare = total(active, available) + available(new) - least;
    for (_, size) in &mut old {
        let less = (*size).clamp(0, spare.max(0));
        *size -= less;
        spare -= less;
    }
    let changed = old.iter().filter(|(set, to)| size(set) != *to);
    changed.filter_map(|(set, to)| scale(deployment, set, *to)).collect()
}

/// Whether Pods of old templates may still run, even if they were told to end.
fn old_pods_run(observed: &Observed, sets: &Sets) -> bool {
    let is_new = |uid: &str| sets.new.as_ref().and_then(|new| new.uid()).as_deref() == Some(uid);
    let of_old = |pod: &k8s_openapi::api::core::v1::Pod| {
        controller_of(&pod.metadata).is_some_and(|owner| !is_new(&owner.uid))
    };
    sets.old.iter().any(|set| actual(set) > 0)
        || observed.pods.iter().any(|pod| of_old(pod) && !is_finished(pod))
}
