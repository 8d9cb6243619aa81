//! What one object has that another has not.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Node, shape::Form};
use crate::merge::{FieldSet, MAX_DEPTH, PathElement, fields::compare_values};

/// The difference between two objects. No path is in both sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::merge) struct Diff {
    /// What the second object has and the first has not, or has with another value.
    pub(in crate::merge) gained: FieldSet,
    /// What only the first object has.
    pub(in crate::merge) removed: FieldSet,
}

impl Diff {
    fn push(&mut self, element: PathElement, place: Place) {
        if place.diff.removed.is_empty() && !place.removed {
            return self.gained.push(element, place.gained, place.diff.gained);
        }
        self.removed.push(element.clone(), place.removed, place.diff.removed);
        self.gained.push(element, place.gained, place.diff.gained);
    }

    /// Without the paths in `fields` and everything below them.
    pub(in crate::merge) fn without(&mut self, fields: &FieldSet) {
        if !fields.is_empty() {
            self.gained = self.gained.recursive_difference(fields);
            self.removed = self.removed.recursive_difference(fields);
        }
    }
}

/// The difference at one place: of itself and of what is below it.
#[derive(Default)]
struct Place {
    gained: bool,
    removed: bool,
    diff: Diff,
}

/// Compares two objects of the kind that `root` describes. Members of the root and of `metadata` that
/// `skipped` names are not looked at.
pub(in crate::merge) fn compare(root: Node<'_>, old: &Value, new: &Value, skipped: &FieldSet) -> Diff {
    let mut place = Place::default();
    compare_maps(root, Some(old), Some(new), &mut place, Some(skipped), 0);
    place.diff
}

fn compare_at(
    node: Node<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    skipped: Option<&FieldSet>,
    depth: usize,
) -> Place {
    let mut place = Place { gained: old.is_none(), removed: new.is_none(), ..Place::default() };
    let (form, other) = match (old, new) {
        (Some(old), Some(new)) => node.forms_of(old, new),
        (Some(one), None) | (None, Some(one)) => (node.form(one), None),
        (None, None) => return Place::default(),
    };
    for form in [Some(form), other].into_iter().flatten() {
        match form {
            _ if depth > MAX_DEPTH => leaf(old, new, &mut place),
            Form::Scalar => leaf(old, new, &mut place),
            Form::Map => compare_maps(node, old, new, &mut place, skipped, depth),
            Form::List => compare_lists(node, old, new, &mut place, depth),
        }
    }
    place
}

/// The place is one value.
fn leaf(old: Option<&Value>, new: Option<&Value>, place: &mut Place) {
    if let (Some(old), Some(new)) = (old, new)
        && !same(old, new)
    {
        place.gained = true;
    }
}

fn compare_maps(
    node: Node<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    place: &mut Place,
    skipped: Option<&FieldSet>,
    depth: usize,
) {
    let none = &Map::new();
    let old_map = old.and_then(Value::as_object).unwrap_or(none);
    let new_map = new.and_then(Value::as_object).unwrap_or(none);
    // Between two empty maps, whether they are null or {} is all there is to tell.
    if node.is_atomic_map() || (old_map.is_empty() && new_map.is_empty()) {
        return leaf(old, new, place);
    }
    let mut visit = |name: &str, old: Option<&Value>, new: Option<&Value>| {
        if let (Some(Value::String(old)), Some(Value::String(new))) = (old, new)
            && old == new
        {
            return;
        }
        let mut below = None;
        if let Some(skipped) = skipped
            && let Some(skip) = skipped.node(&PathElement::field(name))
        {
            if skip.member && skip.children.is_empty() {
                return;
            }
            below = Some(&skip.children);
        }
        let child = compare_at(node.member_or_deduced(name), old, new, below, depth + 1);
        if child.gained || child.removed || !child.diff.gained.is_empty() || !child.diff.removed.is_empty() {
            place.diff.push(PathElement::field(name), child);
        }
    };
    for (name, old) in old_map {
        visit(name, Some(old), new_map.get(name));
    }
    for (name, new) in new_map {
        if !old_map.contains_key(name) {
            visit(name, None, Some(new));
        }
    }
}

fn compare_lists(node: Node<'_>, old: Option<&Value>, new: Option<&Value>, place: &mut Place, depth: usize) {
    let items = |list: Option<&'_ Value>| list.and_then(Value::as_array).map_or(0, Vec::len);
    if node.is_atomic_list() || (items(old) == 0 && items(new) == 0) {
        return leaf(old, new, place);
    }
    if old == new {
        return;
    }
    let mut elements: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = node.element(item) {
            elements.entry(element).or_default().0.push(item);
        }
    }
    for item in new.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = node.element(item) {
            elements.entry(element).or_default().1.push(item);
        }
    }
    let items = node.items();
    for (element, (old, new)) in elements {
        let child = match (old.as_slice(), new.as_slice()) {
            ([] | [_], [] | [_]) => {
                compare_at(items, old.first().copied(), new.first().copied(), None, depth + 1)
            }
            // Elements with the same key are owned together, without anything below them.
            ([_, _, ..], [_, _, ..]) => {
                let unchanged = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| same(a, b));
                Place { gained: !unchanged, ..Place::default() }
            }
            ([_, _, ..], _) => {
                let mut child = new
                    .first()
                    .map_or_else(Place::default, |new| compare_at(items, None, Some(new), None, depth + 1));
                child.removed = true;
                child
            }
            (_, _) => {
                let mut child = old
                    .first()
                    .map_or_else(Place::default, |old| compare_at(items, Some(old), None, None, depth + 1));
                child.gained = true;
                child
            }
        };
        place.diff.push(element, child);
    }
}

/// Whether two values are the same; numbers are compared as numbers.
pub(in crate::merge) fn same(a: &Value, b: &Value) -> bool {
    a == b || compare_values(a, b).is_eq()
}
