//! An object without some of its fields.

use serde_json::{Map, Value};

use super::{Node, shape::Form};
use crate::merge::{FieldSet, PathElement};

/// `value` without the members of `gone`. What loses everything that it had becomes null.
pub(in crate::merge) fn remove(node: Node<'_>, value: &Value, gone: &FieldSet) -> Value {
    match (node.form(value), value) {
        (Form::Scalar, scalar) => scalar.clone(),
        (Form::Map, Value::Object(map)) if !map.is_empty() && !node.is_atomic_map() => {
            let mut kept = Map::new();
            for (name, member) in map {
                let member = match gone.node(&PathElement::field(name)) {
                    None => member.clone(),
                    Some(field) if field.member => continue,
                    Some(field) => remove(node.member_or_deduced(name), member, &field.children),
                };
                kept.insert(name.clone(), member);
            }
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Form::List, Value::Array(items)) if !items.is_empty() && !node.is_atomic_list() => {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let field = node.element(item).ok().and_then(|element| gone.node(&element));
                match field {
                    None => kept.push(item.clone()),
                    Some(field) if field.member => {}
                    Some(field) => kept.push(remove(node.items(), item, &field.children)),
                }
            }
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        // Nothing can be taken out of what is empty or one value, yet something was asked for.
        _ => Value::Null,
    }
}
