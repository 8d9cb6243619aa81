//! Reads one YAML document into values: numbers become fractions and keys become strings, as by way of JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle};

use super::scalar::{Plain, resolve};
use crate::error::Fault;
use crate::functions::deep_copy;
use crate::memory::{DEEPEST, Entries, Memory, too_deep};
use crate::print::number;
use crate::value::Value;

/// The first document of a text; a message if it is no YAML.
pub(crate) fn read(memory: &mut Memory, text: &str) -> Result<Value, Fault> {
    let mut builder = Builder { memory, open: Vec::new(), anchors: BTreeMap::new(), root: None };
    for next in Parser::new_from_str(text) {
        let (event, span) =
            next.map_err(|error| Fault::Message(format!("error converting YAML to JSON: {error}")))?;
        builder.memory.work(1)?;
        if let Event::DocumentEnd = event {
            break;
        }
        // A last line that does not end has no line break to keep.
        let unended = !text.ends_with('\n') && span.byte_range().is_some_and(|range| range.end >= text.len());
        builder.event(event, unended)?;
    }
    Ok(builder.root.unwrap_or(Value::Nil))
}

struct Builder<'a> {
    memory: &'a mut Memory,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Value>,
    root: Option<Value>,
}

/// A list or map that is not read to its end, and its anchor.
enum Open {
    List(Vec<Value>, usize),
    Map { entries: Entries, merged: Vec<Value>, key: Option<Key>, anchor: usize },
}

enum Key {
    Text(Arc<str>),
    /// `<<`
    Merge,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, unended: bool) -> Result<(), Fault> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                let text = text.strip_suffix('\n').filter(|_| unended && is_block).unwrap_or(&text);
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let meaning = if plain { resolve(text) } else { Plain::Text };
                if self.wants_key() {
                    return self.key(text, meaning);
                }
                let value = match meaning {
                    Plain::Null => Value::Nil,
                    Plain::Bool(bool) => Value::Bool(bool),
                    Plain::Int(number) => Value::Float(number as f64),
                    Plain::Uint(number) => Value::Float(number as f64),
                    Plain::Float(number) if number.is_finite() => Value::Float(number),
                    Plain::Float(_) => return Err("JSON has no such number".into()),
                    Plain::Merge | Plain::Date | Plain::Text => self.memory.text(text)?,
                };
                self.finished(value, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Open::List(Vec::new(), anchor)),
            Event::MappingStart(_, anchor, _) => {
                self.begin(Open::Map { entries: Entries::new(), merged: Vec::new(), key: None, anchor })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some(value) = self.anchors.get(&anchor).cloned() else {
                    return Err("an anchor contains itself".into());
                };
                if self.wants_key() {
                    return Err("an alias cannot be a key".into());
                }
                // Each place has its own, as after a way through JSON.
                let value = deep_copy(self.memory, &value)?;
                self.finished(value, 0)
            }
            _ => Ok(()),
        }
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Map { key: None, .. }))
    }

    fn key(&mut self, text: &str, meaning: Plain) -> Result<(), Fault> {
        let named = match meaning {
            Plain::Merge => Key::Merge,
            Plain::Bool(bool) => Key::Text(if bool { "true" } else { "false" }.into()),
            Plain::Int(number) => Key::Text(number.to_string().into()),
            Plain::Uint(number) => Key::Text(number.to_string().into()),
            Plain::Float(number) => Key::Text(number::shortest(number).into()),
            Plain::Null => return Err("a key is null; keys are strings".into()),
            Plain::Date | Plain::Text => Key::Text(text.into()),
        };
        if let Some(Open::Map { key, .. }) = self.open.last_mut() {
            *key = Some(named);
        }
        Ok(())
    }

    fn begin(&mut self, open: Open) -> Result<(), Fault> {
        if self.wants_key() {
            return Err("a list or map cannot be a key".into());
        }
        if self.open.len() >= DEEPEST {
            return Err(too_deep());
        }
        self.open.push(open);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let (value, anchor) = match self.open.pop() {
            Some(Open::List(items, anchor)) => (self.memory.list(items)?, anchor),
            Some(Open::Map { mut entries, merged, anchor, .. }) => {
                for value in merged {
                    let Value::Map(map) = value else {
                        return Err("map merge requires map or sequence of maps".into());
                    };
                    for (key, value) in self.memory.entries(map) {
                        entries.entry(key.clone()).or_insert_with(|| value.clone());
                    }
                }
                (self.memory.map(entries)?, anchor)
            }
            None => return Ok(()),
        };
        self.finished(value, anchor)
    }

    /// A value that is complete goes to where it belongs.
    fn finished(&mut self, value: Value, anchor: usize) -> Result<(), Fault> {
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::List(items, _)) => items.push(value),
            Some(Open::Map { entries, merged, key, .. }) => match (key.take(), value) {
                (Some(Key::Merge), Value::List(list)) => merged.extend(list.items.iter().rev().cloned()),
                (Some(Key::Merge), value) => merged.push(value),
                (Some(Key::Text(key)), value) => {
                    entries.insert(key, value);
                }
                (None, _) => {}
            },
        }
        Ok(())
    }
}
