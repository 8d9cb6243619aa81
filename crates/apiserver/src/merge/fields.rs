//! Sets of field paths: who owns which fields of an object.
//!
//! A set is a trie kept sorted at every level, in the order in which the real server writes it. Owning a field
//! says nothing about its children or parents: `.spec` and `.spec.replicas` are separate members.

use std::{cmp::Ordering, fmt};

use serde_json::{Number, Value};

/// One step from a value to something inside it.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A member of an object.
    Field(String),
    /// An element of a list whose elements are told apart by some of their fields, sorted by name.
    Key(Vec<(String, Value)>),
    /// An element of a set of scalars.
    Value(Value),
    /// An element of a list by position. Nothing here makes these; they can be read.
    Index(i64),
}

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Sorted by element. No node is empty: it is a member, or has children, or both.
    nodes: Vec<FieldNode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldNode {
    pub(super) element: PathElement,
    pub(super) member: bool,
    pub(super) children: FieldSet,
}

impl PathElement {
    pub fn field(name: impl Into<String>) -> Self {
        Self::Field(name.into())
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                for ((name_a, value_a), (name_b, value_b)) in a.iter().zip(b) {
                    let order = name_a.cmp(name_b).then_with(|| compare_values(value_a, value_b));
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// As conflict messages print it: `.name`, `[name="x"]`, `[="x"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                for (i, (name, value)) in fields.iter().enumerate() {
                    let lead = if i == 0 { "[" } else { "," };
                    write!(f, "{lead}{name}={}", Shown(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", Shown(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A key's value inside a path.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(s) => write!(f, "{s:?}"),
            other => write!(f, "{other}"),
        }
    }
}

/// A total order over JSON values; numbers compare as numbers, whether written with a fraction or not.
pub(super) fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let unequal = a.iter().zip(b).map(|(a, b)| compare_values(a, b)).find(|order| order.is_ne());
            unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let unequal = a
                .iter()
                .zip(b)
                .map(|((key_a, a), (key_b, b))| key_a.cmp(key_b).then_with(|| compare_values(a, b)))
                .find(|order| order.is_ne());
            unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => value_rank(a).cmp(&value_rank(b)),
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or(f64::NAN).total_cmp(&b.as_f64().unwrap_or(f64::NAN)),
    }
}

fn value_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

impl FieldSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of these paths of plain fields: `["metadata", "labels"]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let elements: Vec<PathElement> = path.iter().map(|name| PathElement::field(*name)).collect();
            set.insert(&elements);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn nodes(&self) -> &[FieldNode] {
        &self.nodes
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        match self.nodes.last() {
            None => Err(0),
            // Sets are mostly built and read in order.
            Some(last) if last.element < *element => Err(self.nodes.len()),
            Some(_) => self.nodes.binary_search_by(|node| node.element.cmp(element)),
        }
    }

    pub(super) fn node(&self, element: &PathElement) -> Option<&FieldNode> {
        self.find(element).ok().map(|at| &self.nodes[at])
    }

    /// Adds a node, or merges it into the one that is there. Empty nodes vanish.
    pub(super) fn push(&mut self, element: PathElement, member: bool, children: Self) {
        if !member && children.is_empty() {
            return;
        }
        match self.find(&element) {
            Err(at) => self.nodes.insert(at, FieldNode { element, member, children }),
            Ok(at) => {
                let node = &mut self.nodes[at];
                node.member |= member;
                if !children.is_empty() {
                    node.children = node.children.union(&children);
                }
            }
        }
    }

    /// Adds one path. The empty path stands for the whole object, which nobody owns.
    pub fn insert(&mut self, path: &[PathElement]) {
        let [first, rest @ ..] = path else { return };
        let at = self.find(first).unwrap_or_else(|at| {
            let node = FieldNode { element: first.clone(), member: false, children: Self::new() };
            self.nodes.insert(at, node);
            at
        });
        let node = &mut self.nodes[at];
        if rest.is_empty() {
            node.member = true;
        } else {
            node.children.insert(rest);
        }
    }

    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.node(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.node(first).is_some_and(|node| node.children.has(rest)),
        }
    }

    /// Walks both sets in order, building a third from what `join` makes of the nodes at each place.
    fn zip(
        &self,
        other: &Self,
        join: impl Fn(Option<&FieldNode>, Option<&FieldNode>) -> Option<FieldNode>,
    ) -> Self {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Self { nodes },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            nodes.extend(join(a, b));
        }
    }

    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(FieldNode {
                element: a.element.clone(),
                member: a.member || b.member,
                children: a.children.union(&b.children),
            }),
            (one, other) => one.or(other).cloned(),
        })
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let (a, b) = (a?, b?);
            filled(&a.element, a.member && b.member, a.children.intersection(&b.children))
        })
    }

    /// The paths of this set that are not members of the other. Parents and children of removed paths stay.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let a = a?;
            match b {
                None => Some(a.clone()),
                Some(b) => filled(&a.element, a.member && !b.member, a.children.difference(&b.children)),
            }
        })
    }

    /// Like [`FieldSet::difference`], but what is removed takes everything below it along.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let a = a?;
            match b {
                None => Some(a.clone()),
                Some(b) if b.member => None,
                Some(b) => filled(&a.element, a.member, a.children.recursive_difference(&b.children)),
            }
        })
    }

    /// Only the members that have no members below them.
    pub fn leaves(&self) -> Self {
        let nodes = self.nodes.iter().filter_map(|node| {
            filled(&node.element, node.member && node.children.is_empty(), node.children.leaves())
        });
        Self { nodes: nodes.collect() }
    }

    /// The members as messages print them: those of a level before those below it.
    pub fn paths(&self) -> Vec<String> {
        self.members().into_iter().map(|(path, _)| path).collect()
    }

    /// The members, each as messages print it and as a set of its own.
    pub(super) fn members(&self) -> Vec<(String, Self)> {
        let mut members = Vec::new();
        self.collect_members(&mut Vec::new(), &mut members);
        members
    }

    fn collect_members<'a>(&'a self, prefix: &mut Vec<&'a PathElement>, members: &mut Vec<(String, Self)>) {
        for node in self.nodes.iter().filter(|node| node.member) {
            let path = prefix.iter().copied().chain([&node.element]);
            let mut set = Self::new();
            set.insert(&path.clone().cloned().collect::<Vec<_>>());
            members.push((path.map(PathElement::to_string).collect(), set));
        }
        for node in self.nodes.iter().filter(|node| !node.children.is_empty()) {
            prefix.push(&node.element);
            node.children.collect_members(prefix, members);
            prefix.pop();
        }
    }
}

fn filled(element: &PathElement, member: bool, children: FieldSet) -> Option<FieldNode> {
    (member || !children.is_empty()).then(|| FieldNode { element: element.clone(), member, children })
}

#[cfg(test)]
pub(in crate::merge) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(in crate::merge) fn any_element() -> impl Strategy<Value = PathElement> {
        prop_oneof![
            "[a-c]".prop_map(PathElement::Field),
            "[a-c<&\"\\\\é]{1,2}".prop_map(|s| PathElement::Key(vec![("name".into(), json!(s))])),
            (0..3i64).prop_map(|n| PathElement::Key(vec![("a".into(), json!(n)), ("b".into(), json!("x"))])),
            "[a-b]".prop_map(|s| PathElement::Value(json!(s))),
            (0..3i64).prop_map(PathElement::Index),
        ]
    }

    pub(in crate::merge) fn any_set() -> impl Strategy<Value = FieldSet> {
        let path = prop::collection::vec(any_element(), 1..5);
        prop::collection::vec(path, 0..12).prop_map(|paths| {
            let mut set = FieldSet::new();
            paths.iter().for_each(|path| set.insert(path));
            set
        })
    }

    #[test]
    fn prints_paths_like_conflict_messages() {
        let mut set = FieldSet::of_fields(&[&["spec", "replicas"], &["spec"], &["data"]]);
        set.insert(&[
            PathElement::field("spec"),
            PathElement::field("ports"),
            PathElement::Key(vec![("port".into(), json!(80)), ("protocol".into(), json!("TCP"))]),
            PathElement::field("name"),
        ]);
        set.insert(&[PathElement::field("set"), PathElement::Value(json!("x"))]);
        assert_eq!(
            set.paths(),
            [
                ".data",
                ".spec",
                ".set[=\"x\"]",
                ".spec.replicas",
                ".spec.ports[port=80,protocol=\"TCP\"].name"
            ]
        );
    }

    #[test]
    fn removes_what_is_below_only_when_asked() {
        let owned = FieldSet::of_fields(&[&["a"], &["a", "b"], &["a", "b", "c"], &["d"]]);
        let gone = FieldSet::of_fields(&[&["a", "b"]]);
        assert_eq!(owned.difference(&gone), FieldSet::of_fields(&[&["a"], &["a", "b", "c"], &["d"]]));
        assert_eq!(owned.recursive_difference(&gone), FieldSet::of_fields(&[&["a"], &["d"]]));
        assert_eq!(owned.leaves(), FieldSet::of_fields(&[&["a", "b", "c"], &["d"]]));
    }

    #[test]
    fn numbers_are_equal_by_value() {
        assert_eq!(PathElement::Value(json!(80)), PathElement::Value(json!(80.0)));
        assert!(PathElement::Value(json!(443)) < PathElement::Value(json!(1000)));
    }

    proptest! {
        #[test]
        fn set_laws(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.union(&a), a.clone());
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.difference(&b).difference(&c), a.difference(&b.union(&c)));
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert!(a.recursive_difference(&b).difference(&a.difference(&b)).is_empty());
            prop_assert_eq!(a.leaves().leaves(), a.leaves());
        }

        #[test]
        fn has_what_was_inserted(set in any_set(), path in prop::collection::vec(any_element(), 1..5)) {
            let mut larger = set.clone();
            larger.insert(&path);
            prop_assert!(larger.has(&path));
            prop_assert!(set.difference(&larger).is_empty());
            prop_assert!(larger.paths().len() <= set.paths().len() + 1);
        }
    }
}
