//! Field sets as `metadata.managedFields[].fieldsV1` holds them, and set arithmetic right on that form.
//!
//! In a FieldsV1 trie `{}` is a member without children; a member with children has the key `.`.
//! Every write of every object passes here, so the stored form is changed in place where it must change
//! and not even read where it need not.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{FieldSet, MAX_DEPTH, PathElement};

const SELF: &str = ".";

impl FieldSet {
    /// The set as JSON.
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(self.encode(false))
    }

    fn encode(&self, member: bool) -> Map<String, Value> {
        let mut trie = Map::new();
        if member && !self.is_empty() {
            trie.insert(SELF.to_owned(), Value::Object(Map::new()));
        }
        for node in self.nodes() {
            trie.insert(key(&node.element), Value::Object(node.children.encode(node.member)));
        }
        trie
    }

    /// The set that JSON stands for. Kinds of path elements that are not known are skipped.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, String> {
        match fields {
            Value::Object(trie) => decode(trie, 0).map(|(set, _)| set),
            Value::Null => Ok(Self::new()),
            _ => Err("fieldsV1 must be an object".to_owned()),
        }
    }
}

/// What is below a node, and whether the node itself is a member.
fn decode(trie: &Map<String, Value>, depth: usize) -> Result<(FieldSet, bool), String> {
    if depth > MAX_DEPTH {
        return Err("fieldsV1 is nested too deeply".to_owned());
    }
    let mut set = FieldSet::new();
    let mut member = false;
    for (key, child) in trie {
        if key == SELF {
            member = true;
            continue;
        }
        let Some(element) = parse(key)? else { continue };
        let Value::Object(child) = child else {
            return Err(format!("expected an object at {key:?}"));
        };
        let (children, child_is_member) = decode(child, depth + 1)?;
        set.push(element, child_is_member, children);
    }
    member |= set.is_empty();
    Ok((set, member))
}

fn parse(key: &str) -> Result<Option<PathElement>, String> {
    let Some((kind, content)) = key.split_once(':') else {
        return Err(format!("missing colon: {key}"));
    };
    let json = |content: &str| serde_json::from_str::<Value>(content).map_err(|e| format!("{key}: {e}"));
    Ok(match kind {
        "f" => Some(PathElement::field(content)),
        "v" => Some(PathElement::Value(json(content)?)),
        "k" => {
            let Value::Object(fields) = json(content)? else {
                return Err(format!("expected an object in {key:?}"));
            };
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Some(PathElement::Key(fields))
        }
        "i" => Some(PathElement::Index(content.parse().map_err(|e| format!("{key}: {e}"))?)),
        _ if kind.len() == 1 => None,
        _ => return Err(format!("missing colon: {key}")),
    })
}

/// A path element as a key of the trie.
fn key(element: &PathElement) -> String {
    match element {
        PathElement::Field(name) => format!("f:{name}"),
        PathElement::Index(index) => format!("i:{index}"),
        PathElement::Value(value) => {
            let mut text = "v:".to_owned();
            write_json(&mut text, value);
            text
        }
        PathElement::Key(fields) => {
            let mut text = "k:{".to_owned();
            for (i, (name, value)) in fields.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write_string(&mut text, name);
                text.push(':');
                write_json(&mut text, value);
            }
            text.push('}');
            text
        }
    }
}

fn write_json(text: &mut String, value: &Value) {
    match value {
        Value::String(s) => write_string(text, s),
        // A whole number is written without a fraction, however it arrived.
        Value::Number(n) if n.is_f64() && n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() < 1e15) => {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", n.as_f64().unwrap_or_default());
        }
        // Keys are scalars; anything else only comes from hand-written managed fields.
        other => {
            let _ = write!(text, "{other}");
        }
    }
}

/// The real server escapes the characters that matter in HTML, too, and clients compare keys as text.
fn write_string(text: &mut String, s: &str) {
    text.push('"');
    for c in s.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            _ => text.push(c),
        }
    }
    text.push('"');
}

/// Removes the members of `set` from a stored trie; tells whether there were any.
pub(super) fn subtract(trie: &mut Map<String, Value>, set: &FieldSet) -> bool {
    let mut changed = false;
    for node in set.nodes() {
        let key = key(&node.element);
        let Some(Value::Object(child)) = trie.get_mut(&key) else { continue };
        if child.is_empty() {
            if node.member {
                trie.remove(&key);
                changed = true;
            }
            continue;
        }
        if node.member && child.remove(SELF).is_some() {
            changed = true;
        }
        changed |= subtract(child, &node.children);
        match child.len() {
            0 => drop(trie.remove(&key)),
            // A member whose children are all gone.
            1 if child.contains_key(SELF) => child.clear(),
            _ => {}
        }
    }
    changed
}

/// Adds the members of `set` to a stored trie.
pub(super) fn add(trie: &mut Map<String, Value>, set: &FieldSet) {
    for node in set.nodes() {
        let key = key(&node.element);
        let Some(Value::Object(child)) = trie.get_mut(&key) else {
            trie.insert(key, Value::Object(node.children.encode(node.member)));
            continue;
        };
        let was_member = child.is_empty() || child.contains_key(SELF);
        add(child, &node.children);
        if (was_member || node.member) && !child.is_empty() && !child.contains_key(SELF) {
            child.insert(SELF.to_owned(), Value::Object(Map::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::merge::fields::tests::any_set;

    fn trie(set: &FieldSet) -> Map<String, Value> {
        set.encode(false)
    }

    #[test]
    fn reads_and_writes_what_the_real_server_does() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {
                "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:set": {"v:\"a\\u0026b\"": {}, "v:3": {}},
                "f:list": {"i:0": {}},
            },
        });
        let set = FieldSet::from_fields_v1(&fields).expect("it is valid");
        assert_eq!(set.to_fields_v1(), fields);
        assert!(set.has(&[
            PathElement::field("spec"),
            PathElement::field("set"),
            PathElement::Value(json!("a&b"))
        ]));
    }

    #[test]
    fn puts_keys_into_one_form() {
        let odd = json!({"k:{\"b\":\"x\",\"a\":1.0}": {".": {}}, "x:future": {}});
        let set = FieldSet::from_fields_v1(&odd).expect("it is valid");
        assert_eq!(set.to_fields_v1(), json!({"k:{\"a\":1,\"b\":\"x\"}": {}}));
    }

    #[test]
    fn refuses_nonsense() {
        for bad in
            [json!({"nonsense": {}}), json!({"k:1": {}}), json!({"f:a": 1}), json!([]), json!({"i:x": {}})]
        {
            assert!(FieldSet::from_fields_v1(&bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(set in any_set()) {
            prop_assert_eq!(FieldSet::from_fields_v1(&set.to_fields_v1()), Ok(set));
        }

        #[test]
        fn arithmetic_in_place_agrees_with_sets(a in any_set(), b in any_set()) {
            let mut less = trie(&a);
            let changed = subtract(&mut less, &b);
            prop_assert_eq!(&less, &trie(&a.difference(&b)));
            prop_assert_eq!(changed, a.difference(&b) != a);
            let mut more = trie(&a);
            add(&mut more, &b);
            prop_assert_eq!(more, trie(&a.union(&b)));
        }
    }
}
