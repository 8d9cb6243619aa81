//! What there is of one StatefulSet: itself, its Pods, its revisions and its claims, as the caches have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::Selector;

use super::identity;
use super::plan::Observed;
use crate::controllers::ownership::{self, Claim};
use crate::controllers::{Caches, Key};

#[derive(Debug, thiserror::Error)]
#[error("StatefulSet {key} has a selector that cannot be read: {reason}")]
pub(super) struct Error {
    key: Key,
    reason: String,
}

pub(super) fn observe(caches: &Caches, key: &Key) -> Result<Option<Observed>, Error> {
    let Some(set) = caches.stateful_sets.get(&key.namespace, &key.name) else { return Ok(None) };
    let selector = selector(&set).map_err(|reason| Error { key: key.clone(), reason })?;
    let mut observed = Observed { set: (*set).clone(), ..Observed::default() };
    let uid = set.uid().unwrap_or_default();
    let pods = caches.pods.owned_by(&uid).into_iter().chain(caches.pods.orphans(&key.namespace));
    for pod in pods {
        match claim(&set, &selector, &pod) {
            Claim::Held => observed.pods.push(pod),
            Claim::Adopt => observed.orphans.push(pod),
            Claim::Release => observed.strays.push(pod),
            Claim::Foreign => {}
        }
    }
    for revision in caches.controller_revisions.list(Some(&key.namespace)) {
        match ownership::claim(&set.metadata, &selector, &revision.metadata) {
            Claim::Held => observed.revisions.push(revision),
            Claim::Adopt => observed.orphan_revisions.push(revision),
            Claim::Release | Claim::Foreign => observed.other_revisions.push(revision),
        }
    }
    observed.claims = claims(caches, &observed);
    Ok(Some(observed))
}

pub(super) fn selector(set: &StatefulSet) -> Result<Selector, String> {
    let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
    Selector::try_from(selector).map_err(|error| error.to_string())
}

/// What a Pod is to the set. A Pod that bears another's name is no member, whatever its labels.
pub(super) fn claim(set: &StatefulSet, selector: &Selector, pod: &Pod) -> Claim {
    let name = pod.name_any();
    let member = identity::parse(&name).is_some_and(|(parent, _)| parent == set.name_any());
    match ownership::claim(&set.metadata, selector, &pod.metadata) {
        Claim::Held if !member && set.metadata.deletion_timestamp.is_none() => Claim::Release,
        Claim::Held | Claim::Adopt if !member => Claim::Foreign,
        claim => claim,
    }
}

/// The claims of all ordinals that are wanted or there.
fn claims(
    caches: &Caches,
    observed: &Observed,
) -> BTreeMap<String, Arc<k8s_openapi::api::core::v1::PersistentVolumeClaim>> {
    let set = &observed.set;
    let first = identity::first_ordinal(set);
    let wanted = first..first.saturating_add(identity::replicas(set));
    let there = observed.pods.iter().chain(&observed.orphans).filter_map(|pod| identity::ordinal(pod));
    let namespace = set.namespace().unwrap_or_default();
    wanted
        .chain(there)
        .flat_map(|ordinal| {
            identity::claim_templates(set).iter().map(move |one| identity::claim_name(set, one, ordinal))
        })
        .filter_map(|name| Some((name.clone(), caches.claims.get(&namespace, &name)?)))
        .collect()
}
