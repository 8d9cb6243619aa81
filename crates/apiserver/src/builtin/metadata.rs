//! The rules of `metadata`, for built-in kinds and custom resources alike.

use serde_json::{Map, Value};

use super::access::{Errors, IMMUTABLE, NOT_NEGATIVE, Path, Peek};
use super::names;

/// How objects of a kind may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS subdomain: most kinds, custom resources.
    Subdomain,
    /// A DNS label: namespaces, services.
    Label,
    /// Anything that fits into a URL: roles.
    PathSegment,
}

/// How the rules differ between kinds.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub namespaced: bool,
    /// Finalizers need a prefix, or are Kubernetes' own. Holds for built-in kinds only.
    pub known_finalizers: bool,
}

const ANNOTATIONS_LIMIT: usize = 256 * 1024;

impl NameRule {
    /// What is wrong with a name. A prefix (`generateName`) may end in a dash.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        let masked = match name.strip_suffix('-') {
            Some(stem) if prefix && !stem.is_empty() && self != Self::PathSegment => &format!("{stem}a"),
            _ => name,
        };
        match self {
            Self::Subdomain => names::subdomain(masked),
            Self::Label => names::label(masked),
            Self::PathSegment => names::path_segment(masked),
        }
    }
}

/// What is wrong with the metadata of an object, new or changed.
pub fn validate(meta: &Value, rule: NameRule, options: Options, path: &Path<'_>, errors: &mut Errors) {
    let (prefix, name) = (meta.str_of("generateName"), meta.str_of("name"));
    if !prefix.is_empty() {
        path.child("generateName").all_invalid(prefix, rule.check(prefix, true), errors);
    }
    if name.is_empty() {
        errors.push(path.child("name").required("name or generateName is required"));
    } else {
        path.child("name").all_invalid(name, rule.check(name, false), errors);
    }
    let namespace = meta.str_of("namespace");
    match (options.namespaced, namespace.is_empty()) {
        (true, true) => errors.push(path.child("namespace").required("")),
        (true, false) => path.child("namespace").all_invalid(namespace, names::label(namespace), errors),
        (false, false) => errors.push(path.child("namespace").forbidden("not allowed on this type")),
        (false, true) => {}
    }
    if let Some(generation) = meta.int_of("generation").filter(|number| *number < 0) {
        errors.push(path.child("generation").invalid(generation, NOT_NEGATIVE));
    }
    labels(meta.map("labels"), &path.child("labels"), errors);
    annotations(meta.map("annotations"), &path.child("annotations"), errors);
    owners(meta.list("ownerReferences"), &path.child("ownerReferences"), errors);
    finalizers(meta, &path.child("finalizers"), errors);
    if options.known_finalizers {
        known_finalizers(meta, &path.child("finalizers"), errors);
    }
}

/// What is wrong with how metadata changed, beside [`validate`].
pub fn validate_update(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    if old.has("deletionTimestamp") {
        let before = old.list("finalizers");
        let mut added: Vec<&str> = new
            .list("finalizers")
            .iter()
            .filter(|name| !before.contains(name))
            .filter_map(Value::as_str)
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let shown: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            errors.push(path.child("finalizers").forbidden(format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                shown.join(", ")
            )));
        }
    }
    if new.str_of("resourceVersion").is_empty() {
        errors.push(path.child("resourceVersion").invalid("", "must be specified for an update"));
    }
    let generation = new.int_of("generation").unwrap_or_default();
    if generation < old.int_of("generation").unwrap_or_default() {
        errors.push(path.child("generation").invalid(generation, "must not be decremented"));
    }
    let fixed =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];
    for key in fixed {
        if new.sub(key) != old.sub(key) {
            errors.push(path.child(key).invalid(new.sub(key).clone(), IMMUTABLE));
        }
    }
    labels(new.map("labels"), &path.child("labels"), errors);
    annotations(new.map("annotations"), &path.child("annotations"), errors);
    owners(new.list("ownerReferences"), &path.child("ownerReferences"), errors);
}

/// Labels, and maps that are matched against labels.
pub(crate) fn labels(map: Option<&Map<String, Value>>, path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in map.into_iter().flatten() {
        path.all_invalid(key, names::qualified(key), errors);
        let value = value.as_str().unwrap_or_default();
        path.all_invalid(value, names::label_value(value), errors);
    }
}

pub(crate) fn annotations(map: Option<&Map<String, Value>>, path: &Path<'_>, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in map.into_iter().flatten() {
        if key.bytes().any(|c| c.is_ascii_uppercase()) {
            path.all_invalid(key, names::qualified(&key.to_lowercase()), errors);
        } else {
            path.all_invalid(key, names::qualified(key), errors);
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(path.too_long(ANNOTATIONS_LIMIT));
    }
}

fn owners(list: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in list {
        owner_reference(owner, path, errors);
        if !owner.flag("controller") {
            continue;
        }
        let this = format!("{}/{}", owner.str_of("kind"), owner.str_of("name"));
        match &controller {
            Some(first) => {
                let shown: Vec<String> = list.iter().map(shown_owner).collect();
                errors.push(path.invalid_text(
                    &format!("[{}]", shown.join(",")),
                    &format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    ),
                ));
            }
            None => controller = Some(this),
        }
    }
}

fn owner_reference(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    let api_version = owner.str_of("apiVersion");
    // More than one slash makes Go see neither group nor version.
    if api_version.is_empty() || api_version.matches('/').count() > 1 || api_version.ends_with('/') {
        errors.push(path.child("apiVersion").invalid(api_version, "version must not be empty"));
    }
    for key in ["kind", "name", "uid"] {
        if owner.str_of(key).is_empty() {
            errors.push(path.child(key).invalid("", "must not be empty"));
        }
    }
    if api_version == "v1" && owner.str_of("kind") == "Event" {
        errors.push(
            path.invalid_text(&shown_owner(owner), "/v1, Kind=Event is disallowed from being an owner"),
        );
    }
}

/// An owner reference as Go prints it: fields in the order of the struct.
fn shown_owner(owner: &Value) -> String {
    let mut fields: Vec<String> = ["apiVersion", "kind", "name", "uid"]
        .iter()
        .map(|key| format!("\"{key}\":{}", Value::from(owner.str_of(key))))
        .collect();
    for key in ["controller", "blockOwnerDeletion"] {
        if owner.has(key) {
            fields.push(format!("\"{key}\":{}", owner.sub(key)));
        }
    }
    format!("{{{}}}", fields.join(","))
}

fn finalizers(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let list = meta.list("finalizers");
    for name in list.iter().filter_map(Value::as_str) {
        path.all_invalid(name, names::qualified(name), errors);
    }
    if list.iter().any(|name| name == "orphan") && list.iter().any(|name| name == "foregroundDeletion") {
        errors.push(path.invalid(
            meta.sub("finalizers").clone(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

pub(super) fn known_finalizers(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, name) in meta.list("finalizers").iter().enumerate() {
        if let Some(error) = name.as_str().and_then(|name| unknown_finalizer(name, &path.index(index))) {
            errors.push(error);
        }
    }
}

pub(crate) fn unknown_finalizer(name: &str, path: &Path<'_>) -> Option<crate::status::FieldError> {
    let known = name.contains('/') || ["kubernetes", "orphan", "foregroundDeletion"].contains(&name);
    (!known)
        .then(|| path.invalid(name, "name is neither a standard finalizer name nor is it fully qualified"))
}
