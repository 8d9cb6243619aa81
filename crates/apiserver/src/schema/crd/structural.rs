//! Whether a schema is structural: every field has one type, declared outside of `anyOf` and its like.

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::status::FieldError;

/// Schemas nested deeper are refused.
pub(super) const MAX_DEPTH: usize = 64;

/// Why a schema is not structural.
#[derive(Debug, Clone, PartialEq)]
pub struct NonStructural(pub Vec<FieldError>);

/// Checks a whole `openAPIV3Schema`; `at` is where it stands.
pub(super) fn check(schema: &Value, at: &str) -> Result<(), NonStructural> {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, at, &mut errors, 0);
    errors.sort_by_key(ToString::to_string);
    if errors.is_empty() { Ok(()) } else { Err(NonStructural(errors)) }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

fn map<'a>(schema: &'a Value, key: &str) -> Option<&'a Map<String, Value>> {
    schema.get(key).and_then(Value::as_object)
}

fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn invariants(schema: &Value, level: Level, at: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        errors.push(FieldError::forbidden(at, format!("must not be nested deeper than {MAX_DEPTH}")));
        return;
    }
    let ty = text(schema, "type");
    let items = schema.get("items").filter(|items| !items.is_null());
    if ty == "array" && items.is_none() {
        errors.push(FieldError::required(format!("{at}.items"), "must be specified"));
    }
    if let Some(items) = items.filter(|items| items.is_object()) {
        invariants(items, Level::Item, &format!("{at}.items"), errors, depth + 1);
    }
    for (name, property) in map(schema, "properties").into_iter().flatten() {
        invariants(property, Level::Field, &format!("{at}.properties[{name}]"), errors, depth + 1);
    }
    let additional = schema.get("additionalProperties").filter(|a| !a.is_null());
    if additional.is_some() && level == Level::Root {
        let field = format!("{at}.additionalProperties");
        errors.push(FieldError::forbidden(field, "must not be used at the root"));
    }
    if let Some(additional) = additional.filter(|a| a.is_object()) {
        invariants(additional, Level::Field, &format!("{at}.additionalProperties"), errors, depth + 1);
    }
    if flag(schema, "x-kubernetes-int-or-string") {
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if flag(schema, key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(format!("{at}.{key}"), true, detail));
            }
        }
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let skip_any = schema.get("anyOf") == Some(&either);
    let skip_first = list(schema, "allOf").first().is_some_and(|first| first.get("anyOf") == Some(&either));
    value_validation(schema, skip_any, skip_first, at, errors, depth);
    types(schema, ty, level, at, errors);
    metadata(schema, level, at, errors);
}

fn types(schema: &Value, ty: &str, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserves = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let field = format!("{at}.type");
    if embedded && ty != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match ty {
            "" => FieldError::required(field, detail),
            ty => FieldError::invalid(field, ty, detail),
        });
    } else if ty.is_empty() && !flag(schema, "x-kubernetes-int-or-string") && !preserves {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(field, detail));
    } else if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.push(FieldError::invalid(field, ty, "must be object at the root"));
    }
    if embedded && schema.get("additionalProperties").is_some_and(|a| !a.is_null()) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(format!("{at}.additionalProperties"), detail));
    }
    if embedded && !preserves && map(schema, "properties").is_none_or(Map::is_empty) {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(format!("{at}.properties"), detail));
    }
}

/// What every object has may be declared, but not changed.
fn metadata(schema: &Value, level: Level, at: &str, errors: &mut Vec<FieldError>) {
    let Some(properties) = map(schema, "properties") else { return };
    let whole = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    if whole {
        for key in ["kind", "apiVersion"] {
            let Some(property) = properties.get(key) else { continue };
            let ty = text(property, "type");
            if ty != "string" {
                errors.push(FieldError::invalid(
                    format!("{at}.properties[{key}].type"),
                    ty,
                    "must be string",
                ));
            }
        }
    }
    let Some(declared) = properties.get("metadata") else { return };
    let field = format!("{at}.properties[metadata]");
    let ty = text(declared, "type");
    if whole && ty != "object" {
        errors.push(FieldError::invalid(format!("{field}.type"), ty, "must be object"));
    }
    let harmless = |(key, value): (&String, &Value)| match key.as_str() {
        "type" | "default" => true,
        "properties" => value
            .as_object()
            .is_none_or(|names| names.keys().all(|name| name == "name" || name == "generateName")),
        _ => value.is_null() || value == "" || value == &Value::Bool(false),
    };
    let fine = declared.as_object().is_some_and(|declared| declared.iter().all(harmless));
    if level == Level::Root && !fine {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly \
                      specified";
        errors.push(FieldError::forbidden(field, detail));
    }
}

fn value_validation(
    schema: &Value,
    skip_any: bool,
    skip_first_all: bool,
    at: &str,
    errors: &mut Vec<FieldError>,
    depth: usize,
) {
    for key in ["anyOf", "allOf", "oneOf"] {
        if key == "anyOf" && skip_any {
            continue;
        }
        for (i, nested) in list(schema, key).iter().enumerate() {
            let skip = key == "allOf" && i == 0 && skip_first_all;
            nested_validation(nested, skip, &format!("{at}.{key}[{i}]"), errors, depth + 1);
        }
    }
    if let Some(not) = schema.get("not").filter(|not| not.is_object()) {
        nested_validation(not, false, &format!("{at}.not"), errors, depth + 1);
    }
    let pattern = text(schema, "pattern");
    if !pattern.is_empty()
        && let Err(error) = Regex::new(pattern)
    {
        let detail =
            format!("must be a valid regular expression, but isn't: {}", go_regex_error(pattern, &error));
        errors.push(FieldError::invalid(format!("{at}.pattern"), pattern, detail));
    }
}

/// The usual mistakes in Go's words; the rest in those of our own parser.
fn go_regex_error(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = match () {
        () if text.contains("unclosed group") => format!("missing closing ): `{pattern}`"),
        () if text.contains("unopened group") => format!("unexpected ): `{pattern}`"),
        () if text.contains("unclosed character class") => {
            let start = pattern.rfind('[').unwrap_or(0);
            format!("missing closing ]: `{}`", &pattern[start..])
        }
        () if text.contains("repetition operator missing expression") => {
            let operator = pattern.find(['*', '+', '?']).map_or("", |at| &pattern[at..=at]);
            format!("missing argument to repetition operator: `{operator}`")
        }
        () => text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned(),
    };
    format!("error parsing regexp: {reason}")
}

fn nested_validation(schema: &Value, skip_any: bool, at: &str, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        errors.push(FieldError::forbidden(at, format!("must not be nested deeper than {MAX_DEPTH}")));
        return;
    }
    value_validation(schema, skip_any, false, at, errors, depth);
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        nested_validation(items, false, &format!("{at}.items"), errors, depth + 1);
    }
    for (name, property) in map(schema, "properties").into_iter().flatten() {
        nested_validation(property, false, &format!("{at}.properties[{name}]"), errors, depth + 1);
    }
    let set =
        |key: &str| schema.get(key).is_some_and(|v| !v.is_null() && v != "" && v != &Value::Bool(false));
    let forbidden = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (key, detail) in forbidden {
        if set(key) {
            errors.push(FieldError::forbidden(format!("{at}.{key}"), detail));
        }
    }
    if map(schema, "properties").is_some_and(|properties| properties.contains_key("metadata")) {
        let field = format!("{at}.properties[metadata]");
        errors.push(FieldError::forbidden(field, "must not be specified in a nested context"));
    }
}
