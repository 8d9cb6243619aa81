//! Where the values of one rendering are kept and what it may still use. Whatever a function makes goes through here, so that no template
//! can use more than it was given; maps are held here and nowhere else, so that those that contain themselves end with the rendering.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::Limits;
use crate::error::Fault;
use crate::value::{Element, List, MapId, Value};

/// The entries of a map.
pub(crate) type Entries = BTreeMap<Arc<str>, Value>;

/// How deep values may be nested in one another.
pub(crate) const DEEPEST: usize = 128;

/// What a value costs besides its text.
const VALUE_BYTES: usize = 48;

struct Map {
    of: Element,
    entries: Entries,
}

pub(crate) struct Memory {
    maps: Vec<Map>,
    none: Entries,
    steps: u64,
    bytes: usize,
    limits: Limits,
}

impl Memory {
    pub(crate) fn new(limits: &Limits) -> Memory {
        Memory { maps: Vec::new(), none: Entries::new(), steps: 0, bytes: 0, limits: limits.clone() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counts work.
    pub(crate) fn work(&mut self, steps: usize) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(steps as u64);
        if self.steps > self.limits.steps {
            let limit = self.limits.steps;
            return Err(Fault::Limit(format!(
                "more than {limit} steps; is there a loop or a recursion without end?"
            )));
        }
        Ok(())
    }

    /// How much work it is to look at all of a value: the items of a list, sixteen bytes of a text.
    pub(crate) fn size(&self, value: &Value) -> usize {
        match value {
            Value::Text(text) => text.len() / 16,
            Value::List(list) => list.items.len(),
            Value::Map(map) => self.entries(*map).len(),
            _ => 0,
        }
    }

    /// Counts what is kept.
    fn keep(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.memory {
            let limit = self.limits.memory;
            return Err(Fault::Limit(format!(
                "the values that it makes are larger than {limit} bytes together"
            )));
        }
        Ok(())
    }

    /// An error if a text would be longer than any may be.
    pub(crate) fn check_length(&self, length: usize) -> Result<(), Fault> {
        if length > self.limits.output {
            let limit = self.limits.output;
            return Err(Fault::Limit(format!("a text longer than {limit} bytes")));
        }
        Ok(())
    }

    pub(crate) fn text(&mut self, text: impl Into<Arc<str>>) -> Result<Value, Fault> {
        let text = text.into();
        self.check_length(text.len())?;
        self.keep(text.len() + VALUE_BYTES)?;
        Ok(Value::Text(text))
    }

    /// A list of anything.
    pub(crate) fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.list_of(Element::Any, items)
    }

    pub(crate) fn list_of(&mut self, of: Element, items: Vec<Value>) -> Result<Value, Fault> {
        self.work(items.len() / 16)?;
        self.keep(items.len().saturating_mul(VALUE_BYTES) + VALUE_BYTES)?;
        let inner = items.iter().filter_map(Value::as_list).map(|list| list.depth).max();
        let depth = 1 + inner.unwrap_or(0);
        if depth > DEEPEST {
            return Err(too_deep());
        }
        let items: Vec<Value> = items.into_iter().map(Value::inside).collect();
        Ok(Value::List(List { of, is_nil: false, items: items.into(), depth }))
    }

    pub(crate) fn texts(&mut self, texts: Vec<Arc<str>>) -> Result<Value, Fault> {
        self.keep(texts.iter().map(|text| text.len()).sum())?;
        self.list_of(Element::Text, texts.into_iter().map(Value::Text).collect())
    }

    /// What Go calls a nil slice.
    pub(crate) fn nil_list(of: Element) -> Value {
        Value::List(List { of, is_nil: true, items: Rc::new([]), depth: 1 })
    }

    /// A map of anything.
    pub(crate) fn map(&mut self, entries: Entries) -> Result<Value, Fault> {
        self.map_of(Element::Any, entries)
    }

    pub(crate) fn map_of(&mut self, of: Element, entries: Entries) -> Result<Value, Fault> {
        self.work(entries.len() / 16)?;
        let keys: usize = entries.keys().map(|key| key.len()).sum();
        self.keep(keys + (1 + entries.len()).saturating_mul(2 * VALUE_BYTES))?;
        self.maps.push(Map { of, entries });
        Ok(Value::Map(MapId(self.maps.len() - 1)))
    }

    pub(crate) fn entries(&self, map: MapId) -> &Entries {
        // Every id is of a map that was made here.
        self.maps.get(map.0).map_or(&self.none, |map| &map.entries)
    }

    pub(crate) fn element(&self, map: MapId) -> Element {
        self.maps.get(map.0).map_or(Element::Any, |map| map.of)
    }

    pub(crate) fn set(&mut self, map: MapId, key: Arc<str>, value: Value) -> Result<(), Fault> {
        self.keep(key.len() + 2 * VALUE_BYTES)?;
        if let Some(map) = self.maps.get_mut(map.0) {
            map.entries.insert(key, value.inside());
        }
        Ok(())
    }

    pub(crate) fn unset(&mut self, map: MapId, key: &str) {
        if let Some(map) = self.maps.get_mut(map.0) {
            map.entries.remove(key);
        }
    }

    /// As Go writes the type of a value.
    pub(crate) fn type_name(&self, value: &Value) -> String {
        match value {
            Value::Missing | Value::Nil => "<nil>".to_owned(),
            Value::List(list) => format!("[]{}", list.of.type_name()),
            Value::Map(map) => format!("map[string]{}", self.element(*map).type_name()),
            Value::Version(_) => "*semver.Version".to_owned(),
            other => other.kind_name().to_owned(),
        }
    }

    /// Data as templates see it. Whole numbers stay whole, unless a function that reads numbers as Go's `encoding/json` does asks
    /// for fractions.
    pub(crate) fn read_json(&mut self, json: &Json, numbers: Numbers) -> Result<Value, Fault> {
        self.nested_json(json, numbers, 0)
    }

    fn nested_json(&mut self, json: &Json, numbers: Numbers, depth: usize) -> Result<Value, Fault> {
        if depth > DEEPEST {
            return Err(too_deep());
        }
        match json {
            Json::Null => Ok(Value::Nil),
            Json::Bool(bool) => Ok(Value::Bool(*bool)),
            Json::Number(number) => Ok(match (number.as_i64(), numbers) {
                (Some(whole), Numbers::Whole) => Value::Int64(whole),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            }),
            Json::String(text) => {
                self.keep(text.len() + VALUE_BYTES)?;
                Ok(Value::text(text))
            }
            Json::Array(items) => {
                let items: Result<Vec<Value>, Fault> =
                    items.iter().map(|item| self.nested_json(item, numbers, depth + 1)).collect();
                self.list(items?)
            }
            Json::Object(object) => {
                let mut entries = Entries::new();
                for (key, value) in object {
                    entries.insert(key.as_str().into(), self.nested_json(value, numbers, depth + 1)?);
                }
                self.map(entries)
            }
        }
    }
}

/// What numbers of JSON become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// `int64` where they are whole: as Kubernetes reads objects.
    Whole,
    /// `float64`, always: as Go's `encoding/json` does where it is not told otherwise.
    Fraction,
}

pub(crate) fn too_deep() -> Fault {
    Fault::Limit(format!("values nested deeper than {DEEPEST}; does one contain itself?"))
}
