//! Patches of the four kinds; server-side apply also creates.

use std::sync::Arc;

use serde_json::Value;

use super::create::{Creation, Tracking};
use super::identity::now;
use super::update::{Place, Wanted};
use super::{Api, FieldValidation, Intent, Name, Written};
use crate::go_json;
use crate::merge::managed;
use crate::merge::{json_patch, merge_patch, strategic};
use crate::resource::Resource;
use crate::schema::strict::duplicate_fields;
use crate::status::{FieldError, Status};

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
        let about_patch = patch_problems(kind, patch);
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
                let shown = |patched: &Value| match kind {
                    PatchKind::Strategic => go_json::go_map(&patch.value),
                    _ => patched.to_string(),
                };
                let value =
                    self.readmit(place, value, &shown, &about_patch, intent.validation, &mut warnings)?;
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
        shown: &dyn Fn(&Value) -> String,
        about_patch: &[String],
        validation: FieldValidation,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Status> {
        // In the words of a decoder that was handed the patched object as text.
        let refuse = |value: &Value, problem: &str| {
            let error = FieldError::invalid("patch", shown(value), problem);
            Err(Status::invalid("", "", "", &[error]))
        };
        let detail =
            |message: String| message.split_once(": ").map(|(_, rest)| rest.to_owned()).unwrap_or(message);
        if place.resource.is_builtin()
            && let Err(status) = place.resource.check_type(&mut value)
        {
            return refuse(&value, &detail(status.message));
        }
        if let Some(problem) = place.resource.decode_error(&value) {
            return refuse(&value, &detail(problem));
        }
        if validation == FieldValidation::Strict {
            let mut problems = about_patch.to_vec();
            problems.extend(place.resource.strict_problems(&value, None));
            if !problems.is_empty() {
                return refuse(&value, &format!("strict decoding error: {}", problems.join(", ")));
            }
        } else if validation == FieldValidation::Warn {
            warnings.extend_from_slice(about_patch);
        }
        self.admit_body(place.resource, place.namespace, &mut value, None, validation, warnings)?;
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Err(name_missing(place.name));
        }
        if name != place.name {
            return Err(Status::name_mismatch(name, place.name));
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
        let Creation { value, raw } = config;
        let mut warnings = Vec::new();
        let resource = place.resource;
        if intent.manager.is_empty() {
            return Err(apply_needs_manager());
        }
        // Fields that stand twice; unknown ones are refused by the merge itself.
        let duplicates = raw.as_deref().map(duplicate_fields).unwrap_or_default();
        intent.validation.judge(resource, duplicates, &mut warnings)?;
        match value["metadata"]["name"].as_str().unwrap_or_default() {
            // What is silent about its name has the name of what is there.
            "" if value["kind"].is_string()
                && (value["metadata"]["name"].is_string()
                    || self.store().get(&resource.storage, &place.named().key()).is_none()) =>
            {
                return Err(name_missing(place.name));
            }
            name if !name.is_empty() && name != place.name => {
                return Err(Status::name_mismatch(name, place.name));
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
            let value = self.complete(place, value)?;
            Ok(Wanted { value, tracking: Tracking::Done })
        })
        .await
    }

    /// An applied object is decoded like any other before it is written.
    fn complete(&self, place: Place<'_>, mut value: Value) -> Result<Value, Status> {
        if value["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
            value["metadata"]["name"] = place.name.into();
        }
        let mut warnings = Vec::new();
        self.admit_body(
            place.resource,
            place.namespace,
            &mut value,
            None,
            FieldValidation::Ignore,
            &mut warnings,
        )?;
        Ok(value)
    }

    async fn apply_new(
        &self,
        place: Place<'_>,
        config: &Value,
        force: bool,
        intent: &Intent,
    ) -> Result<Written, Status> {
        let resource = place.resource;
        if let Some(uid) = config["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let detail = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(&resource.group, &resource.plural, place.name, &detail));
        }
        let stamp = now();
        let value = managed::apply(&resource.managed(""), None, config, &intent.writer("", &stamp), force)?;
        let mut value = self.complete(place, value)?;
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.create_named(resource, place.namespace, value, intent, &stamp, Vec::new(), Tracking::Done).await
    }
}

/// What is odd about the patch itself: fields that stand twice, or that operations do not have.
fn patch_problems(kind: PatchKind, patch: &Creation) -> Vec<String> {
    let mut problems = Vec::new();
    if kind == PatchKind::Json {
        for (n, operation) in patch.value.as_array().into_iter().flatten().enumerate() {
            let keys = operation.as_object().into_iter().flatten().map(|(key, _)| key);
            let odd = keys.filter(|key| !matches!(key.as_str(), "op" | "path" | "from" | "value"));
            problems.extend(odd.map(|key| format!("json patch unknown field \"[{n}].{key}\"")));
        }
    } else if let Some(raw) = &patch.raw {
        problems.extend(duplicate_fields(raw));
    }
    problems
}

fn name_missing(expected: &str) -> Status {
    let detail =
        format!("the name of the object ({expected} based on URL) was undeterminable: name must be provided");
    Status::bad_request(detail)
}

fn apply_needs_manager() -> Status {
    Status::invalid(
        "meta.k8s.io",
        "PatchOptions",
        "",
        &[FieldError::required("fieldManager", "is required for apply patch")],
    )
}
