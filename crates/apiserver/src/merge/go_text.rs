//! Values inside messages, written as the real server's language prints them.

use serde_json::Value;

/// What `%v` prints for a decoded JSON value: `map[a:1 b:[x y]]`.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => {
            let shown: Vec<String> = items.iter().map(plain).collect();
            format!("[{}]", shown.join(" "))
        }
        Value::Object(map) => {
            let shown: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
            format!("map[{}]", shown.join(" "))
        }
        other => other.to_string(),
    }
}

/// What `%#v` prints for a decoded JSON value.
pub(super) fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(s) => format!("{s:?}"),
        Value::Array(items) => {
            let shown: Vec<String> = items.iter().map(syntax).collect();
            format!("[]interface {{}}{{{}}}", shown.join(", "))
        }
        Value::Object(map) => {
            let shown: Vec<String> = map.iter().map(|(k, v)| format!("{k:?}:{}", syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", shown.join(", "))
        }
        other => other.to_string(),
    }
}

/// What `%T` prints for a decoded JSON value.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The JSON type as decoding errors name it.
pub(super) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
