//! What a schema does not know: removing it, and naming it for strict requests.
//!
//! `apiVersion`, `kind` and `metadata` of the root and of embedded resources are never judged by the schema.

use serde_json::{Map, Value};

use super::parse::object_meta;
use super::path::Path;
use super::{Link, MAX_DEPTH, Schema, objectmeta};

/// Removes the fields that the schema of a whole object does not know. `metadata` is held to ObjectMeta.
pub fn prune(schema: &Schema, value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata") {
        prune_inside(object_meta(), metadata);
    }
    Pruner { root: true }.walk(Some(schema), value, 0);
}

/// Removes what the schema of a part does not know.
pub(crate) fn prune_inside(schema: &Schema, value: &mut Value) {
    Pruner { root: false }.walk(Some(schema), value, 0);
}

/// Paths of unknown fields, as strict decoding names them: `spec.containers[0].bar`.
///
/// Sorted, with those in metadata first and those in the metadata of embedded resources last, as for custom
/// resources. The real server lists those of built-in kinds in the order of the document, which [`super::strict`]
/// keeps.
pub fn unknown_fields(schema: &Schema, value: &Value) -> Vec<String> {
    let root = Path::root("");
    let mut found = Vec::new();
    if let Some(metadata) = value.get("metadata") {
        unknown_inside(object_meta(), metadata, &root.field("metadata"), &mut found);
    }
    let mut inside = Vec::new();
    unknown(Some(schema), value, &root, &mut inside, 0, true);
    inside.sort();
    found.append(&mut inside);
    objectmeta::unknown_embedded(schema, value, &root, &mut inside, 0);
    inside.sort();
    found.append(&mut inside);
    found
}

/// For built-in kinds: nulls mean "absent" in structs and "zero" in maps and lists of scalars.
pub fn drop_nulls(schema: &Schema, map: &mut Map<String, Value>) {
    drop_nulls_at(schema, map, 0);
}

fn drop_nulls_at(schema: &Schema, map: &mut Map<String, Value>, depth: usize) {
    if depth > MAX_DEPTH || schema.preserve_unknown_fields {
        return;
    }
    map.retain(|key, value| match (schema.properties.get(key), &schema.additional) {
        (Some(_), _) if value.is_null() => false,
        (Some(link), _) => {
            drop_nulls_in(link.get(), value, depth + 1);
            true
        }
        (None, Some(link)) => {
            zero(link.get(), value);
            drop_nulls_in(link.get(), value, depth + 1);
            true
        }
        (None, None) => true,
    });
}

fn drop_nulls_in(schema: &Schema, value: &mut Value, depth: usize) {
    match value {
        Value::Object(map) => drop_nulls_at(schema, map, depth),
        Value::Array(list) => {
            let Some(items) = schema.items.as_ref().map(Link::get) else { return };
            for item in list {
                zero(items, item);
                if depth < MAX_DEPTH {
                    drop_nulls_in(items, item, depth + 1);
                }
            }
        }
        _ => {}
    }
}

fn zero(schema: &Schema, value: &mut Value) {
    use super::Type;
    if !value.is_null() {
        return;
    }
    match schema.ty {
        Some(Type::String) => *value = Value::String(String::new()),
        Some(Type::Integer | Type::Number) => *value = 0.into(),
        Some(Type::Boolean) => *value = false.into(),
        Some(Type::Object) => *value = Value::Object(Map::new()),
        Some(Type::Array) | None => {}
    }
}

fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Whether `key` belongs to every object, so that the schema has no say.
fn exempt(schema: &Schema, key: &str, root: bool) -> bool {
    (root || schema.embedded_resource) && is_meta(key)
}

struct Pruner {
    /// Whether the value at depth 0 is a whole object.
    root: bool,
}

impl Pruner {
    /// No schema means that nothing is known: maps become empty.
    fn walk(&self, schema: Option<&Schema>, value: &mut Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let root = self.root && depth == 0;
        match value {
            Value::Object(map) => match schema {
                None => map.clear(),
                Some(schema) => map.retain(|key, value| {
                    if exempt(schema, key, root) {
                        return true;
                    }
                    match schema.child(key) {
                        Some(child) => {
                            self.walk(Some(child), value, depth + 1);
                            true
                        }
                        None => schema.preserve_unknown_fields,
                    }
                }),
            },
            Value::Array(list) => {
                let items = schema.and_then(|s| s.items.as_ref()).map(Link::get);
                if items.is_none() && schema.is_some_and(|s| s.preserve_unknown_fields) {
                    return;
                }
                for item in list {
                    self.walk(items, item, depth + 1);
                }
            }
            _ => {}
        }
    }
}

pub(crate) fn unknown_inside(schema: &Schema, value: &Value, path: &Path<'_>, found: &mut Vec<String>) {
    unknown(Some(schema), value, path, found, 0, false);
}

fn unknown(
    schema: Option<&Schema>,
    value: &Value,
    path: &Path<'_>,
    found: &mut Vec<String>,
    depth: usize,
    root: bool,
) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let Some(schema) = schema else {
                    found.push(path.field(key).dotted());
                    continue;
                };
                if exempt(schema, key, root) {
                    continue;
                }
                match schema.child(key) {
                    Some(child) => unknown(Some(child), value, &path.field(key), found, depth + 1, false),
                    None if schema.preserve_unknown_fields => {}
                    None => found.push(path.field(key).dotted()),
                }
            }
        }
        Value::Array(list) => {
            let items = schema.and_then(|s| s.items.as_ref()).map(Link::get);
            if items.is_none() && schema.is_some_and(|s| s.preserve_unknown_fields) {
                return;
            }
            for (i, item) in list.iter().enumerate() {
                unknown(items, item, &path.index(i), found, depth + 1, false);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Definitions;
    use super::super::parse::Names;
    use super::*;

    fn custom() -> Schema {
        let json = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "i": {"type": "integer"},
            "arr": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "mp": {"type": "object", "additionalProperties":
                {"type": "object", "properties": {"a": {"type": "string"}}}},
            "any": {"type": "object", "additionalProperties": true},
            "pres": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties":
                {"k": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "emb2": {"type": "object", "x-kubernetes-embedded-resource": true, "properties":
                {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}}});
        Schema::from_json(&json, &Names::none()).expect("schema")
    }

    #[test]
    fn unknown_fields_of_a_custom_resource_in_the_real_order() {
        let value = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x", "zed": 1}, "zz": 1,
            "spec": {"foo": 1, "arr": [{"b": 1}], "mp": {"kk": {"zz": 1}}, "i": 1,
                "pres": {"q": {"deep": 1}, "k": {"w": 1}},
                "emb2": {"apiVersion": "v1", "kind": "P", "metadata": {"name": "a", "foo": 1},
                    "spec": {"z": 1}, "zz": 1}}});
        assert_eq!(
            unknown_fields(&custom(), &value),
            [
                "metadata.zed",
                "spec.arr[0].b",
                "spec.emb2.spec.z",
                "spec.emb2.zz",
                "spec.foo",
                "spec.mp.kk.zz",
                "spec.pres.k.w",
                "zz",
                "spec.emb2.metadata.foo"
            ]
        );
        let mut pruned = value;
        prune(&custom(), &mut pruned);
        assert_eq!(
            pruned,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {
                "arr": [{}], "mp": {"kk": {}}, "i": 1, "pres": {"q": {"deep": 1}, "k": {}},
                "emb2": {"apiVersion": "v1", "kind": "P", "metadata": {"name": "a", "foo": 1}, "spec": {}}}})
        );
    }

    #[test]
    fn additional_properties_true_keeps_keys_but_not_their_insides() {
        let mut value = json!({"spec": {"any": {"a": 1, "b": {"c": 1}}}});
        prune(&custom(), &mut value);
        assert_eq!(value, json!({"spec": {"any": {"a": 1, "b": {}}}}));
    }

    #[test]
    fn builtin_kinds_are_pruned_too() {
        let pod = Definitions::builtin().get("io.k8s.api.core.v1.Pod").expect("Pod");
        let mut value = json!({"kind": "Pod", "metadata": {"name": "x", "zed": 1, "labels": {"a": "b"},
            "managedFields": [{"fieldsV1": {"f:spec": {}}}]},
            "spec": {"containers": [{"name": "a", "Image": "x", "resources": {"limits": {"cpu": 1}}}]}});
        assert_eq!(unknown_fields(pod.get(), &value), ["metadata.zed", "spec.containers[0].Image"]);
        prune(pod.get(), &mut value);
        assert_eq!(
            value,
            json!({"kind": "Pod", "metadata": {"name": "x", "labels": {"a": "b"},
                "managedFields": [{"fieldsV1": {"f:spec": {}}}]},
                "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1}}}]}})
        );
        assert_eq!(unknown_fields(pod.get(), &value), Vec::<String>::new());
    }

    #[test]
    fn nulls_of_builtin_kinds_are_zero_or_absent() {
        let config = Definitions::builtin().get("io.k8s.api.core.v1.ConfigMap").expect("ConfigMap");
        let mut value = json!({"data": {"a": null}, "immutable": null});
        drop_nulls(config.get(), value.as_object_mut().expect("map"));
        assert_eq!(value, json!({"data": {"a": ""}}));
    }
}
