//! Reading and completing loosely typed objects, and paths to their fields.
//!
//! Everything here tolerates fields of a wrong type: they read as absent and are never overwritten.

use std::fmt;

use serde_json::{Map, Value};

use crate::status::{FieldError, FieldErrorKind};

static NULL: Value = Value::Null;

/// What the checks of a kind find.
pub type Errors = Vec<FieldError>;

/// Reading.
pub(crate) trait Peek {
    fn sub(&self, key: &str) -> &Value;
    fn at(&self, path: &[&str]) -> &Value;
    fn has(&self, key: &str) -> bool;
    fn str_of(&self, key: &str) -> &str;
    fn int_of(&self, key: &str) -> Option<i64>;
    fn flag(&self, key: &str) -> bool;
    fn list(&self, key: &str) -> &[Value];
    fn map(&self, key: &str) -> Option<&Map<String, Value>>;
}

impl Peek for Value {
    fn sub(&self, key: &str) -> &Value {
        self.get(key).unwrap_or(&NULL)
    }

    fn at(&self, path: &[&str]) -> &Value {
        path.iter().fold(self, |value, key| value.sub(key))
    }

    /// The field is there and not null, which is what a set pointer is in Go.
    fn has(&self, key: &str) -> bool {
        !self.sub(key).is_null()
    }

    fn str_of(&self, key: &str) -> &str {
        self.sub(key).as_str().unwrap_or_default()
    }

    fn int_of(&self, key: &str) -> Option<i64> {
        self.sub(key).as_i64()
    }

    fn flag(&self, key: &str) -> bool {
        self.sub(key).as_bool().unwrap_or_default()
    }

    fn list(&self, key: &str) -> &[Value] {
        self.sub(key).as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn map(&self, key: &str) -> Option<&Map<String, Value>> {
        self.sub(key).as_object()
    }
}

/// Completing. Nothing happens to values that are not objects.
pub(crate) trait Poke {
    fn set(&mut self, key: &str, value: impl Into<Value>);
    fn unset(&mut self, key: &str) -> Option<Value>;
    fn fill(&mut self, key: &str, value: impl Into<Value>);
    fn fill_str(&mut self, key: &str, value: &str);
    fn part(&mut self, key: &str) -> Option<&mut Value>;
    fn make(&mut self, key: &str) -> Option<&mut Value>;
    fn each(&mut self, key: &str, change: impl FnMut(&mut Value));
}

impl Poke for Value {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        if let Some(map) = self.as_object_mut() {
            map.insert(key.to_owned(), value.into());
        }
    }

    fn unset(&mut self, key: &str) -> Option<Value> {
        self.as_object_mut().and_then(|map| map.remove(key))
    }

    /// Sets a field that is absent or null.
    fn fill(&mut self, key: &str, value: impl Into<Value>) {
        if self.is_object() && !self.has(key) {
            self.set(key, value);
        }
    }

    /// Sets a field that is absent, null or an empty string.
    fn fill_str(&mut self, key: &str, value: &str) {
        if self.is_object() && (!self.has(key) || self.sub(key) == "") {
            self.set(key, value);
        }
    }

    /// The object in a field, if there is one.
    fn part(&mut self, key: &str) -> Option<&mut Value> {
        self.get_mut(key).filter(|value| value.is_object())
    }

    /// The object in a field, made if it is absent.
    fn make(&mut self, key: &str) -> Option<&mut Value> {
        self.fill(key, Value::Object(Map::new()));
        self.part(key)
    }

    fn each(&mut self, key: &str, change: impl FnMut(&mut Value)) {
        if let Some(list) = self.get_mut(key).and_then(Value::as_array_mut) {
            list.iter_mut().for_each(change);
        }
    }
}

/// A path to a field. It lives on the stack: valid objects cost no allocation.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub fn root(field: &'a str) -> Self {
        Self { parent: None, step: Step::Field(field) }
    }

    pub fn child(&'a self, field: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Field(field) }
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    pub(crate) fn required(&self, detail: &str) -> FieldError {
        FieldError::required(self.to_string(), detail)
    }

    pub(crate) fn invalid(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        FieldError::invalid(self.to_string(), value, detail)
    }

    /// An invalid value whose text is given, where the real server prints a Go struct.
    pub(crate) fn invalid_text(&self, value: &str, detail: &str) -> FieldError {
        FieldError::new(FieldErrorKind::Invalid, self.to_string(), None, format!("{value}: {detail}"))
    }

    pub(crate) fn forbidden(&self, detail: impl Into<String>) -> FieldError {
        FieldError::forbidden(self.to_string(), detail)
    }

    pub(crate) fn duplicate(&self, value: impl Into<Value>) -> FieldError {
        FieldError::duplicate(self.to_string(), value)
    }

    pub(crate) fn not_found(&self, value: impl Into<Value>) -> FieldError {
        FieldError::new(FieldErrorKind::NotFound, self.to_string(), Some(value.into()), "")
    }

    pub(crate) fn unsupported(&self, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        FieldError::not_supported(self.to_string(), value, supported)
    }

    pub(crate) fn too_long(&self, limit: usize) -> FieldError {
        FieldError::new(
            FieldErrorKind::TooLong,
            self.to_string(),
            None,
            format!("may not be more than {limit} bytes"),
        )
    }

    /// One error for each message about a value.
    pub(crate) fn all_invalid(&self, value: &str, messages: Vec<String>, errors: &mut Errors) {
        errors.extend(messages.into_iter().map(|message| self.invalid(value, message)));
    }

    /// An integer field that may not be negative; an absent one is fine.
    pub(crate) fn not_negative(&self, object: &Value, key: &str, errors: &mut Errors) {
        if let Some(number) = object.int_of(key).filter(|number| *number < 0) {
            errors.push(self.child(key).invalid(number, NOT_NEGATIVE));
        }
    }

    /// A string field that is one of a few.
    pub(crate) fn one_of(&self, object: &Value, key: &str, supported: &[&str], errors: &mut Errors) {
        match object.str_of(key) {
            "" => errors.push(self.child(key).required("")),
            value if supported.contains(&value) => {}
            value => errors.push(self.child(key).unsupported(value, supported)),
        }
    }

    /// As [`Path::one_of`], but the field may be absent.
    pub(crate) fn maybe_one_of(&self, object: &Value, key: &str, supported: &[&str], errors: &mut Errors) {
        if let Some(value) = object.sub(key).as_str()
            && !supported.contains(&value)
        {
            errors.push(self.child(key).unsupported(value, supported));
        }
    }

    /// A field that no update may change.
    pub(crate) fn immutable(&self, new: &Value, old: &Value, key: &str, errors: &mut Errors) {
        if new.sub(key) != old.sub(key) {
            errors.push(self.child(key).invalid(new.sub(key).clone(), IMMUTABLE));
        }
    }
}

pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// The top of an object: its children have no prefix.
pub(crate) fn top(field: &str) -> Path<'_> {
    Path::root(field)
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Field(name) if self.parent.is_none() => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}
