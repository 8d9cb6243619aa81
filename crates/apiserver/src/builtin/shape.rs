//! How the Go types of the built-in kinds are written as JSON, and objects brought into that form.
//!
//! The real server decodes an object into a Go struct and encodes it again: empty values vanish or appear,
//! quantities and times become canonical. `shapes.json` says for every struct what holds for each field.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::quantity::Quantity;

/// One struct.
#[derive(Debug)]
struct Shape {
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    empty: Empty,
    holds: Holds,
}

/// What becomes of an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Empty {
    Kept,
    /// `omitempty`: structs are written even so.
    Omitted,
    /// `omitzero`.
    ZeroOmitted,
}

#[derive(Debug)]
enum Holds {
    Text,
    Int,
    Bool,
    Quantity,
    Time,
    MicroTime,
    IntOrText,
    Bytes,
    Raw,
    Pointer(Box<Holds>),
    List(Box<Holds>),
    Map(Box<Holds>),
    Struct(usize),
}

#[derive(Debug)]
struct Shapes {
    by_name: BTreeMap<String, usize>,
    all: Vec<Shape>,
}

static SHAPES: OnceLock<Shapes> = OnceLock::new();

fn shapes() -> &'static Shapes {
    SHAPES.get_or_init(|| {
        let raw: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(include_str!("shapes.json"))
                .expect("shapes.json is generated and well formed");
        let by_name: BTreeMap<String, usize> = raw.keys().cloned().zip(0..).collect();
        let all = raw
            .into_values()
            .map(|fields| Shape {
                fields: fields.into_iter().map(|(name, text)| Field::parse(name, &text, &by_name)).collect(),
            })
            .collect();
        Shapes { by_name, all }
    })
}

impl Field {
    fn parse(name: String, text: &str, names: &BTreeMap<String, usize>) -> Self {
        let (empty, holds) = match text.as_bytes().first() {
            Some(b'!') => (Empty::Kept, &text[1..]),
            Some(b'0') => (Empty::ZeroOmitted, &text[1..]),
            _ => (Empty::Omitted, text),
        };
        Self { name, empty, holds: Holds::parse(holds, names) }
    }
}

impl Holds {
    fn parse(text: &str, names: &BTreeMap<String, usize>) -> Self {
        let inner = |text: &str| Box::new(Self::parse(&text[1..], names));
        match text {
            "S" => Self::Text,
            "I" => Self::Int,
            "B" => Self::Bool,
            "Q" => Self::Quantity,
            "T" => Self::Time,
            "M" => Self::MicroTime,
            "X" => Self::IntOrText,
            "Y" => Self::Bytes,
            "R" => Self::Raw,
            _ if text.starts_with('*') => Self::Pointer(inner(text)),
            _ if text.starts_with('[') => Self::List(inner(text)),
            _ if text.starts_with('{') => Self::Map(inner(text)),
            _ => names.get(text).map_or(Self::Raw, |index| Self::Struct(*index)),
        }
    }

    /// What Go writes for the zero value.
    fn zero(&self) -> Value {
        match self {
            Self::Text => "".into(),
            Self::Int | Self::IntOrText => 0.into(),
            Self::Bool => false.into(),
            Self::Quantity => "0".into(),
            Self::Struct(index) => {
                let mut map = Map::new();
                conform_struct(&mut map, *index);
                Value::Object(map)
            }
            _ => Value::Null,
        }
    }

    /// `omitempty` leaves this value out.
    fn is_empty(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Pointer(_) | Self::List(_) | Self::Map(_) | Self::Bytes | Self::Raw, Value::Null) => true,
            (Self::Text | Self::Bytes, Value::String(text)) => text.is_empty(),
            (Self::Int, Value::Number(number)) => number.as_f64() == Some(0.0),
            (Self::Bool, Value::Bool(flag)) => !flag,
            (Self::List(_), Value::Array(list)) => list.is_empty(),
            (Self::Map(_), Value::Object(map)) => map.is_empty(),
            _ => false,
        }
    }

    /// Brings a value into the form that Go writes. Values of a wrong type stay as they are.
    fn conform(&self, value: &mut Value) {
        if value.is_null() {
            if !matches!(self, Self::Pointer(_)) {
                *value = self.zero();
            }
            return;
        }
        match self {
            Self::Pointer(inner) => inner.conform(value),
            Self::Quantity => conform_quantity(value),
            Self::Time => conform_time(value, false),
            Self::MicroTime => conform_time(value, true),
            Self::List(inner) => {
                if let Value::Array(list) = value {
                    list.iter_mut().for_each(|item| inner.conform(item));
                }
            }
            Self::Map(inner) => {
                if let Value::Object(map) = value {
                    for item in map.values_mut() {
                        inner.conform(item);
                        if item.is_null() && matches!(**inner, Self::Bytes) {
                            *item = "".into();
                        }
                    }
                }
            }
            Self::Struct(index) => {
                if let Value::Object(map) = value {
                    conform_struct(map, *index);
                }
            }
            Self::Text | Self::Int | Self::Bool | Self::IntOrText | Self::Bytes | Self::Raw => {}
        }
    }
}

fn conform_struct(map: &mut Map<String, Value>, index: usize) {
    let Some(shape) = shapes().all.get(index) else { return };
    for field in &shape.fields {
        let Some(value) = map.get_mut(&field.name) else {
            if field.writes_zero() {
                map.insert(field.name.clone(), field.holds.zero());
            }
            continue;
        };
        field.holds.conform(value);
        let drop = match field.empty {
            Empty::Kept => {
                // Storage does not tell empty lists and maps from absent ones.
                if matches!(field.holds, Holds::List(_) | Holds::Map(_)) && field.holds.is_empty(value) {
                    *value = Value::Null;
                }
                false
            }
            Empty::Omitted => field.holds.is_empty(value),
            Empty::ZeroOmitted => value.is_null() || field.holds.is_empty(value),
        };
        if drop {
            map.remove(&field.name);
        }
    }
}

impl Field {
    /// The zero value of an absent field is written.
    fn writes_zero(&self) -> bool {
        match self.empty {
            Empty::Kept => true,
            Empty::ZeroOmitted => false,
            Empty::Omitted => matches!(
                self.holds,
                Holds::Struct(_) | Holds::Time | Holds::MicroTime | Holds::Quantity | Holds::IntOrText
            ),
        }
    }
}

fn conform_quantity(value: &mut Value) {
    let parsed = match value {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    };
    if let Some(quantity) = parsed {
        let canonical = quantity.canonical();
        if value.as_str() != Some(canonical.as_str()) {
            *value = canonical.into();
        }
    }
}

fn conform_time(value: &mut Value, micro: bool) {
    let Some(text) = value.as_str() else { return };
    let length = if micro { "2006-01-02T15:04:05.000000Z".len() } else { "2006-01-02T15:04:05Z".len() };
    if text.len() == length && text.ends_with('Z') {
        return;
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        *value = time
            .strftime(if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" })
            .to_string()
            .into();
    }
}

/// Brings an object into the form in which the real server stores and answers it. `shape` is the name in
/// `shapes.json`, like `core.Pod`; nothing happens for an unknown one.
pub fn conform(object: &mut Value, shape: &str) {
    if let (Some(index), Value::Object(map)) = (shapes().by_name.get(shape), object) {
        conform_struct(map, *index);
    }
}

/// The zero value of a struct: `{"replicas":0}` for `apps.ReplicaSetStatus`.
pub fn zero(shape: &str) -> Value {
    shapes().by_name.get(shape).map_or(Value::Null, |index| Holds::Struct(*index).zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empty_values_vanish_or_appear_as_in_go() {
        let mut pod = json!({
            "metadata": {"name": "x", "labels": {}, "creationTimestamp": null},
            "spec": {"hostNetwork": false, "containers": [{"name": "c", "args": [], "stdin": true,
                "env": [{"name": "A", "value": ""}],
                "resources": {"limits": {"cpu": 0.5}}}], "terminationGracePeriodSeconds": 0},
        });
        conform(&mut pod, "core.Pod");
        assert_eq!(
            pod,
            json!({
                "metadata": {"name": "x"},
                "spec": {"containers": [{"name": "c", "stdin": true, "env": [{"name": "A"}],
                    "resources": {"limits": {"cpu": "500m"}}}], "terminationGracePeriodSeconds": 0},
                "status": {},
            })
        );
        assert_eq!(zero("apps.ReplicaSetStatus"), json!({"replicas": 0}));
    }

    #[test]
    fn times_are_utc() {
        let mut lease = json!({"metadata": {}, "spec": {"renewTime": "2024-01-01T01:00:00.5+01:00"}});
        conform(&mut lease, "coordination.Lease");
        assert_eq!(lease["spec"]["renewTime"], "2024-01-01T00:00:00.500000Z");
    }
}
