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
    /// The line of a field of `value`, or of the nearest one around it that is there. Fields are written as servers
    /// write them: `spec.containers[0].image`, or `.spec.containers[name="c"].image`.
    pub(super) fn line_of(&self, field: &str, value: &Value) -> u64 {
        let (mut place, mut value) = (self, value);
        for segment in segments(field) {
            let key = match segment.split_once('=') {
                Some((key, wanted)) => chosen(value, key, wanted.trim_matches('"')),
                None => Some(segment.to_owned()),
            };
            let Some((key, inner)) = key.and_then(|key| Some((key.clone(), place.inside.get(&key)?))) else {
                break;
            };
            place = inner;
            value = match value {
                Value::Array(items) => key.parse().ok().and_then(|index: usize| items.get(index)),
                other => other.get(&key),
            }
            .unwrap_or(&Value::Null);
        }
        place.line
    }

    /// The places of an item of a list.
    pub(super) fn item(&self, list: &str, index: usize) -> Places {
        let item = self.inside.get(list).and_then(|list| list.inside.get(&index.to_string()));
        item.cloned().unwrap_or_default()
    }
}

/// The names, numbers and `key="value"` choices of a field.
fn segments(field: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let separates = move |c: char| {
        quoted ^= c == '"';
        !quoted && matches!(c, '.' | '[' | ']')
    };
    field.split(separates).filter(|segment| !segment.is_empty())
}

/// The number of the item that has this value for a key.
fn chosen(list: &Value, key: &str, wanted: &str) -> Option<String> {
    let has = |item: &Value| match &item[key] {
        Value::String(text) => text == wanted,
        other => wanted == other.to_string().as_str(),
    };
    list.as_array()?.iter().position(has).map(|index| index.to_string())
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
    use proptest::prelude::*;

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z.]{1,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// As a server would write the path of every field.
    fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, inner)| fields(inner, &format!("{path}.{key}"), found))
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, inner)| fields(inner, &format!("{path}[{i}]"), found));
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn reads_what_plain_parsing_reads_and_finds_every_field(value in any_json()) {
            let text = agentcube_api::yaml::render(&value);
            let located: Located = serde_saphyr::from_str(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert_eq!(&located.value, &value);
            let lines = u64::try_from(text.lines().count()).expect("few lines").max(1);
            let mut found = Vec::new();
            fields(&value, "", &mut found);
            for field in found {
                prop_assert!((1..=lines).contains(&located.places.line_of(&field, &value)), "{field}\n{text}");
            }
        }
    }

    #[test]
    fn values_are_those_of_plain_parsing() {
        let text = "a: 1\nb: [x, 1.5, null, true, -3]\nc:\n  d: |\n    two\n    lines\n  e: {}\n'1': '2'\nf: 18446744073709551615\n";
        let located: Located = serde_saphyr::from_str(text).unwrap();
        let plain: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(located.value, plain);
        for (field, line) in [("", 1), ("a", 1), ("b[1]", 2), ("c", 3), ("c.d", 4), ("c.e", 7), ("f", 9)] {
            assert_eq!(located.places.line_of(field, &located.value), line, "{field}");
        }
    }
}
