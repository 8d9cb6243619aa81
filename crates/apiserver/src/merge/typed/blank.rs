//! What an object of a built-in kind has before anybody wrote it.

use serde_json::{Map, Value};

use crate::merge::MAX_DEPTH;

/// The value of a built-in kind in which nothing is set, from the document of its schemas (the file that maps
/// names to OpenAPI schemas).
///
/// Parts of built-in kinds that cannot be absent exist before an object is created, so nobody owns them.
/// The schemas give them away: they have a default, or are required. Custom resources start from `{}`.
pub fn blank(schemas: &Value, name: &str) -> Value {
    schemas.get(name).map_or(Value::Null, |schema| fill(schemas, schema, 0))
}

fn fill(schemas: &Value, schema: &Value, depth: usize) -> Value {
    let mut object = Map::new();
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let default = property.get("default");
        let is_required = required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)));
        match default {
            Some(Value::Object(_)) if depth < MAX_DEPTH => {
                let part = reference(property).and_then(|name| schemas.get(name));
                object.insert(name.clone(), part.map_or_else(empty, |part| fill(schemas, part, depth + 1)));
            }
            // Defaults of fields that can be absent are applied later; they are set by whoever writes.
            Some(zero) if is_required => {
                object.insert(name.clone(), zero.clone());
            }
            None if is_required => {
                object.insert(name.clone(), Value::Null);
            }
            _ => {}
        }
    }
    Value::Object(object)
}

fn empty() -> Value {
    Value::Object(Map::new())
}

fn reference(property: &Value) -> Option<&str> {
    let target = property.get("$ref").or_else(|| property.pointer("/allOf/0/$ref"))?;
    target.as_str()?.strip_prefix("#/components/schemas/")
}
