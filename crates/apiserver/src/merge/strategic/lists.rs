//! Lists in strategic merge patches: merged by key, then put into an order that both sides can live with.

use serde_json::Value;

use super::{
    DIRECTIVE, ELEMENT_ORDER, Fields, Strategy, contradiction, merge_maps, unknown_directive,
    without_directives,
};
use crate::{
    merge::{
        PatchError,
        go_text::{plain, type_name},
    },
    schema::Schema,
};

/// Merges a list of the patch into that of the object, or deletes its elements from there.
pub(super) fn merge(
    strategy: &Strategy<'_>,
    original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
    depth: usize,
) -> Result<Vec<Value>, PatchError> {
    if strategy.name != "merge" && !deletes {
        return Ok(patch);
    }
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let of_maps = elements_are_maps(&original, &patch)?;
    if !of_maps {
        if deletes {
            return Ok(original.into_iter().filter(|item| !patch.contains(item)).collect());
        }
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(&patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return arrange(merged, &patch, &original, "");
    }
    if strategy.merge_key.is_empty() {
        let kind = if strategy.schema.is_some() { "struct" } else { "map" };
        return Err(contradiction(format!("cannot merge lists without merge key for {kind}")));
    }
    let (original, patch) = obey_directives(original, patch, strategy.merge_key)?;
    let merged = merge_elements(strategy, original.clone(), &patch, depth)?;
    arrange(merged, &patch, &original, strategy.merge_key)
}

/// `$patch` inside elements: `delete` removes those with the same key, `replace` makes the rest of the patch the list.
fn obey_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain_elements = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let Value::Object(fields) = &item else { continue };
        let Some(directive) = fields.get(DIRECTIVE) else {
            plain_elements.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let key = fields.get(merge_key).ok_or_else(|| no_merge_key(&item, merge_key))?;
                original.retain(|item| item.get(merge_key) != Some(key));
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(contradiction("merging lists cannot yet be specified in the patch"));
            }
            _ => return Err(unknown_directive(directive, fields)),
        }
    }
    Ok(if replace { (plain_elements, Vec::new()) } else { (original, plain_elements) })
}

fn merge_elements(
    strategy: &Strategy<'_>,
    mut merged: Vec<Value>,
    patch: &[Value],
    depth: usize,
) -> Result<Vec<Value>, PatchError> {
    for item in patch {
        let Value::Object(fields) = item else { continue };
        let key = fields.get(strategy.merge_key).ok_or_else(|| no_merge_key(item, strategy.merge_key))?;
        match merged.iter_mut().find(|old| old.get(strategy.merge_key) == Some(key)) {
            Some(Value::Object(old)) => {
                *old = merge_maps(strategy.schema, std::mem::take(old), fields.clone(), depth + 1)?;
            }
            _ => merged.push(item.clone()),
        }
    }
    Ok(merged)
}

/// Processes every `$setElementOrder/…` of a patch together with the list that it orders, and takes both out of it.
pub(super) fn order(
    schema: Option<&Schema>,
    original: &mut Fields,
    patch: &mut Fields,
    depth: usize,
) -> Result<(), PatchError> {
    let directives: Vec<String> =
        patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let Some(order) = patch.remove(&directive) else { continue };
        let order = list(order)?;
        let name = directive.strip_prefix(ELEMENT_ORDER).and_then(|rest| rest.strip_prefix('/'));
        let Some(name) = name else {
            return Err(PatchError::Malformed("invalid patch format of setElementOrder list".into()));
        };
        let live = original.get(name).cloned().map(list).transpose()?;
        let change = patch.get(name).cloned().map(list).transpose()?;
        let strategy = Strategy::of_list(schema, name);
        fits_order(change.as_deref().unwrap_or_default(), &order, strategy.merge_key)?;
        let merged = match (&live, &change) {
            (Some(live), None) => live.clone(),
            (None, Some(change)) => match without_directives(Value::Array(change.clone()), 0) {
                Some(Value::Array(kept)) => kept,
                _ => continue,
            },
            (Some(live), Some(change)) => merge(&strategy, live.clone(), change.clone(), false, depth)?,
            (None, None) => continue,
        };
        let live = live.unwrap_or_default();
        elements_are_maps(&live, change.as_deref().unwrap_or_default())?;
        let ordered = arrange(merged, &order, &live, strategy.merge_key)?;
        original.insert(name.to_owned(), Value::Array(ordered));
        patch.remove(name);
    }
    Ok(())
}

fn list(value: Value) -> Result<Vec<Value>, PatchError> {
    match value {
        Value::Array(items) => Ok(items),
        other => {
            Err(contradiction(format!("expected a []interface {{}}, but received a {}", type_name(&other))))
        }
    }
}

/// The elements of the patch must come in the given order, which must have all of them.
fn fits_order(patch: &[Value], order: &[Value], merge_key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut places = order.iter();
    for item in patch.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        let key = key_of(item, merge_key)?;
        loop {
            let Some(place) = places.next() else {
                let (patch, order) = (Value::Array(patch.to_vec()), Value::Array(order.to_vec()));
                return Err(contradiction(format!(
                    "The order in patch list:\n{}\n doesn't match {ELEMENT_ORDER} list:\n{}\n",
                    plain(&patch),
                    plain(&order)
                )));
            };
            if key_of(place, merge_key)? == key {
                break;
            }
        }
    }
    Ok(())
}

/// What tells an element apart: itself, or its merge key.
fn key_of<'a>(item: &'a Value, merge_key: &str) -> Result<&'a Value, PatchError> {
    if merge_key.is_empty() {
        return Ok(item);
    }
    if !item.is_object() {
        let got = type_name(item);
        return Err(contradiction(format!("expected a map[string]interface {{}}, but received a {got}")));
    }
    item.get(merge_key).ok_or_else(|| no_merge_key(item, merge_key))
}

/// Puts the elements that `order` has into that order, the others into that of `live`, and interleaves them
/// so that elements that `live` has keep their order where neither is hurt.
fn arrange(
    items: Vec<Value>,
    order: &[Value],
    live: &[Value],
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    let keys = |list: &[Value]| -> Result<Vec<Value>, PatchError> {
        list.iter().map(|item| key_of(item, merge_key).cloned()).collect()
    };
    let (order, live) = (keys(order)?, keys(live)?);
    let (mut ordered, mut others) = (Vec::new(), Vec::new());
    for item in items {
        let key = key_of(&item, merge_key)?;
        let (place, at_live) = (find(&order, key), find(&live, key));
        match place {
            Some(place) => ordered.push((place, at_live, item)),
            None => others.push((at_live, item)),
        }
    }
    ordered.sort_by_key(|(place, _, _)| *place);
    others.sort_by_key(|(at_live, _)| *at_live);
    let mut others = others.into_iter().peekable();
    let mut arranged = Vec::new();
    for (_, at_live, item) in ordered {
        while others.peek().is_some_and(|(other, _)| other.is_some() && at_live.is_some() && *other < at_live)
        {
            arranged.extend(others.next().map(|(_, item)| item));
        }
        arranged.push(item);
    }
    arranged.extend(others.map(|(_, item)| item));
    Ok(arranged)
}

fn find(keys: &[Value], key: &Value) -> Option<usize> {
    keys.iter().position(|other| other == key)
}

/// Whether the elements are maps. All must be of one type, and not lists.
fn elements_are_maps(original: &[Value], patch: &[Value]) -> Result<bool, PatchError> {
    let mut types = original.iter().chain(patch).map(type_name);
    let Some(first) = types.next() else {
        return Err(contradiction("no elements in any of the given slices"));
    };
    if first == "[]interface {}" {
        return Err(PatchError::DoesNotApply("lists of lists are not supported".into()));
    }
    if types.any(|other| other != first) {
        let both = Value::Array(vec![Value::Array(original.to_vec()), Value::Array(patch.to_vec())]);
        return Err(contradiction(format!("list element types are not identical: {}", plain(&both))));
    }
    Ok(first == "map[string]interface {}")
}

fn no_merge_key(item: &Value, merge_key: &str) -> PatchError {
    contradiction(format!("map: {} does not contain declared merge key: {merge_key}", plain(item)))
}
