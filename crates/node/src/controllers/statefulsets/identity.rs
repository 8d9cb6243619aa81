//! Who a Pod of a StatefulSet is: its ordinal, its names, its labels, and the Pod made from a template for it.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use kube::ResourceExt;

use crate::controllers::ownership::controller_reference;
use crate::controllers::pods;

pub(super) const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
pub(super) const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";

/// The name of the set and the ordinal that a Pod's name spells; `None` for a name that no set would give.
pub(super) fn parse(pod_name: &str) -> Option<(&str, i32)> {
    let (set, digits) = pod_name.rsplit_once('-')?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((set, digits.parse().ok()?))
}

pub(super) fn ordinal(pod: &Pod) -> Option<i32> {
    parse(pod.metadata.name.as_deref()?).map(|(_, ordinal)| ordinal)
}

pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name_any())
}

pub(super) fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name_any(), set.name_any())
}

/// The first ordinal that the set owns.
pub(super) fn first_ordinal(set: &StatefulSet) -> i32 {
    let ordinals = set.spec.as_ref().and_then(|spec| spec.ordinals.as_ref());
    ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0)
}

pub(super) fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1).max(0)
}

pub(super) fn revision_of(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION_LABEL)).map_or("", String::as_str)
}

/// The labels that a Pod lacks to be known as this ordinal; empty if it is.
pub(super) fn missing_labels(pod: &Pod) -> BTreeMap<String, String> {
    let name = pod.name_any();
    let known = pod.metadata.labels.as_ref().and_then(|labels| labels.get(POD_NAME_LABEL)) == Some(&name);
    match ordinal(pod) {
        Some(ordinal) if !known => identity_labels(&name, ordinal),
        _ => BTreeMap::new(),
    }
}

fn identity_labels(name: &str, ordinal: i32) -> BTreeMap<String, String> {
    BTreeMap::from([
        (POD_NAME_LABEL.to_owned(), name.to_owned()),
        (POD_INDEX_LABEL.to_owned(), ordinal.to_string()),
    ])
}

pub(super) fn claim_templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_deref()).unwrap_or_default()
}

/// The claims of one ordinal, as they are to be created, without owners.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = PersistentVolumeClaim> {
    let selected = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    claim_templates(set).iter().map(move |template| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(set, template, ordinal));
        claim.metadata.namespace = set.namespace();
        claim.metadata.labels.get_or_insert_default().extend(selected.clone());
        claim.status = None;
        claim
    })
}

/// The Pod of one ordinal at one revision.
pub(super) fn new_pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let name = pod_name(set, ordinal);
    let mut pod = pods::from_template(template, controller_reference(set));
    pod.labels_mut().extend(identity_labels(&name, ordinal));
    pod.labels_mut().insert(REVISION_LABEL.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    spec.volumes = volumes(set, ordinal, spec.volumes.take());
    pod.metadata.name = Some(name);
    pod
}

/// The claims as volumes; a volume of the template that bears the name of a claim gives way to it.
fn volumes(set: &StatefulSet, ordinal: i32, own: Option<Vec<Volume>>) -> Option<Vec<Volume>> {
    let templates = claim_templates(set);
    let claimed = templates.iter().map(|template| Volume {
        name: template.name_any(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    });
    let kept = own.into_iter().flatten();
    let kept = kept.filter(|volume| !templates.iter().any(|template| template.name_any() == volume.name));
    let all: Vec<Volume> = claimed.chain(kept).collect();
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_spell_ordinals() {
        for (name, expected) in [
            ("web-0", Some(("web", 0))),
            ("a-b-12", Some(("a-b", 12))),
            ("web-007", Some(("web", 7))),
            ("web", None),
            ("web-", None),
            ("web-x", None),
            ("web-+1", None),
            ("web-99999999999", None),
        ] {
            assert_eq!(parse(name), expected, "{name}");
        }
    }
}
