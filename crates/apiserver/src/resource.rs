//! One resource as it is served: the same questions answered for built-in kinds and for custom ones.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::api::{Body, now};
use crate::builtin::{self, Kind, KINDS, events, shape};
use crate::custom::Custom;
use crate::merge::{FieldSet, blank, managed};
use crate::request::Selection;
use crate::schema::{self, Definitions, Link, Schema};
use crate::status::{FieldError, Status};
use crate::store::Object;
use crate::table;

/// The table that both groups' events are in.
const EVENTS: &str = "events";

/// A group, version and plural that objects are served under.
pub struct Resource {
    pub group: String,
    pub version: String,
    /// `v1` or `apps/v1`.
    pub api_version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// The table that holds the objects; several versions share one.
    pub storage: Arc<str>,
    /// `{"kind":…,"apiVersion":…,` as it goes before a stored object.
    prefix: Bytes,
    blank: OnceLock<Value>,
    origin: Origin,
    reset_main: FieldSet,
    reset_status: FieldSet,
}

enum Origin {
    Builtin { kind: &'static Kind, schema: OnceLock<Link> },
    Custom(Custom),
}

/// An endpoint below an object.
pub struct Subresource<'a> {
    pub name: &'a str,
    /// Empty where it is the resource's own.
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub verbs: Vec<&'a str>,
}

impl Resource {
    /// Every built-in resource.
    pub(crate) fn builtin() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|kind| {
            let origin = Origin::Builtin { kind, schema: OnceLock::new() };
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
            Self {
                group: kind.group.into(),
                version: kind.version.into(),
                api_version: kind.api_version(),
                kind: kind.kind.into(),
                list_kind: format!("{}List", kind.kind),
                plural: kind.plural.into(),
                singular: kind.singular.into(),
                short_names: texts(kind.short_names),
                categories: texts(kind.categories),
                namespaced: kind.namespaced,
                storage: kind.storage.into(),
                prefix: prefix(&kind.api_version(), kind.kind),
                blank: OnceLock::new(),
                reset_main: if kind.status.is_some() { FieldSet::of_fields(&[&["status"]]) } else { FieldSet::new() },
                reset_status: FieldSet::of_fields(unowned_on_status(kind)),
                origin,
            }
        })
    }

    /// The served versions of a CustomResourceDefinition.
    pub(crate) fn custom(definition_name: &str, definition: &Value) -> Vec<Self> {
        let spec = &definition["spec"];
        let names = &spec["names"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().map(text).collect() };
        let group = text(&spec["group"]);
        let versions = spec["versions"].as_array().into_iter().flatten().filter(|v| v["served"] == true);
        versions
            .map(|version| {
                let api_version = format!("{group}/{}", text(&version["name"]));
                let kind = text(&names["kind"]);
                let custom = Custom::new(definition_name, definition, version);
                let (reset_main, reset_status) = custom.reset_fields();
                Self {
                    group: group.clone(),
                    version: text(&version["name"]),
                    prefix: prefix(&api_version, &kind),
                    api_version,
                    kind,
                    list_kind: text(&names["listKind"]),
                    plural: text(&names["plural"]),
                    singular: text(&names["singular"]),
                    short_names: texts(&names["shortNames"]),
                    categories: texts(&names["categories"]),
                    namespaced: spec["scope"] == "Namespaced",
                    storage: format!("custom/{definition_name}").into(),
                    blank: OnceLock::new(),
                    reset_main,
                    reset_status,
                    origin: Origin::Custom(custom),
                }
            })
            .collect()
    }

    pub fn is_builtin(&self) -> bool {
        matches!(self.origin, Origin::Builtin { .. })
    }

    fn custom_part(&self) -> Option<&Custom> {
        match &self.origin {
            Origin::Custom(custom) => Some(custom),
            Origin::Builtin { .. } => None,
        }
    }

    fn kind_part(&self) -> Option<&'static Kind> {
        match &self.origin {
            Origin::Builtin { kind, .. } => Some(kind),
            Origin::Custom(_) => None,
        }
    }

    /// Whether a CustomResourceDefinition of this name made the resource.
    pub(crate) fn is_defined_by(&self, definition: &str) -> bool {
        self.custom_part().is_some_and(|custom| custom.definition == definition)
    }

    pub fn schema(&self) -> &Schema {
        match &self.origin {
            Origin::Builtin { kind, schema } => {
                schema.get_or_init(|| Definitions::builtin().get(kind.definition).unwrap_or_else(anything)).get()
            }
            Origin::Custom(custom) => &custom.schema,
        }
    }

    /// The name of a built-in kind's schema.
    pub(crate) fn definition(&self) -> Option<&'static str> {
        self.kind_part().map(|kind| kind.definition)
    }

    /// The schema of a custom kind as it was written.
    pub(crate) fn openapi(&self) -> Option<Value> {
        self.custom_part().map(Custom::openapi)
    }

    /// Changes when the schema does.
    pub(crate) fn schema_revision(&self) -> String {
        self.custom_part().map(Custom::revision).unwrap_or_default()
    }

    pub(crate) fn storage_version_hash(&self) -> Option<String> {
        match &self.origin {
            Origin::Builtin { kind, .. } => Some(kind.storage_hash.to_owned()).filter(|hash| !hash.is_empty()),
            Origin::Custom(_) => Some(self.hash_of_names()),
        }
    }

    fn hash_of_names(&self) -> String {
        use base64::Engine;
        let id = format!("{}/{}/{}", self.group, self.version, self.kind);
        let hash = ring::digest::digest(&ring::digest::SHA256, id.as_bytes());
        base64::engine::general_purpose::STANDARD.encode(&hash.as_ref()[..8])
    }

    // What is served.

    pub(crate) fn verbs(&self) -> Vec<&'static str> {
        match self.kind_part() {
            Some(kind) => kind.verbs.to_vec(),
            None => vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        }
    }

    pub(crate) fn deletes_collections(&self) -> bool {
        self.verbs().contains(&"deletecollection")
    }

    pub(crate) fn subresources(&self) -> Vec<Subresource<'_>> {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind
                .subresources
                .iter()
                .map(|sub| {
                    let (group, version) = sub.group_version.unwrap_or_default();
                    Subresource { name: sub.name, group, version, kind: sub.kind, verbs: sub.verbs.to_vec() }
                })
                .collect(),
            Origin::Custom(custom) => custom.subresources(&self.kind),
        }
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind.subresources.iter().any(|sub| sub.name == name),
            Origin::Custom(custom) => custom.has_subresource(name),
        }
    }

    // From the wire.

    /// The body must be of this kind; a body that does not say is taken to be.
    pub(crate) fn check_type(&self, value: &mut Value) -> Result<(), Status> {
        let Some(object) = value.as_object_mut() else {
            return Err(Status::bad_request("the body is not an object"));
        };
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        match self.is_builtin() {
            true => self.check_builtin_type(&api_version, &kind)?,
            false => self.check_custom_type(&api_version, &kind, &object["metadata"]["name"])?,
        }
        object.insert("apiVersion".into(), self.api_version.as_str().into());
        object.insert("kind".into(), self.kind.as_str().into());
        Ok(())
    }

    /// A built-in kind that does not say what it is, is taken for what was asked.
    fn check_builtin_type(&self, api_version: &str, kind: &str) -> Result<(), Status> {
        let said_version = if api_version.is_empty() { &self.api_version } else { api_version };
        let said_kind = if kind.is_empty() { &self.kind } else { kind };
        if said_version == self.api_version && said_kind == self.kind {
            return Ok(());
        }
        let version = said_version.rsplit('/').next().unwrap_or_default();
        // Lists are kinds too.
        let element = said_kind.strip_suffix("List").unwrap_or(said_kind);
        let known = builtin::by_kind(said_version, said_kind)
            .or_else(|| builtin::by_kind(said_version, element))
            .or_else(|| builtin::by_kind(said_version, "ConfigMap").filter(|_| said_kind == "List"));
        let shared = said_version == "v1" && matches!(said_kind, "Status" | "APIVersions" | "APIResourceList" | "APIGroup");
        let problem = match known {
            None if old_version(&self.group, said_version) && said_kind == self.kind => {
                return Err(Status::bad_request(format!(
                    "the API version in the data ({said_version}) does not match the expected API version ({})",
                    self.api_version
                )));
            }
            _ if known.is_some() || shared => {
                let internal = if self.group.is_empty() { "core" } else { self.group.split('.').next().unwrap_or_default() };
                format!("converting ({version}.{said_kind}) to ({internal}.{}): unknown conversion", self.kind)
            }
            _ => format!(
                "no kind {said_kind:?} is registered for version {said_version:?} in scheme \"pkg/runtime/scheme.go:111\""
            ),
        };
        Err(Status::bad_request(format!(
            "{said_kind} in version {version:?} cannot be handled as a {}: {problem}",
            self.kind
        )))
    }

    fn check_custom_type(&self, api_version: &str, kind: &str, name: &Value) -> Result<(), Status> {
        if api_version != self.api_version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                self.api_version
            )));
        }
        if kind == self.kind {
            return Ok(());
        }
        let error = FieldError::invalid("kind", kind, format!("must be {}", self.kind));
        Err(Status::invalid(&self.group, kind, name.as_str().unwrap_or_default(), &[error]))
    }

    /// The body cannot be read as an object of this kind.
    pub(crate) fn unrecognized(&self, problem: &str, body: &[u8]) -> Status {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {problem} ({})",
            self.kind,
            summary(body)
        ))
    }

    pub(crate) fn decode_error(&self, value: &Value) -> Option<String> {
        match &self.origin {
            Origin::Builtin { .. } => schema::decode_error(&self.kind, &self.version, self.schema(), value),
            Origin::Custom(_) => None,
        }
    }

    /// Unknown and duplicate fields, in the words of the strict decoder.
    pub(crate) fn strict_problems(&self, value: &Value, raw: Option<&[u8]>) -> Vec<String> {
        let unknown =
            || schema::unknown_fields(self.schema(), value).into_iter().map(|path| format!("unknown field {path:?}"));
        match (&self.origin, raw) {
            (Origin::Builtin { .. }, Some(raw)) => schema::strict::strict_errors(self.schema(), raw),
            (Origin::Builtin { .. }, None) => unknown().collect(),
            (Origin::Custom(_), raw) => {
                let mut problems = raw.map(schema::strict::duplicate_fields).unwrap_or_default();
                problems.extend(unknown());
                problems
            }
        }
    }

    pub(crate) fn strict_decoding_error(&self, problems: &[String]) -> String {
        let list = problems.join(", ");
        match self.is_builtin() {
            true => format!("{} in version {:?} cannot be handled as a {}: strict decoding error: {list}", self.kind, self.version, self.kind),
            false => format!("{} in version {:?} cannot be handled as a {}: strict decoding error: {list}", self.kind, self.version, self.kind),
        }
    }

    /// Drops what the schema does not know and brings the rest into canonical form.
    pub(crate) fn prune(&self, value: &mut Value) -> Result<(), Status> {
        if self.custom_part().is_some() {
            schema::objectmeta::coerce(self.schema(), value).map_err(|problem| {
                Status::bad_request(format!(
                    "{} in version {:?} cannot be handled as a {}: {problem}",
                    self.kind, self.version, self.kind
                ))
            })?;
        }
        schema::prune(self.schema(), value);
        Ok(())
    }

    // Rules.

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
        let (managed, version) = (new["metadata"]["managedFields"].take(), new["metadata"]["resourceVersion"].take());
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

    // Who owns which field.

    pub(crate) fn managed(&self, subresource: &str) -> managed::Kind<'_> {
        managed::Kind {
            api_version: &self.api_version,
            kind: &self.kind,
            schema: match &self.origin {
                Origin::Builtin { .. } => self.schema(),
                Origin::Custom(custom) => &custom.merge_schema,
            },
            blank: self.blank.get_or_init(|| self.unwritten()),
            reset: if subresource == "status" { &self.reset_status } else { &self.reset_main },
        }
    }

    /// What an object has before anybody writes it.
    fn unwritten(&self) -> Value {
        let definition = |name: &str| serde_json::from_str(Definitions::builtin().text(name)?).ok();
        self.definition().map_or_else(|| json!({}), |name| blank(&definition, name))
    }

    // To the wire and to the store.

    /// A stored object as this version shows it.
    pub fn typed(&self, object: &Object) -> Value {
        self.typed_value(object.value())
    }

    pub(crate) fn typed_body(&self, body: Body) -> Value {
        match body {
            Body::Stored(object) => self.typed(&object),
            Body::Fresh(value) => value,
        }
    }

    pub(crate) fn typed_value(&self, mut value: Value) -> Value {
        if self.is_view() {
            events::to_events_v1(&mut value);
        }
        value["apiVersion"] = self.api_version.as_str().into();
        value["kind"] = self.kind.as_str().into();
        if let Some(custom) = self.custom_part() {
            custom.default_on_read(&mut value);
        }
        value
    }

    /// Stored objects do not say what they are: their table does.
    pub(crate) fn for_storage(&self, mut value: Value) -> Value {
        if self.is_view() {
            events::to_core(&mut value);
        }
        if let Some(object) = value.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
        }
        value
    }

    /// `events.k8s.io` shows core events under other field names.
    fn is_view(&self) -> bool {
        self.group == "events.k8s.io"
    }

    /// Whether stored bytes cannot be sent as they are.
    fn needs_decoding(&self) -> bool {
        self.is_view() || self.custom_part().is_some_and(Custom::defaults_on_read)
    }

    pub(crate) fn write_typed(&self, object: &Object, out: &mut BytesMut) {
        if self.needs_decoding() {
            let value = self.typed(object);
            serde_json::to_writer(out.writer(), &value).expect("JSON values encode into memory");
            return;
        }
        out.reserve(self.prefix.len() + object.json.len());
        out.put_slice(&self.prefix);
        out.put_slice(&object.json[1..]);
    }

    /// An object inside a list: built-in kinds leave out what the list already says.
    pub(crate) fn write_item(&self, object: &Object, out: &mut BytesMut) {
        if self.is_builtin() && !self.is_view() {
            out.put_slice(&object.json);
        } else if self.is_builtin() {
            let mut value = object.value();
            events::to_events_v1(&mut value);
            if let Some(object) = value.as_object_mut() {
                object.remove("apiVersion");
                object.remove("kind");
            }
            serde_json::to_writer(out.writer(), &value).expect("JSON values encode into memory");
        } else {
            self.write_typed(object, out);
        }
    }

    /// Built-in kinds send bookmarks with the empty parts that their Go types always write.
    pub(crate) fn bookmark_shape(&self, mut object: Value) -> Value {
        if let Some(kind) = self.kind_part() {
            shape::conform(&mut object, kind.shape);
        }
        object
    }

    // Selection.

    pub(crate) fn selectable(&self, field: &str) -> bool {
        match &self.origin {
            Origin::Builtin { kind, .. } => kind.is_selectable(field),
            Origin::Custom(custom) => {
                field == "metadata.name"
                    || (field == "metadata.namespace" && self.namespaced)
                    || custom.selectable.iter().any(|(name, _)| name == field)
            }
        }
    }

    pub(crate) fn unsupported_field(&self, field: &str) -> String {
        match self.kind_part() {
            Some(kind) => kind.unsupported_field(field),
            None => format!("field label not supported: {field}"),
        }
    }

    pub(crate) fn selects(&self, selection: &Selection, object: &Object) -> bool {
        if !selection.labels.matches(&object.labels) {
            return false;
        }
        selection.fields.is_empty()
            || selection.fields.matches(|name| match name {
                "metadata.name" => Some(object.name()),
                "metadata.namespace" => Some(object.namespace()),
                name => {
                    let fields = object.fields(|value| self.selectable_values(value));
                    fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| &**value)
                }
            })
    }

    fn selectable_values(&self, value: &Value) -> Vec<(String, String)> {
        match &self.origin {
            Origin::Builtin { kind, .. } => {
                let values = |kind: &Kind, value: &Value| -> Vec<(String, String)> {
                    kind.selectable.iter().map(|field| ((*field).to_owned(), kind.field(value, field))).collect()
                };
                if &*self.storage != EVENTS {
                    return values(kind, value);
                }
                // The two views of events name the same fields differently; the values are kept once for both.
                let mut all = builtin::by_kind("v1", "Event").map(|core| values(core, value)).unwrap_or_default();
                let mut view = value.clone();
                events::to_events_v1(&mut view);
                all.extend(builtin::by_kind("events.k8s.io/v1", "Event").into_iter().flat_map(|kind| values(kind, &view)));
                all
            }
            Origin::Custom(custom) => {
                custom.selectable.iter().map(|(name, path)| (name.clone(), path.field(value))).collect()
            }
        }
    }

    // Tables.

    pub(crate) fn columns(&self) -> Value {
        let columns = match &self.origin {
            Origin::Builtin { kind, .. } => table::columns(kind),
            Origin::Custom(custom) => custom.columns(),
        };
        columns.iter().map(table::Column::to_json).collect()
    }

    /// What a table row says beside its cells.
    pub(crate) fn row_conditions(&self, value: &Value) -> Option<Value> {
        self.kind_part().and_then(|kind| table::row_conditions(kind, value))
    }

    pub(crate) fn cells(&self, value: &Value) -> Vec<Value> {
        match &self.origin {
            Origin::Builtin { kind, .. } => table::cells(kind, value, jiff::Timestamp::now()),
            Origin::Custom(custom) => custom.cells(value),
        }
    }

    // Scale.

    /// The Scale of an object.
    pub(crate) fn scale_of(&self, value: &Value) -> Result<Value, Status> {
        let (replicas, current, selector) = match &self.origin {
            Origin::Builtin { .. } => return Ok(builtin::scale::of(value)),
            Origin::Custom(custom) => custom.scale_values(value)?,
        };
        let metadata = &value["metadata"];
        let mut kept = json!({});
        for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = metadata.get(key) {
                kept[key] = value.clone();
            }
        }
        let mut scale = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": kept,
            "spec": {}, "status": {"replicas": current},
        });
        if replicas != 0 {
            scale["spec"]["replicas"] = replicas.into();
        }
        if let Some(selector) = selector.filter(|s| !s.is_empty()) {
            scale["status"]["selector"] = selector.into();
        }
        Ok(scale)
    }

    pub(crate) fn set_replicas(&self, value: &mut Value, replicas: i64) {
        match &self.origin {
            Origin::Builtin { .. } => value["spec"]["replicas"] = replicas.into(),
            Origin::Custom(custom) => custom.set_replicas(value, replicas),
        }
    }
}

/// What writers cannot own through `/status`, beside what the endpoint ignores anyway.
fn unowned_on_status(kind: &Kind) -> &'static [&'static [&'static str]] {
    match kind.kind {
        "Deployment" => &[&["spec"], &["metadata", "labels"]],
        "Pod" => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
        "CustomResourceDefinition" => &[&["metadata"], &["spec"]],
        _ => &[&["spec"]],
    }
}

/// Versions of the past that the real server still reads.
fn old_version(group: &str, api_version: &str) -> bool {
    matches!(
        (group, api_version),
        ("apps", "apps/v1beta1" | "apps/v1beta2")
            | ("batch", "batch/v1beta1")
            | ("policy", "policy/v1beta1")
            | ("events.k8s.io", "events.k8s.io/v1beta1")
            | ("coordination.k8s.io", "coordination.k8s.io/v1beta1")
    )
}

fn prefix(api_version: &str, kind: &str) -> Bytes {
    format!("{{\"kind\":{},\"apiVersion\":{},", json!(kind), json!(api_version)).into()
}

/// The schema of a kind that the definitions do not describe: it accepts anything.
fn anything() -> Link {
    Link::Own(Arc::new(Schema { preserve_unknown_fields: true, ..Schema::default() }))
}

/// The beginning of a body, as messages show it.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = &body[..body.len().min(SHOWN)];
    let text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => head.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > SHOWN { format!("{text} ...") } else { text }
}
