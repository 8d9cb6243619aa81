//! The options of writes, read from the query, with the real server's refusals.

use http::HeaderMap;
use serde_json::Value;

use crate::api::{FieldValidation, Intent};
use crate::request::Query;
use crate::status::{FieldError, FieldErrorKind, Status};

/// The longest name of a field manager.
const LONGEST_MANAGER: usize = 128;

/// `options` is the kind that refusals name: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
pub(super) fn intent(
    options: &str,
    query: &Query,
    headers: &HeaderMap,
    apply: bool,
) -> Result<Intent, Status> {
    let mut errors = Vec::new();
    let dry_run = dry_run(query, &mut errors);
    let manager = manager(query, headers, apply, &mut errors);
    let validation = match query.get("fieldValidation") {
        "" | "Warn" => FieldValidation::Warn,
        "Strict" => FieldValidation::Strict,
        "Ignore" => FieldValidation::Ignore,
        other => {
            errors.push(FieldError::not_supported(
                "fieldValidation",
                other,
                &["", "Ignore", "Strict", "Warn"],
            ));
            FieldValidation::Warn
        }
    };
    if query.has("force") && !apply && options == "PatchOptions" {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    if errors.is_empty() {
        return Ok(Intent { manager, dry_run, validation });
    }
    Err(Status::invalid("meta.k8s.io", options, "", &errors))
}

pub(super) fn dry_run(query: &Query, errors: &mut Vec<FieldError>) -> bool {
    let values = query.all("dryRun");
    if values.iter().any(|value| value != "All") {
        let shown: Vec<Value> = values.iter().map(|value| value.as_str().into()).collect();
        errors.push(FieldError::not_supported("dryRun", Value::Array(shown), &["All"]));
    }
    values.iter().any(|value| value == "All")
}

fn manager(query: &Query, headers: &HeaderMap, apply: bool, errors: &mut Vec<FieldError>) -> String {
    let named = query.get("fieldManager");
    if named.is_empty() && apply {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if named.len() > LONGEST_MANAGER {
        let detail = format!("may not be more than {LONGEST_MANAGER} bytes");
        errors.push(FieldError::new(FieldErrorKind::TooLong, "fieldManager", None, detail));
    }
    if named.chars().any(char::is_control) {
        errors.push(FieldError::invalid("fieldManager", named, "should only contain printable characters"));
    }
    if !named.is_empty() {
        return named.to_owned();
    }
    let agent = headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let program = agent.split('/').next().unwrap_or_default();
    let printable: String = program.chars().filter(|c| !c.is_control()).take(LONGEST_MANAGER).collect();
    if printable.is_empty() { "unknown".to_owned() } else { printable }
}
