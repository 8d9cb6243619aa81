//! What to do about one ReplicaSet: settle first which Pods are its own, then how many there are to be.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::super::ownership::{Claim, claim};
use super::super::pods::{is_active, is_terminating};
use super::observe::Observed;
use super::rank::ranked;

/// No more Pods than this are made or deleted at once.
const MOST_AT_ONCE: usize = 500;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Adopt(Arc<Pod>),
    Release(Arc<Pod>),
    Create { count: usize },
    Delete(Arc<Pod>),
}

/// Plans. Pods that have ended are neither adopted nor let go: they are nobody's concern any more.
pub(super) fn plan(observed: &Observed, now: Timestamp) -> Vec<Operation> {
    let claims: Vec<Operation> = observed
        .pods
        .iter()
        .filter(|pod| is_active(pod))
        .filter_map(|pod| match claim(&observed.set.metadata, &observed.selector, &pod.metadata) {
            Claim::Adopt => Some(Operation::Adopt(pod.clone())),
            Claim::Release => Some(Operation::Release(pod.clone())),
            Claim::Held | Claim::Foreign => None,
        })
        .collect();
    if !claims.is_empty() || observed.set.metadata.deletion_timestamp.is_some() {
        return claims;
    }
    let (held, wanted) = (active(observed), observed.replicas());
    if held.len() < wanted {
        return vec![Operation::Create { count: (wanted - held.len()).min(MOST_AT_ONCE) }];
    }
    let excess = (held.len() - wanted).min(MOST_AT_ONCE);
    ranked(held, &observed.related, now).into_iter().take(excess).map(Operation::Delete).collect()
}

/// The ReplicaSet's own Pods that count.
pub(super) fn active(observed: &Observed) -> Vec<Arc<Pod>> {
    held(observed).filter(|pod| is_active(pod)).cloned().collect()
}

/// The ReplicaSet's own Pods that have been told to end.
pub(super) fn terminating(observed: &Observed) -> usize {
    held(observed).filter(|pod| is_terminating(pod)).count()
}

fn held(observed: &Observed) -> impl Iterator<Item = &Arc<Pod>> {
    let (owner, selector) = (&observed.set.metadata, &observed.selector);
    observed.pods.iter().filter(move |pod| claim(owner, selector, &pod.metadata) == Claim::Held)
}

#[cfg(test)]
mod tests;
