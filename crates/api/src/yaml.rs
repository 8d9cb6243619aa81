//! Writes JSON as YAML: block style, keys sorted, the same text every time. Strings are left plain only where every
//! YAML reader, old and new, reads them as strings; `kubectl` reads YAML 1.1, where `on` and `y` are booleans.

use std::fmt::Write;

use serde_json::Value;

/// Words that some reader of YAML takes for something else than a string.
const RESERVED: [&str; 12] =
    ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"];

/// One YAML document, ending in a line break.
pub fn render(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(&mut out, value, 0),
        Value::Array(items) if !items.is_empty() => block(&mut out, value, 0),
        _ => {
            inline(&mut out, value);
            out.push('\n');
        }
    }
    out
}

/// A non-empty map or list, each entry on its own line, the first line already indented.
fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (index, (key, child)) in map.iter().enumerate() {
                if index > 0 {
                    pad(out, indent);
                }
                string(out, key);
                out.push(':');
                entry(out, child, indent);
            }
        }
        Value::Array(items) => {
            for (index, child) in items.iter().enumerate() {
                if index > 0 {
                    pad(out, indent);
                }
                out.push('-');
                if is_block(child) {
                    out.push(' ');
                    block(out, child, indent + 2);
                } else {
                    entry(out, child, indent);
                }
            }
        }
        _ => inline(out, value),
    }
}

/// What follows a key or a dash: a scalar on the same line, or a block below.
fn entry(out: &mut String, child: &Value, indent: usize) {
    if is_block(child) {
        // Lists stand at the indent of their key, as kubectl prints them.
        let inner = if child.is_array() { indent } else { indent + 2 };
        out.push('\n');
        pad(out, inner);
        block(out, child, inner);
    } else {
        out.push(' ');
        inline(out, child);
        out.push('\n');
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn inline(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => string(out, text),
        other => write!(out, "{other}").expect("writing to a String does not fail"),
    }
}

fn string(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else {
        // A JSON string is a YAML string.
        out.push_str(&Value::from(text).to_string());
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Whether a string means itself without quotes, to any reader.
fn is_plain(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_');
    let is_word = |c: char| c.is_ascii_alphanumeric() || " ._-/,;()'".contains(c);
    starts_well
        && text.chars().all(is_word)
        && !text.ends_with(' ')
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn looks_like_what_kubectl_prints() {
        let value =
            json!({"a": {"b": [1, {"c": "x", "d": []}], "e": {}}, "f": ["on", "1.2", "no way", null]});
        let text =
            "a:\n  b:\n  - 1\n  - c: x\n    d: []\n  e: {}\nf:\n- \"on\"\n- \"1.2\"\n- no way\n- null\n";
        assert_eq!(render(&value), text);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
            "(on|Off|NO|y|null|~|0x1|1e3|-|:|a: b|a #b)".prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ -~]{1,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reads_back(value in any_json()) {
            let text = render(&value);
            let read: Value = serde_saphyr::from_str(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
