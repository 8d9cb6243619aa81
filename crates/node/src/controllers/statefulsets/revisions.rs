//! The history of a StatefulSet's Pod template: which ControllerRevision is the one to update to, which one Pods are
//! still kept at, and which are old enough to go. Names and hashes are those that Kubernetes gives.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::Operation;
use crate::controllers::ownership::controller_reference;

const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// The longest part of a set's name that the name of a revision repeats.
const NAME_PREFIX: usize = 223;

/// A template and the name of the revision that records it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// Where the set stands between its revisions.
#[derive(Debug, PartialEq)]
pub(super) struct Versions {
    pub(super) current: Version,
    pub(super) update: Version,
    pub(super) collisions: i32,
    /// What must be recorded before any Pod may bear the name of `update`.
    pub(super) record: Option<Operation>,
}

/// Finds the revisions that the set is at and goes to. `owned` are the set's own; `others` are all further ones of the
/// namespace, which matter only because they may hold a name.
pub(super) fn choose(
    set: &StatefulSet,
    owned: &[Arc<ControllerRevision>],
    others: &[Arc<ControllerRevision>],
) -> Versions {
    let mut collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let wanted = data(set);
    let next = owned.last().map_or(1, |newest| newest.revision + 1);
    let same = owned.iter().rposition(|one| one.data.as_ref().is_some_and(|data| data.0 == wanted));
    let (name, record) = match same {
        Some(at) if at + 1 == owned.len() => (owned[at].name_any(), None),
        // Back to an earlier template: its revision becomes the newest again.
        Some(at) => {
            let name = owned[at].name_any();
            (name.clone(), Some(Operation::RenumberRevision { name, revision: next }))
        }
        None => create(set, &wanted, next, owned.iter().chain(others), &mut collisions),
    };
    let update =
        Version { name, template: set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default() };
    let at = set.status.as_ref().and_then(|status| status.current_revision.as_deref()).unwrap_or("");
    let current = owned.iter().find(|one| one.name_any() == at).and_then(|one| restore(one));
    Versions { current: current.unwrap_or_else(|| update.clone()), update, collisions, record }
}

/// The name of a new revision and how to make it. A name that holds other data is avoided; one that holds the same,
/// left behind by an earlier set of this name, will do until it is collected.
fn create<'a>(
    set: &StatefulSet,
    data: &Value,
    revision: i64,
    existing: impl Iterator<Item = &'a Arc<ControllerRevision>> + Clone,
    collisions: &mut i32,
) -> (String, Option<Operation>) {
    loop {
        let new = new_revision(set, data, revision, *collisions);
        let name = new.name_any();
        match existing.clone().find(|one| one.name_any() == name) {
            None => return (name, Some(Operation::CreateRevision(Box::new(new)))),
            Some(held) if held.data == new.data => return (name, None),
            Some(_) => *collisions += 1,
        }
    }
}

/// By number, then by age, then by name.
pub(super) fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|a, b| {
        let age = |one: &ControllerRevision| one.metadata.creation_timestamp.as_ref().map(|at| at.0);
        (a.revision, age(a), &a.metadata.name).cmp(&(b.revision, age(b), &b.metadata.name))
    });
}

/// The revisions beyond the limit that neither a Pod nor the set is at, oldest first.
pub(super) fn expired(
    set: &StatefulSet,
    owned: &[Arc<ControllerRevision>],
    live: &BTreeSet<&str>,
) -> Vec<Operation> {
    let limit = set.spec.as_ref().and_then(|spec| spec.revision_history_limit).unwrap_or(10);
    let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
    let old: Vec<String> =
        owned.iter().map(|one| one.name_any()).filter(|name| !live.contains(name.as_str())).collect();
    let excess = old.len().saturating_sub(limit);
    old.into_iter().take(excess).map(|name| Operation::DeleteRevision { name }).collect()
}

/// A patch that puts the template back: what a revision stores.
fn data(set: &StatefulSet) -> Value {
    let template = set.spec.as_ref().map(|spec| &spec.template);
    let mut template = serde_json::to_value(template).unwrap_or(Value::Null);
    if let Some(template) = template.as_object_mut() {
        template.insert("$patch".into(), "replace".into());
    }
    json!({"spec": {"template": template}})
}

/// The template that a revision stores; `None` if what it stores is none, as then nothing can be made from it.
fn restore(revision: &ControllerRevision) -> Option<Version> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    Some(Version { name: revision.name_any(), template: serde_json::from_value(template).ok()? })
}

fn new_revision(set: &StatefulSet, data: &Value, revision: i64, collisions: i32) -> ControllerRevision {
    let hash = hash(data, collisions);
    let name = set.name_any();
    let prefix = name.get(..NAME_PREFIX).unwrap_or(&name);
    let template = set.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    let mut labels = template.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data.clone())),
        revision,
    }
}

/// FNV-1 over the data as Go would print it and the number of collisions, in letters that spell no words.
fn hash(data: &Value, collisions: i32) -> String {
    let text = go_json(data) + &collisions.to_string();
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    hash.to_string().bytes().map(|digit| char::from(letters[usize::from(digit) % letters.len()])).collect()
}

/// JSON with sorted keys, escaped as Go escapes it.
fn go_json(data: &Value) -> String {
    let mut text = String::new();
    for letter in data.to_string().chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What kube-controller-manager v1.36 named the first revision of this template.
    #[test]
    fn hashes_are_those_of_kubernetes() {
        let data = json!({"spec": {"template": {
            "$patch": "replace",
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{
                    "args": ["a<b>&c é\u{2028}"], "image": "host", "imagePullPolicy": "Always", "name": "c",
                    "resources": {}, "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30,
            },
        }}});
        assert_eq!(hash(&data, 0), "6dd5b545dc");
    }
}
