//! JSON patch (RFC 6902), with the liberties that the real server takes: `replace` of a missing key of an object
//! adds it, a `test` of a missing key against null passes, and negative indices count from the end.

use serde_json::{Map, Value};

use super::{PatchError, go_text::json_kind};

/// How many operations one patch may have.
pub const MAX_OPERATIONS: usize = 10_000;

/// Applies `patch` to `doc` and returns the new document.
pub fn apply(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = operations(patch)?;
    let mut result = doc.clone();
    for operation in operations {
        operation.apply(&mut result)?;
    }
    Ok(result)
}

/// One step of a patch. Members that are null count as absent, except the value.
struct Operation<'a> {
    op: Option<&'a str>,
    path: Option<&'a str>,
    from: Option<&'a str>,
    value: Option<&'a Value>,
}

fn operations(patch: &Value) -> Result<Vec<Operation<'_>>, PatchError> {
    let steps = match patch {
        Value::Array(steps) => steps.as_slice(),
        Value::Null => &[],
        other => return Err(undecodable(other, "Go value of type []handlers.jsonPatchOp")),
    };
    let operations = steps.iter().map(Operation::read).collect::<Result<Vec<_>, _>>()?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations { limit: MAX_OPERATIONS, got: operations.len() });
    }
    Ok(operations)
}

fn undecodable(value: &Value, target: &str) -> PatchError {
    let kind = json_kind(value);
    PatchError::Malformed(format!("error decoding patch: json: cannot unmarshal {kind} into {target}"))
}

impl<'a> Operation<'a> {
    fn read(step: &'a Value) -> Result<Self, PatchError> {
        let members = match step {
            Value::Object(members) => members,
            Value::Null => return Ok(Self { op: None, path: None, from: None, value: None }),
            other => return Err(undecodable(other, "Go value of type handlers.jsonPatchOp")),
        };
        Ok(Self {
            op: text(members, "op")?,
            path: text(members, "path")?,
            from: text(members, "from")?,
            value: members.get("value"),
        })
    }

    fn apply(&self, doc: &mut Value) -> Result<(), PatchError> {
        let op = self.op.unwrap_or("unknown");
        match op {
            "add" => add(doc, self.path(op)?, self.value.cloned().unwrap_or(Value::Null), op),
            "remove" => remove(doc, self.path(op)?, op).map(drop),
            "replace" => self.replace(doc),
            "test" => self.test(doc),
            "move" => {
                let taken = remove(doc, self.from(op)?, op)?;
                add(doc, self.path(op)?, taken, op)
            }
            "copy" => {
                let from = self.from(op)?;
                let (parent, key) = parent(doc, from).ok_or_else(|| missing_path(op, from))?;
                let copied = get(parent, &key, from)?.cloned().unwrap_or(Value::Null);
                add(doc, self.path(op)?, copied, op)
            }
            other => Err(PatchError::DoesNotApply(format!("Unexpected kind: {other}"))),
        }
    }

    fn path(&self, op: &str) -> Result<&'a str, PatchError> {
        self.path.ok_or_else(|| {
            PatchError::DoesNotApply(format!("{op} operation failed to decode path: missing value"))
        })
    }

    fn from(&self, op: &str) -> Result<&'a str, PatchError> {
        self.from.ok_or_else(|| {
            PatchError::DoesNotApply(format!("{op} operation failed to decode from: missing value"))
        })
    }

    fn replace(&self, doc: &mut Value) -> Result<(), PatchError> {
        let path = self.path("replace")?;
        let value = self.value.cloned().unwrap_or(Value::Null);
        if path.is_empty() {
            if !value.is_object() && !value.is_array() {
                let text = "replace operation value must be object or array";
                return Err(PatchError::DoesNotApply(text.into()));
            }
            *doc = value;
            return Ok(());
        }
        let (parent, key) = parent_mut(doc, path).ok_or_else(|| missing_path("replace", path))?;
        match parent {
            Value::Array(items) => {
                let index = position(&key, items.len(), path)?;
                items[index] = value;
            }
            Value::Object(fields) => {
                fields.insert(key, value);
            }
            _ => return Err(missing_path("replace", path)),
        }
        Ok(())
    }

    fn test(&self, doc: &Value) -> Result<(), PatchError> {
        let path = self.path("test")?;
        let found = if path.is_empty() {
            Some(doc)
        } else {
            let (parent, key) = parent(doc, path).ok_or_else(|| missing_path("test", path))?;
            get(parent, &key, path)?
        };
        // A missing key is as good as null; a test without a value is a test for null.
        let null = &Value::Null;
        if found.unwrap_or(null) == self.value.unwrap_or(null) {
            return Ok(());
        }
        Err(PatchError::DoesNotApply(format!("testing value {path} failed: test failed")))
    }
}

fn text<'a>(members: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, PatchError> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(undecodable(other, &format!("Go struct field jsonPatchOp.{name} of type string"))),
    }
}

fn missing_path(op: &str, path: &str) -> PatchError {
    PatchError::DoesNotApply(format!(
        "{op} operation does not apply: doc is missing path: {path:?}: missing value"
    ))
}

/// The steps of a pointer but the last, and the last. What stands before the first slash is not looked at.
fn split(path: &str) -> Option<(Vec<String>, String)> {
    let mut parts = path.split('/').skip(1).map(unescape).collect::<Vec<_>>();
    let last = parts.pop()?;
    Some((parts, last))
}

fn unescape(part: &str) -> String {
    if !part.contains('~') {
        return part.to_owned();
    }
    let mut plain = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find('~') {
        plain.push_str(&rest[..at]);
        let (shown, used) = match rest.as_bytes().get(at + 1) {
            Some(b'0') => ('~', 2),
            Some(b'1') => ('/', 2),
            _ => ('~', 1),
        };
        plain.push(shown);
        rest = &rest[at + used..];
    }
    plain.push_str(rest);
    plain
}

/// Where a list index points, counted from the end if negative.
fn index(key: &str, len: usize) -> Option<usize> {
    let number: i64 = key.strip_prefix('+').unwrap_or(key).parse().ok()?;
    let index = if number < 0 { number + i64::try_from(len).ok()? } else { number };
    usize::try_from(index).ok()
}

fn position(key: &str, len: usize, path: &str) -> Result<usize, PatchError> {
    index(key, len).filter(|&at| at < len).ok_or_else(|| {
        PatchError::DoesNotApply(format!("error for path: '{path}': Unable to access invalid index: {key}"))
    })
}

fn parent<'a>(doc: &'a Value, path: &str) -> Option<(&'a Value, String)> {
    let (steps, key) = split(path)?;
    let parent = steps.iter().try_fold(doc, |value, step| match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(items) => items.get(index(step, items.len())?),
        _ => None,
    })?;
    Some((parent, key))
}

fn parent_mut<'a>(doc: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (steps, key) = split(path)?;
    let parent = steps.iter().try_fold(doc, |value, step| match value {
        Value::Object(fields) => fields.get_mut(step),
        Value::Array(items) => {
            let at = index(step, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })?;
    Some((parent, key))
}

fn get<'a>(parent: &'a Value, key: &str, path: &str) -> Result<Option<&'a Value>, PatchError> {
    match parent {
        Value::Object(fields) => Ok(fields.get(key)),
        Value::Array(items) => Ok(items.get(position(key, items.len(), path)?)),
        _ => Err(missing_path("get", path)),
    }
}

fn add(doc: &mut Value, path: &str, value: Value, op: &str) -> Result<(), PatchError> {
    let (parent, key) = parent_mut(doc, path).ok_or_else(|| missing_path(op, path))?;
    match parent {
        Value::Object(fields) => {
            fields.insert(key, value);
        }
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let at = position(&key, items.len() + 1, path)?;
            items.insert(at, value);
        }
        _ => return Err(missing_path(op, path)),
    }
    Ok(())
}

fn remove(doc: &mut Value, path: &str, op: &str) -> Result<Value, PatchError> {
    let (parent, key) = parent_mut(doc, path).ok_or_else(|| missing_path(op, path))?;
    match parent {
        Value::Object(fields) => fields.remove(&key).ok_or_else(|| {
            PatchError::DoesNotApply(format!("Unable to remove nonexistent key: {key}: missing value"))
        }),
        Value::Array(items) => {
            let at = position(&key, items.len(), path)?;
            Ok(items.remove(at))
        }
        _ => Err(missing_path(op, path)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{merge::typed::testing::any_json, status::Status};

    fn doc() -> Value {
        json!({"data": {"x": "y"}, "list": [1, 2, 3], "a/b": {"~c": 1}})
    }

    #[test]
    fn applies_each_operation() {
        let cases = [
            (json!([{"op": "add", "path": "/data/z", "value": 1}]), "/data/z", json!(1)),
            (json!([{"op": "add", "path": "data/z", "value": 1}]), "/z", json!(1)),
            (json!([{"op": "add", "path": "/data/z"}]), "/data/z", json!(null)),
            (json!([{"op": "replace", "path": "/data/new", "value": "n"}]), "/data/new", json!("n")),
            (json!([{"op": "add", "path": "/list/-", "value": 4}]), "/list", json!([1, 2, 3, 4])),
            (json!([{"op": "add", "path": "/list/1", "value": 9}]), "/list", json!([1, 9, 2, 3])),
            (json!([{"op": "add", "path": "/list/3", "value": 9}]), "/list", json!([1, 2, 3, 9])),
            (json!([{"op": "add", "path": "/list/-1", "value": 9}]), "/list", json!([1, 2, 3, 9])),
            (json!([{"op": "remove", "path": "/list/-1"}]), "/list", json!([1, 2])),
            (json!([{"op": "replace", "path": "/list/0", "value": 7}]), "/list", json!([7, 2, 3])),
            (json!([{"op": "move", "from": "/data/x", "path": "/list/0"}]), "/list", json!(["y", 1, 2, 3])),
            (json!([{"op": "copy", "from": "/list/2", "path": "/data/x"}]), "/data/x", json!(3)),
            (json!([{"op": "copy", "from": "/data/none", "path": "/data/x"}]), "/data/x", json!(null)),
            (json!([{"op": "replace", "path": "/a~1b/~0c", "value": 2}]), "/a~1b/~0c", json!(2)),
            (json!([{"op": "test", "path": "/data/none", "value": null}]), "/data/x", json!("y")),
            (json!([{"op": "replace", "path": "", "value": {"q": 1}}]), "", json!({"q": 1})),
            (json!(null), "/data/x", json!("y")),
        ];
        for (patch, pointer, expected) in cases {
            let result = apply(&doc(), &patch).unwrap_or_else(|e| json!(e.to_string()));
            assert_eq!(result.pointer(pointer), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn says_of_misfits_only_that_they_were_rejected() {
        let cases = [
            json!([{"op": "foo", "path": "/data/x"}]),
            json!([{"path": "/data/x"}]),
            json!([null]),
            json!([{"op": "add", "value": 1}]),
            json!([{"op": "replace", "value": 1}]),
            json!([{"op": "test", "path": "/data/x", "value": "z"}]),
            json!([{"op": "test", "path": "/data/x"}]),
            json!([{"op": "test", "path": "/data/q", "value": "z"}]),
            json!([{"op": "test", "path": "", "value": {}}]),
            json!([{"op": "remove", "path": "/data/nope"}]),
            json!([{"op": "remove", "path": "/nope/nope"}]),
            json!([{"op": "remove", "path": ""}]),
            json!([{"op": "remove", "path": "/list/3"}]),
            json!([{"op": "remove", "path": "/list/a"}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "add", "path": "/nope/x", "value": 1}]),
            json!([{"op": "add", "path": "/data/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/list/4", "value": 1}]),
            json!([{"op": "add", "path": "/list/-5", "value": 1}]),
            json!([{"op": "replace", "path": "/list/3", "value": 1}]),
            json!([{"op": "replace", "path": "", "value": 3}]),
            json!([{"op": "copy", "path": "/data/x"}]),
            json!([{"op": "copy", "from": "/list/9", "path": "/data/x"}]),
            json!([{"op": "move", "path": "/data/x"}]),
            json!([{"op": "move", "from": "/data/none", "path": "/data/x"}]),
        ];
        for patch in cases {
            let status: Option<Status> = apply(&doc(), &patch).err().map(Status::from);
            let expected = Status::bare(
                http::StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "the server rejected our request due to an error in our request",
            );
            assert_eq!(status, Some(expected), "{patch}");
        }
    }

    #[test]
    fn says_what_is_malformed() {
        let cases = [
            (json!({}), "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
            (json!("x"), "json: cannot unmarshal string into Go value of type []handlers.jsonPatchOp"),
            (json!([1]), "json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
            (
                json!([{"op": 1, "path": "/data/x"}]),
                "json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ];
        for (patch, message) in cases {
            let expected = PatchError::Malformed(format!("error decoding patch: {message}"));
            assert_eq!(apply(&doc(), &patch), Err(expected));
        }
    }

    #[test]
    fn limits_the_number_of_operations() {
        let step = json!({"op": "test", "path": "/data/x", "value": "y"});
        let exactly = Value::Array(vec![step.clone(); MAX_OPERATIONS]);
        assert_eq!(apply(&doc(), &exactly), Ok(doc()));
        let more = Value::Array(vec![step; MAX_OPERATIONS + 1]);
        let status: Option<Status> = apply(&doc(), &more).err().map(Status::from);
        assert_eq!(
            status.map(|s| (s.code.as_u16(), s.reason, s.message)),
            Some((
                413,
                "RequestEntityTooLarge",
                "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001".into()
            ))
        );
    }

    proptest! {
        #[test]
        fn never_panics(doc in any_json(), patch in any_json()) {
            let _ = apply(&doc, &patch);
        }

        #[test]
        fn never_panics_on_operations(
            doc in any_json(),
            ops in prop::collection::vec(
                ("(add|remove|replace|move|copy|test)", "(/(a|b|c|0|1|-|-1|~0|~1|)){0,4}", "(/(a|b|c|0|1|-)){0,3}", any_json()),
                0..6,
            ),
        ) {
            let patch: Vec<Value> = ops
                .into_iter()
                .map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
                .collect();
            let _ = apply(&doc, &Value::Array(patch));
        }
    }
}
