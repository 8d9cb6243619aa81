//! Compares a child as it should be with the child as it is. No I/O.
//!
//! What is wanted has to be a part of what is there. Objects may have more: the server's defaults, and what others
//! add. Lists have to be as long, and are compared entry by entry; of owners and finalizers others may add some. A
//! value that Go leaves out when it is empty counts as there, and quantities are compared by amount. What the parts
//! alone cannot tell is found by two traces: a hash of what was last applied (something is no longer wanted), and the
//! server's record of who manages which field (somebody else changed a list that counts as one value).

use std::str::FromStr;

use agentcube_api::Quantity;
use serde_json::{Map, Value};

/// The annotation with the hash of what was applied.
pub const APPLIED: &str = "agentcube.io/applied";
const APPLIED_POINTER: &str = "/metadata/annotations/agentcube.io~1applied";

/// The keys under which Kubernetes has amounts, which the server writes in a form of its own.
const AMOUNTS: [&str; 6] = ["requests", "limits", "capacity", "hard", "overhead", "sizeLimit"];

/// Parts of an object that are nobody's to want, or that identify it.
const NOT_COMPARED: [&str; 11] = [
    "/apiVersion",
    "/kind",
    "/status",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/uid",
    "/metadata/resourceVersion",
    "/metadata/generation",
    "/metadata/creationTimestamp",
    "/metadata/managedFields",
    APPLIED_POINTER,
];

/// How a child stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Missing,
    /// It is being deleted.
    Ending,
    /// Something else is wanted than what was applied last.
    Outdated,
    /// Somebody has changed it; where, as a JSON pointer.
    Drifted {
        at: String,
    },
    Same,
    /// There is an object of this name, but it is not of the same owner.
    Foreign {
        owner: String,
    },
}

/// Notes in an annotation what the object is, so that a later comparison knows what was applied.
pub fn stamp(desired: &mut Value) {
    let digest = ring::digest::digest(&ring::digest::SHA256, without_stamp(desired).to_string().as_bytes());
    let hash: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    desired["metadata"]["annotations"][APPLIED] = hash.into();
}

fn without_stamp(desired: &Value) -> Value {
    let mut object = desired.clone();
    if let Value::Object(annotations) = &mut object["metadata"]["annotations"] {
        annotations.remove(APPLIED);
        if annotations.is_empty() {
            object["metadata"]["annotations"] = Value::Null;
        }
    }
    object
}

/// How the child stands to what is wanted, which was stamped, for this field manager.
pub fn compare(desired: &Value, current: Option<&Value>, manager: &str) -> Standing {
    let Some(current) = current else { return Standing::Missing };
    let fields = managed(current, manager);
    let stamped = current.pointer(APPLIED_POINTER);
    // An owner reference may have been removed by hand; the traces of ours are left.
    let ours = match controller(current) {
        Some(owner) => uid(owner) == controller(desired).and_then(uid),
        None => stamped.is_some() || matches!(fields, Managed::Ours(_)),
    };
    if !ours {
        let owner = controller(current).map_or_else(|| "nobody that is known".to_owned(), described);
        return Standing::Foreign { owner };
    }
    if current.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
        return Standing::Ending;
    }
    if stamped.is_some() && stamped != desired.pointer(APPLIED_POINTER) {
        return Standing::Outdated;
    }
    let at = Path::default();
    let drift = differs(desired, current, &at).or_else(|| match &fields {
        Managed::Untold => None,
        Managed::Others => Some(String::new()),
        Managed::Ours(fields) => lost(desired, fields, &at),
    });
    drift.map_or(Standing::Same, |at| Standing::Drifted { at })
}

/// The owner that controls an object.
pub(super) fn controller(object: &Value) -> Option<&Value> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

fn uid(owner: &Value) -> Option<&str> {
    owner.get("uid")?.as_str()
}

fn described(owner: &Value) -> String {
    let text = |key| owner.get(key).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", text("kind"), text("name"))
}

/// A JSON pointer that grows on the way down.
#[derive(Clone, Debug, Default)]
struct Path(String);

impl Path {
    fn child(&self, key: &str) -> Path {
        Path(format!("{}/{}", self.0, key.replace('~', "~0").replace('/', "~1")))
    }

    fn is_compared(&self) -> bool {
        !NOT_COMPARED.contains(&self.0.as_str())
    }

    /// Others may add entries to this list.
    fn is_shared_list(&self) -> bool {
        ["/metadata/ownerReferences", "/metadata/finalizers"].contains(&self.0.as_str())
    }

    fn is_amount(&self) -> bool {
        self.0.split('/').any(|key| AMOUNTS.contains(&key))
    }
}

/// Where the wanted is not a part of what is there.
fn differs(desired: &Value, current: &Value, at: &Path) -> Option<String> {
    match (desired, current) {
        (Value::Null, _) => None,
        (Value::Object(wanted), Value::Object(there)) => wanted
            .iter()
            .map(|(key, value)| (at.child(key), value, there.get(key)))
            .filter(|(at, ..)| at.is_compared())
            .find_map(|(at, value, there)| match there {
                None | Some(Value::Null) if is_empty(value) => None,
                None => Some(at.0),
                Some(there) => differs(value, there, &at),
            }),
        (Value::Array(wanted), Value::Array(there)) if at.is_shared_list() => wanted
            .iter()
            .position(|value| !there.iter().any(|there| differs(value, there, at).is_none()))
            .map(|index| at.child(&index.to_string()).0),
        (Value::Array(wanted), Value::Array(there)) => {
            let by_entry = wanted.iter().zip(there).enumerate();
            by_entry
                .filter_map(|(index, (value, there))| differs(value, there, &at.child(&index.to_string())))
                .next()
                .or_else(|| (wanted.len() != there.len()).then(|| at.0.clone()))
        }
        _ if desired == current || (at.is_amount() && same_amount(desired, current)) => None,
        _ => Some(at.0.clone()),
    }
}

/// What Go's encoding leaves out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(Value::is_null),
    }
}

fn same_amount(a: &Value, b: &Value) -> bool {
    let amount = |value: &Value| match value {
        Value::String(text) => Quantity::from_str(text).ok(),
        Value::Number(number) => Quantity::from_str(&number.to_string()).ok(),
        _ => None,
    };
    amount(a).zip(amount(b)).is_some_and(|(a, b)| a == b)
}

/// What the server's record says of a field manager.
enum Managed<'a> {
    /// There is no record.
    Untold,
    /// It never applied anything.
    Others,
    Ours(&'a Map<String, Value>),
}

fn managed<'a>(current: &'a Value, manager: &str) -> Managed<'a> {
    let Some(entries) = current.pointer("/metadata/managedFields").and_then(Value::as_array) else {
        return Managed::Untold;
    };
    let applied = entries.iter().find(|entry| {
        entry["manager"] == manager && entry["operation"] == "Apply" && entry.get("subresource").is_none()
    });
    match applied.and_then(|entry| entry["fieldsV1"].as_object()) {
        Some(fields) => Managed::Ours(fields),
        None => Managed::Others,
    }
}

/// Where a wanted field is no longer managed by us: somebody else has set it since.
fn lost(desired: &Value, fields: &Map<String, Value>, at: &Path) -> Option<String> {
    match desired {
        Value::Object(wanted) => {
            wanted.iter().map(|(key, value)| (at.child(key), key, value)).find_map(|(at, key, value)| {
                if !at.is_compared() || is_empty(value) {
                    return None;
                }
                descend(value, fields.get(&format!("f:{key}")), &at)
            })
        }
        Value::Array(wanted) => wanted
            .iter()
            .enumerate()
            .find_map(|(index, value)| descend(value, entry(value, fields), &at.child(&index.to_string()))),
        _ => None,
    }
}

fn descend(value: &Value, field: Option<&Value>, at: &Path) -> Option<String> {
    match field.and_then(Value::as_object) {
        None => Some(at.0.clone()),
        // A field that has no parts of its own is managed as a whole.
        Some(parts) if parts.is_empty() => None,
        Some(parts) => lost(value, parts, at),
    }
}

/// The record of a list's entry: by its keys, or by its value. A key that the server fills in need not be wanted.
fn entry<'a>(value: &Value, fields: &'a Map<String, Value>) -> Option<&'a Value> {
    fields.iter().find_map(|(name, parts)| {
        let fits = match name.split_once(':')? {
            ("k", keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).ok()?;
                keys.iter().all(|(key, of_entry)| value.get(key).is_none_or(|wanted| wanted == of_entry))
            }
            ("v", of_entry) => {
                serde_json::from_str::<Value>(of_entry).is_ok_and(|of_entry| of_entry == *value)
            }
            _ => false,
        };
        fits.then_some(parts)
    })
}

#[cfg(test)]
mod tests;
