//! Errors as clients see them: `metav1.Status` and the field errors of validation.
//!
//! Messages follow the wording of the real API server, because `kubectl`, tests and people read them.

use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::go_json::{html_safe, quote};

/// What is wrong with one field. The wording of `Display` is `field: Reason: value: detail`, as `kubectl` shows.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    /// The path as users write it: `spec.containers[0].name`, `metadata.labels`.
    pub field: String,
    /// The offending value where the message shows it.
    pub value: Option<Value>,
    pub detail: String,
}

/// The classes of field errors that the API server distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    NotFound,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

impl FieldErrorKind {
    /// The machine-readable `reason` in `status.details.causes`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

impl FieldError {
    pub fn new(
        kind: FieldErrorKind,
        field: impl Into<String>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, field: field.into(), value, detail: detail.into() }
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, None, detail)
    }

    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, Some(value.into()), detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, None, detail)
    }

    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, Some(value.into()), "")
    }

    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| quote(s)).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(FieldErrorKind::NotSupported, field, Some(value.into()), detail)
    }

    /// The text without the field, as it stands in `status.details.causes[].message`.
    pub fn body(&self) -> String {
        let mut text = self.kind.label().to_owned();
        let shows_value = !matches!(
            self.kind,
            FieldErrorKind::Required
                | FieldErrorKind::Forbidden
                | FieldErrorKind::TooLong
                | FieldErrorKind::Internal
        );
        if shows_value && let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&shown(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    fn cause(&self) -> Value {
        json!({"reason": self.kind.reason(), "message": self.body(), "field": self.field})
    }
}

/// A value inside a message: strings quoted, everything else as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(s) => quote(s),
        Value::Number(n) if n.is_f64() => go_float(n.as_f64().unwrap_or_default()),
        other => html_safe(other),
    }
}

/// `%v` of a float64: shortest, with an exponent below 1e-4 and from 1e21.
pub(crate) fn go_float(float: f64) -> String {
    let size = float.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    float.to_string()
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A `metav1.Status` failure, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    pub details: Map<String, Value>,
    /// Some failures show `details` even when there are none.
    pub bare: bool,
    /// For an expired page: where to go on, inconsistently.
    pub resume: Option<String>,
}

impl std::error::Error for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The resource a message is about: `pods` or `deployments.apps`.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Map::new(), resume: None, bare: false }
    }

    pub(crate) fn about(mut self, name: &str, group: &str, resource_or_kind: &str) -> Self {
        for (key, value) in [("name", name), ("group", group), ("kind", resource_or_kind)] {
            if !value.is_empty() {
                self.details.insert(key.to_owned(), value.into());
            }
        }
        self
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(group, resource), quote(name));
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(name, group, resource)
    }

    /// The path itself is unknown: no such resource type is served.
    pub fn page_not_found() -> Self {
        Self::bare(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// Nothing is served below this path; said in plain text, as the real server does.
    pub fn no_such_path() -> Self {
        Self { reason: Self::PLAIN_TEXT, ..Self::new(StatusCode::NOT_FOUND, "", "404 page not found\n") }
    }

    /// The reason of failures that are sent as text.
    pub(crate) const PLAIN_TEXT: &'static str = "PlainText";

    /// A failure that says no more than its code does.
    pub fn bare(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { bare: true, ..Self::new(code, reason, message) }
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} already exists", qualified(group, resource), quote(name));
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(name, group, resource)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, detail: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {detail}",
            qualified(group, resource),
            quote(name)
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(name, group, resource)
    }

    /// The object was changed since the caller read it.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// What would have to answer is not there.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// A body that is about another object than the path.
    pub(crate) fn name_mismatch(said: &str, expected: &str) -> Self {
        Self::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({expected})"
        ))
    }

    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::bare(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, detail: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {detail}", qualified(group, resource))
        } else {
            format!("{} {} is forbidden: {detail}", qualified(group, resource), quote(name))
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(name, group, resource)
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        let mut status = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        status.details.insert("causes".into(), json!([{"message": message.to_string()}]));
        status
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// `Invalid`: the object breaks the rules of its kind. `kind` is the Kind, not the resource.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let shown = match errors {
            [] => String::new(),
            [one] => one.to_string(),
            many => {
                // Equal errors are said once, as Go's aggregate does.
                let mut said: Vec<String> = Vec::new();
                for error in many {
                    let text = error.to_string();
                    if !said.contains(&text) {
                        said.push(text);
                    }
                }
                if said.len() == 1 { said.remove(0) } else { format!("[{}]", said.join(", ")) }
            }
        };
        let message = format!("{} {} is invalid: {shown}", qualified(group, kind), quote(name));
        let mut status =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(name, group, kind);
        if !errors.is_empty() {
            let causes = errors.iter().map(FieldError::cause).collect();
            status.details.insert("causes".into(), Value::Array(causes));
        }
        status
    }

    /// The body as it goes over the wire.
    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code.as_u16(),
        });
        if let Some(resume) = &self.resume {
            body["metadata"]["continue"] = resume.as_str().into();
        }
        if !self.reason.is_empty() {
            body["reason"] = self.reason.into();
        }
        if self.bare || !self.details.is_empty() {
            body["details"] = Value::Object(self.details.clone());
        }
        body
    }
}
