//! The fields that an object mentions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Node, shape::Form};
use crate::merge::{FieldSet, MAX_DEPTH, PathElement};

/// Every field and element that `value` mentions. What contains them is not mentioned itself, except
/// elements of lists, members of maps that the schema does not name, and what is empty.
pub(in crate::merge) fn field_set(node: Node<'_>, value: &Value) -> FieldSet {
    fields_at(node, value, 0).1
}

/// Whether the place itself is mentioned, and what is below it.
fn fields_at(node: Node<'_>, value: &Value, depth: usize) -> (bool, FieldSet) {
    let whole = (true, FieldSet::new());
    match (node.form(value), value) {
        _ if depth > MAX_DEPTH => whole,
        (Form::Scalar, _) => whole,
        (Form::Map, _) if node.is_atomic_map() => whole,
        (Form::List, _) if node.is_atomic_list() => whole,
        (Form::Map, Value::Object(map)) => {
            let mut set = FieldSet::new();
            for (name, member) in map {
                let (mentioned, children) = fields_at(node.member_or_deduced(name), member, depth + 1);
                let empty = member.is_null() || member.as_object().is_some_and(|map| map.is_empty());
                let mentioned = mentioned || empty || !node.declares(name);
                set.push(PathElement::field(name), mentioned, children);
            }
            (false, set)
        }
        (Form::List, Value::Array(items)) => {
            let mut elements: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
            for item in items {
                if let Ok(element) = node.element(item) {
                    elements.entry(element).or_default().push(item);
                }
            }
            let mut set = FieldSet::new();
            for (element, items) in elements {
                let children = match items.as_slice() {
                    [item] => fields_at(node.items(), item, depth + 1).1,
                    // Elements with the same key are owned together, without anything below them.
                    _ => FieldSet::new(),
                };
                set.push(element, true, children);
            }
            (false, set)
        }
        _ => (false, FieldSet::new()),
    }
}

/// The set with the members of maps that the schema names added wherever it has something below them.
pub(in crate::merge) fn with_named_fields(set: &FieldSet, node: Option<Node<'_>>) -> FieldSet {
    let mut result = FieldSet::new();
    for field in set.nodes() {
        let (named, child) = match &field.element {
            PathElement::Field(name) => {
                let named = node.is_some_and(|node| node.declares(name));
                (named, node.and_then(|node| node.member(name)))
            }
            PathElement::Key(_) => (false, node.map(Node::items)),
            PathElement::Value(_) | PathElement::Index(_) => (false, None),
        };
        let member = field.member || (named && !field.children.is_empty());
        result.push(field.element.clone(), member, with_named_fields(&field.children, child));
    }
    result
}
