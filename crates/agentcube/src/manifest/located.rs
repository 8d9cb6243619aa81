//! A YAML or JSON value together with the line of every field in it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// The line of a value, and those inside it: fields by name, items by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    line: u64,
    inside: BTreeMap<String, Places>,
}

impl Places {
    /// The line of a field like `spec.containers[0].image`, or of the nearest one around it that is there.
    pub(super) fn line_of(&self, field: &str) -> u64 {
        self.inside(field).line
    }

    pub(super) fn inside(&self, field: &str) -> &Places {
        let mut place = self;
        let segments = field.split(['.', '[', ']']).filter(|segment| !segment.is_empty());
        for segment in segments {
            match place.inside.get(segment) {
                Some(inner) => place = inner,
                None => break,
            }
        }
        place
    }
}

/// A value and its places.
#[derive(Debug, Clone)]
pub(super) struct Located {
    pub(super) value: Value,
    pub(super) places: Places,
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Inner>::deserialize(deserializer)?;
        let Inner { value, inside } = spanned.value;
        Ok(Self { value, places: Places { line: spanned.referenced.line(), inside } })
    }
}

struct Inner {
    value: Value,
    inside: BTreeMap<String, Places>,
}

impl From<Value> for Inner {
    fn from(value: Value) -> Self {
        Self { value, inside: BTreeMap::new() }
    }
}

impl<'de> Deserialize<'de> for Inner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InnerVisitor)
    }
}

struct InnerVisitor;

impl<'de> Visitor<'de> for InnerVisitor {
    type Value = Inner;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON or YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Inner, E> {
        Ok(Value::from(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Inner, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Inner, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Inner, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("JSON has no such number"))?;
        Ok(Value::from(number).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Inner, E> {
        Ok(Value::from(value).into())
    }

    fn visit_unit<E>(self) -> Result<Inner, E> {
        Ok(Value::Null.into())
    }

    fn visit_none<E>(self) -> Result<Inner, E> {
        Ok(Value::Null.into())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Inner, D::Error> {
        Inner::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Inner, A::Error> {
        let (mut list, mut inside) = (Vec::new(), BTreeMap::new());
        while let Some(item) = items.next_element::<Located>()? {
            inside.insert(list.len().to_string(), item.places);
            list.push(item.value);
        }
        Ok(Inner { value: Value::Array(list), inside })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Inner, A::Error> {
        let (mut map, mut inside) = (Map::new(), BTreeMap::new());
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let mut entry: Located = entries.next_value()?;
            // The key's line is the one to show: a block below it begins a line later.
            entry.places.line = key.referenced.line();
            inside.insert(key.value.clone(), entry.places);
            map.insert(key.value, entry.value);
        }
        Ok(Inner { value: Value::Object(map), inside })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_plain_parsing() {
        let text = "a: 1\nb: [x, 1.5, null, true, -3]\nc:\n  d: |\n    two\n    lines\n  e: {}\n'1': '2'\nf: 18446744073709551615\n";
        let located: Located = serde_saphyr::from_str(text).unwrap();
        let plain: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(located.value, plain);
        for (field, line) in [("", 1), ("a", 1), ("b[1]", 2), ("c", 3), ("c.d", 4), ("c.e", 7), ("f", 9)] {
            assert_eq!(located.places.line_of(field), line, "{field}");
        }
    }
}
