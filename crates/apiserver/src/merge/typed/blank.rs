//! What an object of a built-in kind has before anybody wrote it.

use serde_json::{Map, Value};

use crate::merge::MAX_DEPTH;

/// The value of a built-in kind in which nothing is set, from the document of its schemas (the file that maps
/// names to OpenAPI schemas).
///
/// Parts of built-in kinds that cannot be absent exist before an object is created, so nobody owns them.
/// The schemas give them away: they have an empty default, or are required. Custom resources start from `{}`.
pub fn blank(schemas: &Value, name: &str) -> Value {
    schemas.get(name).map_or(Value::Null, |schema| fill(schemas, schema, 0))
}

fn fill(schemas: &Value, schema: &Value, depth: usize) -> Value {
    let mut object = Map::new();
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let target = reference(property);
        let nothing = match property.get("default") {
            Some(Value::Object(_)) if depth < MAX_DEPTH => {
                let part = target.and_then(|name| schemas.get(name));
                Some(part.map_or_else(empty, |part| fill(schemas, part, depth + 1)))
            }
            Some(default) => is_zero(default).then(|| default.clone()),
            None => {
                let required = required.is_some_and(|names| names.iter().any(|n| n.as_str() == Some(name)));
                // A time may be of either sort. Where it can be absent, null here makes no difference.
                let time = target.is_some_and(|t| t.ends_with(".v1.Time") || t.ends_with(".v1.MicroTime"));
                (required || time).then_some(Value::Null)
            }
        };
        object.extend(nothing.map(|nothing| (name.clone(), nothing)));
    }
    Value::Object(object)
}

/// Other defaults are set when an object is decoded, and then belong to whoever wrote it.
fn is_zero(default: &Value) -> bool {
    match default {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(on) => !on,
        _ => false,
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

fn reference(property: &Value) -> Option<&str> {
    let target = property.get("$ref").or_else(|| property.pointer("/allOf/0/$ref"))?;
    target.as_str()?.strip_prefix("#/components/schemas/")
}
