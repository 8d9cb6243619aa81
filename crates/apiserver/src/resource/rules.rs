//! What a kind does with its objects on their way into the store: defaults, preparation, validation, deletion.

use serde_json::{Value, json};

use super::{Origin, Resource};
use crate::api::now;
use crate::schema;
use crate::status::FieldError;

impl Resource {
    /// The defaults of the kind.
    pub(crate) fn defaults(&self, value: &mut Value) {
        match &self.origin {
            Origin::Builtin { kind, .. } => {
                kind.decode(value);
                if self.is_definition() {
                    schema::crd::default_crd(value);
                }
            }
            Origin::Custom(custom) => schema::apply_defaults(&custom.schema, value),
        }
    }

    /// What admission adds to a new object.
    pub(crate) fn admit(&self, value: &mut Value) {
        if let Some(kind) = self.kind_part() {
            kind.admit_create(value);
        }
    }

    /// What admission adds to a changed object.
    pub(crate) fn admit_update(&self, new: &mut Value, old: &Value) {
        if let Some(kind) = self.kind_part() {
            kind.admit_update(new, old);
        }
    }

    pub(crate) fn prepare_create(&self, value: &mut Value, now: &str) {
        match &self.origin {
            Origin::Builtin { kind, .. } => {
                kind.prepare_create(value, now);
                if self.is_definition()
                    && let Some(stored) = schema::crd::storage_version(value)
                {
                    value["status"]["storedVersions"] = json!([stored]);
                }
            }
            Origin::Custom(custom) => custom.prepare_create(value),
        }
    }

    pub(crate) fn prepare_update(&self, new: &mut Value, old: &Value) {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind.prepare_update(new, old),
            Origin::Custom(custom) => custom.prepare_update(new, old),
        }
    }

    /// Through `finalize`, a namespace changes in nothing but what holds it.
    pub(crate) fn prepare_finalize(&self, new: &mut Value, old: &Value) {
        let finalizers = new["spec"]["finalizers"].take();
        let (managed, version) =
            (new["metadata"]["managedFields"].take(), new["metadata"]["resourceVersion"].take());
        *new = old.clone();
        new["metadata"]["managedFields"] = managed;
        new["metadata"]["resourceVersion"] = version;
        match finalizers.as_array().is_some_and(|list| !list.is_empty()) {
            true => new["spec"]["finalizers"] = finalizers,
            false => new["spec"] = json!({}),
        }
    }

    pub(crate) fn prepare_status(&self, new: &mut Value, old: &Value) {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind.prepare_status_update(new, old, &now()),
            Origin::Custom(custom) => custom.prepare_status(new, old),
        }
    }

    pub(crate) fn validate(&self, value: &Value) -> Vec<FieldError> {
        match &self.origin {
            Origin::Builtin { kind, .. } => {
                let mut errors = kind.validate(value);
                if self.is_definition() {
                    errors.extend(schema::crd::validate_crd(value, None));
                }
                errors
            }
            Origin::Custom(custom) => custom.validate(value, self.namespaced),
        }
    }

    pub(crate) fn validate_update(&self, new: &Value, old: &Value, subresource: &str) -> Vec<FieldError> {
        match &self.origin {
            Origin::Builtin { kind, .. } if subresource == "status" => kind.validate_status_update(new, old),
            Origin::Builtin { .. } if matches!(subresource, "finalize" | "binding") => Vec::new(),
            Origin::Builtin { kind, .. } => {
                let mut errors = kind.validate_update(new, old);
                if self.is_definition() {
                    errors.extend(schema::crd::validate_crd(new, Some(old)));
                }
                errors
            }
            Origin::Custom(custom) => custom.validate_update(new, old, subresource, self.namespaced),
        }
    }

    pub(crate) fn is_definition(&self) -> bool {
        self.kind == "CustomResourceDefinition" && self.group == "apiextensions.k8s.io"
    }

    pub(crate) fn is_namespace(&self) -> bool {
        &*self.storage == "namespaces"
    }

    /// A namespace goes only once its contents have.
    pub(crate) fn is_held_by_content(&self, value: &Value) -> bool {
        self.is_namespace() && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
    }

    pub(crate) fn unconditional_update(&self) -> bool {
        self.kind_part().is_some_and(|kind| kind.unconditional_update)
    }

    pub(crate) fn creates_on_update(&self) -> bool {
        self.kind_part().is_some_and(|kind| kind.create_on_update)
    }

    /// What users of a kind that is on its way out are told.
    pub(crate) fn deprecation(&self) -> Option<&'static str> {
        (self.is_builtin() && self.kind == "Endpoints")
            .then_some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
    }

    /// The group that messages about the kind name: both views of events speak as the core one.
    pub(crate) fn spoken_group(&self) -> &str {
        if self.is_view() { "" } else { &self.group }
    }

    /// Kinds whose DELETE answers with the object instead of a Status.
    pub(crate) fn returns_deleted(&self) -> bool {
        const RETURNED: [&str; 8] = [
            "storageclasses",
            "resourcequotas",
            "persistentvolumes",
            "serviceaccounts",
            "persistentvolumeclaims",
            "pods",
            "services",
            "podtemplates",
        ];
        self.is_builtin() && (RETURNED.contains(&self.plural.as_str()) || self.is_namespace())
    }

    pub(crate) fn orphans_by_default(&self) -> bool {
        self.group == "batch" && self.kind == "Job"
    }

    /// Pods are told to stop and given time to.
    pub(crate) fn deletes_gracefully(&self) -> bool {
        &*self.storage == "pods"
    }

    /// Seconds between the mark and the end; only Pods on a node need any.
    pub(crate) fn deletion_grace(&self, value: &Value, asked: Option<i64>) -> i64 {
        let finished = matches!(value["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let placed = value["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        if !self.deletes_gracefully() || finished || !placed {
            return 0;
        }
        let wanted = asked.or_else(|| value["spec"]["terminationGracePeriodSeconds"].as_i64());
        // A negative time is taken for the shortest.
        wanted.map_or(0, |seconds| if seconds < 0 { 1 } else { seconds })
    }
}
