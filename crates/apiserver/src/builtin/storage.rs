//! PersistentVolumes, PersistentVolumeClaims and StorageClasses.

use serde_json::{Map, Value, json};

use super::access::{Errors, IMMUTABLE, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, layout, names, pod, resources, selector};
use crate::status::{FieldError, FieldErrorKind};

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// What keeps an object from vanishing while it is in use.
fn protect(object: &mut Value, finalizer: &str) {
    let Some(meta) = object.make("metadata") else { return };
    if meta.list("finalizers").iter().any(|name| name == finalizer) {
        return;
    }
    meta.fill("finalizers", json!([]));
    if let Some(list) = meta.get_mut("finalizers").and_then(Value::as_array_mut) {
        list.push(finalizer.into());
    }
}

fn access_modes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("accessModes");
    let modes = spec.list("accessModes");
    let mut exclusive = false;
    for mode in modes.iter().filter_map(Value::as_str) {
        if !ACCESS_MODES.contains(&mode) {
            errors.push(path.unsupported(mode, ACCESS_MODES));
        }
        exclusive |= mode == "ReadWriteOncePod";
    }
    if exclusive && modes.len() > 1 {
        errors.push(path.forbidden("may not use ReadWriteOncePod with other access modes"));
    }
}

fn class_name(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let name = spec.str_of("storageClassName");
    if !name.is_empty() {
        path.child("storageClassName").all_invalid(name, names::subdomain(name), errors);
    }
}

pub(crate) const CLAIM: Strategy = Strategy {
    defaults: |claim| {
        pod::claim_defaults(claim);
        if let Some(status) = claim.part("status") {
            status.fill_str("phase", "Pending");
        }
    },
    admit: |claim| protect(claim, "kubernetes.io/pvc-protection"),
    create: |claim, _| {
        claim.set("status", json!({"phase": "Pending"}));
        mirror_source(claim);
    },
    update: |claim, _| mirror_source(claim),
    validate: validate_claim,
    validate_update: |new, old, errors| {
        validate_claim(new, errors);
        claim_kept(new, old, errors);
    },
    ..PLAIN
};

/// `dataSource` and `dataSourceRef` say the same where both can.
fn mirror_source(claim: &mut Value) {
    let Some(spec) = claim.part("spec") else { return };
    if spec.has("dataSource") && !spec.has("dataSourceRef") {
        let source = spec.sub("dataSource").clone();
        spec.set("dataSourceRef", source);
    } else if spec.has("dataSourceRef")
        && !spec.has("dataSource")
        && !spec.sub("dataSourceRef").has("namespace")
    {
        let source = spec.sub("dataSourceRef").clone();
        spec.set("dataSource", source);
    }
}

fn validate_claim(claim: &Value, errors: &mut Errors) {
    let (spec, path) = (claim.sub("spec"), Path::root("spec"));
    if spec.list("accessModes").is_empty() {
        errors.push(path.child("accessModes").required("at least 1 access mode is required"));
    }
    selector::validate(spec.sub("selector"), &path.child("selector"), errors);
    access_modes(spec, &path, errors);
    let size = spec.at(&["resources", "requests", "storage"]);
    let size_path = path.child("resources");
    match resources::parse(size) {
        None => errors.push(size_path.key("storage").required("")),
        Some(quantity) if quantity.is_negative() || quantity.is_zero() => {
            errors.push(size_path.key("storage").invalid(quantity.canonical(), "must be greater than zero"));
        }
        Some(_) => {}
    }
    class_name(spec, &path, errors);
    path.maybe_one_of(spec, "volumeMode", VOLUME_MODES, errors);
}

/// A bound claim may grow; nothing else changes.
fn claim_kept(new: &Value, old: &Value, errors: &mut Errors) {
    let (spec, before) = (new.sub("spec"), old.sub("spec"));
    let mut munged = spec.clone();
    let bound = new.sub("status").str_of("phase") == "Bound";
    if before.str_of("volumeName").is_empty() && spec.has("volumeName") {
        super::copy(&mut munged, before, "volumeName");
    }
    if !before.has("storageClassName") {
        super::copy(&mut munged, before, "storageClassName");
    }
    if bound {
        super::copy(&mut munged, before, "volumeAttributesClassName");
        let size = before.at(&["resources", "requests", "storage"]).clone();
        if let Some(requests) = munged.part("resources").and_then(|one| one.part("requests")) {
            requests.set("storage", size);
        }
    }
    if munged != *before {
        let difference = layout::difference(before, &munged, "PersistentVolumeClaimSpec");
        errors.push(top("spec").forbidden(format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
             claims\n{difference}"
        )));
        return;
    }
    let size = |spec: &Value| resources::parse(spec.at(&["resources", "requests", "storage"]));
    if let (Some(now), Some(then)) = (size(spec), size(before))
        && bound
        && now.compare(then).is_lt()
        && resources::parse(old.at(&["status", "capacity", "storage"]))
            .is_some_and(|capacity| now.compare(capacity).is_le())
    {
        let path = Path::root("spec");
        errors.push(
            path.child("resources")
                .child("requests")
                .child("storage")
                .forbidden("field can not be less than status.capacity"),
        );
    }
}

const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(crate) const VOLUME: Strategy = Strategy {
    defaults: |volume| {
        if let Some(spec) = volume.part("spec") {
            spec.fill_str("persistentVolumeReclaimPolicy", "Retain");
            spec.fill("volumeMode", "Filesystem");
            if let Some(path) = spec.part("hostPath") {
                path.fill("type", "");
            }
        }
        if let Some(status) = volume.part("status") {
            status.fill_str("phase", "Pending");
        }
    },
    admit: |volume| protect(volume, "kubernetes.io/pv-protection"),
    create: |volume, now| volume.set("status", json!({"phase": "Pending", "lastPhaseTransitionTime": now})),
    update_status: |new, old, now| {
        let changed = new.sub("status").sub("phase") != old.sub("status").sub("phase");
        if let Some(status) = new.part("status").filter(|_| changed) {
            status.set("lastPhaseTransitionTime", now);
        }
    },
    validate: validate_volume,
    validate_update: |new, old, errors| {
        // The real server does this twice.
        validate_volume(new, errors);
        validate_volume(new, errors);
        let source = |volume: &Value| -> Map<String, Value> {
            let fields = volume.map("spec").into_iter().flatten();
            fields
                .filter(|(key, _)| SOURCES.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let (now, before) = (Value::Object(source(new)), Value::Object(source(old)));
        if now != before {
            let difference = layout::difference(&before, &now, "PersistentVolumeSource");
            errors.push(
                top("spec.persistentvolumesource").forbidden(format!(
                    "spec.persistentvolumesource is immutable after creation\n{difference}"
                )),
            );
        }
        let mode = new.sub("spec").sub("volumeMode");
        if mode != old.sub("spec").sub("volumeMode") {
            errors.push(top("volumeMode").invalid(mode.clone(), IMMUTABLE));
        }
    },
    ..PLAIN
};

fn validate_volume(volume: &Value, errors: &mut Errors) {
    let (spec, path) = (volume.sub("spec"), Path::root("spec"));
    if spec.list("accessModes").is_empty() {
        errors.push(path.child("accessModes").required(""));
    }
    access_modes(spec, &path, errors);
    capacity(spec, &path.child("capacity"), errors);
    path.one_of(spec, "persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"], errors);
    volume_source(spec, &path, errors);
    if spec.has("nodeAffinity") && spec.sub("nodeAffinity").has("required") {
        pod::node_selector_terms(
            spec.sub("nodeAffinity").sub("required"),
            &path.child("nodeAffinity").child("required"),
            errors,
        );
    }
    if spec.sub("hostPath").str_of("path") == "/" && spec.str_of("persistentVolumeReclaimPolicy") == "Recycle"
    {
        errors.push(
            path.child("persistentVolumeReclaimPolicy")
                .forbidden("may not be 'recycle' for a hostPath mount of '/'"),
        );
    }
    class_name(spec, &path, errors);
    path.maybe_one_of(spec, "volumeMode", VOLUME_MODES, errors);
}

fn capacity(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let all = spec.map("capacity").filter(|map| !map.is_empty());
    if all.is_none() {
        errors.push(path.required(""));
    }
    if !all.is_some_and(|map| map.len() == 1 && map.contains_key("storage")) {
        errors.push(FieldError::new(
            FieldErrorKind::NotSupported,
            path.to_string(),
            Some(spec.sub("capacity").clone()),
            "supported values: \"storage\"",
        ));
    }
    for (name, amount) in all.into_iter().flatten() {
        if let Some(quantity) = resources::parse(amount)
            && (quantity.is_negative() || quantity.is_zero())
        {
            errors.push(path.key(name).invalid(quantity.canonical(), "must be greater than zero"));
        }
    }
}

fn volume_source(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut count = 0;
    for key in SOURCES.iter().filter(|key| spec.has(key)) {
        let (source, own) = (spec.sub(key), path.child(key));
        count += 1;
        if count > 1 {
            errors.push(own.forbidden("may not specify more than 1 volume type"));
            continue;
        }
        match *key {
            "hostPath" => pod::host_path(source, &own, errors),
            "nfs" => pod::nfs(source, &own, errors),
            "csi" => {
                for key in ["driver", "volumeHandle"].iter().filter(|key| source.str_of(key).is_empty()) {
                    errors.push(own.child(key).required(""));
                }
            }
            "local" => {
                let text = source.str_of("path");
                if text.is_empty() {
                    errors.push(own.child("path").required(""));
                } else {
                    pod::path_without_backsteps(text, &own.child("path"), errors);
                }
                if !spec.has("nodeAffinity") {
                    errors.push(path.child("nodeAffinity").required("Local volume requires node affinity"));
                }
            }
            _ => {}
        }
    }
    if count == 0 {
        errors.push(path.required("must specify a volume type"));
    }
}

pub(crate) const CLASS: Strategy = Strategy {
    defaults: |class| {
        class.fill("reclaimPolicy", "Delete");
        class.fill("volumeBindingMode", "Immediate");
    },
    validate: validate_class,
    validate_update: |new, old, errors| {
        validate_class(new, errors);
        for key in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            if new.sub(key) != old.sub(key) {
                errors.push(top(key).invalid(new.sub(key).clone(), IMMUTABLE));
            }
        }
    },
    ..PLAIN
};

fn validate_class(class: &Value, errors: &mut Errors) {
    match class.str_of("provisioner") {
        "" => errors.push(top("provisioner").required("")),
        name => {
            let name = name.to_lowercase();
            top("provisioner").all_invalid(&name, names::qualified(&name), errors);
        }
    }
    if class.map("parameters").is_some_and(|map| map.contains_key("")) {
        errors.push(top("parameters").invalid("", "field can not be empty."));
    }
    for (key, supported) in [
        ("reclaimPolicy", ["Delete", "Retain"]),
        ("volumeBindingMode", ["Immediate", "WaitForFirstConsumer"]),
    ] {
        match class.sub(key).as_str() {
            Some(value) if supported.contains(&value) => {}
            Some(value) => errors.push(top(key).unsupported(value, &supported)),
            None => errors.push(top(key).required("")),
        }
    }
}
