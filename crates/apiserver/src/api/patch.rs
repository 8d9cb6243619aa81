//! Patches of the four kinds; server-side apply also creates.

use std::sync::Arc;

use serde_json::Value;

use super::create::{Creation, Tracking};
use super::identity::now;
use super::update::{Place, Wanted};
use super::{Api, FieldValidation, Intent, Name, Written};
use crate::merge::managed;
use crate::merge::{json_patch, merge_patch, strategic};
use crate::resource::Resource;
use crate::status::Status;

/// How a patch says what to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply { force: bool },
}

impl Api {
    pub async fn patch(
        &self,
        resource: &Arc<Resource>,
        named: &Name<'_>,
        subresource: &str,
        kind: PatchKind,
        patch: Creation,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let place = Place { resource, namespace: named.namespace, name: named.name, subresource };
        match kind {
            PatchKind::Apply { force } => self.apply(place, patch, force, intent).await,
            kind => self.patch_existing(place, kind, &patch, intent).await,
        }
    }

    async fn patch_existing(
        &self,
        place: Place<'_>,
        kind: PatchKind,
        patch: &Creation,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let mut warnings = Vec::new();
        let mut written = self
            .change(place, intent, |old| {
                warnings.clear();
                let value = match kind {
                    PatchKind::Json => json_patch::apply(old, &patch.value)?,
                    PatchKind::Merge => merge_patch::apply(old, &patch.value)?,
                    PatchKind::Strategic | PatchKind::Apply { .. } => {
                        strategic::apply(place.resource.schema(), old, &patch.value)?
                    }
                };
                let value = self.readmit(place, value, intent.validation, &mut warnings)?;
                Ok(Wanted { value, tracking: Tracking::Update })
            })
            .await?;
        written.warnings.append(&mut warnings);
        Ok(written)
    }

    /// What a patch made of an object must be an object of the same kind and name.
    fn readmit(
        &self,
        place: Place<'_>,
        mut value: Value,
        validation: FieldValidation,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Status> {
        self.admit_body(place.resource, place.namespace, &mut value, None, validation, warnings)?;
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        if name != place.name {
            let detail = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                place.name
            );
            return Err(Status::bad_request(detail));
        }
        Ok(value)
    }

    async fn apply(
        &self,
        place: Place<'_>,
        config: Creation,
        force: bool,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let Creation { mut value, raw } = config;
        let mut warnings = Vec::new();
        let resource = place.resource;
        if intent.manager.is_empty() {
            return Err(apply_needs_manager());
        }
        self.admit_body(resource, place.namespace, &mut value, raw.as_deref(), intent.validation, &mut warnings)?;
        let metadata = super::create::metadata_of(&mut value)?;
        match metadata.get("name").and_then(Value::as_str).unwrap_or_default() {
            "" => {
                metadata.insert("name".into(), place.name.into());
            }
            name if name != place.name => {
                return Err(Status::bad_request(format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    place.name
                )));
            }
            _ => {}
        }
        loop {
            let exists = self.store().get(&resource.storage, &place.named().key()).is_some();
            let mut written = if exists {
                self.apply_over(place, &value, force, intent).await
            } else if place.subresource.is_empty() {
                self.apply_new(place, &value, force, intent).await
            } else {
                Err(Status::not_found(&resource.group, &resource.plural, place.name))
            };
            match &mut written {
                // Created or deleted by somebody else meanwhile: look again.
                Err(status) if !exists && status.reason == "AlreadyExists" => continue,
                Ok(written) => written.warnings.append(&mut warnings),
                Err(_) => {}
            }
            return written;
        }
    }

    async fn apply_over(
        &self,
        place: Place<'_>,
        config: &Value,
        force: bool,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let resource = place.resource;
        self.change(place, intent, |old| {
            let stamp = now();
            let writer = intent.writer(place.subresource, &stamp);
            let kind = resource.managed(place.subresource);
            let value = managed::apply(&kind, Some(old), config, &writer, force)?;
            Ok(Wanted { value, tracking: Tracking::Done })
        })
        .await
    }

    async fn apply_new(
        &self,
        place: Place<'_>,
        config: &Value,
        force: bool,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let resource = place.resource;
        if config["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()) {
            return Err(Status::modified(&resource.group, &resource.plural, place.name));
        }
        let stamp = now();
        let value = managed::apply(&resource.managed(""), None, config, &intent.writer("", &stamp), force)?;
        self.create_named(resource, place.namespace, value, intent, &stamp, Vec::new(), Tracking::Done).await
    }
}

fn apply_needs_manager() -> Status {
    Status::invalid(
        "meta.k8s.io",
        "PatchOptions",
        "",
        &[crate::status::FieldError::required("fieldManager", "is required for apply patch")],
    )
}
