//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use super::{MAX_DEPTH, PatchError, go_text::json_kind};

/// Applies `patch` to `doc` and returns the new document.
pub fn apply(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let changes = match patch {
        Value::Object(changes) => changes,
        Value::Null => return Err(PatchError::Malformed("Invalid JSON Patch".into())),
        other => {
            return Err(PatchError::Malformed(format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                json_kind(other)
            )));
        }
    };
    let mut result = doc.clone();
    merge(&mut result, changes, 0);
    Ok(result)
}

fn merge(target: &mut Value, changes: &Map<String, Value>, depth: usize) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, change) in changes {
        match change {
            Value::Null => {
                fields.remove(key);
            }
            Value::Object(inner) if depth < MAX_DEPTH => {
                merge(fields.entry(key.as_str()).or_insert(Value::Null), inner, depth + 1);
            }
            other => {
                let mut value = other.clone();
                if !fields.get(key).is_some_and(Value::is_object) {
                    drop_nulls(&mut value, 0);
                }
                fields.insert(key.clone(), value);
            }
        }
    }
}

/// Objects inside a list that is set lose their null members, unless the list replaces an object: the RFC does
/// not ask for it, but the real server does it.
fn drop_nulls(value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(item, depth + 1)),
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(|field| drop_nulls(field, depth + 1));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::merge::typed::testing::any_json;

    #[test]
    fn follows_the_examples_of_the_rfc() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            // Beyond the RFC.
            (json!({}), json!({"a": [{"b": null}, null]}), json!({"a": [{}, null]})),
        ];
        for (doc, patch, expected) in cases {
            assert_eq!(apply(&doc, &patch), Ok(expected), "{doc} {patch}");
        }
    }

    #[test]
    fn refuses_what_is_not_an_object() {
        for (patch, message) in [
            (json!(null), "Invalid JSON Patch"),
            (
                json!([1]),
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ),
        ] {
            assert_eq!(apply(&json!({}), &patch), Err(PatchError::Malformed(message.into())));
        }
    }

    proptest! {
        #[test]
        fn is_idempotent(doc in any_json(), mut patch in any_json()) {
            let lists_without_nulls = |patch: &mut Value| {
                if let Value::Object(fields) = patch {
                    fields.values_mut().filter(|v| v.is_array()).for_each(|v| drop_nulls(v, 0));
                }
            };
            lists_without_nulls(&mut patch);
            if let Value::Object(fields) = &mut patch {
                fields.retain(|_, field| !field.is_object());
            }
            if let Ok(once) = apply(&doc, &patch) {
                prop_assert_eq!(apply(&once, &patch), Ok(once));
            }
        }

        #[test]
        fn leaves_what_the_patch_does_not_name(doc in any_json(), patch in any_json()) {
            if let (Value::Object(before), Value::Object(changes), Ok(Value::Object(after))) =
                (&doc, &patch, apply(&doc, &patch))
            {
                for (key, value) in before {
                    if !changes.contains_key(key) {
                        prop_assert_eq!(after.get(key), Some(value));
                    }
                }
                for key in changes.iter().filter(|(_, v)| v.is_null()).map(|(k, _)| k) {
                    prop_assert!(!after.contains_key(key));
                }
            }
        }
    }
}
