//! A CRD against what it was before: immutable fields, versions that objects are stored in, approvals.

use serde_json::Value;

use super::{storage_version, text, versions};
use crate::status::FieldError;

fn established(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| text(c, "type") == "Established" && text(c, "status") == "True")
}

/// What decides where objects are stored cannot change once it is in use.
pub(super) fn immutable(spec: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let established = established(old);
    let fields =
        [("/scope", established), ("/names/kind", established), ("/group", true), ("/names/plural", true)];
    for (pointer, applies) in fields {
        let (new, old) = (spec.pointer(pointer), old["spec"].pointer(pointer));
        if applies && new != old {
            let field = format!("spec{}", pointer.replace('/', "."));
            let value = new.cloned().unwrap_or_else(|| "".into());
            errors.push(FieldError::invalid(field, value, "field is immutable"));
        }
    }
}

/// Versions that objects may be stored in must stay until someone says that none are left.
pub(super) fn stored_versions(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let kept = old.and_then(|old| old.pointer("/status/storedVersions")).and_then(Value::as_array);
    let mut stored: Vec<&str> = kept.into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(version) = storage_version(crd).filter(|version| !stored.contains(version)) {
        stored.push(version);
    }
    let at = "status.storedVersions";
    if stored.is_empty() {
        errors.push(FieldError::invalid(at, Value::Null, "must have at least one stored version"));
        return;
    }
    let all = versions(crd);
    for version in all.iter().filter(|v| v["storage"] == Value::Bool(true)) {
        let name = text(version, "name");
        if !stored.contains(&name) {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(at, stored.clone(), detail));
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !all.iter().any(|version| text(version, "name") == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{at}[{i}]"), *name, detail));
        }
    }
}

/// Groups of the Kubernetes community need an approval.
pub(super) fn approval(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    const KEY: &str = "api-approved.kubernetes.io";
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    fn given(crd: &Value) -> &str {
        crd.pointer("/metadata/annotations").map_or("", |annotations| text(annotations, KEY))
    }
    let group = text(&crd["spec"], "group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|owner| group == *owner || group.ends_with(&format!(".{owner}")));
    let now = given(crd);
    if !protected || old.is_some_and(|old| given(old) == now) {
        return;
    }
    let field = format!("metadata.annotations[{KEY}]");
    if now.is_empty() {
        let detail = format!("protected groups must have approval annotation {KEY:?}, {SEE}");
        errors.push(FieldError::required(field, detail));
    } else if !now.starts_with("unapproved") && !now.contains("://") {
        let detail = format!(
            "protected groups must have approval annotation {KEY:?} with either a URL or a reason starting with \
             \"unapproved\", {SEE}"
        );
        errors.push(FieldError::invalid(field, now, detail));
    }
}
