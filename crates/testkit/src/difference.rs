//! Where two JSON documents differ, as JSON pointers: what a failed comparison prints, and what a known
//! difference names.

use serde_json::Value;

/// One place in which two documents differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub pointer: String,
    pub expected: Option<Value>,
    pub got: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Option<Value>| match value {
            None => "nothing".to_owned(),
            Some(value) => {
                let text = value.to_string();
                match text.char_indices().nth(600) {
                    Some((cut, _)) => format!("{}…", &text[..cut]),
                    None => text,
                }
            }
        };
        write!(
            f,
            "{}\n      expected {}\n      got      {}",
            self.pointer,
            show(&self.expected),
            show(&self.got)
        )
    }
}

/// All differences, in document order.
pub fn differences(expected: &Value, got: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(String::new(), Some(expected), Some(got), &mut found);
    found
}

fn compare(pointer: String, expected: Option<&Value>, got: Option<&Value>, found: &mut Vec<Difference>) {
    match (expected, got) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                compare(format!("{pointer}/{escaped}"), left.get(key), right.get(key), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            for index in 0..left.len().max(right.len()) {
                compare(format!("{pointer}/{index}"), left.get(index), right.get(index), found);
            }
        }
        (expected, got) if expected == got => {}
        (expected, got) => {
            found.push(Difference { pointer, expected: expected.cloned(), got: got.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_the_place_of_each_difference() {
        let pointers = |left, right| -> Vec<String> {
            differences(&left, &right).into_iter().map(|difference| difference.pointer).collect()
        };
        assert_eq!(pointers(json!({"a": [1, 2]}), json!({"a": [1, 2]})), Vec::<String>::new());
        assert_eq!(
            pointers(json!({"a": [1, 2]}), json!({"a": [1, 3, 4], "b/c": 1})),
            ["/a/1", "/a/2", "/b~1c"]
        );
    }
}
