//! One resource as it is served: the same questions answered for built-in kinds and for custom ones.

mod decode;
mod output;
mod rules;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::builtin::{KINDS, Kind};
use crate::custom::Custom;
use crate::merge::{FieldSet, blank, managed};
use crate::schema::{Definitions, Link, Schema};

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
    Custom(Box<Custom>),
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
                reset_main: if kind.status.is_some() {
                    FieldSet::of_fields(&[&["status"]])
                } else {
                    FieldSet::new()
                },
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
        let texts =
            |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().map(text).collect() };
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
                    origin: Origin::Custom(Box::new(custom)),
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
            Origin::Builtin { kind, schema } => schema
                .get_or_init(|| Definitions::builtin().get(kind.definition).unwrap_or_else(anything))
                .get(),
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
            Origin::Builtin { kind, .. } => {
                Some(kind.storage_hash.to_owned()).filter(|hash| !hash.is_empty())
            }
            Origin::Custom(_) => Some(self.hash_of_names()),
        }
    }

    fn hash_of_names(&self) -> String {
        use base64::Engine;
        let id = format!("{}/{}/{}", self.group, self.version, self.kind);
        let hash = ring::digest::digest(&ring::digest::SHA256, id.as_bytes());
        base64::engine::general_purpose::STANDARD.encode(&hash.as_ref()[..8])
    }

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

fn prefix(api_version: &str, kind: &str) -> Bytes {
    format!("{{\"kind\":{},\"apiVersion\":{},", json!(kind), json!(api_version)).into()
}

/// The schema of a kind that the definitions do not describe: it accepts anything.
fn anything() -> Link {
    Link::Own(Arc::new(Schema { preserve_unknown_fields: true, ..Schema::default() }))
}
