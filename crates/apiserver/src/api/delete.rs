//! Deleting: at once when nothing holds the object, else marked and finished by whoever holds it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::identity::now;
use super::read::{ListRequest, Listing};
use super::update::finished;
use super::{Api, Body, Name};
use crate::resource::Resource;
use crate::status::{FieldError, Status};
use crate::store::{Change, Expect, Object, Write, WriteError};

/// Holds a definition until its objects are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Namespaces without which a cluster is none.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

/// What becomes of the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They go first, the owner last.
    Foreground,
    /// The owner goes at once, they follow.
    Background,
    /// They stay, without their owner.
    Orphan,
}

impl Propagation {
    pub const FOREGROUND_FINALIZER: &'static str = "foregroundDeletion";
    pub const ORPHAN_FINALIZER: &'static str = "orphan";
}

/// The options of a DELETE, from its body and its query.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads a `DeleteOptions` object.
    pub fn parse(value: &Value) -> Result<Self, Status> {
        let text = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
        let invalid = |errors: &[FieldError]| Status::invalid("meta.k8s.io", "DeleteOptions", "", errors);
        let policy = text(&value["propagationPolicy"]);
        let propagation = match (policy.as_deref(), value["orphanDependents"].as_bool()) {
            (Some(_), Some(_)) => {
                let error = FieldError::invalid(
                    "propagationPolicy",
                    policy.as_deref().unwrap_or_default(),
                    "orphanDependents and deletionPropagation cannot be both set",
                );
                return Err(invalid(&[error]));
            }
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Background"), _) => Some(Propagation::Background),
            (Some("Orphan"), _) => Some(Propagation::Orphan),
            (Some(other), _) => {
                let names = ["Foreground", "Background", "Orphan", "nil"];
                return Err(invalid(&[FieldError::not_supported("propagationPolicy", other, &names)]));
            }
            (None, Some(true)) => Some(Propagation::Orphan),
            (None, Some(false)) => Some(Propagation::Background),
            (None, None) => None,
        };
        let dry_run = value["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default();
        if dry_run.iter().any(|v| v != "All") {
            // Not understood means not done: a rehearsal must never become the real thing.
            return Err(invalid(&[FieldError::not_supported("dryRun", dry_run.to_vec(), &["All"])]));
        }
        let dry_run = !dry_run.is_empty();
        Ok(Self {
            grace: value["gracePeriodSeconds"].as_i64(),
            uid: text(&value["preconditions"]["uid"]),
            resource_version: text(&value["preconditions"]["resourceVersion"]),
            propagation,
            dry_run,
        })
    }

    fn check(&self, resource: &Resource, live: &Object) -> Result<(), Status> {
        let refuse = |what: &str, asked: &str, actual: &str, fate: &str| {
            let detail = format!(
                "the {what} in the precondition ({asked}) does not match the {what} in record ({actual}). \
                 The object might have been {fate}"
            );
            Err(Status::conflict(&resource.group, &resource.kind, live.name(), &detail))
        };
        if let Some(uid) = &self.uid
            && **uid != *live.uid
        {
            return refuse("UID", uid, &live.uid, "deleted and then recreated");
        }
        let version = live.revision.to_string();
        match &self.resource_version {
            Some(asked) if *asked != version => refuse("ResourceVersion", asked, &version, "modified"),
            _ => Ok(()),
        }
    }
}

enum Step {
    /// Already on its way; nothing to write.
    Nothing,
    Mark(Value),
    Remove(Value),
}

impl Api {
    /// The answer is the object where the real server gives it, else a `Status` that says success.
    pub async fn delete(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        options: &DeleteOptions,
    ) -> Result<Body, Status> {
        let mut options = options.clone();
        loop {
            let live = self.find(resource, named)?;
            if resource.is_namespace() && PROTECTED.contains(&named.name) {
                return Err(Status::forbidden(
                    "",
                    "namespaces",
                    named.name,
                    "this namespace may not be deleted",
                ));
            }
            options.check(resource, &live)?;
            let (change, last_words) = match decide(resource, &live, &options) {
                Step::Nothing => return Ok(Body::Stored(live)),
                Step::Mark(value) => (Change::Put(value), None),
                // A Pod is marked before it goes, so that watchers learn why.
                Step::Remove(value)
                    if resource.deletes_gracefully() && value != live.value() && !options.dry_run =>
                {
                    // The mark itself must not count as somebody else's change.
                    let marked = self.rewrite(resource, named, &live, value).await?;
                    if let (Some(version), Some(marked)) = (&mut options.resource_version, marked) {
                        *version = marked.revision.to_string();
                    }
                    continue;
                }
                Step::Remove(value) => (Change::Delete(live.value()), Some(value)),
            };
            if options.dry_run {
                return Ok(match (last_words, change) {
                    (Some(value), _) => self.deleted(resource, &live, value),
                    (None, Change::Put(value) | Change::Delete(value)) => {
                        Body::Fresh(resource.typed_value(value))
                    }
                });
            }
            let write = Write {
                table: resource.storage.clone(),
                key: named.key(),
                expect: Expect::At(live.revision),
                change,
            };
            match self.store().write(write).await {
                Ok(object) => {
                    let Some(value) = last_words else { return Ok(Body::Stored(object)) };
                    self.released(resource, &object);
                    return Ok(self.deleted(resource, &live, value));
                }
                Err(WriteError::Raced(_)) => {}
                Err(WriteError::Storage(reason)) => return Err(Status::internal(reason)),
            }
        }
    }

    /// One conditional write whose loss only means to look again; what was written, unless it was lost.
    async fn rewrite(
        &self,
        resource: &Resource,
        named: &Name<'_>,
        live: &Object,
        value: Value,
    ) -> Result<Option<Arc<Object>>, Status> {
        let write = Write {
            table: resource.storage.clone(),
            key: named.key(),
            expect: Expect::At(live.revision),
            change: Change::Put(value),
        };
        match self.store().write(write).await {
            Ok(object) => Ok(Some(object)),
            Err(WriteError::Raced(_)) => Ok(None),
            Err(WriteError::Storage(reason)) => Err(Status::internal(reason)),
        }
    }

    fn deleted(&self, resource: &Resource, object: &Object, last_words: Value) -> Body {
        if resource.returns_deleted() {
            return Body::Fresh(resource.typed_value(last_words));
        }
        let mut details = json!({"name": object.name(), "kind": resource.plural, "uid": &*object.uid});
        if !resource.group.is_empty() {
            details["group"] = resource.group.as_str().into();
        }
        Body::Fresh(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        }))
    }

    /// Gives back what an object held besides itself.
    pub(super) fn released(&self, resource: &Resource, object: &Object) {
        if &*resource.storage == "services" {
            self.inner.addresses.release(&object.value());
        }
    }

    /// Deletes everything that a list would show; answers with what was there.
    pub async fn delete_collection(
        &self,
        resource: &Arc<Resource>,
        request: &ListRequest<'_>,
        options: &DeleteOptions,
    ) -> Result<Listing, Status> {
        let listing = self.list(resource, request)?;
        for object in &listing.items {
            let namespace = resource.namespaced.then(|| object.namespace());
            let named = Name { namespace, name: object.name() };
            match self.delete(resource, &named, options).await {
                Err(status) if status.reason != "NotFound" => return Err(status),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(listing)
    }
}

/// What one delete request does to an object as it is now.
fn decide(resource: &Resource, live: &Object, options: &DeleteOptions) -> Step {
    let old = live.value();
    let mut value = old.clone();
    let propagation = options.propagation.or_else(|| implied(resource, &old));
    set_gc_finalizers(&mut value, propagation);
    let grace = resource.deletion_grace(&old, options.grace);
    if resource.is_definition() && !live.deleting {
        mark_definition(&mut value);
    }
    let held = has_finalizers(&value) || resource.is_held_by_content(&value);
    if live.deleting {
        let remaining = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if grace < remaining {
            value["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        }
        if finished(resource, &value) {
            return Step::Remove(value);
        }
        return if value == old { Step::Nothing } else { Step::Mark(value) };
    }
    let graceful = resource.deletes_gracefully();
    if grace == 0 && !held {
        if graceful {
            mark(resource, &mut value, grace);
        }
        return Step::Remove(value);
    }
    mark(resource, &mut value, grace);
    Step::Mark(value)
}

fn mark(resource: &Resource, value: &mut Value, grace: i64) {
    let stamp = match grace {
        0 => now(),
        _ => super::identity::seconds_from_now(grace),
    };
    value["metadata"]["deletionTimestamp"] = stamp.into();
    if resource.is_definition() {
        return;
    }
    if !resource.is_namespace() {
        value["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    } else {
        value["status"]["phase"] = "Terminating".into();
    }
    if let Some(generation) = value["metadata"]["generation"].as_i64() {
        value["metadata"]["generation"] = (generation + 1).into();
    }
}

/// A definition waits for its objects and says so.
fn mark_definition(value: &mut Value) {
    let push = |list: &mut Value, item: Value| match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    };
    push(&mut value["metadata"]["finalizers"], CLEANUP_FINALIZER.into());
    let condition = json!({
        "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending", "lastTransitionTime": now(),
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    push(&mut value["status"]["conditions"], condition);
}

fn has_finalizers(value: &Value) -> bool {
    value["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Without a policy in the request: a finalizer already there decides, else what the kind does by itself.
fn implied(resource: &Resource, value: &Value) -> Option<Propagation> {
    let has =
        |name: &str| value["metadata"]["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == name));
    if has(Propagation::ORPHAN_FINALIZER) {
        return Some(Propagation::Orphan);
    }
    if has(Propagation::FOREGROUND_FINALIZER) {
        return Some(Propagation::Foreground);
    }
    resource.orphans_by_default().then_some(Propagation::Orphan)
}

fn set_gc_finalizers(value: &mut Value, propagation: Option<Propagation>) {
    let wanted = match propagation {
        Some(Propagation::Foreground) => Some(Propagation::FOREGROUND_FINALIZER),
        Some(Propagation::Orphan) => Some(Propagation::ORPHAN_FINALIZER),
        Some(Propagation::Background) | None => None,
    };
    let current = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let ours = |f: &Value| f == Propagation::FOREGROUND_FINALIZER || f == Propagation::ORPHAN_FINALIZER;
    let mut finalizers: Vec<Value> = current.iter().filter(|f| !ours(f)).cloned().collect();
    if let Some(wanted) = wanted {
        finalizers.push(wanted.into());
    }
    if finalizers == current {
        return;
    }
    match (finalizers.is_empty(), value["metadata"].as_object_mut()) {
        (true, Some(metadata)) => {
            metadata.remove("finalizers");
        }
        _ => value["metadata"]["finalizers"] = Value::Array(finalizers),
    }
}
