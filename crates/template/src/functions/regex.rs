//! Regular expressions in Go's syntax. It is nearly that of the `regex` crate; what differs is rewritten first.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::Param::{Int, Text};
use super::{Function, exactly, int, text};
use crate::error::Fault;
use crate::memory::Memory;
use crate::print::Out;
use crate::value::{Element, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    exactly("regexMatch", &[Text, Text], |memory, values| match compile(memory, values) {
        Ok(regex) => Ok(Value::Bool(regex.is_match(text(values, 1)))),
        Err(Fault::Message(_)) => Ok(Value::Bool(false)),
        Err(fault) => Err(fault),
    }),
    exactly("mustRegexMatch", &[Text, Text], |memory, values| {
        Ok(Value::Bool(compile(memory, values)?.is_match(text(values, 1))))
    }),
    exactly("regexFind", &[Text, Text], find),
    exactly("mustRegexFind", &[Text, Text], find),
    exactly("regexFindAll", &[Text, Text, Int], find_all),
    exactly("mustRegexFindAll", &[Text, Text, Int], find_all),
    exactly("regexReplaceAll", &[Text, Text, Text], |memory, values| replace(memory, values, true)),
    exactly("mustRegexReplaceAll", &[Text, Text, Text], |memory, values| replace(memory, values, true)),
    exactly("regexReplaceAllLiteral", &[Text, Text, Text], |memory, values| replace(memory, values, false)),
    exactly("mustRegexReplaceAllLiteral", &[Text, Text, Text], |memory, values| {
        replace(memory, values, false)
    }),
    exactly("regexSplit", &[Text, Text, Int], split),
    exactly("mustRegexSplit", &[Text, Text, Int], split),
    exactly("regexQuoteMeta", &[Text], |memory, values| {
        let special = |char: char| r"\.+*?()|[]{}^$".contains(char);
        let quote = |char: char| special(char).then_some('\\').into_iter().chain([char]);
        memory.text(text(values, 0).chars().flat_map(quote).collect::<String>())
    }),
];

/// How large a compiled expression may be, in bytes.
const LARGEST: usize = 1 << 20;

fn compile(memory: &mut Memory, values: &[Value]) -> Result<Regex, Fault> {
    let (pattern, given) = (text(values, 0), text(values, 1));
    memory.work(50 + pattern.len() + given.len() / 64)?;
    let built = RegexBuilder::new(&rewritten(pattern)?).size_limit(LARGEST).dfa_size_limit(LARGEST).build();
    built.map_err(|error| {
        // The last line says what is wrong; those before draw where, in the rewritten expression.
        let what = error.to_string();
        let what = what.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Fault::Message(format!("error parsing regexp {pattern:?}: {what}"))
    })
}

/// In Go `\d`, `\w`, `\s` and `\b` know ASCII only, a brace that counts nothing is a brace, and there is `\Q…\E`.
fn rewritten(pattern: &str) -> Result<String, Fault> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = match char {
            '\\' if after.starts_with('Q') => {
                let (literal, after) = after[1..].split_once("\\E").unwrap_or((&after[1..], ""));
                out.push_str(&regex::escape(literal));
                after
            }
            '\\' if after.starts_with(['u', 'U']) => {
                return Err(
                    "error parsing regexp: invalid escape sequence; write the character, or \\x{…}".into()
                );
            }
            '\\' => {
                let escaped = after.chars().next();
                out.push_str(&class(escaped, in_class));
                &after[escaped.map_or(0, char::len_utf8)..]
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                let negated = after.strip_prefix('^');
                out.push_str(if negated.is_some() { "^" } else { "" });
                let after = negated.unwrap_or(after);
                // A bracket that comes first is one of those that are meant.
                let bracket = after.strip_prefix(']');
                out.push_str(if bracket.is_some() { r"\]" } else { "" });
                bracket.unwrap_or(after)
            }
            '[' if after.starts_with(':') && after.contains(":]") => {
                let end = after.find(":]").map_or(0, |end| end + 2);
                out.push('[');
                out.push_str(&after[..end]);
                &after[end..]
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(char);
                after
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
                after
            }
            '{' if !in_class && !counts(after) => {
                out.push_str(r"\{");
                after
            }
            _ => {
                out.push(char);
                after
            }
        };
    }
    Ok(out)
}

/// What an escape means, as it is written for the `regex` crate.
fn class(escaped: Option<char>, in_class: bool) -> String {
    let (set, negated) = match escaped {
        Some('d') => ("0-9", false),
        Some('D') => ("0-9", true),
        Some('w') => ("0-9A-Za-z_", false),
        Some('W') => ("0-9A-Za-z_", true),
        Some('s') => (r"\t\n\f\r ", false),
        Some('S') => (r"\t\n\f\r ", true),
        Some('b') if !in_class => return r"(?-u:\b)".to_owned(),
        Some(angle @ ('<' | '>')) => return angle.to_string(),
        Some('C') => return "(?s:.)".to_owned(),
        Some(other) => return format!("\\{other}"),
        None => return "\\".to_owned(),
    };
    match (in_class, negated) {
        (true, false) => set.to_owned(),
        (_, true) => format!("[^{set}]"),
        (false, false) => format!("[{set}]"),
    }
}

/// Whether what follows a brace is a count: `3}`, `3,}`, `3,5}`.
fn counts(after: &str) -> bool {
    let Some((inner, _)) = after.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

fn find(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let regex = compile(memory, values)?;
    memory.text(regex.find(text(values, 1)).map_or("", |found| found.as_str()))
}

/// How many of all are wanted.
fn most(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn find_all(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let regex = compile(memory, values)?;
    let found = regex.find_iter(text(values, 1)).take(most(int(values, 2)));
    let found: Vec<Arc<str>> = found.map(|found| found.as_str().into()).collect();
    if found.is_empty() {
        return Ok(Memory::nil_list(Element::Text));
    }
    memory.texts(found)
}

fn replace(memory: &mut Memory, values: &[Value], expands: bool) -> Result<Value, Fault> {
    let regex = compile(memory, values)?;
    let (given, replacement) = (text(values, 1), text(values, 2));
    let mut out = Out::new(memory.limits().output);
    let mut end = 0;
    for captures in regex.captures_iter(given) {
        let Some(whole) = captures.get(0) else { continue };
        out.push(&given[end..whole.start()])?;
        if expands {
            memory.work(1 + replacement.len() / 64)?;
            let groups = replacement.matches('$').count().saturating_mul(given.len());
            memory.check_length(
                replacement.len().saturating_add(groups.min(whole.len().saturating_mul(replacement.len()))),
            )?;
            let mut expanded = String::new();
            captures.expand(replacement, &mut expanded);
            out.push(&expanded)?;
        } else {
            out.push(replacement)?;
        }
        end = whole.end();
    }
    out.push(&given[end..])?;
    memory.text(out.take())
}

fn split(memory: &mut Memory, values: &[Value]) -> Result<Value, Fault> {
    let regex = compile(memory, values)?;
    let (given, most) = (text(values, 1), most(int(values, 2)));
    if most == 0 {
        return Ok(Memory::nil_list(Element::Text));
    }
    if given.is_empty() && !text(values, 0).is_empty() {
        return memory.texts(vec!["".into()]);
    }
    let mut pieces: Vec<Arc<str>> = Vec::new();
    let (mut begin, mut end) = (0, 0);
    for found in regex.find_iter(given).take(most) {
        if pieces.len() + 1 == most {
            break;
        }
        end = found.start();
        // Nothing is cut off by an empty match at the very beginning.
        if found.end() != 0 {
            pieces.push(given[begin..end].into());
        }
        begin = found.end();
    }
    if end != given.len() {
        pieces.push(given[begin..].into());
    }
    memory.texts(pieces)
}
