//! Lists that are sets or maps: no two elements may be the same member.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::path::Path;
use super::{Link, ListType, MAX_DEPTH, Schema};
use crate::status::FieldError;

/// The first repetition of every member of every set and map in `value`.
pub fn validate_lists(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, value, &Path::root(""), &mut errors, 0);
    errors
}

fn walk(schema: &Schema, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let Some(link) = schema.properties.get(key) {
                    walk(link.get(), value, &path.field(key), errors, depth + 1);
                } else if let Some(link) = &schema.additional {
                    walk(link.get(), value, &path.key(key), errors, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            match schema.list_type {
                ListType::Set => {
                    for i in repeated(list.iter().map(Value::to_string)) {
                        errors.push(FieldError::duplicate(path.index(i).bracketed(), list[i].clone()));
                    }
                }
                ListType::Map => check_map(&schema.list_map_keys, list, path, errors),
                ListType::Atomic => {}
            }
            let Some(items) = schema.items.as_ref().map(Link::get) else { return };
            for (i, item) in list.iter().enumerate() {
                walk(items, item, &path.index(i), errors, depth + 1);
            }
        }
        _ => {}
    }
}

/// Indices of second appearances.
fn repeated(members: impl Iterator<Item = String>) -> Vec<usize> {
    let mut times: HashMap<String, u32> = HashMap::new();
    let mut found = Vec::new();
    for (i, member) in members.enumerate() {
        let times = times.entry(member).or_insert(0);
        *times += 1;
        if *times == 2 {
            found.push(i);
        }
    }
    found
}

fn check_map(keys: &[String], list: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(i) = list.iter().position(|item| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(path.index(i).bracketed(), list[i].clone(), detail));
        return;
    }
    let names: Vec<Value> = list.iter().map(|item| Value::Object(member(keys, item))).collect();
    for i in repeated(names.iter().map(Value::to_string)) {
        errors.push(FieldError::duplicate(path.index(i).bracketed(), names[i].clone()));
    }
}

/// The keys of an element that are present.
fn member(keys: &[String], item: &Value) -> Map<String, Value> {
    keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect()
}

/// The element of `old` with the same keys as `item`.
pub(super) fn counterpart<'a>(schema: &Schema, item: &Value, old: &'a Value) -> Option<&'a Value> {
    if schema.list_type != ListType::Map || schema.list_map_keys.is_empty() || !item.is_object() {
        return None;
    }
    let same = |other: &&Value| schema.list_map_keys.iter().all(|key| item.get(key) == other.get(key));
    old.as_array()?.iter().filter(|other| other.is_object()).find(same)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parse::Names;
    use super::*;

    #[test]
    fn repetitions_are_reported_once() {
        let schema = json!({"properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "lm": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "j"]},
            "m": {"additionalProperties": {"x-kubernetes-list-type": "set"}}}});
        let schema = Schema::from_json(&schema, &Names::none()).expect("schema");
        let errors = |value: Value| -> Vec<String> {
            validate_lists(&schema, &value).iter().map(ToString::to_string).collect()
        };
        assert_eq!(errors(json!({"set": ["a", "b", "a", "a"]})), ["set[2]: Duplicate value: \"a\""]);
        assert_eq!(
            errors(json!({"lm": [{"k": "a", "j": 1, "v": 1}, {"k": "a", "j": 1}, {"k": "a"}, {}]})),
            ["lm[1]: Duplicate value: {\"j\":1,\"k\":\"a\"}"]
        );
        assert_eq!(
            errors(json!({"lm": [1]})),
            ["lm[0]: Invalid value: 1: must be an object for an array of list-type map"]
        );
        assert_eq!(errors(json!({"m": {"x": [1, 1]}})), ["m[x][1]: Duplicate value: 1"]);
    }
}
