//! How a Deployment that is scaled in the middle of a rollout is scaled: all its ReplicaSets in proportion, so
//! that scaling neither speeds the rollout up nor turns it back.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::limits::{is_rolling, most};
use super::observe::{age_order, available, size, wanted};
use super::plan::{Operation, Sets, scale};
use super::revision::{DESIRED, MOST, noted};

/// What scales the Deployment's ReplicaSets to the size it asks for.
pub(super) fn operations(deployment: &Deployment, sets: &Sets) -> Vec<Operation> {
    let active: Vec<Arc<ReplicaSet>> = sets.all().filter(|set| size(set) > 0).cloned().collect();
    if active.len() <= 1 {
        let only = active.first().or(sets.new.as_ref()).or(sets.old.last());
        return only.and_then(|set| scale(deployment, set, wanted(deployment))).into_iter().collect();
    }
    if sets.new.as_ref().is_some_and(|new| is_saturated(deployment, new)) {
        let old = sets.old.iter().filter(|set| size(set) > 0);
        return old.filter_map(|set| scale(deployment, set, 0)).collect();
    }
    if !is_rolling(deployment) {
        return Vec::new();
    }
    in_proportion(deployment, active)
}

/// Whether the new ReplicaSet has, and knows that it should have, all Pods, and all of them are available.
fn is_saturated(deployment: &Deployment, new: &ReplicaSet) -> bool {
    let wanted = wanted(deployment);
    size(new) == wanted && noted(new, DESIRED) == Some(wanted) && available(new) == wanted
}

fn in_proportion(deployment: &Deployment, mut active: Vec<Arc<ReplicaSet>>) -> Vec<Operation> {
    let allowed = if wanted(deployment) > 0 { i64::from(most(deployment)) } else { 0 };
    let to_add = allowed - active.iter().map(|set| i64::from(size(set))).sum::<i64>();
    // The largest first; among equals the newest grows first, and the oldest shrinks first.
    active.sort_by_key(|set| age_order(set));
    if to_add > 0 {
        active.reverse();
    }
    active.sort_by_key(|set| std::cmp::Reverse(size(set)));
    let mut added = 0;
    let mut sizes: Vec<i64> = Vec::new();
    for set in &active {
        // Never beyond what is left, and, whatever the annotations say, never the other way.
        let left = to_add - added;
        let share = fraction(deployment, set).clamp(left.min(0), left.max(0));
        added += share;
        sizes.push(i64::from(size(set)) + share);
    }
    // What rounding has left goes to the largest.
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    let to = |size: i64| i32::try_from(size).unwrap_or(i32::MAX);
    active.iter().zip(sizes).filter_map(|(set, size)| scale(deployment, set, to(size))).collect()
}

/// By how much a ReplicaSet would grow if it kept its share.
fn fraction(deployment: &Deployment, set: &ReplicaSet) -> i64 {
    let held = i64::from(size(set));
    if wanted(deployment) == 0 {
        return -held;
    }
    let noted = noted(set, MOST).filter(|most| *most > 0);
    let reported = || deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or(0);
    let before = i64::from(noted.unwrap_or_else(reported));
    if before == 0 {
        return 0;
    }
    let after = i64::from(most(deployment));
    // Rounded half up; all are positive.
    (2 * held * after + before) / (2 * before) - held
}
