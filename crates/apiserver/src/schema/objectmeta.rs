//! `metadata`, `apiVersion` and `kind` of custom resources and of the resources embedded in them.
//!
//! A schema may not describe them: they are always held to the real ObjectMeta.

use serde_json::{Map, Value};

use super::parse::object_meta;
use super::path::Path;
use super::{Link, MAX_DEPTH, Schema, decode, prune};
use crate::status::FieldError;

/// Makes `metadata` at the root and in embedded resources a real ObjectMeta: unknown and empty fields go.
/// The error is the text that follows `… cannot be handled as a KIND: ` in a `BadRequest`.
pub fn coerce(schema: &Schema, value: &mut Value) -> Result<(), String> {
    if let Some(metadata) = value.get_mut("metadata") {
        if let Some(error) = decode::metadata_error(metadata) {
            return Err(error);
        }
        tidy(metadata);
    }
    embedded(schema, value, &Path::root(""), 0).map_err(|error| error.to_string())
}

fn embedded(schema: &Schema, value: &mut Value, path: &Path<'_>, depth: usize) -> Result<(), FieldError> {
    if depth > MAX_DEPTH {
        return Ok(());
    }
    match value {
        Value::Object(map) => {
            if schema.embedded_resource && !path.is_root() {
                coerce_one(map, path)?;
            }
            for (key, value) in map {
                if let Some(link) = schema.properties.get(key) {
                    embedded(link.get(), value, &path.field(key), depth + 1)?;
                } else if let Some(link) = &schema.additional {
                    embedded(link.get(), value, &path.key(key), depth + 1)?;
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_ref().map(Link::get) else { return Ok(()) };
            for (i, item) in list.iter_mut().enumerate() {
                embedded(items, item, &path.index(i), depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn coerce_one(map: &mut Map<String, Value>, path: &Path<'_>) -> Result<(), FieldError> {
    for key in ["apiVersion", "kind"] {
        if let Some(value) = map.get(key)
            && !value.is_string()
        {
            return Err(FieldError::invalid(path.field(key).bracketed(), value.clone(), "must be a string"));
        }
    }
    if let Some(metadata) = map.get_mut("metadata") {
        if let Some(error) = decode::metadata_error(metadata) {
            return Err(FieldError::invalid(path.field("metadata").bracketed(), metadata.clone(), error));
        }
        tidy(metadata);
    }
    Ok(())
}

/// What a round trip through the Go type leaves: known fields that are not empty.
fn tidy(metadata: &mut Value) {
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    prune::prune_inside(object_meta(), metadata);
    let Value::Object(map) = metadata else { return };
    prune::drop_nulls(object_meta(), map);
    map.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(_) => true,
    });
}

/// Unknown fields inside the metadata of embedded resources.
pub(super) fn unknown_embedded(
    schema: &Schema,
    value: &Value,
    path: &Path<'_>,
    found: &mut Vec<String>,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            if schema.embedded_resource
                && !path.is_root()
                && let Some(metadata) = map.get("metadata")
            {
                prune::unknown_inside(object_meta(), metadata, &path.field("metadata"), found);
            }
            for (key, value) in map {
                if let Some(child) = schema.child(key) {
                    unknown_embedded(child, value, &path.field(key), found, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_ref().map(Link::get) else { return };
            for (i, item) in list.iter().enumerate() {
                unknown_embedded(items, item, &path.index(i), found, depth + 1);
            }
        }
        _ => {}
    }
}

/// The rules for embedded resources: they say what they are, and their metadata is well formed.
pub fn validate_embedded(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_inside(schema, value, &Path::root(""), &mut errors, 0);
    errors
}

fn validate_inside(
    schema: &Schema,
    value: &Value,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            if schema.embedded_resource {
                validate_one(map, path, errors);
            }
            for (key, value) in map {
                if let Some(link) = schema.properties.get(key) {
                    validate_inside(link.get(), value, &path.field(key), errors, depth + 1);
                } else if let Some(link) = &schema.additional {
                    validate_inside(link.get(), value, &path.key(key), errors, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = schema.items.as_ref().map(Link::get) else { return };
            for (i, item) in list.iter().enumerate() {
                validate_inside(items, item, &path.index(i), errors, depth + 1);
            }
        }
        _ => {}
    }
}

fn validate_one(map: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["apiVersion", "kind"] {
        if !map.contains_key(key) {
            errors.push(FieldError::required(path.field(key).bracketed(), ""));
        }
    }
    for key in ["apiVersion", "kind"] {
        let Some(value) = map.get(key) else { continue };
        let field = path.field(key).bracketed();
        match value.as_str() {
            None => errors.push(FieldError::invalid(field, value.clone(), "must be a string")),
            Some("") => errors.push(FieldError::invalid(field, "", "must not be empty")),
            Some(version) if key == "apiVersion" && version.matches('/').count() > 1 => {
                let detail = format!("unexpected GroupVersion string: {version}");
                errors.push(FieldError::invalid(field, version, detail));
            }
            Some(kind) if key == "kind" => {
                if let Some(error) = names::dns1035_label(&kind.to_lowercase()) {
                    let detail = format!("may have mixed case, but should otherwise match: {error}");
                    errors.push(FieldError::invalid(field, kind, detail));
                }
            }
            Some(_) => {}
        }
    }
    if let Some(metadata) = map.get("metadata") {
        validate_labels(metadata, &path.field("metadata"), errors);
    }
}

fn validate_labels(metadata: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let maps = [("labels", metadata.get("labels")), ("annotations", metadata.get("annotations"))];
    for (name, map) in maps {
        for (key, value) in map.and_then(Value::as_object).into_iter().flatten() {
            let field = path.field(name).bracketed();
            let key_to_check = if name == "annotations" { key.to_lowercase() } else { key.clone() };
            for error in names::qualified_name(&key_to_check) {
                errors.push(FieldError::invalid(field.clone(), key.as_str(), error));
            }
            if name == "labels"
                && let Some(text) = value.as_str()
            {
                for error in names::label_value(text) {
                    errors.push(FieldError::invalid(field.clone(), text, error));
                }
            }
        }
    }
}

/// The shapes of names, with the words in which the real server explains them.
pub mod names {
    pub(crate) use crate::builtin::names::label_value;
    use crate::builtin::names::{is_name_part, is_subdomain};

    /// `[a-z]([-a-z0-9]*[a-z0-9])?`, up to 63.
    pub fn dns1035_label(text: &str) -> Option<String> {
        let errors = dns1035_errors(text);
        if errors.is_empty() { None } else { Some(errors.join(",")) }
    }

    fn dns1035_errors(text: &str) -> Vec<String> {
        let mut errors = Vec::new();
        if text.len() > 63 {
            errors.push("must be no more than 63 bytes".to_owned());
        }
        let bytes = text.as_bytes();
        let fine = bytes.first().is_some_and(u8::is_ascii_lowercase)
            && bytes.last().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
        if !fine {
            errors.push(
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                 alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', \
                 regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                    .to_owned(),
            );
        }
        errors
    }

    /// Lower-case labels joined by dots, up to 253.
    pub fn dns1123_subdomain(text: &str) -> Vec<String> {
        let mut errors = Vec::new();
        if text.len() > 253 {
            errors.push("must be no more than 253 bytes".to_owned());
        }
        if !is_subdomain(text) {
            errors.push(
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                 and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                 validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                    .to_owned(),
            );
        }
        errors
    }

    /// `[prefix/]name` as the keys of labels and annotations are.
    pub fn qualified_name(text: &str) -> Vec<String> {
        let mut errors = Vec::new();
        let name = match text.split_once('/') {
            None => text,
            Some((_, rest)) if rest.contains('/') => {
                return vec![
                    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start \
                     and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
                     regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional \
                     DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                        .to_owned(),
                ];
            }
            Some((prefix, name)) => {
                if prefix.is_empty() {
                    errors.push("prefix part must be non-empty".to_owned());
                } else {
                    errors.extend(dns1123_subdomain(prefix).into_iter().map(|e| format!("prefix part {e}")));
                }
                name
            }
        };
        if name.is_empty() {
            errors.push("name part must be non-empty".to_owned());
        } else if name.len() > 63 {
            errors.push("name part must be no more than 63 bytes".to_owned());
        }
        if !is_name_part(name) {
            errors.push(
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                 an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                 validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                    .to_owned(),
            );
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::parse::Names;
    use super::*;

    fn schema() -> Schema {
        let json = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "emb": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true}}}}});
        Schema::from_json(&json, &Names::none()).expect("schema")
    }

    #[test]
    fn metadata_becomes_a_real_object_meta() {
        let mut value = json!({"metadata": {"name": "x", "foo": 1, "labels": {}, "annotations": {"a": null},
            "ownerReferences": [{"kind": "K", "zed": 1}]},
            "spec": {"emb": {"metadata": {"name": "y", "bar": 1}, "other": 1}}});
        coerce(&schema(), &mut value).expect("fits");
        assert_eq!(
            value,
            json!({"metadata": {"name": "x", "annotations": {"a": ""}, "ownerReferences": [{"kind": "K"}]},
                "spec": {"emb": {"metadata": {"name": "y"}, "other": 1}}})
        );
    }

    #[test]
    fn misfits_are_reported_as_the_real_server_does() {
        let error = |mut value: Value| coerce(&schema(), &mut value).expect_err("misfit");
        assert_eq!(
            error(json!({"metadata": {"labels": {"a": 1}}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
        );
        assert_eq!(
            error(json!({"metadata": "x"})),
            "json: cannot unmarshal string into Go value of type v1.ObjectMeta"
        );
        assert_eq!(
            error(json!({"spec": {"emb": {"apiVersion": 1}}})),
            "spec.emb.apiVersion: Invalid value: 1: must be a string"
        );
        assert_eq!(
            error(json!({"spec": {"emb": {"metadata": {"labels": {"a": 1}}}}})),
            "spec.emb.metadata: Invalid value: {\"labels\":{\"a\":1}}: json: cannot unmarshal number into Go \
             struct field ObjectMeta.labels of type string"
        );
    }

    #[test]
    fn embedded_resources_say_what_they_are() {
        let errors = validate_embedded(&schema(), &json!({"spec": {"emb": {}}}));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["spec.emb.apiVersion: Required value", "spec.emb.kind: Required value"]);
        let value =
            json!({"spec": {"emb": {"apiVersion": "v1", "kind": "_", "metadata": {"labels": {"a b": "c"}}}}});
        let errors = validate_embedded(&schema(), &value);
        assert_eq!(errors[0].field, "spec.emb.kind");
        assert!(errors[0].detail.starts_with("may have mixed case, but should otherwise match: a DNS-1035"));
        assert_eq!(errors[1].field, "spec.emb.metadata.labels");
        assert!(errors[1].detail.starts_with("name part must consist of"));
        assert_eq!(errors.len(), 2);
    }
}
