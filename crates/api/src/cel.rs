//! Builds the `x-kubernetes-*` parts of schemas: CEL rules with their messages.
//! Rules must also run in `kube-cel`: no rule names a field in snake_case.

use serde_json::{Value, json};

/// The value of `x-kubernetes-validations` for rules and their messages.
pub(crate) fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect()
}

/// The value of `x-kubernetes-validations` for a field that keeps its first value.
pub(crate) fn immutable(message: &str) -> Value {
    rules(&[("self == oldSelf", message)])
}
