//! What an object of a built-in kind has before anybody wrote it.

use serde_json::{Map, Value};

use crate::merge::MAX_DEPTH;

/// The value of a built-in kind in which nothing is set. `definition` gives the OpenAPI text of a schema by its name;
/// made once per kind, the result is kept by the caller.
///
/// Parts of built-in kinds that cannot be absent exist before an object is created, so nobody owns them.
/// The schemas give them away: they have an empty default, or are required. Custom resources start from `{}`.
pub fn blank(definition: &dyn Fn(&str) -> Option<Value>, name: &str) -> Value {
    definition(name).map_or_else(empty, |schema| fill(definition, &schema, 0))
}

fn fill(definition: &dyn Fn(&str) -> Option<Value>, schema: &Value, depth: usize) -> Value {
    let mut object = Map::new();
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let target = reference(property);
        let nothing = match property.get("default") {
            Some(Value::Object(_)) if depth < MAX_DEPTH => {
                let part = target.and_then(definition);
                Some(part.map_or_else(empty, |part| fill(definition, &part, depth + 1)))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::merge::typed::testing::document;

    #[test]
    fn has_what_cannot_be_absent() {
        let blank = blank(&|name| document().get(name).cloned(), "io.k8s.api.apps.v1.Deployment");
        assert_eq!(blank["spec"]["selector"], json!(null));
        assert_eq!(blank["spec"]["strategy"], json!({}));
        assert_eq!(blank["spec"]["template"]["spec"]["containers"], json!(null));
        assert!(blank["spec"].get("selector").is_some());
        assert_eq!(blank["spec"].get("replicas"), None);
        assert_eq!(blank["status"], json!({}));
    }
}
