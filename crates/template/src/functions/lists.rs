//! Lists: made, taken apart, put together. All of them leave what they are given as it is.

use std::sync::Arc;

use super::Param::{Any, Int, Text};
use super::core::is_true;
use super::math::{to_int, until};
use super::reflect::deep_equal;
use super::text::{strval, to_texts};
use super::{Function, any, exactly, int, text, variadic};
use crate::error::Fault;
use crate::memory::Memory;
use crate::value::{Element, List, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("list", &[], Any, |memory, values| memory.list(values.to_vec())),
    variadic("tuple", &[], Any, |memory, values| memory.list(values.to_vec())),
    exactly("first", &[Any], first),
    exactly("mustFirst", &[Any], first),
    exactly("last", &[Any], last),
    exactly("mustLast", &[Any], last),
    exactly("rest", &[Any], rest),
    exactly("mustRest", &[Any], rest),
    exactly("initial", &[Any], initial),
    exactly("mustInitial", &[Any], initial),
    exactly("append", &[Any, Any], append),
    exactly("push", &[Any, Any], append),
    exactly("mustAppend", &[Any, Any], append),
    exactly("mustPush", &[Any, Any], append),
    exactly("prepend", &[Any, Any], prepend),
    exactly("mustPrepend", &[Any, Any], prepend),
    variadic("concat", &[], Any, concat),
    exactly("reverse", &[Any], reverse),
    exactly("mustReverse", &[Any], reverse),
    exactly("compact", &[Any], compact),
    exactly("mustCompact", &[Any], compact),
    exactly("uniq", &[Any], uniq),
    exactly("mustUniq", &[Any], uniq),
    variadic("without", &[Any], Any, without),
    variadic("mustWithout", &[Any], Any, without),
    exactly("has", &[Any, Any], has),
    exactly("mustHas", &[Any, Any], has),
    variadic("slice", &[Any], Any, slice),
    variadic("mustSlice", &[Any], Any, slice),
    exactly("chunk", &[Int, Any], chunk),
    exactly("mustChunk", &[Int, Any], chunk),
    exactly("sortAlpha", &[Any], sort_alpha),
    exactly("join", &[Text, Any], |memory, values| {
        let texts = to_texts(memory, any(values, 1))?;
        let separators = text(values, 0).len().saturating_mul(texts.len());
        let length: usize = texts.iter().map(|text| text.len()).sum();
        memory.check_length(length.saturating_add(separators))?;
        memory.text(texts.join(text(values, 0)))
    }),
    exactly("toStrings", &[Any], |memory, values| {
        let texts = to_texts(memory, any(values, 0))?;
        memory.texts(texts)
    }),
    exactly("splitList", &[Text, Text], |memory, values| {
        let texts = split(text(values, 1), text(values, 0), usize::MAX);
        memory.texts(texts)
    }),
    exactly("until", &[Int], |memory, values| {
        let count = int(values, 0);
        let numbers = until(memory, 0, count, if count < 0 { -1 } else { 1 })?;
        integers(memory, numbers)
    }),
    exactly("untilStep", &[Int, Int, Int], |memory, values| {
        let numbers = until(memory, int(values, 0), int(values, 1), int(values, 2))?;
        integers(memory, numbers)
    }),
];

fn integers(memory: &mut Memory, numbers: Vec<i64>) -> Result<Value, Fault> {
    memory.list_of(Element::Int, numbers.into_iter().map(Value::Int).collect())
}

/// As `strings.SplitN`: without a separator, into characters.
pub(super) fn split(text: &str, separator: &str, most: usize) -> Vec<Arc<str>> {
    if separator.is_empty() {
        let mut pieces: Vec<Arc<str>> = Vec::new();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            if pieces.len() + 1 == most {
                break;
            }
            pieces.push(rest[..char.len_utf8()].into());
            rest = &rest[char.len_utf8()..];
        }
        if !rest.is_empty() {
            pieces.push(rest.into());
        }
        return pieces;
    }
    text.splitn(most, separator).map(Into::into).collect()
}

fn list<'a>(memory: &Memory, value: &'a Value) -> Result<&'a List, Fault> {
    match value {
        Value::List(list) => Ok(list),
        Value::Missing | Value::Nil => Err("there is no list; guard it with `default (list)`".into()),
        other => Err(format!("wants a list, got {}", memory.type_name(other)).into()),
    }
}

fn first(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    Ok(list(memory, any(values, 0))?.items.first().cloned().unwrap_or(Value::Nil))
}

fn last(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    Ok(list(memory, any(values, 0))?.items.last().cloned().unwrap_or(Value::Nil))
}

fn rest(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    match list(memory, any(values, 0))?.items.split_first() {
        Some((_, rest)) => memory.list(rest.to_vec()),
        None => Ok(Memory::nil_list(Element::Any)),
    }
}

fn initial(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    match list(memory, any(values, 0))?.items.split_last() {
        Some((_, initial)) => memory.list(initial.to_vec()),
        None => Ok(Memory::nil_list(Element::Any)),
    }
}

fn append(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut items = list(memory, any(values, 0))?.items.to_vec();
    items.push(any(values, 1).clone());
    memory.list(items)
}

fn prepend(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut items = list(memory, any(values, 0))?.items.to_vec();
    items.insert(0, any(values, 1).clone());
    memory.list(items)
}

fn concat(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut items = Vec::new();
    for value in values {
        let more = list(memory, value)?;
        memory.work(more.items.len() / 16)?;
        items.extend(more.items.iter().cloned());
    }
    if items.is_empty() {
        return Ok(Memory::nil_list(Element::Any));
    }
    memory.list(items)
}

fn reverse(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let items = list(memory, any(values, 0))?.items.iter().rev().cloned().collect();
    memory.list(items)
}

fn compact(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let items = list(memory, any(values, 0))?.items.clone();
    let items = items.iter().filter(|item| is_true(memory, item)).cloned().collect();
    memory.list(items)
}

fn contains(memory: &mut Memory, items: &[Value], wanted: &Value) -> Result<bool, Fault> {
    for item in items {
        if deep_equal(memory, item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn uniq(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut kept: Vec<Value> = Vec::new();
    for item in list(memory, any(values, 0))?.items.iter() {
        if !contains(memory, &kept, item)? {
            kept.push(item.clone());
        }
    }
    memory.list(kept)
}

fn without(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut kept: Vec<Value> = Vec::new();
    for item in list(memory, any(values, 0))?.items.iter() {
        if !contains(memory, &values[1..], item)? {
            kept.push(item.clone());
        }
    }
    memory.list(kept)
}

fn has(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let haystack = any(values, 1);
    if haystack.is_nil() {
        return Ok(Value::Bool(false));
    }
    let items = &list(memory, haystack)?.items;
    contains(memory, items, any(values, 0)).map(Value::Bool)
}

fn slice(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let list = list(memory, any(values, 0))?;
    if list.items.is_empty() {
        return Ok(Value::Nil);
    }
    let length = list.items.len() as i64;
    let begin = values.get(1).map_or(0, to_int);
    let end = values.get(2).map_or(length, to_int);
    let range = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
    match range.and_then(|(begin, end)| list.items.get(begin..end)) {
        Some(items) => memory.list_of(list.of, items.to_vec()),
        None => Err(format!("slice bounds out of range: {begin} to {end} of {length}").into()),
    }
}

fn chunk(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let list = list(memory, any(values, 1))?;
    let Some(size) = usize::try_from(int(values, 0)).ok().filter(|size| *size > 0) else {
        return Err("the size of chunks has to be at least 1".into());
    };
    let chunks: Result<Vec<Value>, Fault> =
        list.items.chunks(size).map(|chunk| memory.list(chunk.to_vec())).collect();
    memory.list_of(Element::List, chunks?)
}

fn sort_alpha(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut texts = match any(values, 0) {
        Value::List(_) => to_texts(memory, any(values, 0))?,
        other => vec![strval(memory, other)?],
    };
    memory.work(texts.len())?;
    texts.sort();
    memory.texts(texts)
}
