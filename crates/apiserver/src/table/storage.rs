//! The cells of volumes, claims and storage classes.

use serde_json::Value;

use super::cells::or;
use crate::builtin::access::Peek;

fn access_modes(modes: &[Value]) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let found = known.iter().filter(|(mode, _)| modes.iter().any(|one| one == mode));
    found.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The class of a volume or claim; an old annotation goes before the field.
fn class_name(object: &Value) -> &str {
    let annotation =
        object.at(&["metadata", "annotations"]).str_of("volume.beta.kubernetes.io/storage-class");
    or(annotation, object.sub("spec").str_of("storageClassName"))
}

fn phase(object: &Value) -> Value {
    if object.sub("metadata").has("deletionTimestamp") {
        return "Terminating".into();
    }
    object.sub("status").str_of("phase").into()
}

fn unset<'a>(object: &'a Value, key: &str) -> &'a str {
    object.sub(key).as_str().unwrap_or("<unset>")
}

pub(super) fn volume(volume: &Value, name: Value, age: Value) -> Vec<Value> {
    let spec = volume.sub("spec");
    let claim = spec.sub("claimRef");
    let claimed = if claim.is_null() {
        String::new()
    } else {
        format!("{}/{}", claim.str_of("namespace"), claim.str_of("name"))
    };
    vec![
        name,
        or(spec.sub("capacity").str_of("storage"), "0").into(),
        access_modes(spec.list("accessModes")).into(),
        spec.str_of("persistentVolumeReclaimPolicy").into(),
        phase(volume),
        claimed.into(),
        class_name(volume).into(),
        unset(spec, "volumeAttributesClassName").into(),
        volume.sub("status").str_of("reason").into(),
        age,
        unset(spec, "volumeMode").into(),
    ]
}

pub(super) fn claim(claim: &Value, name: Value, age: Value) -> Vec<Value> {
    let (spec, status) = (claim.sub("spec"), claim.sub("status"));
    let bound = !spec.str_of("volumeName").is_empty();
    let (capacity, modes) = if bound {
        (
            or(status.sub("capacity").str_of("storage"), "0").to_owned(),
            access_modes(status.list("accessModes")),
        )
    } else {
        (String::new(), String::new())
    };
    vec![
        name,
        phase(claim),
        spec.str_of("volumeName").into(),
        capacity.into(),
        modes.into(),
        class_name(claim).into(),
        unset(spec, "volumeAttributesClassName").into(),
        age,
        unset(spec, "volumeMode").into(),
    ]
}

pub(super) fn class(class: &Value, age: Value) -> Vec<Value> {
    let annotations = class.at(&["metadata", "annotations"]);
    let mut name = class.sub("metadata").str_of("name").to_owned();
    let prefixes =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    if prefixes.iter().any(|key| annotations.str_of(key) == "true") {
        name += " (default)";
    }
    vec![
        name.into(),
        class.str_of("provisioner").into(),
        or(class.str_of("reclaimPolicy"), "Delete").into(),
        or(class.str_of("volumeBindingMode"), "Immediate").into(),
        class.flag("allowVolumeExpansion").into(),
        age,
    ]
}
