//! Which volume suits a claim. Pure; the scheduler asks the same question before there is a binding.

use std::collections::BTreeMap;
use std::str::FromStr;

use agentcube_api::Quantity;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::ObjectMeta;

pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub const OLD_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The provisioner of classes whose volumes an administrator makes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// An annotation that says something.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The storage that a claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Quantity::from_str(&requests.get("storage")?.0).ok()
}

/// The storage that a volume has.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    Quantity::from_str(&volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0).ok()
}

fn class_of(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default()
}

/// Whether a volume is promised to exactly this claim.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return false };
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && reference.uid.as_ref().is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
}

/// Why a volume that a claim names cannot be its own, in the words of the real controller.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let claim_spec = claim.spec.clone().unwrap_or_default();
    let volume_spec = volume.spec.clone().unwrap_or_default();
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    if requested(claim) > capacity(volume) {
        return Some("requested PV is too small");
    }
    if class_of(volume) != claim_spec.storage_class_name.unwrap_or_default() {
        return Some("storageClassName does not match");
    }
    if mode(&volume_spec.volume_mode) != mode(&claim_spec.volume_mode) {
        return Some("incompatible volumeMode");
    }
    if !offers(&volume_spec.access_modes, &claim_spec.access_modes) {
        return Some("incompatible accessMode");
    }
    None
}

fn offers(has: &Option<Vec<String>>, wants: &Option<Vec<String>>) -> bool {
    wants.iter().flatten().all(|mode| has.iter().flatten().any(|one| one == mode))
}

/// The volume that suits a claim: the one that is promised to it, or the smallest that is free and large enough.
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl Iterator<Item = &'a PersistentVolume>,
) -> Option<&'a PersistentVolume> {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let mut best: Option<(&PersistentVolume, Quantity)> = None;
    for volume in volumes {
        if volume.metadata.deletion_timestamp.is_some() || mismatch(volume, claim).is_some() {
            continue;
        }
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if reference.is_some() {
            if is_for(volume, claim) {
                return Some(volume);
            }
            continue;
        }
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Available")
            || !selector.is_none_or(|one| selects(one, volume.metadata.labels.as_ref()))
        {
            continue;
        }
        let Some(size) = capacity(volume) else { continue };
        if best.as_ref().is_none_or(|(_, smallest)| size < *smallest) {
            best = Some((volume, size));
        }
    }
    best.map(|(volume, _)| volume)
}

fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    selector.match_labels.iter().flatten().all(|(key, wanted)| value(key) == Some(wanted))
        && selector.match_expressions.iter().flatten().all(|one| {
            let values = one.values.as_deref().unwrap_or_default();
            match one.operator.as_str() {
                "In" => value(&one.key).is_some_and(|value| values.contains(value)),
                "NotIn" => value(&one.key).is_none_or(|value| !values.contains(value)),
                "Exists" => value(&one.key).is_some(),
                "DoesNotExist" => value(&one.key).is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, size: &str, more: Value) -> PersistentVolume {
        let mut spec =
            json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "s"});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec,
            "status": {"phase": "Available"}}))
        .unwrap()
    }

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "s",
            "resources": {"requests": {"storage": "5Gi"}}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": spec}),
        )
        .unwrap()
    }

    #[test]
    fn the_smallest_that_is_large_enough() {
        let reference = |uid: &str| json!({"claimRef": {"name": "c", "namespace": "ns", "uid": uid}});
        let sizes = [
            volume("small", "1Gi", json!({})),
            volume("large", "20Gi", json!({})),
            volume("right", "10Gi", json!({})),
        ];
        let with = |more: PersistentVolume| sizes.iter().cloned().chain([more]).collect::<Vec<_>>();
        for (volumes, claim, expected) in [
            (sizes.to_vec(), claim(json!({})), Some("right")),
            (sizes.to_vec(), claim(json!({"resources": {"requests": {"storage": "10Gi"}}})), Some("right")),
            (sizes.to_vec(), claim(json!({"resources": {"requests": {"storage": "21Gi"}}})), None),
            (sizes.to_vec(), claim(json!({"storageClassName": "other"})), None),
            (sizes.to_vec(), claim(json!({"accessModes": ["ReadWriteMany"]})), None),
            (sizes.to_vec(), claim(json!({"volumeMode": "Block"})), None),
            (sizes.to_vec(), claim(json!({"selector": {"matchLabels": {"disk": "large"}}})), Some("large")),
            (
                sizes.to_vec(),
                claim(
                    json!({"selector": {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["right"]}]}}),
                ),
                Some("large"),
            ),
            (with(volume("own", "30Gi", reference("u"))), claim(json!({})), Some("own")),
            (with(volume("own", "6Gi", reference("other"))), claim(json!({})), Some("right")),
        ] {
            let found = best(&claim, volumes.iter()).and_then(|volume| volume.metadata.name.as_deref());
            assert_eq!(found, expected);
        }
    }
}
