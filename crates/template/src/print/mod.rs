//! Prints values as Go's `fmt` does.

pub(crate) mod number;
pub(crate) mod quote;
mod verbs;

use crate::error::Fault;
use crate::memory::{DEEPEST, Memory, too_deep};
use crate::value::Value;

pub(crate) use verbs::sprintf;

/// A text that is written bit by bit and cannot become too long.
pub(crate) struct Out {
    text: String,
    limit: usize,
}

impl Out {
    pub(crate) fn new(limit: usize) -> Out {
        Out { text: String::new(), limit }
    }

    pub(crate) fn push(&mut self, text: &str) -> Result<(), Fault> {
        if self.text.len() + text.len() > self.limit {
            return Err(Fault::Limit(format!("the output is larger than {} bytes", self.limit)));
        }
        self.text.push_str(text);
        Ok(())
    }

    /// The same piece many times.
    pub(crate) fn repeat(&mut self, piece: &str, count: usize) -> Result<(), Fault> {
        if self.text.len().saturating_add(piece.len().saturating_mul(count)) > self.limit {
            return Err(Fault::Limit(format!("the output is larger than {} bytes", self.limit)));
        }
        self.text.extend(std::iter::repeat_n(piece, count));
        Ok(())
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

/// As `%v`.
pub(crate) fn print(memory: &Memory, out: &mut Out, value: &Value) -> Result<(), Fault> {
    nested(memory, out, value, 0)
}

/// As `%v`, into a text of its own.
pub(crate) fn to_text(memory: &Memory, value: &Value) -> Result<String, Fault> {
    let mut out = Out::new(memory.limits().output);
    print(memory, &mut out, value)?;
    Ok(out.take())
}

fn nested(memory: &Memory, out: &mut Out, value: &Value, depth: usize) -> Result<(), Fault> {
    if depth > DEEPEST {
        return Err(too_deep());
    }
    match value {
        Value::Missing | Value::Nil => out.push("<nil>"),
        Value::Bool(bool) => out.push(if *bool { "true" } else { "false" }),
        Value::Int(number) | Value::Int64(number) => out.push(&number.to_string()),
        Value::Uint64(number) => out.push(&number.to_string()),
        Value::Byte(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&number::shortest(*number)),
        Value::Text(text) => out.push(text),
        Value::Version(version) => out.push(&version.to_string()),
        Value::List(list) => {
            out.push("[")?;
            for (index, item) in list.items.iter().enumerate() {
                out.push(if index == 0 { "" } else { " " })?;
                nested(memory, out, item, depth + 1)?;
            }
            out.push("]")
        }
        Value::Map(map) => {
            out.push("map[")?;
            for (index, (key, item)) in memory.entries(*map).iter().enumerate() {
                out.push(if index == 0 { "" } else { " " })?;
                out.push(key)?;
                out.push(":")?;
                nested(memory, out, item, depth + 1)?;
            }
            out.push("]")
        }
    }
}

/// As `fmt.Sprint`: a space between two values of which neither is a string.
pub(crate) fn sprint(memory: &Memory, values: &[Value]) -> Result<String, Fault> {
    let mut out = Out::new(memory.limits().output);
    let mut before: Option<&Value> = None;
    for value in values {
        let spaced = before.is_some_and(|before| before.as_text().is_none()) && value.as_text().is_none();
        out.push(if spaced { " " } else { "" })?;
        print(memory, &mut out, value)?;
        before = Some(value);
    }
    Ok(out.take())
}

/// As `fmt.Sprintln`.
pub(crate) fn sprintln(memory: &Memory, values: &[Value]) -> Result<String, Fault> {
    let mut out = Out::new(memory.limits().output);
    for (index, value) in values.iter().enumerate() {
        out.push(if index == 0 { "" } else { " " })?;
        print(memory, &mut out, value)?;
    }
    out.push("\n")?;
    Ok(out.take())
}
