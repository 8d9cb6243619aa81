//! Changing an object: what a PUT or a patch wants, reconciled with what the server keeps for itself.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::create::{Tracking, metadata_of};
use super::identity::now;
use super::{Api, Body, Creation, Intent, Name, Written};
use crate::merge::managed;
use crate::resource::Resource;
use crate::status::{FieldError, Status};
use crate::store::{Change, Expect, Object, Write, WriteError};

/// Attempts of a write that others keep overtaking, before it gives up as in conflict.
const ATTEMPTS: usize = 64;

/// A change to one object, through its main endpoint or a subresource.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) resource: &'a Arc<Resource>,
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
    /// Empty for the object itself.
    pub(super) subresource: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn named(&self) -> Name<'a> {
        Name { namespace: self.namespace, name: self.name }
    }

    fn conflict(&self) -> Status {
        Status::modified(&self.resource.group, &self.resource.plural, self.name)
    }
}

/// What a change wants the object to be.
pub(super) struct Wanted {
    pub(super) value: Value,
    pub(super) tracking: Tracking,
}

impl Api {
    /// PUT of a whole object.
    pub async fn update(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        subresource: &str,
        body: Creation,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let Creation { mut value, raw } = body;
        let mut warnings = Vec::new();
        self.admit_body(
            resource,
            named.namespace,
            &mut value,
            raw.as_deref(),
            intent.validation,
            &mut warnings,
        )?;
        check_name(&mut value, named.name)?;
        let place = Place { resource, namespace: named.namespace, name: named.name, subresource };
        let exists = self.store().get(&resource.storage, &named.key()).is_some();
        if !exists && subresource.is_empty() && resource.creates_on_update() {
            let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if !matches!(version, "" | "0") {
                return Err(place.conflict());
            }
            let stamp = now();
            return self
                .create_named(resource, named.namespace, value, intent, &stamp, warnings, Tracking::Update)
                .await;
        }
        let mut written = self
            .change(place, intent, |old| {
                check_uid(place, old, &value)?;
                Ok(Wanted { value: value.clone(), tracking: Tracking::Update })
            })
            .await?;
        written.warnings.extend(warnings);
        Ok(written)
    }

    /// Computes a change from the object as it is and writes it, again if somebody else wrote in between.
    pub(super) async fn change(
        &self,
        place: Place<'_>,
        intent: &Intent,
        mut want: impl FnMut(&Value) -> Result<Wanted, Status>,
    ) -> Result<Written, Status> {
        for _ in 0..ATTEMPTS {
            let live = self.find(place.resource, &place.named())?;
            let old = place.resource.typed(&live);
            let Wanted { value: mut new, tracking } = want(&old)?;
            self.settle(place, &live, &old, &mut new, intent, tracking)?;
            managed::revert_times(&old, &mut new);
            if new == old {
                return Ok(Written { body: Body::Stored(live), created: false, warnings: Vec::new() });
            }
            self.allocate(place.resource, &mut new, Some(&old), intent.dry_run)?;
            if intent.dry_run {
                return Ok(Written { body: Body::Fresh(new), created: false, warnings: Vec::new() });
            }
            // The change that ends an object is never stored: watchers see its last state, the caller the change.
            let last_words = finished(place.resource, &new).then(|| new.clone());
            let change = match last_words {
                Some(_) => Change::Delete(live.value()),
                None => Change::Put(place.resource.for_storage(new)),
            };
            let write = Write {
                table: place.resource.storage.clone(),
                key: place.named().key(),
                expect: Expect::At(live.revision),
                change,
            };
            match self.store().write(write).await {
                Ok(object) => {
                    if last_words.is_some() {
                        self.released(place.resource, &object);
                    }
                    let body = last_words.map_or(Body::Stored(object), Body::Fresh);
                    return Ok(Written { body, created: false, warnings: Vec::new() });
                }
                // Who named a version finds it outdated in the next round; a patch applies to what is there then.
                Err(WriteError::Raced(_)) => {}
                Err(WriteError::Storage(reason)) => return Err(Status::internal(reason)),
            }
        }
        Err(place.conflict())
    }

    /// Turns what the caller wants into what is stored.
    fn settle(
        &self,
        place: Place<'_>,
        live: &Object,
        old: &Value,
        new: &mut Value,
        intent: &Intent,
        tracking: Tracking,
    ) -> Result<(), Status> {
        let resource = place.resource;
        check_version(place, live, new)?;
        keep_identity(place, old, new)?;
        resource.defaults(new);
        if tracking == Tracking::Update {
            let stamp = now();
            let writer = intent.writer(place.subresource, &stamp);
            managed::on_update(&resource.managed(place.subresource), Some(old), new, &writer);
        }
        match place.subresource {
            "status" => resource.prepare_status(new, old),
            "finalize" => resource.prepare_finalize(new, old),
            "binding" => {}
            _ => {
                resource.admit_update(new, old);
                resource.prepare_update(new, old);
            }
        }
        let errors = resource.validate_update(new, old, place.subresource);
        self.invalid(resource, place.name, &errors)?;
        Ok(())
    }
}

fn check_name(value: &mut Value, expected: &str) -> Result<(), Status> {
    let metadata = metadata_of(value)?;
    match metadata.get("name").and_then(Value::as_str).unwrap_or_default() {
        "" => Err(Status::bad_request("name must be provided")),
        name if name != expected => Err(Status::name_mismatch(name, expected)),
        _ => Ok(()),
    }
}

/// A change that names a uid means the object that has it.
pub(super) fn check_uid(place: Place<'_>, old: &Value, new: &Value) -> Result<(), Status> {
    check_precondition(place, old, new, "uid", "UID")
}

/// What the caller says about the object's identity must be so; what it does not say may be anything.
pub(super) fn check_precondition(
    place: Place<'_>,
    old: &Value,
    new: &Value,
    key: &str,
    shown: &str,
) -> Result<(), Status> {
    let text = |value: &Value| value["metadata"][key].as_str().unwrap_or_default().to_owned();
    let (said, actual) = (text(new), text(old));
    if said.is_empty() || said == actual {
        return Ok(());
    }
    let resource = place.resource;
    let detail = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: {shown} in precondition: {said}, {shown} in object meta: {actual}",
        resource.plural,
        place.named().key()
    );
    Err(Status::conflict(&resource.group, &resource.plural, place.name, &detail))
}

/// A change that names a version applies to that version only.
fn check_version(place: Place<'_>, live: &Object, new: &mut Value) -> Result<(), Status> {
    let resource = place.resource;
    let metadata = metadata_of(new)?;
    let said = metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let current = live.revision.to_string();
    match said.as_str() {
        "" | "0" if resource.unconditional_update() => {
            metadata.insert("resourceVersion".into(), current.into());
            Ok(())
        }
        "" | "0" => {
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            Err(Status::invalid(&resource.group, &resource.plural, place.name, &[error]))
        }
        version if version == current => Ok(()),
        version if version.parse::<u64>().is_err() => {
            let detail = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            Err(Status::new(StatusCode::INTERNAL_SERVER_ERROR, "", detail))
        }
        _ => Err(place.conflict()),
    }
}

/// Carries over what no caller may change and few callers send.
fn keep_identity(place: Place<'_>, old: &Value, new: &mut Value) -> Result<(), Status> {
    let metadata = metadata_of(new)?;
    metadata.remove("selfLink");
    carry(metadata, old, "creationTimestamp");
    for key in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let said = metadata.get(key).is_some_and(|v| !v.is_null() && v.as_str() != Some(""));
        if !said {
            carry(metadata, old, key);
        }
    }
    carry(metadata, old, "generation");
    if !metadata.contains_key("name") {
        metadata.insert("name".into(), place.name.into());
    }
    Ok(())
}

fn carry(metadata: &mut serde_json::Map<String, Value>, old: &Value, key: &str) {
    match old["metadata"].get(key) {
        Some(value) => metadata.insert(key.into(), value.clone()),
        None => metadata.remove(key),
    };
}

/// An object that is being deleted is gone once nothing holds it back.
pub(super) fn finished(resource: &Resource, value: &Value) -> bool {
    let metadata = &value["metadata"];
    let held = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    metadata["deletionTimestamp"].is_string() && !held && !resource.is_held_by_content(value) && grace == 0
}
