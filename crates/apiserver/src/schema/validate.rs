//! Validation of custom resources against their schemas, with the messages of the real API server.
//!
//! Where the real validator is odd (integer bounds cut off, nameless errors of `anyOf`), this one is odd too.

mod numbers;

use std::fmt;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use super::cel::Rules;
use super::path::Path;
use super::{Link, MAX_DEPTH, Schema, Type, formats, listtype, objectmeta};
use crate::status::{FieldError, FieldErrorKind};

/// What the API server calls the place of an error that has none.
const NOWHERE: &str = "<nil>";

/// Everything but CEL rules: types and constraints, embedded resources, sets and maps.
pub fn validate(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut errors = validate_schema(schema, value, None, "");
    errors.extend(objectmeta::validate_embedded(schema, value));
    errors.extend(listtype::validate_lists(schema, value));
    errors
}

/// As [`validate`], but what was wrong before and has not changed is tolerated.
pub fn validate_update(schema: &Schema, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate_schema(schema, new, Some(old), "");
    errors.extend(beside_schema(schema, new, old));
    errors
}

/// For writes to `/status`: only that part is held to the schema.
pub fn validate_status(schema: &Schema, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let (Some(part), Some(link)) = (new.get("status"), schema.properties.get("status")) {
        errors = validate_schema(link.get(), part, old.get("status"), "status");
    }
    errors.extend(beside_schema(schema, new, old));
    errors
}

fn beside_schema(schema: &Schema, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = objectmeta::validate_embedded(schema, new);
    if listtype::validate_lists(schema, old).is_empty() {
        errors.extend(listtype::validate_lists(schema, new));
    }
    errors
}

/// Adds what the CEL rules say to `errors`, unless those are such that rules cannot be trusted.
pub fn add_rule_errors(rules: &Rules, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if rules.is_empty() {
        return;
    }
    let blocks = |error: &FieldError| {
        use FieldErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
        matches!(error.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
    };
    if errors.iter().any(blocks) {
        let detail = "some validation rules were not checked because the object was invalid; correct the \
                      existing errors to complete validation";
        errors.push(FieldError::invalid(NOWHERE, Value::Null, detail));
    } else {
        errors.extend(rules.validate(new, old));
    }
}

/// Types and constraints only. `base` comes before the field of every error, but not into its message.
pub fn validate_schema(schema: &Schema, value: &Value, old: Option<&Value>, base: &str) -> Vec<FieldError> {
    let mut outcome = Outcome::default();
    let root = Path::root("");
    let checker = Checker { base, ratchets: old.is_some() };
    checker.ratcheted(schema, value, old, &root, 0, &mut outcome);
    outcome.errors
}

/// A `pattern`, compiled at its first use. A pattern that does not compile matches nothing.
#[derive(Default)]
pub struct Matcher(OnceLock<Option<Regex>>);

impl Matcher {
    fn is_match(&self, pattern: &str, text: &str) -> bool {
        self.0.get_or_init(|| Regex::new(pattern).ok()).as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Matcher")
    }
}

#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    /// Checks passed: of several failed alternatives, the one with most is explained.
    passed: u32,
}

impl Outcome {
    fn add(&mut self, error: FieldError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.passed += other.passed;
        other.errors.into_iter().for_each(|error| self.add(error));
    }
}

struct Checker<'a> {
    base: &'a str,
    ratchets: bool,
}

impl Checker<'_> {
    /// Checks a value that has a counterpart in the old object: if both are equal, its errors are forgiven.
    fn ratcheted(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
        out: &mut Outcome,
    ) {
        let before = out.errors.len();
        self.check(schema, value, old, path, depth, out);
        if self.ratchets && out.errors.len() > before && old == Some(value) {
            out.errors.truncate(before);
        }
    }

    fn check(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
        out: &mut Outcome,
    ) {
        if depth > MAX_DEPTH {
            return;
        }
        let format = effective_format(schema);
        self.ty(schema, format, value, path, out);
        if value.is_null() {
            self.enumeration(schema, value, path, out);
            return;
        }
        self.junctors(schema, value, old, path, depth, out);
        match value {
            Value::String(text) => self.string(schema, format, text, path, out),
            Value::Number(number) => self.number(schema, format, number, path, out),
            Value::Array(list) => self.list(schema, list, old, path, depth, out),
            _ => {}
        }
        self.enumeration(schema, value, path, out);
        if let Value::Object(map) = value {
            self.object(schema, map, old, path, depth, out);
        }
        out.passed += 1;
    }

    fn at(&self, path: &Path<'_>) -> (String, String) {
        let dotted = path.dotted();
        let field = match (self.base, dotted.as_str()) {
            ("", "") => NOWHERE.to_owned(),
            ("", dotted) => dotted.to_owned(),
            (base, "") => base.to_owned(),
            (base, dotted) => format!("{base}.{dotted}"),
        };
        (field, dotted)
    }

    fn fail(
        &self,
        kind: FieldErrorKind,
        value: impl Into<Value>,
        path: &Path<'_>,
        detail: impl fmt::Display,
    ) -> FieldError {
        let (field, dotted) = self.at(path);
        FieldError::new(kind, field, Some(value.into()), format!("{dotted} in body {detail}"))
    }

    fn nameless(&self, text: String) -> FieldError {
        let field = if self.base.is_empty() { NOWHERE } else { self.base };
        FieldError::invalid(field, "", text)
    }

    fn ty(&self, schema: &Schema, format: Option<&str>, value: &Value, path: &Path<'_>, out: &mut Outcome) {
        let wanted: &[&str] = match (schema.int_or_string, schema.ty) {
            (true, _) => &["integer", "string"],
            (false, Some(Type::Object)) => &["object"],
            (false, Some(Type::Array)) => &["array"],
            (false, Some(Type::String)) => &["string"],
            (false, Some(Type::Integer)) => &["integer"],
            (false, Some(Type::Number)) => &["number"],
            (false, Some(Type::Boolean)) => &["boolean"],
            (false, None) => &[],
        };
        let wants = |ty: &str| wanted.contains(&ty);
        let mismatch = |wanted: &str, found: &str| {
            self.fail(
                FieldErrorKind::TypeInvalid,
                found,
                path,
                format_args!("must be of type {wanted}: {found:?}"),
            )
        };
        if wanted.is_empty() && format.is_none() {
            return;
        }
        if value.is_null() {
            if !wanted.is_empty() && !schema.nullable {
                out.add(mismatch(&wanted.join(","), "null"));
            }
            return;
        }
        let (found, found_format) = match value {
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Number(n) if n.is_i64() => ("integer", "int64"),
            Value::Number(_) => ("number", "float64"),
            Value::Array(_) => ("array", ""),
            Value::Object(_) | Value::Null => ("object", ""),
        };
        let whole =
            matches!(value, Value::Number(n) if numbers::is_json_integer(n.as_f64().unwrap_or(f64::NAN)));
        let fits = wants(found)
            || (found == "number" && whole && wants("integer"))
            || (found == "integer" && wants("number"));
        let listed = matches!(value, Value::String(_) | Value::Array(_));
        match format {
            Some(format) if !listed && !fits && found_format != format => {
                out.add(mismatch(format, found_format));
            }
            Some(_) if listed && !wants("number") && !wants("integer") => out.passed += 1,
            _ if !fits => out.add(mismatch(&wanted.join(","), found)),
            _ => out.passed += 1,
        }
    }

    fn junctors(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
        out: &mut Outcome,
    ) {
        out.passed += 1;
        let run = |schema: &Schema| {
            let mut outcome = Outcome::default();
            self.check(schema, value, old, path, depth + 1, &mut outcome);
            outcome
        };
        let name = || path.dotted();
        if !schema.any_of.is_empty() {
            match alternatives(schema.any_of.iter().map(run), true) {
                (0, best) => {
                    out.add(self.nameless(format!("{:?} must validate at least one schema (anyOf)", name())));
                    best.into_iter().for_each(|best| out.merge(best));
                }
                (_, best) => best.into_iter().for_each(|best| out.merge(best)),
            }
        }
        if !schema.one_of.is_empty() {
            let (valid, best) = alternatives(schema.one_of.iter().map(run), false);
            let found = match valid {
                0 => "Found none valid".to_owned(),
                n => format!("Found {n} valid alternatives"),
            };
            if valid != 1 {
                let text = format!("{:?} must validate one and only one schema (oneOf). {found}", name());
                out.add(self.nameless(text));
            }
            if valid < 2 {
                best.into_iter().for_each(|best| out.merge(best));
            }
        }
        if !schema.all_of.is_empty() {
            let mut valid = 0;
            for outcome in schema.all_of.iter().map(run) {
                valid += usize::from(outcome.errors.is_empty());
                out.merge(outcome);
            }
            if valid != schema.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                out.add(self.nameless(format!("{:?} must validate all the schemas (allOf){none}", name())));
            }
        }
        if schema.not.as_ref().is_some_and(|not| run(not).errors.is_empty()) {
            out.add(self.nameless(format!("{:?} must not validate the schema (not)", name())));
        }
    }

    fn string(&self, schema: &Schema, format: Option<&str>, text: &str, path: &Path<'_>, out: &mut Outcome) {
        let limited = schema.max_length.is_some() || schema.min_length.is_some();
        let length = if limited { text.chars().count() as u64 } else { 0 };
        if let Some(max) = schema.max_length.filter(|max| length > *max) {
            let detail = format!("may not be more than {max} byte{}", if max == 1 { "" } else { "s" });
            out.add(FieldError::new(FieldErrorKind::TooLong, self.at(path).0, None, detail));
        } else if let Some(min) = schema.min_length.filter(|min| length < *min) {
            let detail = format!("should be at least {min} chars long");
            out.add(self.fail(FieldErrorKind::Invalid, text, path, detail));
        } else if let Some(pattern) = &schema.pattern
            && !schema.matcher.is_match(pattern, text)
        {
            let detail = format!("should match '{pattern}'");
            out.add(self.fail(FieldErrorKind::Invalid, text, path, detail));
        }
        if let Some(format) = format
            && formats::matches(format, text) == Some(false)
        {
            let detail = format!("must be of type {format}: {text:?}");
            out.add(self.fail(FieldErrorKind::TypeInvalid, text, path, detail));
        }
    }

    fn list(
        &self,
        schema: &Schema,
        list: &[Value],
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
        out: &mut Outcome,
    ) {
        if let Some(items) = schema.items.as_ref().map(Link::get) {
            for (i, item) in list.iter().enumerate() {
                let old = old.and_then(|old| listtype::counterpart(schema, item, old));
                self.ratcheted(items, item, old, &path.index(i), depth + 1, out);
            }
        }
        let size = list.len() as u64;
        if let Some(min) = schema.min_items.filter(|min| size < *min) {
            let detail = format!("should have at least {min} items");
            out.add(self.fail(FieldErrorKind::Invalid, size, path, detail));
        }
        if let Some(max) = schema.max_items.filter(|max| size > *max) {
            out.add(self.too_many(size, max, path));
        }
        let twice = |(i, item): (usize, &Value)| list[..i].contains(item);
        if schema.unique_items && list.iter().enumerate().any(twice) {
            out.add(self.fail(FieldErrorKind::Invalid, "", path, "shouldn't contain duplicates"));
        }
        out.passed += 1;
    }

    fn too_many(&self, size: u64, max: u64, path: &Path<'_>) -> FieldError {
        let noun = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {noun}");
        FieldError::new(FieldErrorKind::TooMany, self.at(path).0, Some(size.into()), detail)
    }

    fn enumeration(&self, schema: &Schema, value: &Value, path: &Path<'_>, out: &mut Outcome) {
        let Some(allowed) = &schema.enumeration else { return };
        let same = |other: &Value| match (value, other) {
            (Value::Null, _) => false,
            // A float is cut off before it is compared with an integer.
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a == b,
                (None, Some(b)) => a.as_f64().is_some_and(|a| a as i64 == b),
                _ => a.as_f64() == b.as_f64(),
            },
            (a, b) => a == b,
        };
        if allowed.iter().any(same) {
            return;
        }
        let shown: Vec<String> =
            allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        out.add(FieldError::not_supported(self.at(path).0, value.clone(), &shown));
    }

    fn object(
        &self,
        schema: &Schema,
        map: &serde_json::Map<String, Value>,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
        out: &mut Outcome,
    ) {
        let size = map.len() as u64;
        if let Some(min) = schema.min_properties.filter(|min| size < *min) {
            let detail = format!("should have at least {min} properties");
            out.add(self.fail(FieldErrorKind::Invalid, size, path, detail));
        }
        if let Some(max) = schema.max_properties.filter(|max| size > *max) {
            out.add(self.too_many(size, max, path));
        }
        for (key, value) in map {
            let Some(child) = schema.child(key) else { continue };
            // What an object is cannot be inherited: both were converted to the same version.
            let fixed = path.is_root() && self.base.is_empty() && (key == "kind" || key == "apiVersion");
            let old = if fixed { None } else { old.and_then(|old| old.get(key)) };
            self.ratcheted(child, value, old, &path.field(key), depth + 1, out);
        }
        for name in &schema.required {
            if !map.contains_key(name) {
                out.add(FieldError::required(self.at(&path.field(name)).0, ""));
            }
        }
    }
}

/// How many alternatives hold, and the outcome to tell of: the first that holds, or the best that does not.
fn alternatives(outcomes: impl Iterator<Item = Outcome>, stop: bool) -> (usize, Option<Outcome>) {
    let mut valid = 0;
    let mut best: Option<Outcome> = None;
    for outcome in outcomes {
        if outcome.errors.is_empty() {
            if valid == 0 {
                best = Some(outcome);
            }
            valid += 1;
            if stop {
                break;
            }
        } else if valid == 0 && best.as_ref().is_none_or(|best| outcome.passed > best.passed) {
            best = Some(outcome);
        }
    }
    (valid, best)
}

/// The format, if the API server checks it for this type.
fn effective_format(schema: &Schema) -> Option<&str> {
    let format = schema.format.as_deref()?;
    let known = match (schema.int_or_string, schema.ty) {
        (true, _) | (false, None | Some(Type::String)) => formats::is_known(format),
        (false, Some(Type::Integer)) => matches!(format, "int32" | "int64"),
        (false, Some(Type::Number)) => matches!(format, "float" | "double"),
        _ => false,
    };
    known.then_some(format)
}

#[cfg(test)]
mod tests;
