//! Maps with strings as keys. Those that change one change it for everybody who has it, as Go's do.

use std::sync::Arc;

use super::Param::{Any, Dict, Int, Text};
use super::core::is_true;
use super::lists::split;
use super::text::strval;
use super::{Function, any, dict, exactly, int, text, variadic};
use crate::error::Fault;
use crate::memory::{DEEPEST, Entries, Memory, too_deep};
use crate::value::{Element, MapId, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("dict", &[], Any, make),
    exactly("get", &[Dict, Text], |memory, values| {
        let found = dict(values, 0).and_then(|map| memory.entries(map).get(text(values, 1)));
        Ok(found.cloned().unwrap_or_else(|| Value::text("")))
    }),
    exactly("set", &[Dict, Text, Any], |memory, values| match (dict(values, 0), any(values, 1)) {
        (Some(map), Value::Text(key)) => {
            memory.set(map, key.clone(), any(values, 2).clone())?;
            Ok(any(values, 0).clone())
        }
        _ => Err("there is no map to set it in; make one with dict".into()),
    }),
    exactly("unset", &[Dict, Text], |memory, values| {
        if let Some(map) = dict(values, 0) {
            memory.unset(map, text(values, 1));
        }
        Ok(any(values, 0).clone())
    }),
    exactly("hasKey", &[Dict, Text], |memory, values| {
        let holds = dict(values, 0).is_some_and(|map| memory.entries(map).contains_key(text(values, 1)));
        Ok(Value::Bool(holds))
    }),
    variadic("keys", &[], Dict, |memory, values| {
        let mut keys: Vec<Arc<str>> = Vec::new();
        for index in 0..values.len() {
            if let Some(map) = dict(values, index) {
                keys.extend(memory.entries(map).keys().cloned());
            }
        }
        memory.texts(keys)
    }),
    exactly("values", &[Dict], |memory, values| {
        let held = dict(values, 0).map(|map| memory.entries(map).values().cloned().collect());
        memory.list(held.unwrap_or_default())
    }),
    variadic("pluck", &[Text], Dict, |memory, values| {
        let mut plucked = Vec::new();
        for index in 1..values.len() {
            plucked.extend(
                dict(values, index).and_then(|map| memory.entries(map).get(text(values, 0)).cloned()),
            );
        }
        memory.list(plucked)
    }),
    variadic("pick", &[Dict], Text, |memory, values| only(memory, values, true)),
    variadic("omit", &[Dict], Text, |memory, values| only(memory, values, false)),
    variadic("merge", &[Dict], Dict, |memory, values| merge(memory, values, false)),
    variadic("mustMerge", &[Dict], Dict, |memory, values| merge(memory, values, false)),
    variadic("mergeOverwrite", &[Dict], Dict, |memory, values| merge(memory, values, true)),
    variadic("mustMergeOverwrite", &[Dict], Dict, |memory, values| merge(memory, values, true)),
    exactly("deepCopy", &[Any], deep_copy),
    exactly("mustDeepCopy", &[Any], deep_copy),
    variadic("dig", &[], Any, dig),
    exactly("split", &[Text, Text], |memory, values| {
        let pieces = split(text(values, 1), text(values, 0), usize::MAX);
        numbered(memory, pieces)
    }),
    exactly("splitn", &[Text, Int, Text], |memory, values| {
        let pieces = match int(values, 1) {
            0 => Vec::new(),
            most => split(text(values, 2), text(values, 0), usize::try_from(most).unwrap_or(usize::MAX)),
        };
        numbered(memory, pieces)
    }),
];

fn make(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut entries = Entries::new();
    for pair in values.chunks(2) {
        let key = strval(memory, any(pair, 0))?;
        entries.insert(key, pair.get(1).cloned().unwrap_or_else(|| Value::text("")));
    }
    memory.map(entries)
}

/// The pieces of a text as `_0`, `_1` and so on.
fn numbered(memory: &mut Memory, pieces: Vec<Arc<str>>) -> Result<Value, Fault> {
    let entry = |(index, piece): (usize, Arc<str>)| (format!("_{index}").into(), Value::Text(piece));
    let entries = pieces.into_iter().enumerate().map(entry).collect();
    memory.map_of(Element::Text, entries)
}

/// The entries whose keys are named, or all others.
fn only(memory: &mut Memory, values: &[Value], named: bool) -> Result<Value, Fault> {
    let keys: Vec<&str> = values.iter().skip(1).filter_map(Value::as_text).collect();
    let Some(map) = dict(values, 0) else { return memory.map(Entries::new()) };
    memory.work(memory.entries(map).len().saturating_mul(keys.len()) / 64)?;
    let entries: Entries = memory
        .entries(map)
        .iter()
        .filter(|(key, _)| keys.contains(&&***key) == named)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    memory.map(entries)
}

/// Puts what other maps have into the first one: all of it, or only what it does not have or has empty.
fn merge(memory: &mut Memory, values: &[Value], overwrite: bool) -> Result<Value, Fault> {
    let target = match any(values, 0) {
        Value::Map(map) => *map,
        _ => match memory.map(Entries::new())? {
            Value::Map(map) => map,
            other => return Ok(other),
        },
    };
    for index in 1..values.len() {
        if let Some(source) = dict(values, index) {
            merge_into(memory, target, source, overwrite, 0)?;
        }
    }
    Ok(Value::Map(target))
}

fn merge_into(
    memory: &mut Memory,
    target: MapId,
    source: MapId,
    overwrite: bool,
    depth: usize,
) -> Result<(), Fault> {
    if depth > DEEPEST {
        return Err(too_deep());
    }
    if target == source {
        return Ok(());
    }
    let entries = memory.entries(source).clone();
    memory.work(entries.len() + 1)?;
    for (key, value) in entries {
        let before = memory.entries(target).get(&key).cloned();
        let is_set = before.as_ref().is_some_and(|before| is_true(memory, before));
        match (&before, &value) {
            (_, Value::Nil) if !overwrite => {}
            (Some(Value::Map(before)), Value::Map(inner)) => {
                let same_kind = memory.element(*before) == memory.element(*inner);
                if is_set && same_kind {
                    merge_into(memory, *before, *inner, overwrite, depth + 1)?;
                } else if !is_set || overwrite {
                    memory.set(target, key, value)?;
                }
            }
            _ if !is_set || overwrite => memory.set(target, key, value)?,
            _ => {}
        }
    }
    Ok(())
}

fn deep_copy(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    match any(values, 0) {
        Value::Missing | Value::Nil => Err("there is nothing to copy; guard it with `default (dict)`".into()),
        value => copied(memory, value),
    }
}

/// The same with lists and maps of its own.
pub(crate) fn copied(memory: &mut Memory, value: &Value) -> Result<Value, Fault> {
    copy(memory, value, 0)
}

fn copy(memory: &mut Memory, value: &Value, depth: usize) -> Result<Value, Fault> {
    if depth > DEEPEST {
        return Err(too_deep());
    }
    match value {
        Value::List(list) if list.is_nil => Ok(value.clone()),
        Value::List(list) => {
            let items: Result<Vec<Value>, Fault> =
                list.items.iter().map(|item| copy(memory, item, depth + 1)).collect();
            memory.list_of(list.of, items?)
        }
        Value::Map(map) => {
            let mut entries = memory.entries(*map).clone();
            for value in entries.values_mut() {
                *value = copy(memory, value, depth + 1)?;
            }
            memory.map_of(memory.element(*map), entries)
        }
        other => Ok(other.clone()),
    }
}

/// Keys, what to take if one of them is not there, and the map to begin with.
fn dig(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let [keys @ .., otherwise, map] = values else { return Err("dig needs at least three arguments".into()) };
    if keys.is_empty() {
        return Err("dig needs at least three arguments".into());
    }
    if let Some(key) = keys.iter().find(|key| key.as_text().is_none()) {
        return Err(
            format!("keys are strings, not {}; convert it with toString", memory.type_name(key)).into()
        );
    }
    let mut value = map.clone();
    for key in keys.iter().filter_map(Value::as_text) {
        match &value {
            Value::Map(map) if memory.element(*map) == Element::Any => match memory.entries(*map).get(key) {
                Some(found) => value = found.clone(),
                None => return Ok(otherwise.clone()),
            },
            other => {
                let kind = memory.type_name(other);
                return Err(format!("{key:?} is looked up in a {kind}, which is no map of anything").into());
            }
        }
    }
    Ok(value)
}
