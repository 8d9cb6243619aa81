//! What an `openAPIV3Schema` may say, beyond being structural; and whether its defaults obey it.

use serde_json::{Map, Value};

use super::super::cel::{Rules, field_path};
use super::super::parse::Names;
use super::super::validate::validate_schema;
use super::super::{Schema, formats, objectmeta, prune};
use super::structural::MAX_DEPTH;
use super::text;
use crate::status::FieldError;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Rules for the root alone. With a status subresource the root may say little, because `status` is cut out of it.
pub(super) fn root(schema: &Value, status: bool, at: &str, errors: &mut Vec<FieldError>) {
    if status {
        const ALLOWED: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum \
            MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties \
            ExternalDocs Example XPreserveUnknownFields XValidations]";
        let forbidden = [
            "default",
            "nullable",
            "enum",
            "maxProperties",
            "minProperties",
            "allOf",
            "oneOf",
            "anyOf",
            "not",
            "additionalProperties",
            "patternProperties",
            "dependencies",
            "definitions",
            "x-kubernetes-embedded-resource",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-map-type",
        ];
        let ty = text(schema, "type");
        if !ty.is_empty() && ty != "object" {
            let detail = "only \"object\" is allowed as the type at the root of the schema if the status \
                          subresource is enabled";
            errors.push(FieldError::invalid(format!("{at}.type"), ty, detail));
        } else if forbidden.iter().any(|key| is_set(schema, key)) {
            let detail = format!(
                "only {ALLOWED} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.push(FieldError::invalid(at, schema.clone(), detail));
        }
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
}

fn is_set(schema: &Value, key: &str) -> bool {
    schema.get(key).is_some_and(|value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty() || key == "default" || key == "not",
        _ => true,
    })
}

/// Rules for every node.
pub(super) fn check(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    node(schema, at, &Around { root: true, ..Around::default() }, errors, 0);
}

/// What lies around a node.
#[derive(Clone, Default)]
struct Around {
    root: bool,
    inside_meta: bool,
    no_defaults: Option<String>,
}

fn node(schema: &Value, at: &str, around: &Around, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH || !schema.is_object() {
        return;
    }
    unsupported(schema, at, around, errors);
    if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(format!("{at}.uniqueItems"), detail));
    }
    let inner = Around { root: false, ..around.clone() };
    let properties = schema.get("properties").and_then(Value::as_object).filter(|p| !p.is_empty());
    if let Some(additional) = schema.get("additionalProperties").filter(|a| !a.is_null()) {
        let field = format!("{at}.additionalProperties");
        if properties.is_some() && additional != &Value::Bool(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(field.clone(), detail));
        }
        let mut inner = inner.clone();
        if around.inside_meta {
            inner.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        node(additional, &field, &inner, errors, depth + 1);
    }
    let embedded = schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
    for (name, property) in properties.into_iter().flatten() {
        let mut inner = inner.clone();
        if (around.root || embedded) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inner.inside_meta = true;
            if around.root {
                inner.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        node(property, &format!("{at}.properties[{name}]"), &inner, errors, depth + 1);
    }
    if let Some(not) = schema.get("not") {
        node(not, &format!("{at}.not"), &inner, errors, depth + 1);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        for (i, nested) in schema.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            node(nested, &format!("{at}.{key}[{i}]"), &inner, errors, depth + 1);
        }
    }
    if let Some(items) = schema.get("items") {
        node(items, &format!("{at}.items"), &inner, errors, depth + 1);
    }
    extensions(schema, at, errors);
    list_map(schema, at, errors);
    rules(schema, at, errors);
}

fn unsupported(schema: &Value, at: &str, around: &Around, errors: &mut Vec<FieldError>) {
    let ty = text(schema, "type");
    if !ty.is_empty() && !TYPES.contains(&ty) {
        errors.push(FieldError::not_supported(format!("{at}.type"), ty, &TYPES));
    }
    if let Some(reason) = &around.no_defaults
        && schema.get("default").is_some_and(|d| !d.is_null())
    {
        errors.push(FieldError::forbidden(format!("{at}.default"), format!("must not be set {reason}")));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if is_set(schema, key) {
            errors.push(FieldError::forbidden(format!("{at}.{key}"), format!("{key} is not supported")));
        }
    }
    if ty == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(format!("{at}.type"), detail));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(format!("{at}.items"), detail));
    }
    if around.inside_meta && is_set(schema, "x-kubernetes-embedded-resource") {
        let detail = "must not be used inside of resource meta";
        errors.push(FieldError::forbidden(format!("{at}.x-kubernetes-embedded-resource"), detail));
    }
}

fn type_must_be(schema: &Value, at: &str, wanted: &str, because: &str, errors: &mut Vec<FieldError>) -> bool {
    let ty = text(schema, "type");
    if ty == wanted {
        return true;
    }
    let (field, detail) = (format!("{at}.type"), format!("must be {wanted} if {because} is specified"));
    errors.push(match ty {
        "" => FieldError::required(field, detail),
        ty => FieldError::invalid(field, ty, detail),
    });
    false
}

fn extensions(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let key = "x-kubernetes-preserve-unknown-fields";
    if schema.get(key) == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(format!("{at}.{key}"), false, "must be true or undefined"));
    }
    let key = "x-kubernetes-map-type";
    if let Some(map_type) = schema.get(key).and_then(Value::as_str) {
        type_must_be(schema, at, "object", key, errors);
        if !matches!(map_type, "atomic" | "granular") {
            errors.push(FieldError::not_supported(format!("{at}.{key}"), map_type, &["atomic", "granular"]));
        }
    }
    let key = "x-kubernetes-list-type";
    let Some(list_type) = schema.get(key).and_then(Value::as_str) else { return };
    if type_must_be(schema, at, "array", key, errors) && list_type == "set" {
        let items = &schema["items"];
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let nested = items.get(key).cloned().unwrap_or(Value::Null);
        if text(items, "type") == "array" && !nested.is_null() && nested != "atomic" {
            errors.push(FieldError::invalid(format!("{at}.items.{key}"), nested, detail));
        } else if text(items, "type") == "object" && text(items, "x-kubernetes-map-type") != "atomic" {
            errors.push(FieldError::invalid(format!("{at}.items.x-kubernetes-map-type"), nested, detail));
        }
    }
    if !matches!(list_type, "atomic" | "set" | "map") {
        errors.push(FieldError::not_supported(format!("{at}.{key}"), list_type, &["atomic", "set", "map"]));
    }
}

fn list_map(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let keys: Vec<&str> = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |keys| keys.iter().filter_map(Value::as_str).collect());
    let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    let (type_at, keys_at) =
        (format!("{at}.x-kubernetes-list-type"), format!("{at}.x-kubernetes-list-map-keys"));
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list_type {
            None => FieldError::required(type_at, detail),
            Some(other) => FieldError::invalid(type_at, other, detail),
        });
    }
    let items = schema.get("items").filter(|items| items.is_object());
    if list_type == Some("map") {
        if keys.is_empty() {
            errors.push(FieldError::required(
                keys_at.clone(),
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
        match items {
            None => {
                let detail = "must have a schema if x-kubernetes-list-type is map";
                errors.push(FieldError::required(format!("{at}.items"), detail));
            }
            Some(items) if text(items, "type") != "object" => {
                let detail = "must be object if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(format!("{at}.items.type"), text(items, "type"), detail));
            }
            Some(items) => map_keys(&keys, items, at, &keys_at, errors),
        }
    }
    if let (Some(list_type @ ("map" | "set")), Some(items)) = (list_type, items) {
        members(&keys, items, list_type, at, errors);
    }
}

fn map_keys(keys: &[&str], items: &Value, at: &str, keys_at: &str, errors: &mut Vec<FieldError>) {
    for (i, key) in keys.iter().enumerate() {
        match items["properties"].get(key) {
            Some(property) if matches!(text(property, "type"), "array" | "object") => {
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let field = format!("{at}.items.properties[{key}].type");
                errors.push(FieldError::invalid(field, text(items, "type"), detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(keys_at, keys.to_vec(), detail));
            }
        }
        if keys[..i].contains(key) {
            errors.push(FieldError::invalid(keys_at, keys.to_vec(), "must not contain duplicate entries"));
        }
    }
}

/// Elements of sets and maps, and the keys of the latter, are always there.
fn members(keys: &[&str], items: &Value, list_type: &str, at: &str, errors: &mut Vec<FieldError>) {
    let nullable = |schema: &Value| schema.get("nullable") == Some(&Value::Bool(true));
    if nullable(items) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(format!("{at}.items.nullable"), detail));
    }
    for key in keys.iter().filter(|_| list_type == "map") {
        let Some(property) = items["properties"].get(key) else { continue };
        let required = items["required"].as_array().is_some_and(|names| names.iter().any(|name| name == key));
        let field = format!("{at}.items.properties[{key}]");
        if !required && property.get("default").is_none_or(Value::is_null) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            errors.push(FieldError::required(format!("{field}.default"), detail));
        }
        if nullable(property) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(format!("{field}.nullable"), detail));
        }
    }
}

fn rules(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(rules) = schema.get("x-kubernetes-validations").and_then(Value::as_array) else { return };
    let parsed = Schema::from_json(schema, &Names::none()).ok();
    for (i, rule) in rules.iter().enumerate() {
        let at = |key: &str| format!("{at}.x-kubernetes-validations[{i}].{key}");
        let broken = |text: &str| text.trim().contains(['\n', '\r']);
        let (source, message) = (text(rule, "rule"), text(rule, "message"));
        if source.trim().is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(at("message"), message, "must be non-empty if specified"));
        } else if broken(message) {
            errors.push(FieldError::invalid(at("message"), message, "must not contain line breaks"));
        } else if broken(source) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), detail));
        }
        let expression = text(rule, "messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), detail));
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str).filter(|r| !REASONS.contains(r)) {
            errors.push(FieldError::not_supported(at("reason"), reason, &REASONS));
        }
        let path = text(rule, "fieldPath");
        if path.is_empty() {
            continue;
        }
        if path.trim().is_empty() {
            errors.push(FieldError::invalid(at("fieldPath"), path, "must be non-empty if specified"));
        }
        if broken(path) {
            errors.push(FieldError::invalid(at("fieldPath"), path, "must not contain line breaks"));
        }
        if parsed.as_ref().is_some_and(|schema| field_path(path, schema).is_none()) {
            errors.push(FieldError::invalid(at("fieldPath"), path, "must be a valid path"));
        }
    }
}

/// Every default must be a value that the schema would accept, with nothing that would be pruned.
pub(super) fn defaults(schema: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    defaults_in(schema, at, true, &mut errors, 0);
    errors
}

fn defaults_in(json: &Value, at: &str, root: bool, errors: &mut Vec<FieldError>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(default) = json.get("default").filter(|default| !default.is_null())
        && let Ok(mut schema) = Schema::from_json(json, &Names::none())
    {
        schema.embedded_resource |= root;
        errors.extend(default_faults(json, &schema, default, &format!("{at}.default"), root));
    }
    if let Some(items) = json.get("items").filter(|items| items.is_object()) {
        defaults_in(items, &format!("{at}.items"), false, errors, depth + 1);
    }
    let empty = Map::new();
    for (name, property) in json.get("properties").and_then(Value::as_object).unwrap_or(&empty) {
        // Defaults of metadata at the root are forbidden, and said to be so elsewhere.
        if !(root && matches!(name.as_str(), "metadata" | "kind" | "apiVersion")) {
            defaults_in(property, &format!("{at}.properties[{name}]"), false, errors, depth + 1);
        }
    }
}

fn default_faults(json: &Value, schema: &Schema, default: &Value, at: &str, root: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut pruned = default.clone();
    prune::prune_inside(schema, &mut pruned);
    if pruned != *default {
        errors.push(FieldError::invalid(at, default.clone(), "must not have unknown fields"));
    }
    let mut embedded = objectmeta::validate_embedded(schema, default);
    if !embedded.is_empty() {
        for error in &mut embedded {
            error.field = format!("{at}.{}", error.field);
        }
        errors.append(&mut embedded);
        return errors;
    }
    let faults = validate_schema(schema, default, None, at);
    if !faults.is_empty() {
        errors.extend(faults);
        return errors;
    }
    let (rules, _) = Rules::compile(json);
    let mut faults = rules.validate(default, Some(default));
    if faults.is_empty() && !root {
        faults = rules.validate(default, None);
    }
    for mut error in faults {
        error.field = match error.field.as_str() {
            "<nil>" => at.to_owned(),
            field => format!("{at}.{field}"),
        };
        errors.push(error);
    }
    errors
}

/// Formats that the API server does not know and therefore does not check.
pub(super) fn unknown_formats(schema: &Value, found: &mut Vec<String>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let format = text(schema, "format");
    let known = match text(schema, "type") {
        "" | "string" => formats::is_known(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known && !found.iter().any(|other| other == format) {
        found.push(format.to_owned());
    }
    for key in ["items", "additionalProperties", "not"] {
        schema.get(key).into_iter().for_each(|inner| unknown_formats(inner, found, depth + 1));
    }
    for inner in schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::values) {
        unknown_formats(inner, found, depth + 1);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for inner in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            unknown_formats(inner, found, depth + 1);
        }
    }
}
