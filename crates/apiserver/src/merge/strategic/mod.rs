//! Strategic merge patch: a merge patch for built-in kinds, in which lists are merged by the key that the
//! schema names, and directives (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`)
//! say what a plain merge cannot.

mod lists;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::{
    MAX_DEPTH, PatchError,
    go_text::{json_kind, plain, type_name},
};
use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

type Fields = Map<String, Value>;

/// Applies `patch` to `doc`, an object of the built-in kind that `schema` describes, and returns the new object.
pub fn apply(schema: &Schema, doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let patch = match patch {
        Value::Object(patch) => patch.clone(),
        Value::Null => Fields::new(),
        other => {
            return Err(PatchError::Malformed(format!(
                "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                json_kind(other)
            )));
        }
    };
    let doc = doc.as_object().cloned().unwrap_or_default();
    merge_maps(Some(schema), doc, patch, 0).map(Value::Object)
}

/// How the schema wants a field patched.
struct Strategy<'s> {
    /// Of the field, or of the elements if it is a list.
    schema: Option<&'s Schema>,
    name: &'s str,
    merge_key: &'s str,
}

impl<'s> Strategy<'s> {
    fn of(parent: Option<&'s Schema>, field: &str) -> Self {
        let link = parent.and_then(|parent| parent.properties.get(field).or(parent.additional.as_ref()));
        let Some(schema) = link.map(|link| link.get()) else {
            return Self { schema: None, name: "", merge_key: "" };
        };
        let name = schema.patch_strategy.iter().map(String::as_str).find(|name| *name != "retainKeys");
        Self {
            schema: Some(schema),
            name: name.unwrap_or_default(),
            merge_key: schema.patch_merge_key.as_deref().unwrap_or_default(),
        }
    }

    fn of_list(parent: Option<&'s Schema>, field: &str) -> Self {
        let list = Self::of(parent, field);
        Self { schema: list.schema.and_then(|schema| schema.items.as_ref()).map(|link| link.get()), ..list }
    }
}

fn merge_maps(
    schema: Option<&Schema>,
    mut original: Fields,
    mut patch: Fields,
    depth: usize,
) -> Result<Fields, PatchError> {
    if depth > MAX_DEPTH {
        return Ok(patch);
    }
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Fields::new()),
            _ => Err(unknown_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    lists::order(schema, &mut original, &mut patch, depth)?;
    for (key, change) in patch {
        let (key, deletes) = match key.strip_prefix(DELETE_FROM_LIST) {
            None => (key, false),
            Some(rest) => match rest.strip_prefix('/') {
                Some(list) if !list.is_empty() => (list.to_owned(), true),
                Some(_) => (key, true),
                None => return Err(PatchError::Malformed("invalid patch format of primitive list".into())),
            },
        };
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let merged = match (original.remove(&key), change) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let strategy = Strategy::of(schema, &key);
                Some(Value::Object(if strategy.name == "replace" {
                    new
                } else {
                    merge_maps(strategy.schema, old, new, depth + 1)?
                }))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let strategy = Strategy::of_list(schema, &key);
                Some(Value::Array(lists::merge(&strategy, old, new, deletes, depth)?))
            }
            (old, _) if deletes => old,
            (_, mut new) => {
                drop_nulls(&mut new, 0);
                without_directives(new, 0)
            }
        };
        original.extend(merged.map(|merged| (key, merged)));
    }
    Ok(original)
}

/// `$retainKeys`: of the original, only the fields in this list stay; the patch may set no others.
fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<(), PatchError> {
    let Some(listed) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".into());
    let Value::Array(listed) = listed else { return Err(malformed()) };
    let has = |key: &str| listed.iter().any(|name| name.as_str() == Some(key));
    let strays = patch.iter().any(|(key, value)| {
        let exempt = value.is_null() || key.starts_with(DELETE_FROM_LIST) || key.starts_with(ELEMENT_ORDER);
        !exempt && !has(key)
    });
    if strays {
        return Err(malformed());
    }
    original.retain(|key, _| has(key));
    Ok(())
}

/// A value of the patch for which there is nothing to merge with; `None` if it only was a directive.
fn without_directives(value: Value, depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return Some(value);
    }
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields.into_iter().filter_map(|(k, v)| Some((k, without_directives(v, depth + 1)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => {
            let kept = items.into_iter().filter_map(|item| without_directives(item, depth + 1));
            Some(Value::Array(kept.collect()))
        }
        scalar => Some(scalar),
    }
}

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

fn unknown_directive(directive: &Value, patch: &Fields) -> PatchError {
    let shown = match directive {
        Value::String(text) => text.clone(),
        other => format!("%!s({}={})", type_name(other), plain(other)),
    };
    contradiction(format!("unknown patch type: {shown} in map: {}", plain(&Value::Object(patch.clone()))))
}

fn contradiction(text: impl Into<String>) -> PatchError {
    PatchError::Contradiction(text.into())
}
