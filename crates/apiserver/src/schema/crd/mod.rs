//! CustomResourceDefinitions themselves: what is filled in, and what is refused, in the real server's words.
//!
//! Versions whose schemas, subresources or columns are all the same are judged once, at the path where the
//! server keeps them internally (`spec.validation`, `spec.subresources`, …): that is what users see.

mod history;
mod openapi;
mod structural;

use serde_json::{Map, Value, json};

use super::cel::{Rules, field_path_in};
use super::objectmeta::names;
use super::parse::Names;
use super::{Schema, Type};
use crate::status::{FieldError, FieldErrorKind};

pub use structural::NonStructural;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_SELECTABLE: usize = 8;

/// Empty lists and maps of a schema say nothing and are not kept.
fn drop_empty(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.retain(|key, value| match value {
        Value::Object(inner) => {
            !(inner.is_empty() && matches!(key.as_str(), "properties" | "definitions" | "patternProperties"))
        }
        Value::Array(inner) => !inner.is_empty() || matches!(key.as_str(), "default" | "example"),
        _ => true,
    });
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(drop_empty),
            ("items" | "additionalProperties" | "not", value) => drop_empty(value),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter_mut().for_each(drop_empty),
            _ => {}
        }
    }
}

/// Fills what the API server fills: names, conversion, flags of versions, stored versions.
pub fn default_crd(crd: &mut Value) {
    let stored = storage_version(crd).map(str::to_owned);
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = text_of(names, "kind").to_owned();
        if !kind.is_empty() && text_of(names, "singular").is_empty() {
            names.insert("singular".into(), kind.to_lowercase().into());
        }
        if !kind.is_empty() && text_of(names, "listKind").is_empty() {
            names.insert("listKind".into(), format!("{kind}List").into());
        }
    }
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(version) = version.as_object_mut() {
            for flag in ["served", "storage"] {
                version.entry(flag).or_insert(false.into());
            }
        }
    }
    for schema in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(schema) = schema.pointer_mut("/schema/openAPIV3Schema") {
            drop_empty(schema);
        }
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service") {
        service.entry("port").or_insert(443.into());
    }
    let Some(crd) = crd.as_object_mut() else { return };
    let status = crd.entry("status").or_insert_with(|| json!({}));
    if let (Some(status), Some(version)) = (status.as_object_mut(), stored)
        && status.get("storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        status.insert("storedVersions".into(), json!([version]));
    }
}

/// The version marked as the one that is stored.
pub fn storage_version(crd: &Value) -> Option<&str> {
    let is_storage = |version: &&Value| version.get("storage") == Some(&Value::Bool(true));
    versions(crd).iter().find(is_storage)?.get("name")?.as_str()
}

fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text_of<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or("")
}

fn text<'a>(json: &'a Value, key: &str) -> &'a str {
    json.get(key).and_then(Value::as_str).unwrap_or("")
}

/// All that is wrong with a CRD after [`default_crd`]. Of its metadata only the name is judged here.
pub fn validate_crd(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &crd["spec"];
    if old.is_none() {
        validate_name(crd, spec, &mut errors);
    }
    validate_spec(spec, &mut errors);
    if let Some(old) = old {
        history::immutable(spec, old, &mut errors);
    }
    history::stored_versions(crd, old, &mut errors);
    history::approval(crd, old, &mut errors);
    if spec["preserveUnknownFields"] == Value::Bool(true) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, detail));
    }
    errors
}

/// What the API server warns of when a CRD is written.
pub fn warnings(crd: &Value) -> Vec<String> {
    let mut formats = Vec::new();
    for version in versions(crd) {
        openapi::unknown_formats(&version["schema"]["openAPIV3Schema"], &mut formats, 0);
    }
    formats.into_iter().map(|format| format!("unrecognized format {format:?}")).collect()
}

fn validate_name(crd: &Value, spec: &Value, errors: &mut Vec<FieldError>) {
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    if name.is_empty() {
        let detail = "name or generateName is required";
        errors.push(FieldError::required("metadata.name", detail));
        return;
    }
    for detail in names::dns1123_subdomain(name) {
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    if name != format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group")) {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
}

fn validate_spec(spec: &Value, errors: &mut Vec<FieldError>) {
    let group = text(spec, "group");
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else {
        let faults = names::dns1123_subdomain(group);
        if !faults.is_empty() {
            errors.push(FieldError::invalid("spec.group", group, faults.join(",")));
        } else if !group.contains('.') {
            let detail = "should be a domain with at least one dot";
            errors.push(FieldError::invalid("spec.group", group, detail));
        }
    }
    one_of("spec.scope", text(spec, "scope"), &["Cluster", "Namespaced"], errors);
    validate_versions(spec, errors);
    validate_names(&spec["names"], errors);
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    if let Some(shared) = Shared::of(versions) {
        shared.validate(errors);
    }
    validate_conversion(&spec["conversion"], errors);
}

fn one_of(field: &str, value: &str, accepted: &[&str], errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !accepted.contains(&value) {
        errors.push(FieldError::not_supported(field, value, accepted));
    }
}

/// A part of every version, if it is the same in all.
fn same<'a>(versions: &'a [Value], key: &str) -> Option<&'a Value> {
    let first = versions.first()?.get(key).filter(|part| !part.is_null())?;
    versions.iter().all(|version| version.get(key) == Some(first)).then_some(first)
}

/// The parts that all versions have in common.
struct Shared<'a> {
    first: &'a Value,
    schema: Option<&'a Value>,
    subresources: Option<&'a Value>,
    columns: Option<&'a Value>,
    selectable: Option<&'a Value>,
    status: bool,
}

impl<'a> Shared<'a> {
    fn of(versions: &'a [Value]) -> Option<Self> {
        Some(Self {
            first: versions.first()?,
            schema: same(versions, "schema"),
            subresources: same(versions, "subresources"),
            columns: same(versions, "additionalPrinterColumns"),
            selectable: same(versions, "selectableFields"),
            status: versions.iter().any(|v| v.pointer("/subresources/status").is_some_and(|s| !s.is_null())),
        })
    }

    fn validate(&self, errors: &mut Vec<FieldError>) {
        if let Some(schema) = self.schema {
            validate_schema(schema, self.status, "spec.validation", errors);
        }
        if let Some(subresources) = self.subresources {
            validate_subresources(subresources, "spec.subresources", errors);
        }
        if let Some(columns) = self.columns {
            validate_columns(columns, "spec.additionalPrinterColumns", errors);
        }
        if let Some(selectable) = self.selectable {
            validate_selectable(selectable, &self.first["schema"], "spec.selectableFields", errors);
        }
    }
}

fn validate_versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let shared = Shared::of(versions);
    let shares = |part: fn(&Shared<'_>) -> bool| shared.as_ref().is_some_and(part);
    for (i, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            errors.push(FieldError::required(format!("spec.versions[{i}].schema.openAPIV3Schema"), ""));
        }
    }
    for (i, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{i}]");
        let name = text(version, "name");
        if let Some(detail) = names::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), name, detail));
        }
        validate_deprecation(version, &at, errors);
        let status = version.pointer("/subresources/status").is_some_and(|s| !s.is_null());
        if !shares(|s| s.schema.is_some()) {
            validate_schema(&version["schema"], status, &format!("{at}.schema"), errors);
        }
        if !shares(|s| s.subresources.is_some()) {
            validate_subresources(&version["subresources"], &format!("{at}.subresources"), errors);
        }
        if !shares(|s| s.columns.is_some()) {
            let at = format!("{at}.additionalPrinterColumns");
            validate_columns(&version["additionalPrinterColumns"], &at, errors);
        }
        if !shares(|s| s.selectable.is_some()) {
            let (at, fields) = (format!("{at}.selectableFields"), &version["selectableFields"]);
            // A schema that all versions share is not seen here, and the real server says so in these words.
            if shares(|s| s.schema.is_some()) && fields.as_array().is_some_and(|f| !f.is_empty()) {
                let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.push(FieldError::invalid(at, "", detail));
            } else {
                validate_selectable(fields, &version["schema"], &at, errors);
            }
        }
    }
    // The versions stand in the detail, because only text keeps the order in which Go prints them.
    let fail = |detail: &str| {
        let shown: Vec<String> = versions.iter().map(shown_version).collect();
        let detail = format!("[{}]: {detail}", shown.join(","));
        FieldError::new(FieldErrorKind::Invalid, "spec.versions", None, detail)
    };
    let mut seen: Vec<&str> = versions.iter().map(|v| text(v, "name")).collect();
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        errors.push(fail("must contain unique version names"));
    }
    if versions.iter().filter(|v| v["storage"] == Value::Bool(true)).count() != 1 {
        errors.push(fail("must have exactly one version marked as storage version"));
    }
    if let Some(first) = versions.first()
        && let Some(detail) = names::dns1035_label(text(first, "name"))
    {
        errors.push(FieldError::invalid("spec.version", text(first, "name"), detail));
    }
}

/// A version as Go prints its internal form; what versions share is not in it.
fn shown_version(version: &Value) -> String {
    let flag = |key: &str| version[key] == Value::Bool(true);
    format!(
        "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":null,\
         \"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
        Value::from(text(version, "name")),
        flag("served"),
        flag("storage"),
        flag("deprecated"),
        version["deprecationWarning"]
    )
}

fn validate_deprecation(version: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let mut fail = |detail: &str| {
        errors.push(FieldError::invalid(format!("{at}.deprecationWarning"), warning, detail));
    };
    if version["deprecated"] != Value::Bool(true) {
        fail("can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        fail("must be <= 256 characters long");
    }
    if warning.is_empty() {
        fail("must not be an empty string");
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        fail(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {i}"
        ));
    }
}

fn validate_schema(validation: &Value, status: bool, at: &str, errors: &mut Vec<FieldError>) {
    let Some(schema) = validation.get("openAPIV3Schema").filter(|schema| schema.is_object()) else { return };
    let at = format!("{at}.openAPIV3Schema");
    let before = errors.len();
    openapi::root(schema, status, &at, errors);
    let mut faults_of_schema = Vec::new();
    openapi::check(schema, &at, &mut faults_of_schema);
    // What cannot even be read as a structural schema is not asked whether it is one.
    let readable = !faults_of_schema.iter().any(|error| error.detail.ends_with(" is not supported"));
    let structural = if readable { structural::check(schema, &at) } else { Ok(()) };
    let sound = match structural {
        Ok(()) if !readable => false,
        Err(NonStructural(faults)) => {
            errors.extend(faults);
            false
        }
        Ok(()) => {
            let faults = openapi::defaults(schema, &at);
            let sound = faults.is_empty();
            errors.extend(faults);
            sound
        }
    };
    errors.append(&mut faults_of_schema);
    if sound && errors.len() == before {
        errors.extend(Rules::compile_at(schema, &at).1);
    }
    if errors.len() == before
        && let Err(error) = Schema::from_json(schema, &Names::none())
    {
        errors.push(FieldError::invalid(at, "", error.to_string()));
    }
}

fn simple_path(path: &str, field: &str) -> Option<FieldError> {
    let detail = "must be a simple json path starting with .";
    (!path.starts_with('.')).then(|| FieldError::invalid(field, path, detail))
}

fn validate_subresources(subresources: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = subresources.get("scale").filter(|scale| scale.is_object()) else { return };
    for (key, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let (path, field) = (text(scale, key), format!("{at}.scale.{key}"));
        if path.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if let Some(error) = simple_path(path, &field) {
            errors.push(error);
        } else if !path.starts_with(prefix) {
            let detail = format!("should be a json path under {}", prefix.trim_end_matches('.'));
            errors.push(FieldError::invalid(field, path, detail));
        }
    }
    let path = text(scale, "labelSelectorPath");
    let field = format!("{at}.scale.labelSelectorPath");
    if path.is_empty() {
        return;
    }
    if let Some(error) = simple_path(path, &field) {
        errors.push(error);
    } else if !path.starts_with(".spec.") && !path.starts_with(".status.") {
        let detail = "should be a json path under either .spec or .status";
        errors.push(FieldError::invalid(field, path, detail));
    }
}

fn validate_columns(columns: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = |key: &str| format!("{at}[{i}].{key}");
        if text(column, "name").is_empty() {
            errors.push(FieldError::required(at("name"), ""));
        }
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        match text(column, "type") {
            "" => errors.push(FieldError::required(at("type"), types)),
            ty if !COLUMN_TYPES.contains(&ty) => errors.push(FieldError::invalid(at("type"), ty, types)),
            _ => {}
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(FieldError::invalid(at("format"), format, detail));
        }
        match text(column, "jsonPath") {
            "" => errors.push(FieldError::required(at("JSONPath"), "")),
            path => errors.extend(simple_path(path, &at("JSONPath"))),
        }
    }
}

fn validate_selectable(fields: &Value, validation: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(fields) = fields.as_array().filter(|fields| !fields.is_empty()) else { return };
    let Ok(schema) = Schema::from_json(&validation["openAPIV3Schema"], &Names::none()) else { return };
    let mut seen: Vec<String> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let (at, path) = (format!("{at}[{i}].jsonPath"), text(field, "jsonPath"));
        if path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        match field_path_in(path, &schema, false) {
            Err(error) => {
                errors.push(FieldError::invalid(at, path, format!("is an invalid path: {error}")));
            }
            Ok((name, leaf)) => {
                if name == "metadata" || name.starts_with("metadata.") {
                    let detail = "must not point to fields in metadata";
                    errors.push(FieldError::invalid(at.clone(), path, detail));
                }
                if !matches!(leaf.ty, Some(Type::String | Type::Boolean | Type::Integer)) {
                    let detail = "must point to a field of type string, boolean or integer. Enum string fields and \
                                  strings with formats are allowed.";
                    errors.push(FieldError::invalid(at.clone(), path, detail));
                }
                if seen.contains(&name) {
                    errors.push(FieldError::duplicate(at, path));
                } else {
                    seen.push(name);
                }
            }
        }
    }
    if seen.len() > MAX_SELECTABLE {
        let detail = format!("must have at most {MAX_SELECTABLE} items");
        errors.push(FieldError::new(FieldErrorKind::TooMany, at, Some(seen.len().into()), detail));
    }
}

fn validate_names(of: &Value, errors: &mut Vec<FieldError>) {
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(of, key).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{key}"), ""));
        }
    }
    for key in ["plural", "singular"] {
        let name = text(of, key);
        if let Some(detail) = names::dns1035_label(name).filter(|_| !name.is_empty()) {
            errors.push(FieldError::invalid(format!("spec.names.{key}"), name, detail));
        }
    }
    for key in ["kind", "listKind"] {
        let name = text(of, key);
        if let Some(error) = names::dns1035_label(&name.to_lowercase()).filter(|_| !name.is_empty()) {
            let detail = format!("may have mixed case, but should otherwise match: {error}");
            errors.push(FieldError::invalid(format!("spec.names.{key}"), name, detail));
        }
    }
    validate_label_list(of, "shortNames", errors);
    let (kind, list_kind) = (text(of, "kind"), text(of, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid("spec.names.listKind", list_kind, detail));
    }
    validate_label_list(of, "categories", errors);
}

fn validate_label_list(of: &Value, key: &str, errors: &mut Vec<FieldError>) {
    for (i, name) in of[key].as_array().into_iter().flatten().enumerate() {
        let name = name.as_str().unwrap_or("");
        if let Some(detail) = names::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("spec.names.{key}[{i}]"), name, detail));
        }
    }
}

fn validate_conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    if conversion.is_null() {
        return;
    }
    let strategy = text(conversion, "strategy");
    one_of("spec.conversion.strategy", strategy, &["None", "Webhook"], errors);
    let webhook = conversion.get("webhook").filter(|webhook| !webhook.is_null());
    let config = webhook.and_then(|w| w.get("clientConfig")).filter(|config| !config.is_null());
    let reviews = webhook.and_then(|w| w.get("conversionReviewVersions")).and_then(Value::as_array);
    let reviews = reviews.filter(|reviews| !reviews.is_empty());
    let (config_at, reviews_at) =
        ("spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions");
    if strategy == "Webhook" {
        let detail = match config {
            None => Some("required when strategy is set to Webhook"),
            Some(config) => {
                let has = |key: &str| config.get(key).is_some_and(|v| !v.is_null());
                (has("url") == has("service")).then_some("exactly one of url or service is required")
            }
        };
        errors.extend(detail.map(|detail| FieldError::required(config_at, detail)));
        match reviews {
            None => errors.push(FieldError::required(reviews_at, "")),
            Some(list) if !list.iter().any(|v| v == "v1" || v == "v1beta1") => {
                let detail = "must include at least one of v1, v1beta1";
                errors.push(FieldError::invalid(reviews_at, list.clone(), detail));
            }
            Some(_) => {}
        }
    } else {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.extend(config.map(|_| FieldError::forbidden(config_at, detail)));
        errors.extend(reviews.map(|_| FieldError::forbidden(reviews_at, detail)));
    }
}

#[cfg(test)]
mod tests;
