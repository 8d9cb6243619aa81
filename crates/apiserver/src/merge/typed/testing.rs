//! Schemas and values for tests: built-in kinds straight from their document, custom ones from JSON.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::schema::{Link, ListType, Named, Schema, Type};

/// The document of the built-in kinds.
pub(in crate::merge) fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        serde_json::from_str(include_str!("../../builtin/schemas.json")).expect("the document is JSON")
    })
}

/// The schema of a built-in kind by its full name.
pub(in crate::merge) fn built_in(name: &str) -> &'static Schema {
    static NAMED: OnceLock<BTreeMap<String, Arc<Named>>> = OnceLock::new();
    let named = NAMED.get_or_init(|| {
        let document = document().as_object().expect("it maps names to schemas");
        let empty = |name: &String| Arc::new(Named { name: name.clone(), schema: OnceLock::new() });
        let named: BTreeMap<_, _> = document.keys().map(|name| (name.clone(), empty(name))).collect();
        for (name, schema) in document {
            let _ = named[name].schema.set(parse(schema, Some(&named)));
        }
        named
    });
    named[name].schema.get().expect("all were parsed")
}

/// A schema of a custom resource.
pub(in crate::merge) fn custom(schema: &Value) -> Schema {
    parse(schema, None)
}

fn parse(schema: &Value, named: Option<&BTreeMap<String, Arc<Named>>>) -> Schema {
    let text = |key: &str| schema[key].as_str().map(str::to_owned);
    let link = |child: &Value| link(child, named);
    let strings = |key: &str| {
        let items = schema[key].as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let on = |key: &str| schema[key] == json!(true);
    Schema {
        ty: match schema["type"].as_str() {
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            _ => None,
        },
        format: text("format"),
        default: schema.get("default").cloned(),
        properties: schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, child)| (name.clone(), link(child)))
            .collect(),
        required: strings("required"),
        additional: schema.get("additionalProperties").map(link),
        items: schema.get("items").map(link),
        int_or_string: on("x-kubernetes-int-or-string"),
        embedded_resource: on("x-kubernetes-embedded-resource"),
        preserve_unknown_fields: on("x-kubernetes-preserve-unknown-fields"),
        list_type: match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map,
            _ => ListType::Atomic,
        },
        list_map_keys: strings("x-kubernetes-list-map-keys"),
        atomic_map: schema["x-kubernetes-map-type"] == json!("atomic"),
        patch_strategy: text("x-kubernetes-patch-strategy")
            .map(|all| all.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        patch_merge_key: text("x-kubernetes-patch-merge-key"),
        ..Schema::default()
    }
}

fn link(child: &Value, named: Option<&BTreeMap<String, Arc<Named>>>) -> Link {
    let target = child.get("$ref").or_else(|| child.pointer("/allOf/0/$ref")).and_then(Value::as_str);
    if let (Some(target), Some(named)) = (target, named) {
        let name = target.trim_start_matches("#/components/schemas/");
        return Link::Named(named[name].clone());
    }
    Link::Own(Arc::new(parse(child, named)))
}

/// JSON of a few levels in which the same few names recur.
pub(in crate::merge) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..5i64).prop_map(Value::from),
        Just(json!(1.5)),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 5, |inner| {
        let names = prop_oneof![
            Just("a"),
            Just("b"),
            Just("c"),
            Just("name"),
            Just("$patch"),
            Just("$retainKeys"),
            Just("$setElementOrder/list"),
            Just("$deleteFromPrimitiveList/set"),
            Just("list"),
            Just("set"),
            Just("metadata"),
            Just("labels"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(names.prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
