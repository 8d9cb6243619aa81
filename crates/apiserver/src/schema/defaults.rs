//! Defaults of CustomResourceDefinitions, as they are applied to requests and to what is read from storage.
//!
//! Built-in kinds are not defaulted here: the defaults in their definitions describe Go's zero values.

use serde_json::Value;

use super::{Link, MAX_DEPTH, Schema};

/// Drops nulls that may not be null, then fills what is missing. Applying twice changes nothing more.
pub fn apply_defaults(schema: &Schema, value: &mut Value) {
    drop_nulls(Some(schema), value, 0);
    fill(schema, value, 0);
}

fn is_forbidden_null(schema: &Schema, value: &Value) -> bool {
    value.is_null() && !schema.nullable
}

/// Removes nulls in maps where the schema neither allows them nor offers a default instead.
fn drop_nulls(schema: Option<&Schema>, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let Some(schema) = schema else { return };
    match value {
        Value::Object(map) => map.retain(|key, value| match schema.child(key) {
            Some(child) if is_forbidden_null(child, value) && child.default.is_none() => false,
            child => {
                drop_nulls(child, value, depth + 1);
                true
            }
        }),
        Value::Array(list) => {
            for item in list {
                drop_nulls(schema.items.as_ref().map(Link::get), item, depth + 1);
            }
        }
        _ => {}
    }
}

fn fill(schema: &Schema, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, link) in &schema.properties {
                let property = link.get();
                let Some(default) = &property.default else { continue };
                if map.get(name).is_none_or(|present| is_forbidden_null(property, present)) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (key, value) in map {
                let Some(child) = schema.child(key) else { continue };
                fill_null(child, value);
                fill(child, value, depth + 1);
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_ref().map(Link::get) else { return };
            for item in list {
                fill_null(items, item);
                fill(items, item, depth + 1);
            }
        }
        _ => {}
    }
}

fn fill_null(schema: &Schema, value: &mut Value) {
    if is_forbidden_null(schema, value)
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parse::Names;
    use super::*;

    fn defaulted(schema: Value, mut value: Value) -> Value {
        let schema = Schema::from_json(&schema, &Names::none()).expect("schema");
        apply_defaults(&schema, &mut value);
        let once = value.clone();
        apply_defaults(&schema, &mut value);
        assert_eq!(once, value, "idempotent");
        value
    }

    #[test]
    fn nested_defaults_are_filled_from_the_outside_in() {
        let schema = json!({"properties": {"spec": {"default": {}, "properties": {
            "policy": {"default": {}, "properties": {"mode": {"type": "string", "default": "Auto"}}},
            "list": {"type": "array", "items": {"properties": {"n": {"default": 1}}}},
            "map": {"additionalProperties": {"properties": {"m": {"default": 2}}}}}}}});
        assert_eq!(defaulted(schema.clone(), json!({})), json!({"spec": {"policy": {"mode": "Auto"}}}));
        assert_eq!(
            defaulted(schema, json!({"spec": {"list": [{}, {"n": 5}], "map": {"a": {}}}})),
            json!({"spec": {"policy": {"mode": "Auto"}, "list": [{"n": 1}, {"n": 5}], "map": {"a": {"m": 2}}}})
        );
    }

    #[test]
    fn nulls_are_dropped_defaulted_or_kept() {
        let schema = json!({"properties": {
            "plain": {"type": "string"}, "with": {"type": "string", "default": "x"},
            "nullable": {"type": "string", "nullable": true, "default": "y"},
            "map": {"additionalProperties": {"type": "string"}},
            "list": {"items": {"type": "string"}}}});
        let value = json!({"plain": null, "with": null, "nullable": null, "unknown": null,
            "map": {"a": null}, "list": [null]});
        let want = json!({"with": "x", "nullable": null, "unknown": null, "map": {}, "list": [null]});
        assert_eq!(defaulted(schema, value), want);
    }
}
