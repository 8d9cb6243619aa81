//! Any value as an outline: fields on lines of their own, deeper ones further in, text that speaks to no terminal.

use serde_json::Value;

const STEP: usize = 2;

/// What stands after `Title:`: a scalar on the same line, anything else below.
pub(super) fn below(value: &Value) -> String {
    let mut out = String::new();
    field(&mut out, value, 0);
    out
}

fn field(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            fields(out, map.iter(), indent + STEP, true);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            items.iter().for_each(|item| entry(out, item, indent + STEP));
        }
        Value::String(text) if text.trim_end().contains('\n') => {
            out.push('\n');
            for line in text.trim_end().lines() {
                pad(out, indent + STEP);
                out.push_str(&visible(line));
                out.push('\n');
            }
        }
        scalar => {
            out.push(' ');
            out.push_str(&plain(scalar));
            out.push('\n');
        }
    }
}

fn fields<'a>(
    out: &mut String,
    map: impl Iterator<Item = (&'a String, &'a Value)>,
    indent: usize,
    first: bool,
) {
    for (index, (key, value)) in map.enumerate() {
        if first || index > 0 {
            pad(out, indent);
        }
        out.push_str(&visible(key));
        out.push(':');
        field(out, value, indent);
    }
}

/// An item of a list: after a dash, the first field on the same line.
fn entry(out: &mut String, item: &Value, indent: usize) {
    pad(out, indent);
    out.push('-');
    match item {
        Value::Object(map) if !map.is_empty() => {
            out.push(' ');
            fields(out, map.iter(), indent + STEP, false);
        }
        other => field(out, other, indent),
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => visible(text.trim_end()),
        Value::Object(_) | Value::Array(_) => "<empty>".to_owned(),
        Value::Null => "<none>".to_owned(),
        other => other.to_string(),
    }
}

fn visible(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outlines() {
        let value = json!({
            "containers": [{"name": "c", "args": ["a", "b\u{1b}[31m"]}, "plain", {}],
            "empty": {}, "none": null, "text": "two\nlines\n", "word": "x", "n": 3,
        });
        let expected = "\n  containers:\n    - args:\n        - a\n        - b\\u{1b}[31m\n      name: c\n    - plain\n    - <empty>\n  \
                        empty: <empty>\n  n: 3\n  none: <none>\n  text:\n    two\n    lines\n  word: x\n";
        assert_eq!(below(&value), expected);
        assert_eq!(below(&json!("x")), " x\n");
    }
}
