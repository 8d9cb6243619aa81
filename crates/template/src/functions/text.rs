//! Strings. Go counts bytes where it cuts; here, what would cut a character in two is refused, because nothing could read it.

use std::ops::Range;
use std::sync::Arc;

use super::Param::{Any, Int, Text};
use super::{Function, any, exactly, int, text, variadic};
use crate::error::Fault;
use crate::memory::Memory;
use crate::print::quote::quote;
use crate::print::{Out, print, to_text};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("trim", &[Text], |memory, values| memory.text(text(values, 0).trim())),
    exactly("trimAll", &[Text, Text], trim_all),
    exactly("trimall", &[Text, Text], trim_all),
    exactly("trimSuffix", &[Text, Text], |memory, values| {
        let given = text(values, 1);
        memory.text(given.strip_suffix(text(values, 0)).unwrap_or(given))
    }),
    exactly("trimPrefix", &[Text, Text], |memory, values| {
        let given = text(values, 1);
        memory.text(given.strip_prefix(text(values, 0)).unwrap_or(given))
    }),
    exactly("contains", &[Text, Text], |_, values| {
        Ok(Value::Bool(text(values, 1).contains(text(values, 0))))
    }),
    exactly("hasPrefix", &[Text, Text], |_, values| {
        Ok(Value::Bool(text(values, 1).starts_with(text(values, 0))))
    }),
    exactly("hasSuffix", &[Text, Text], |_, values| {
        Ok(Value::Bool(text(values, 1).ends_with(text(values, 0))))
    }),
    exactly("nospace", &[Text], |memory, values| {
        memory.text(text(values, 0).split_whitespace().collect::<String>())
    }),
    exactly("repeat", &[Int, Text], |memory, values| {
        let count = count(int(values, 0))?;
        memory.check_length(text(values, 1).len().saturating_mul(count))?;
        memory.text(text(values, 1).repeat(count))
    }),
    exactly("substr", &[Int, Int, Text], |memory, values| {
        let given = text(values, 2);
        let length = given.len() as i64;
        let (begin, end) = (int(values, 0), int(values, 1));
        let range = match (begin, end) {
            (..0, end) => 0..end,
            (begin, end) if end < 0 || end > length => begin..length,
            (begin, end) => begin..end,
        };
        let piece = cut(given, range)?;
        memory.text(piece)
    }),
    exactly("trunc", &[Int, Text], |memory, values| {
        let given = text(values, 1);
        let (length, wanted) = (given.len() as i64, int(values, 0));
        let range = match wanted {
            wanted if wanted < 0 && length + wanted > 0 => length + wanted..length,
            wanted if wanted >= 0 && length > wanted => 0..wanted,
            _ => 0..length,
        };
        let piece = cut(given, range)?;
        memory.text(piece)
    }),
    exactly("abbrev", &[Int, Text], |memory, values| {
        let (width, given) = (int(values, 0), text(values, 1));
        let short = if width < 4 { given.to_owned() } else { abbreviate(given, 0, width)? };
        memory.text(short)
    }),
    exactly("abbrevboth", &[Int, Int, Text], |memory, values| {
        let (offset, width, given) = (int(values, 0), int(values, 1), text(values, 2));
        let unchanged = width < 4 || offset > 0 && width < 7;
        let short = if unchanged { given.to_owned() } else { abbreviate(given, offset, width)? };
        memory.text(short)
    }),
    exactly("replace", &[Text, Text, Text], |memory, values| {
        let (old, new, given) = (text(values, 0), text(values, 1), text(values, 2));
        let found = given.matches(old).count();
        memory.check_length(given.len().saturating_add(new.len().saturating_mul(found)))?;
        memory.text(given.replace(old, new))
    }),
    exactly("plural", &[Text, Text, Int], |_, values| {
        Ok(any(values, if int(values, 2) == 1 { 0 } else { 1 }).clone())
    }),
    exactly("indent", &[Int, Text], |memory, values| indent(memory, values, "")),
    exactly("nindent", &[Int, Text], |memory, values| indent(memory, values, "\n")),
    variadic("quote", &[], Any, |memory, values| {
        let mut words = Vec::new();
        for value in values.iter().filter(|value| !value.is_nil()) {
            words.push(quote(&strval(memory, value)?));
        }
        memory.text(words.join(" "))
    }),
    variadic("squote", &[], Any, |memory, values| {
        let mut words = Vec::new();
        for value in values.iter().filter(|value| !value.is_nil()) {
            words.push(format!("'{}'", to_text(memory, value)?));
        }
        memory.text(words.join(" "))
    }),
    variadic("cat", &[], Any, |memory, values| {
        let mut out = Out::new(memory.limits().output);
        for (index, value) in values.iter().filter(|value| !value.is_nil()).enumerate() {
            out.push(if index == 0 { "" } else { " " })?;
            print(memory, &mut out, value)?;
        }
        memory.text(out.take())
    }),
    exactly("toString", &[Any], |memory, values| {
        let text = strval(memory, any(values, 0))?;
        memory.text(text)
    }),
    exactly("wrap", &[Int, Text], |memory, values| {
        let wrapped = wrap(memory, text(values, 1), int(values, 0), "\n", false)?;
        memory.text(wrapped)
    }),
    exactly("wrapWith", &[Int, Text, Text], |memory, values| {
        let separator = if text(values, 1).is_empty() { "\n" } else { text(values, 1) };
        let wrapped = wrap(memory, text(values, 2), int(values, 0), separator, true)?;
        memory.text(wrapped)
    }),
];

/// A string as it is, anything else as it prints.
pub(super) fn strval(memory: &Memory, value: &Value) -> Result<Arc<str>, Fault> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other => Ok(to_text(memory, other)?.into()),
    }
}

/// The items of a list as texts, without those that are nil; anything else as a list of one.
pub(super) fn to_texts(memory: &Memory, value: &Value) -> Result<Vec<Arc<str>>, Fault> {
    match value {
        Value::Missing | Value::Nil => Ok(Vec::new()),
        Value::List(list) => {
            let items = list.items.iter().filter(|item| !item.is_nil());
            items.map(|item| strval(memory, item)).collect()
        }
        other => Ok(vec![strval(memory, other)?]),
    }
}

fn count(number: i64) -> Result<usize, Fault> {
    usize::try_from(number).map_err(|_| format!("the count {number} is negative").into())
}

/// A part of a text by bytes.
fn cut(text: &str, range: Range<i64>) -> Result<&str, Fault> {
    let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    let Some((begin, end)) = bounds.filter(|(begin, end)| begin <= end && *end <= text.len()) else {
        let (begin, end, length) = (range.start, range.end, text.len());
        return Err(format!("slice bounds out of range: bytes {begin} to {end} of {length}").into());
    };
    let whole =
        "this would cut a character in two, because lengths are counted in bytes; choose another length";
    text.get(begin..end).ok_or_else(|| whole.into())
}

fn trim_all(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let set = text(values, 0);
    memory.text(text(values, 1).trim_matches(|char| set.contains(char)))
}

fn indent(memory: &mut Memory, values: &[Value], before: &str) -> Result<Value, Fault> {
    let (spaces, given) = (count(int(values, 0))?, text(values, 1));
    let lines = 1 + given.matches('\n').count();
    memory.check_length(
        given.len().saturating_add(spaces.saturating_mul(lines)).saturating_add(before.len()),
    )?;
    let pad = " ".repeat(spaces);
    let padded = given.replace('\n', &format!("\n{pad}"));
    memory.text(format!("{before}{pad}{padded}"))
}

/// Dots for what has no room: behind, or on both sides of what begins at an offset.
fn abbreviate(text: &str, offset: i64, width: i64) -> Result<String, Fault> {
    let length = text.len() as i64;
    if length <= width {
        return Ok(text.to_owned());
    }
    let room = width - 3;
    let offset = if length - offset.min(length) < room { length - room } else { offset.min(length) };
    if offset <= 4 {
        return Ok(format!("{}...", cut(text, 0..room)?));
    }
    if width < 7 {
        return Ok(String::new());
    }
    if offset + room < length {
        return Ok(format!("...{}", abbreviate(cut(text, offset..length)?, 0, room)?));
    }
    Ok(format!("...{}", cut(text, length - room..length)?))
}

/// Lines of at most a length, broken at spaces, or within words that are longer if they may be.
fn wrap(
    memory: &Memory,
    text: &str,
    width: i64,
    separator: &str,
    break_words: bool,
) -> Result<String, Fault> {
    let width = usize::try_from(width.max(1)).unwrap_or(usize::MAX);
    let mut out = Out::new(memory.limits().output);
    let mut rest = text;
    while rest.len() > width {
        if let Some(after) = rest.strip_prefix(' ') {
            rest = after;
            continue;
        }
        let line = &rest.as_bytes()[..width + 1];
        let space = line.iter().rposition(|byte| *byte == b' ');
        let (end, skipped) = match space {
            Some(space) => (space, 1),
            None if break_words => (width, 0),
            None => match rest.as_bytes()[width..].iter().position(|byte| *byte == b' ') {
                Some(space) => (width + space, 1),
                None => break,
            },
        };
        out.push(cut(rest, 0..end as i64)?)?;
        out.push(separator)?;
        rest = cut(rest, (end + skipped) as i64..rest.len() as i64)?;
    }
    out.push(rest)?;
    Ok(out.take())
}
