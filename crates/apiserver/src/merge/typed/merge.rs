//! An object with a partial one of the same kind laid over it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Node, shape::Form};
use crate::merge::{MAX_DEPTH, PathElement};

/// `live` with everything that `config` mentions as `config` has it. Nothing is removed.
///
/// Elements of lists keep the order of `live`, except those that `config` orders otherwise.
pub(in crate::merge) fn merge(node: Node<'_>, live: &Value, config: &Value) -> Value {
    merge_at(node, Some(live), Some(config), 0).unwrap_or(Value::Null)
}

fn merge_at(node: Node<'_>, live: Option<&Value>, config: Option<&Value>, depth: usize) -> Option<Value> {
    let decisive = config.or(live)?;
    let form = if depth > MAX_DEPTH { Form::Scalar } else { node.form(decisive) };
    match form {
        Form::Scalar => Some(decisive.clone()),
        Form::Map => {
            let none = &Map::new();
            let live_map = live.and_then(Value::as_object).unwrap_or(none);
            let config_map = config.and_then(Value::as_object).unwrap_or(none);
            if node.is_atomic_map() || (live_map.is_empty() && config_map.is_empty()) {
                return Some(decisive.clone());
            }
            let mut merged = Map::new();
            for (name, member) in live_map {
                let value = match config_map.get(name) {
                    None => Some(member.clone()),
                    over => merge_at(node.member_or_deduced(name), Some(member), over, depth + 1),
                };
                merged.extend(value.map(|value| (name.clone(), value)));
            }
            for (name, member) in config_map {
                if !live_map.contains_key(name) {
                    let value = merge_at(node.member_or_deduced(name), None, Some(member), depth + 1);
                    merged.extend(value.map(|value| (name.clone(), value)));
                }
            }
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        Form::List => {
            let live_items = live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let config_items = config.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if node.is_atomic_list() || (live_items.is_empty() && config_items.is_empty()) {
                return Some(decisive.clone());
            }
            let merged = merge_lists(node, live_items, config_items, depth);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
    }
}

/// The elements of a list by what tells them apart, in order.
struct Index<'a> {
    order: Vec<(PathElement, &'a Value)>,
    /// `None` where several elements share a key: those are not merged with anything.
    single: BTreeMap<PathElement, Option<&'a Value>>,
}

impl<'a> Index<'a> {
    fn of(node: Node<'_>, items: &'a [Value]) -> Self {
        let mut index = Self { order: Vec::with_capacity(items.len()), single: BTreeMap::new() };
        for item in items {
            if let Ok(element) = node.element(item) {
                index.single.entry(element.clone()).and_modify(|seen| *seen = None).or_insert(Some(item));
                index.order.push((element, item));
            }
        }
        index
    }

    fn has(&self, element: &PathElement) -> bool {
        self.single.contains_key(element)
    }

    fn get(&self, element: &PathElement) -> Option<&'a Value> {
        self.single.get(element).copied().flatten()
    }
}

/// Walks both lists at once. Elements only in `live` keep their place relative to their neighbours there;
/// elements of both come in the order of `config`.
fn merge_lists(node: Node<'_>, live: &[Value], config: &[Value], depth: usize) -> Vec<Value> {
    let (live, config) = (Index::of(node, live), Index::of(node, config));
    let items = node.items();
    let mut shared = config.order.iter().map(|(element, _)| element).filter(|element| live.has(element));
    let mut next_shared = shared.next();
    let mut merged = Vec::with_capacity(live.order.len() + config.order.len());
    let mut taken: BTreeMap<&PathElement, ()> = BTreeMap::new();
    let (mut l, mut c) = (0, 0);
    while l < live.order.len() || c < config.order.len() {
        if let (Some((ours, _)), Some((theirs, _))) = (live.order.get(l), config.order.get(c)) {
            if ours == theirs {
                taken.insert(theirs, ());
                merged.extend(merge_at(items, live.get(ours), config.get(theirs), depth + 1));
                (l, c) = (l + 1, c + 1);
                next_shared = shared.next();
                continue;
            }
            if config.has(ours) && next_shared.is_some_and(|next| next != ours) {
                // In both lists, but it is not its turn.
                l += 1;
                continue;
            }
        }
        if let Some((ours, item)) = live.order.get(l) {
            if !config.has(ours) {
                merged.extend(merge_at(items, Some(item), None, depth + 1));
                l += 1;
                continue;
            }
            if taken.contains_key(ours) {
                l += 1;
            }
        }
        if let Some((theirs, _)) = config.order.get(c) {
            taken.insert(theirs, ());
            merged.extend(merge_at(items, live.get(theirs), config.get(theirs), depth + 1));
            c += 1;
            if next_shared == Some(theirs) {
                next_shared = shared.next();
            }
        }
    }
    merged
}
