//! What an update may change in a pod: little.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek, Poke};
use super::super::{layout, names};

const FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
     `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
     tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    super::validate::pod(new, false, errors);
    let path = Path::root("spec");
    let (spec, before) = (new.sub("spec"), old.sub("spec"));
    for key in ["containers", "initContainers"] {
        let (now, then, path) = (spec.list(key), before.list(key), path.child(key));
        if now.len() != then.len() {
            errors.push(path.forbidden("pod updates may not add or remove containers"));
            return;
        }
        for (index, container) in now.iter().enumerate() {
            if container.str_of("image").is_empty() {
                errors.push(path.index(index).child("image").required(""));
            }
        }
    }
    if !deadline(spec, before, &path.child("activeDeadlineSeconds"), errors) {
        return;
    }
    tolerations(spec, before, &path.child("tolerations"), errors);
    gates(spec, before, &path.child("schedulingGates"), errors);
    if spec == before {
        return;
    }
    let munged = without_allowed_changes(spec, before);
    if munged != *before {
        let difference = layout::difference(before, &munged, "PodSpec");
        errors.push(path.forbidden(format!("{FORBIDDEN}\n{difference}")));
    }
}

/// A deadline may come nearer. False ends the checks.
fn deadline(spec: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) -> bool {
    let old = before.int_of("activeDeadlineSeconds");
    match spec.int_of("activeDeadlineSeconds") {
        Some(seconds) => {
            if let Some(message) = names::in_range(seconds, 0, i64::from(i32::MAX)) {
                errors.push(path.invalid(seconds, message));
                return false;
            }
            if old.is_some_and(|old| old < seconds) {
                errors.push(path.invalid(seconds, "must be less than or equal to previous value"));
                return false;
            }
        }
        None if old.is_some() => {
            errors.push(path.invalid(Value::Null, "must not update from a positive integer to nil value"));
        }
        None => {}
    }
    true
}

fn tolerations(spec: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) {
    let same = |a: &Value, b: &Value| {
        ["key", "operator", "value", "effect"].iter().all(|key| a.str_of(key) == b.str_of(key))
    };
    let kept = |old: &Value| spec.list("tolerations").iter().any(|new| same(new, old));
    if !before.list("tolerations").iter().all(kept) {
        errors.push(path.forbidden("existing toleration can not be modified except its tolerationSeconds"));
    }
}

fn gates(spec: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, gate) in spec.list("schedulingGates").iter().enumerate() {
        if !before.list("schedulingGates").contains(gate) {
            let name = gate.str_of("name");
            errors.push(
                path.index(index)
                    .child("name")
                    .forbidden(format!("only deletion is allowed, but found new scheduling gate '{name}'")),
            );
        }
    }
}

/// The new spec, with what may change as it was.
fn without_allowed_changes(spec: &Value, before: &Value) -> Value {
    let mut munged = spec.clone();
    for key in ["containers", "initContainers"] {
        let mut images = before.list(key).iter().map(|container| container.sub("image").clone());
        munged.each(key, |container| container.set("image", images.next().unwrap_or_default()));
    }
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        super::super::copy(&mut munged, before, key);
    }
    let grace = "terminationGracePeriodSeconds";
    if before.int_of(grace).is_some_and(|seconds| seconds < 0) && munged.int_of(grace) == Some(1) {
        super::super::copy(&mut munged, before, grace);
    }
    // A gated pod may still narrow down where it runs.
    if !before.list("schedulingGates").is_empty() {
        super::super::copy(&mut munged, before, "nodeSelector");
        super::super::copy(&mut munged, before, "affinity");
    }
    munged
}
