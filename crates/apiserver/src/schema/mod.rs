//! Structural schemas: one type serves built-in kinds and CustomResourceDefinitions.
//!
//! A [`Schema`] is immutable once built. Built-in kinds refer to each other by name (and `JSONSchemaProps`
//! to itself), so children are [`Link`]s that either own their schema or point to a named one.
//! A custom resource passes [`strict`] and [`unknown_fields`] (if asked), [`objectmeta::coerce`], [`prune()`],
//! [`apply_defaults`], [`validate()`] or [`validate_update`], and last [`validate::add_rule_errors`].

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

pub mod cel;
pub mod crd;
pub mod decode;
pub mod defaults;
pub mod formats;
mod gotypes;
pub mod jsonpath;
pub mod listtype;
pub mod objectmeta;
pub mod parse;
mod path;
pub mod prune;
pub mod strict;
pub mod validate;

pub use cel::Rules;
pub use decode::decode_error;
pub use defaults::apply_defaults;
pub use jsonpath::JsonPath;
pub use parse::Definitions;
pub use prune::{prune, unknown_fields};
pub use validate::{validate, validate_update};

/// Values nested deeper than this are left alone: the JSON reader refuses them long before.
const MAX_DEPTH: usize = 192;

#[cfg(test)]
mod tests;

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
    /// The name of the definition this was read from: `io.k8s.api.core.v1.Pod`; none inside CRDs.
    pub name: Option<String>,
    /// What the documents served under `/openapi` say; also what `kubectl explain` prints.
    pub description: Option<String>,
    pub ty: Option<Type>,
    pub format: Option<String>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Link>,
    pub required: Vec<String>,
    /// Values of a map; `None` means that unknown keys are not allowed.
    pub additional: Option<Link>,
    pub items: Option<Link>,

    // Value validation.
    pub enumeration: Option<Vec<Value>>,
    pub pattern: Option<String>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,

    // Kubernetes extensions.
    pub int_or_string: bool,
    pub embedded_resource: bool,
    pub preserve_unknown_fields: bool,
    pub list_type: ListType,
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    /// `x-kubernetes-patch-strategy`, split at commas (`merge`, `replace`, `retainKeys`).
    pub patch_strategy: Vec<String>,
    pub patch_merge_key: Option<String>,
    /// `x-kubernetes-validations` as they stand in the schema.
    pub rules: Vec<Value>,
    /// `pattern`, compiled when it is first needed.
    pub(crate) matcher: validate::Matcher,
}

/// The JSON type that a node requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// How the elements of a list are told apart when two writers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListType {
    /// The list is one value.
    #[default]
    Atomic,
    /// Elements are scalars, each a member.
    Set,
    /// Elements are objects named by [`Schema::list_map_keys`].
    Map,
}

/// A child of a schema: its own, or one that has a name.
#[derive(Debug, Clone)]
pub enum Link {
    Own(Arc<Schema>),
    /// A built-in definition, read when first asked for; see [`Link::get`].
    Named(Arc<Named>),
}

/// A schema that others refer to by name.
#[derive(Debug)]
pub struct Named {
    pub name: String,
    pub schema: OnceLock<Schema>,
}

impl Link {
    /// The schema behind the link. A name that nothing defines is a schema that accepts anything.
    pub fn get(&self) -> &Schema {
        static ANYTHING: OnceLock<Schema> = OnceLock::new();
        match self {
            Self::Own(schema) => schema,
            Self::Named(named) => match named.schema.get() {
                Some(schema) => schema,
                None => match Definitions::builtin().read(&named.name) {
                    Some(schema) => named.schema.get_or_init(|| schema),
                    None => {
                        ANYTHING.get_or_init(|| Schema { preserve_unknown_fields: true, ..Schema::default() })
                    }
                },
            },
        }
    }
}

impl Schema {
    /// The schema of a property, or of the values of a map.
    pub fn child(&self, key: &str) -> Option<&Schema> {
        self.properties.get(key).or(self.additional.as_ref()).map(Link::get)
    }
}
