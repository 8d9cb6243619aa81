//! JSON as CEL rules see it: typed by the schema, fields under names that are CEL identifiers.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as CelValue;
use kube_cel::cel::functions::time;
use kube_cel::cel::objects::{Key, Map};
use serde_json::{Map as JsonMap, Number, Value};

use super::super::{Link, MAX_DEPTH, Schema, Type};

/// Words that CEL keeps for itself.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The identifier under which a rule finds a field; `None` if it cannot be named at all.
pub(super) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    if !name.chars().all(allowed) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

/// `whole` says that the value is a whole object, of whose metadata only the names are shown.
pub(super) fn convert(schema: &Schema, value: &Value, whole: bool) -> CelValue {
    typed(Some(schema), value, whole, 0)
}

fn typed(schema: Option<&Schema>, value: &Value, whole: bool, depth: usize) -> CelValue {
    if depth > MAX_DEPTH {
        return CelValue::Null;
    }
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(b) => CelValue::Bool(*b),
        Value::Number(n) => number(schema, n),
        Value::String(text) => string(schema, text),
        Value::Array(list) => {
            let items = schema.and_then(|s| s.items.as_ref()).map(Link::get);
            CelValue::List(Arc::new(list.iter().map(|v| typed(items, v, false, depth + 1)).collect()))
        }
        Value::Object(map) => object(schema, map, whole, depth),
    }
}

fn number(schema: Option<&Schema>, number: &Number) -> CelValue {
    let float = number.as_f64().unwrap_or(0.0);
    match (schema.and_then(|s| s.ty), number.as_i64()) {
        (Some(Type::Number), _) => CelValue::Float(float),
        (_, Some(integer)) => CelValue::Int(integer),
        (Some(Type::Integer), None) if float.fract() == 0.0 => CelValue::Int(float as i64),
        _ => CelValue::Float(float),
    }
}

fn string(schema: Option<&Schema>, text: &str) -> CelValue {
    use base64::Engine;
    let plain = || CelValue::String(Arc::new(text.to_owned()));
    let schema = schema.filter(|s| s.ty == Some(Type::String));
    match schema.and_then(|s| s.format.as_deref()) {
        Some("date-time" | "datetime") => {
            time::timestamp(Arc::new(text.to_owned())).unwrap_or_else(|_| plain())
        }
        Some("date") => time::timestamp(Arc::new(format!("{text}T00:00:00Z"))).unwrap_or_else(|_| plain()),
        Some("duration") => time::duration(Arc::new(text.to_owned())).unwrap_or_else(|_| plain()),
        Some("byte") => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => CelValue::Bytes(Arc::new(bytes)),
            Err(_) => plain(),
        },
        _ => plain(),
    }
}

fn object(schema: Option<&Schema>, map: &JsonMap<String, Value>, whole: bool, depth: usize) -> CelValue {
    let mut fields = HashMap::with_capacity(map.len());
    let mut add = |key: String, value: CelValue| fields.insert(Key::String(Arc::new(key)), value);
    for (key, value) in map {
        if whole && key == "metadata" {
            add(key.clone(), names_only(value));
            continue;
        }
        let property = schema.and_then(|s| s.properties.get(key)).map(Link::get);
        match (property, schema.and_then(|s| s.additional.as_ref())) {
            (Some(child), _) => {
                if let Some(name) = escape(key) {
                    add(name, typed(Some(child), value, child.embedded_resource, depth + 1));
                }
            }
            (None, Some(link)) => {
                let child = link.get();
                add(key.clone(), typed(Some(child), value, child.embedded_resource, depth + 1));
            }
            // Rules do not see what the schema does not declare; without a schema everything is shown.
            (None, None) if schema.is_none() || (whole && (key == "kind" || key == "apiVersion")) => {
                add(key.clone(), typed(None, value, false, depth + 1));
            }
            (None, None) => {}
        }
    }
    CelValue::Map(Map { map: Arc::new(fields) })
}

fn names_only(metadata: &Value) -> CelValue {
    let shown = ["name", "generateName"].into_iter().filter_map(|key| {
        let text = metadata.get(key)?.as_str()?;
        Some((Key::String(Arc::new(key.to_owned())), CelValue::String(Arc::new(text.to_owned()))))
    });
    CelValue::Map(Map { map: Arc::new(shown.collect()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_kubernetes_does() {
        let table = [
            ("plain", Some("plain")),
            ("my_snake", Some("my_snake")),
            ("a__b", Some("a__underscores__b")),
            ("if", Some("__if__")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("1a", None),
            ("a b", None),
            ("", None),
        ];
        for (name, want) in table {
            assert_eq!(escape(name).as_deref(), want, "{name}");
        }
    }
}
