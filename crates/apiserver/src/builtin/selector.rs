//! Label selectors: their rules, and whether labels match.

use serde_json::{Map, Value};

use super::access::{Errors, Path, Peek};
use super::{metadata, names};

/// What is wrong with a selector; an absent one is fine.
pub(crate) fn validate(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    metadata::labels(selector.map("matchLabels"), &path.child("matchLabels"), errors);
    let list = path.child("matchExpressions");
    for (index, expression) in selector.list("matchExpressions").iter().enumerate() {
        let path = list.index(index);
        let values = expression.list("values");
        match expression.str_of("operator") {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.push(
                        path.child("values").required("must be specified when `operator` is 'In' or 'NotIn'"),
                    );
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.push(
                        path.child("values")
                            .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
                    );
                }
            }
            operator => {
                errors.push(path.child("operator").invalid(operator, "not a valid selector operator"))
            }
        }
        let key = expression.str_of("key");
        path.child("key").all_invalid(key, names::qualified(key), errors);
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            path.child("values").index(index).all_invalid(value, names::label_value(value), errors);
        }
    }
}

/// Nothing is asked for, so that everything matches.
pub(crate) fn is_empty(selector: &Value) -> bool {
    selector.map("matchLabels").is_none_or(Map::is_empty) && selector.list("matchExpressions").is_empty()
}

/// The selector cannot be evaluated.
pub(crate) fn is_broken(selector: &Value) -> bool {
    let mut errors = Errors::new();
    validate(selector, &Path::root(""), &mut errors);
    !errors.is_empty()
}

/// Whether labels satisfy the selector. An absent selector matches nothing.
pub(crate) fn matches(selector: &Value, labels: Option<&Map<String, Value>>) -> bool {
    if selector.is_null() {
        return false;
    }
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let exact = selector.map("matchLabels").into_iter().flatten();
    exact.clone().all(|(key, value)| get(key) == Some(value))
        && selector.list("matchExpressions").iter().all(|expression| {
            let found = get(expression.str_of("key"));
            let listed = found.is_some_and(|value| expression.list("values").contains(value));
            match expression.str_of("operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// The selector as Go prints it: `matchLabels` first.
pub(crate) fn shown(selector: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(labels) = selector.map("matchLabels").filter(|labels| !labels.is_empty()) {
        parts.push(format!("\"matchLabels\":{}", Value::Object(labels.clone())));
    }
    let expressions: Vec<String> = selector
        .list("matchExpressions")
        .iter()
        .map(|expression| {
            let mut text = format!(
                "{{\"key\":{},\"operator\":{}",
                Value::from(expression.str_of("key")),
                Value::from(expression.str_of("operator"))
            );
            if !expression.list("values").is_empty() {
                text += &format!(",\"values\":{}", expression.sub("values"));
            }
            text + "}"
        })
        .collect();
    if !expressions.is_empty() {
        parts.push(format!("\"matchExpressions\":[{}]", expressions.join(",")));
    }
    if selector.is_null() { "null".to_owned() } else { format!("{{{}}}", parts.join(",")) }
}
