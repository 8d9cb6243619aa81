//! What `text/template` itself offers, and the functions around having a value or not.

use super::Param::{Any, Bool, Text};
use super::{Function, any, exactly, text, variadic};
use crate::error::Fault;
use crate::memory::Memory;
use crate::print::quote::is_printable;
use crate::print::{sprint, sprintf, sprintln};
use crate::value::{Element, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("not", &[Any], |memory, values| Ok(Value::Bool(!is_true(memory, any(values, 0))))),
    exactly("len", &[Any], length),
    variadic("index", &[Any], Any, index),
    variadic("print", &[], Any, |memory, values| {
        let text = sprint(memory, values)?;
        memory.text(text)
    }),
    variadic("println", &[], Any, |memory, values| {
        let text = sprintln(memory, values)?;
        memory.text(text)
    }),
    variadic("printf", &[Text], Any, |memory, values| {
        let text = sprintf(memory, text(values, 0), &values[1..])?;
        memory.text(text)
    }),
    variadic("html", &[], Any, |memory, values| escape(memory, values, html)),
    variadic("js", &[], Any, |memory, values| escape(memory, values, js)),
    variadic("urlquery", &[], Any, |memory, values| escape(memory, values, url_query)),
    variadic("eq", &[Any], Any, |memory, values| equal(memory, values).map(Value::Bool)),
    exactly("ne", &[Any, Any], |memory, values| equal(memory, values).map(|equal| Value::Bool(!equal))),
    exactly("lt", &[Any, Any], |memory, values| less(memory, values).map(Value::Bool)),
    exactly("le", &[Any, Any], |memory, values| less_or_equal(memory, values).map(Value::Bool)),
    exactly("gt", &[Any, Any], |memory, values| {
        less_or_equal(memory, values).map(|holds| Value::Bool(!holds))
    }),
    exactly("ge", &[Any, Any], |memory, values| less(memory, values).map(|holds| Value::Bool(!holds))),
    variadic("default", &[Any], Any, |memory, values| {
        let given = values.get(1).filter(|given| is_true(memory, given));
        Ok(given.unwrap_or(any(values, 0)).clone())
    }),
    exactly("empty", &[Any], |memory, values| Ok(Value::Bool(!is_true(memory, any(values, 0))))),
    variadic("coalesce", &[], Any, |memory, values| {
        Ok(values.iter().find(|value| is_true(memory, value)).cloned().unwrap_or(Value::Nil))
    }),
    variadic("all", &[], Any, |memory, values| {
        Ok(Value::Bool(values.iter().all(|value| is_true(memory, value))))
    }),
    variadic("any", &[], Any, |memory, values| {
        Ok(Value::Bool(values.iter().any(|value| is_true(memory, value))))
    }),
    exactly("ternary", &[Any, Any, Bool], |_, values| {
        let chosen = if matches!(any(values, 2), Value::Bool(true)) { 0 } else { 1 };
        Ok(any(values, chosen).clone())
    }),
    exactly("fail", &[Text], |_, values| Err(text(values, 0).into())),
    exactly("required", &[Text, Any], |_, values| match any(values, 1) {
        Value::Missing | Value::Nil => Err(text(values, 0).into()),
        Value::Text(given) if given.is_empty() => Err(text(values, 0).into()),
        given => Ok(given.clone()),
    }),
    exactly("lookup", &[Text, Text, Text, Text], |memory, _| memory.map(Default::default())),
    exactly("hello", &[], |_, _| Ok(Value::text("Hello!"))),
];

/// Whether a value is not the zero of its kind.
pub(crate) fn is_true(memory: &Memory, value: &Value) -> bool {
    match value {
        Value::Missing | Value::Nil => false,
        Value::Bool(bool) => *bool,
        Value::Int(number) | Value::Int64(number) => *number != 0,
        Value::Uint64(number) => *number != 0,
        Value::Byte(number) => *number != 0,
        Value::Float(number) => *number != 0.0,
        Value::Text(text) => !text.is_empty(),
        Value::List(list) => !list.items.is_empty(),
        Value::Map(map) => !memory.entries(*map).is_empty(),
        Value::Version(_) => true,
    }
}

fn length(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let length = match any(values, 0) {
        Value::Text(text) => text.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => memory.entries(*map).len(),
        Value::Missing | Value::Nil => return Err("len of nothing; guard it with `default`".into()),
        other => return Err(format!("len of type {}", memory.type_name(other)).into()),
    };
    Ok(Value::Int(length as i64))
}

fn index(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let mut item = any(values, 0).clone();
    if item.is_nil() {
        return Err("index of untyped nil".into());
    }
    for key in values.iter().skip(1) {
        item = match &item {
            Value::List(list) => {
                let index = position(memory, key, list.items.len())?;
                list.items.get(index).cloned().unwrap_or(Value::Nil)
            }
            Value::Text(text) => {
                let index = position(memory, key, text.len())?;
                Value::Byte(text.as_bytes().get(index).copied().unwrap_or(0))
            }
            Value::Map(map) => match key {
                Value::Text(key) => match (memory.entries(*map).get(key), memory.element(*map)) {
                    (Some(value), _) => value.clone(),
                    (None, Element::Text) => Value::text(""),
                    (None, _) => Value::Nil,
                },
                Value::Missing | Value::Nil => return Err("value is nil; should be of type string".into()),
                other => {
                    let kind = memory.type_name(other);
                    return Err(
                        format!("value has type {kind}; should be string; convert it with toString").into()
                    );
                }
            },
            Value::Missing | Value::Nil => return Err("index of nil pointer".into()),
            other => return Err(format!("can't index item of type {}", memory.type_name(other)).into()),
        };
    }
    Ok(item)
}

fn position(memory: &Memory, key: &Value, length: usize) -> Result<usize, Fault> {
    let Some(index) = key.as_integer() else {
        return Err(match key {
            Value::Missing | Value::Nil => "cannot index slice/array with nil".into(),
            other => format!("cannot index slice/array with type {}", memory.type_name(other)).into(),
        });
    };
    let position = usize::try_from(index).ok().filter(|index| *index < length);
    position.ok_or_else(|| format!("index out of range: {index}; there are {length}").into())
}

/// What values can be compared as.
#[derive(PartialEq)]
enum Basic<'a> {
    Bool(bool),
    /// Whole numbers of all kinds.
    Integer(i128),
    Float(f64),
    Text(&'a str),
    Other,
}

fn basic(value: &Value) -> Basic<'_> {
    match value {
        Value::Bool(bool) => Basic::Bool(*bool),
        Value::Float(float) => Basic::Float(*float),
        Value::Text(text) => Basic::Text(text),
        other => other.as_integer().map_or(Basic::Other, Basic::Integer),
    }
}

/// Whether the first is equal to one of the others.
fn equal(memory: &mut Memory, values: &[Value]) -> Result<bool, Fault> {
    let first = any(values, 0);
    if values.len() < 2 {
        return Err("missing argument for comparison".into());
    }
    for other in &values[1..] {
        let (left, right) = (basic(first), basic(other));
        let same = match (&left, &right) {
            (Basic::Other, Basic::Other) => same_other(memory, first, other)?,
            _ if std::mem::discriminant(&left) == std::mem::discriminant(&right) => left == right,
            _ if first.is_nil() || other.is_nil() => false,
            _ => return Err(incompatible(memory, first, other)),
        };
        if same {
            return Ok(true);
        }
    }
    Ok(false)
}

fn incompatible(memory: &Memory, left: &Value, right: &Value) -> Fault {
    let (left, right) = (memory.type_name(left), memory.type_name(right));
    format!("incompatible types for comparison: {left} and {right}; convert one of them").into()
}

fn same_other(memory: &Memory, left: &Value, right: &Value) -> Result<bool, Fault> {
    let nothing = |value: &Value| value.is_nil() || value.as_list().is_some_and(|list| list.is_nil);
    let comparable = left.is_nil() || right.is_nil() || left.kind_name() == right.kind_name();
    match (left, right) {
        _ if comparable && (nothing(left) || nothing(right)) => Ok(nothing(left) == nothing(right)),
        (Value::Version(left), Value::Version(right)) => Ok(std::rc::Rc::ptr_eq(left, right)),
        _ => {
            let kind = memory.type_name(right);
            Err(format!("non-comparable type {kind}; deepEqual compares lists and maps").into())
        }
    }
}

fn less(memory: &mut Memory, values: &[Value]) -> Result<bool, Fault> {
    let (first, second) = (any(values, 0), any(values, 1));
    match (basic(first), basic(second)) {
        (Basic::Integer(left), Basic::Integer(right)) => Ok(left < right),
        (Basic::Float(left), Basic::Float(right)) => Ok(left < right),
        (Basic::Text(left), Basic::Text(right)) => Ok(left < right),
        (Basic::Other, _) | (_, Basic::Other) | (Basic::Bool(_), Basic::Bool(_)) => {
            Err("invalid type for comparison; only numbers and strings have an order".into())
        }
        _ => Err(incompatible(memory, first, second)),
    }
}

fn less_or_equal(memory: &mut Memory, values: &[Value]) -> Result<bool, Fault> {
    Ok(less(memory, values)? || equal(memory, values)?)
}

/// All arguments as one text, in which some characters are replaced.
fn escape(memory: &mut Memory, values: &[Value], replace: fn(char, &mut String)) -> Result<Value, Fault> {
    let words: Vec<Value> = values
        .iter()
        .map(|value| if value.is_nil() { Value::text("<no value>") } else { value.clone() })
        .collect();
    let text = sprint(memory, &words)?;
    let mut escaped = String::with_capacity(text.len());
    text.chars().for_each(|char| replace(char, &mut escaped));
    memory.text(escaped)
}

fn html(char: char, out: &mut String) {
    match char {
        '\0' => out.push('\u{fffd}'),
        '"' => out.push_str("&#34;"),
        '\'' => out.push_str("&#39;"),
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        other => out.push(other),
    }
}

fn js(char: char, out: &mut String) {
    match char {
        '\\' | '\'' | '"' => {
            out.push('\\');
            out.push(char);
        }
        '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(char))),
        other if is_printable(other) || other == '\u{7f}' => out.push(other),
        other => out.push_str(&format!("\\u{:04X}", u32::from(other))),
    }
}

pub(super) fn url_query(char: char, out: &mut String) {
    match char {
        ' ' => out.push('+'),
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' | '~' => out.push(char),
        other => {
            for byte in other.encode_utf8(&mut [0; 4]).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
}
