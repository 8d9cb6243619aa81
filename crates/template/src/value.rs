//! What templates work with: JSON, and the few kinds of Go values that its functions make of it. Which kind of number or list a value
//! is matters, because Go refuses what does not fit and prints what it is told to.

use std::rc::Rc;
use std::sync::Arc;

use crate::functions::semver::Version;

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// No value at all: a variable or pipeline that holds nothing, a key that is not there. Printed as `<no value>`.
    Missing,
    /// A nil inside of something: a `null` of the data, an argument. Printed as `<nil>`.
    Nil,
    Bool(bool),
    Int(i64),
    Int64(i64),
    Uint64(u64),
    /// A byte of a string.
    Byte(u8),
    Float(f64),
    Text(Arc<str>),
    List(List),
    Map(MapId),
    Version(Rc<Version>),
}

/// A list, which never changes: functions make new ones.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) of: Element,
    /// A list that was never made, in Go's sense: empty, but `null` as JSON.
    pub(crate) is_nil: bool,
    pub(crate) items: Rc<[Value]>,
    /// How deep lists are nested in it.
    pub(crate) depth: usize,
}

/// A map, by its place in the memory that holds it: maps can be changed by all who have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MapId(pub(crate) usize);

/// What a list or a map is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Any,
    Text,
    Int,
    /// Lists of anything.
    List,
}

impl Element {
    /// As Go writes the type.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Element::Any => "interface {}",
            Element::Text => "string",
            Element::Int => "int",
            Element::List => "[]interface {}",
        }
    }
}

impl Value {
    pub(crate) fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    /// Nil, whichever it is.
    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Value::Missing | Value::Nil)
    }

    /// As it is inside of a list or a map, or an argument.
    pub(crate) fn inside(self) -> Value {
        if self.is_nil() { Value::Nil } else { self }
    }

    /// As a pipeline gives it on.
    pub(crate) fn outside(self) -> Value {
        if self.is_nil() { Value::Missing } else { self }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_list(&self) -> Option<&List> {
        match self {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// Whole numbers of any kind.
    pub(crate) fn as_integer(&self) -> Option<i128> {
        match self {
            Value::Int(number) | Value::Int64(number) => Some(i128::from(*number)),
            Value::Uint64(number) => Some(i128::from(*number)),
            Value::Byte(number) => Some(i128::from(*number)),
            _ => None,
        }
    }

    /// What Go calls the kind of a type.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Value::Missing | Value::Nil => "invalid",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Int64(_) => "int64",
            Value::Uint64(_) => "uint64",
            Value::Byte(_) => "uint8",
            Value::Float(_) => "float64",
            Value::Text(_) => "string",
            Value::List(_) => "slice",
            Value::Map(_) => "map",
            Value::Version(_) => "ptr",
        }
    }
}
