//! Writes values as JSON, byte for byte as Go's `encoding/json` does.

use crate::error::Fault;
use crate::memory::{DEEPEST, Memory, too_deep};
use crate::print::{Out, number};
use crate::value::Value;

/// What the text looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// On one line, safe inside of HTML.
    Html,
    /// On one line, as it is.
    Raw,
    /// Indented, safe inside of HTML.
    Pretty,
}

/// A value as JSON; a message if it has a number that JSON has not.
pub(crate) fn write(memory: &Memory, value: &Value, style: Style) -> Result<String, Fault> {
    let mut writer = Writer { memory, out: Out::new(memory.limits().output), style };
    writer.value(value, 0)?;
    Ok(writer.out.take())
}

struct Writer<'a> {
    memory: &'a Memory,
    out: Out,
    style: Style,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Fault> {
        if depth > DEEPEST {
            return Err(too_deep());
        }
        match value {
            Value::Missing | Value::Nil => self.out.push("null"),
            Value::Bool(bool) => self.out.push(if *bool { "true" } else { "false" }),
            Value::Int(number) | Value::Int64(number) => self.out.push(&number.to_string()),
            Value::Uint64(number) => self.out.push(&number.to_string()),
            Value::Byte(number) => self.out.push(&number.to_string()),
            Value::Float(number) if number.is_finite() => self.out.push(&number::json(*number)),
            Value::Float(_) => Err("JSON has no such number".into()),
            Value::Text(text) => self.string(text),
            Value::Version(version) => self.string(&version.to_string()),
            Value::List(list) if list.is_nil => self.out.push("null"),
            Value::List(list) => {
                self.out.push("[")?;
                for (index, item) in list.items.iter().enumerate() {
                    self.out.push(if index == 0 { "" } else { "," })?;
                    self.line(depth + 1)?;
                    self.value(item, depth + 1)?;
                }
                if !list.items.is_empty() {
                    self.line(depth)?;
                }
                self.out.push("]")
            }
            Value::Map(map) => {
                let entries = self.memory.entries(*map);
                self.out.push("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.out.push(if index == 0 { "" } else { "," })?;
                    self.line(depth + 1)?;
                    self.string(key)?;
                    self.out.push(if self.style == Style::Pretty { ": " } else { ":" })?;
                    self.value(value, depth + 1)?;
                }
                if !entries.is_empty() {
                    self.line(depth)?;
                }
                self.out.push("}")
            }
        }
    }

    fn line(&mut self, depth: usize) -> Result<(), Fault> {
        if self.style == Style::Pretty {
            self.out.push("\n")?;
            self.out.repeat("  ", depth)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Fault> {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for char in text.chars() {
            match char {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                '<' | '>' | '&' if self.style != Style::Raw => quoted.push_str(&escape(char)),
                '\u{2028}' | '\u{2029}' => quoted.push_str(&escape(char)),
                char if char < ' ' => quoted.push_str(&escape(char)),
                char => quoted.push(char),
            }
        }
        quoted.push('"');
        self.out.push(&quoted)
    }
}

fn escape(char: char) -> String {
    format!("\\u{:04x}", u32::from(char))
}
