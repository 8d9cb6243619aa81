//! Structural schemas: one type serves built-in kinds and CustomResourceDefinitions.
//!
//! A [`Schema`] is immutable once built. Built-in kinds refer to each other by name (and `JSONSchemaProps`
//! to itself), so children are [`Link`]s that either own their schema or point to a named one.

use std::sync::{Arc, OnceLock};

use std::collections::BTreeMap;

use serde_json::Value;

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Schema {
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
    /// Filled once all named schemas are read; see [`Link::get`].
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
            Self::Named(named) => named.schema.get().unwrap_or_else(|| {
                ANYTHING.get_or_init(|| Schema { preserve_unknown_fields: true, ..Schema::default() })
            }),
        }
    }
}
