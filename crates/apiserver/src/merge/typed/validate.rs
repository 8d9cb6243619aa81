//! Whether an applied configuration fits the schema of its kind, and the wording if it does not.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Node,
    shape::{Form, Scalar},
};
use crate::merge::{MAX_DEPTH, PathElement, go_text};

/// What does not fit, as one text; `None` if everything does.
pub(in crate::merge) fn validate(root: Node<'_>, value: &Value) -> Option<String> {
    let mut errors = Vec::new();
    check(root, value, &mut String::new(), &mut errors, 0);
    match errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => {
            let lines: Vec<String> = many.iter().map(|error| format!("\n  {error}")).collect();
            Some(format!("errors:{}", lines.concat()))
        }
    }
}

fn check(node: Node<'_>, value: &Value, path: &mut String, errors: &mut Vec<String>, depth: usize) {
    if depth > MAX_DEPTH || value.is_null() {
        return;
    }
    match (node.form(value), value) {
        (Form::Scalar, value) => {
            if let Some(error) = misfit(node.scalar(), value) {
                report(errors, path, &error);
            }
        }
        (Form::Map, Value::Object(map)) => {
            for (name, member) in map {
                let element = PathElement::field(name);
                let Some(place) = node.member(name) else {
                    within(path, &element, |path| report(errors, path, "field not declared in schema"));
                    // The real server looks no further at this map.
                    return;
                };
                within(path, &element, |path| check(place, member, path, errors, depth + 1));
            }
        }
        (Form::List, Value::Array(items)) => check_items(node, items, path, errors, depth),
        (Form::Map, other) => {
            report(errors, path, &format!("expected map, got &{{{}}}", go_text::plain(other)))
        }
        (Form::List, other) => {
            report(errors, path, &format!("expected list, got &{{{}}}", go_text::plain(other)))
        }
    }
}

fn check_items(node: Node<'_>, items: &[Value], path: &mut String, errors: &mut Vec<String>, depth: usize) {
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let element = if node.is_atomic_list() {
            PathElement::Index(i64::try_from(i).unwrap_or(i64::MAX))
        } else {
            match node.element(item) {
                Ok(element) => element,
                Err(error) => return report(errors, path, &format!("element {i}: {error}")),
            }
        };
        if seen.contains(&element) {
            report(errors, path, &format!("duplicate entries for key {element}"));
        }
        within(path, &element, |path| check(node.items(), item, path, errors, depth + 1));
        seen.insert(element);
    }
}

fn within(path: &mut String, element: &PathElement, run: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push_str(&element.to_string());
    run(path);
    path.truncate(length);
}

fn report(errors: &mut Vec<String>, path: &str, error: &str) {
    errors.push(if path.is_empty() { error.to_owned() } else { format!("{path}: {error}") });
}

fn misfit(scalar: Scalar, value: &Value) -> Option<String> {
    let fits = match scalar {
        Scalar::Numeric => value.is_number(),
        Scalar::String => value.is_string(),
        Scalar::Boolean => value.is_boolean(),
        Scalar::Any => !value.is_object() && !value.is_array(),
    };
    (!fits).then(|| match scalar {
        Scalar::Numeric => format!("expected numeric (int or float), got {}", go_text::type_name(value)),
        Scalar::String => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_text::syntax(value))
        }
        Scalar::Boolean => format!("expected boolean, got &{{{}}}", go_text::plain(value)),
        Scalar::Any => format!("expected any scalar, got &{{{}}}", go_text::plain(value)),
    })
}
