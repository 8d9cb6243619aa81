//! Creating an object: identity, defaults, rules, then one conditional write.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::identity::{generated_name, new_uid, now};
use super::{Api, Body, FieldValidation, Intent, Name, Written};
use crate::merge::managed;
use crate::resource::Resource;
use crate::status::Status;
use crate::store::{Change, Expect, Object, Write, WriteError};

/// Attempts at a free name before `generateName` gives up.
const NAME_ATTEMPTS: usize = 8;

/// An object on its way in.
#[derive(Debug)]
pub struct Creation {
    pub value: Value,
    /// The JSON it was read from, where there is one: duplicate fields show only there.
    pub raw: Option<Bytes>,
}

impl From<Value> for Creation {
    fn from(value: Value) -> Self {
        Self { value, raw: None }
    }
}

impl Api {
    pub async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: Option<&str>,
        creation: Creation,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let Creation { mut value, raw } = creation;
        let mut warnings = Vec::new();
        self.admit_body(resource, namespace, &mut value, raw.as_deref(), intent.validation, &mut warnings)?;
        let metadata = metadata_of(&mut value)?;
        if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|v| !v.is_empty()) {
            let detail = "resourceVersion should not be set on objects to be created";
            return Err(Status::new(StatusCode::INTERNAL_SERVER_ERROR, "", detail));
        }
        let generates = is_text(metadata.get("generateName")) && !is_text(metadata.get("name"));
        let attempts = if generates { NAME_ATTEMPTS } else { 1 };
        for attempt in 1.. {
            let (candidate, stamp) = (value.clone(), now());
            let result = self
                .create_named(
                    resource,
                    namespace,
                    candidate,
                    intent,
                    &stamp,
                    warnings.clone(),
                    Tracking::Update,
                )
                .await;
            match result {
                Err(taken) if taken.reason == "AlreadyExists" && attempt < attempts => {}
                other => return other,
            }
        }
        unreachable!("the loop returns within NAME_ATTEMPTS")
    }

    /// Checks that a body is meant for this resource and namespace, and completes its type and namespace.
    pub(super) fn admit_body(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        value: &mut Value,
        raw: Option<&[u8]>,
        validation: FieldValidation,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        resource.check_type(value)?;
        if let Some(problem) = resource.decode_error(value) {
            return Err(Status::bad_request(problem));
        }
        if validation != FieldValidation::Ignore {
            validation.judge(resource, resource.strict_problems(value, raw), warnings)?;
        }
        resource.prune(value)?;
        let metadata = metadata_of(value)?;
        let said = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        match namespace {
            Some(namespace) if said.is_empty() => {
                metadata.insert("namespace".into(), namespace.into());
            }
            Some(namespace) if said != namespace => {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            None if resource.is_builtin() && !said.is_empty() && !resource.namespaced => {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            None if !resource.namespaced => {
                metadata.remove("namespace");
            }
            _ => {}
        }
        Ok(())
    }

    /// One attempt at a name, which is made here if the object says only how it begins.
    #[allow(clippy::too_many_arguments, reason = "one step of a pipeline; every part is needed and named")]
    pub(super) async fn create_named(
        &self,
        resource: &Arc<Resource>,
        namespace: Option<&str>,
        mut value: Value,
        intent: &Intent,
        stamp: &str,
        warnings: Vec<String>,
        tracking: Tracking,
    ) -> Result<Written, Status> {
        forget_history(&mut value);
        resource.defaults(&mut value);
        if tracking == Tracking::Update {
            managed::on_update(&resource.managed(""), None, &mut value, &intent.writer("", stamp));
        }
        let asked = admission_name(&value).to_owned();
        self.check_namespace(resource, &Name { namespace, name: &asked }, true)?;
        stamp_identity(&mut value, stamp);
        self.admit(resource, &asked, &mut value)?;
        let name = complete_name(&mut value);
        let place = Name { namespace, name: &name };
        resource.prepare_create(&mut value, stamp);
        let errors = resource.validate(&value);
        self.invalid(resource, &name, &errors)?;
        self.allocate(resource, &mut value, None, intent.dry_run)?;
        if intent.dry_run {
            return match self.store().get(&resource.storage, &place.key()) {
                Some(existing) => Err(taken(resource, &existing)),
                None => Ok(Written { body: Body::Fresh(value), created: true, warnings }),
            };
        }
        let undo = (&*resource.storage == "services").then(|| value.clone());
        let write = Write {
            table: resource.storage.clone(),
            key: place.key(),
            expect: Expect::Absent,
            change: Change::Put(resource.for_storage(value)),
        };
        let result = self.store().write(write).await;
        if let (Err(_), Some(service)) = (&result, undo) {
            self.inner.addresses.release(&service);
        }
        match result {
            Ok(object) => Ok(Written { body: Body::Stored(object), created: true, warnings }),
            Err(WriteError::Raced(Some(existing))) => Err(taken(resource, &existing)),
            Err(WriteError::Raced(None)) => {
                Err(Status::already_exists(&resource.group, &resource.plural, &name))
            }
            Err(WriteError::Storage(reason)) => Err(Status::internal(reason)),
        }
    }
}

/// Whether managed fields are still to be computed, or came with server-side apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    Update,
    Done,
}

/// `metadata` as an object; a body without one gets an empty one.
pub(super) fn metadata_of(value: &mut Value) -> Result<&mut Map<String, Value>, Status> {
    if value["metadata"].is_null() {
        value["metadata"] = json!({});
    }
    value["metadata"].as_object_mut().ok_or_else(|| Status::bad_request("metadata must be an object"))
}

fn taken(resource: &Resource, existing: &Object) -> Status {
    let mut status = Status::already_exists(&resource.group, &resource.plural, existing.name());
    if existing.deleting {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

/// A new object has no past, whatever its body says.
fn forget_history(value: &mut Value) {
    let Some(metadata) = value["metadata"].as_object_mut() else { return };
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.remove(key);
    }
}

/// What only the server may say about a new object.
fn stamp_identity(value: &mut Value, stamp: &str) {
    let Some(metadata) = value["metadata"].as_object_mut() else { return };
    metadata.insert("uid".into(), new_uid().into());
    metadata.insert("creationTimestamp".into(), stamp.into());
}

fn is_text(value: Option<&Value>) -> bool {
    value.and_then(Value::as_str).is_some_and(|text| !text.is_empty())
}

/// How admission, which comes before a name is made, calls an object that it refuses.
fn admission_name(value: &Value) -> &str {
    let metadata = &value["metadata"];
    let said = |key: &str| metadata[key].as_str().filter(|text| !text.is_empty());
    said("name").or_else(|| said("generateName")).unwrap_or("Unknown")
}

/// The name of a new object, made from `generateName` if it has none yet.
fn complete_name(value: &mut Value) -> String {
    let metadata = &mut value["metadata"];
    if !is_text(metadata.get("name")) && is_text(metadata.get("generateName")) {
        metadata["name"] = generated_name(metadata["generateName"].as_str().unwrap_or_default()).into();
    }
    metadata["name"].as_str().unwrap_or_default().to_owned()
}
