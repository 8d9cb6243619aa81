//! Where pods may run: tolerations and affinities.

use serde_json::Value;

use super::super::access::{Errors, Path, Peek};
use super::super::{names, selector};

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The `tolerations` of a pod or RuntimeClass.
pub(crate) fn tolerations(holder: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("tolerations");
    for (index, toleration) in holder.list("tolerations").iter().enumerate() {
        let path = path.index(index);
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|key| toleration.str_of(key));
        if !key.is_empty() {
            path.child("key").all_invalid(key, names::qualified(key), errors);
        } else if operator != "Exists" {
            errors.push(path.child("operator").invalid(
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if toleration.has("tolerationSeconds") && effect != "NoExecute" {
            errors.push(
                path.child("effect")
                    .invalid(effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"),
            );
        }
        match operator {
            "Equal" | "" => {
                let wrong = names::label_value(value);
                if !wrong.is_empty() {
                    errors.push(path.child("operator").invalid(value, wrong.join(";")));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    errors.push(
                        path.child("operator")
                            .invalid(value, "value must be empty when `operator` is 'Exists'"),
                    );
                }
            }
            _ => errors.push(path.child("operator").unsupported(operator, &["Equal", "Exists"])),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.push(path.child("effect").unsupported(effect, EFFECTS));
        }
    }
}

pub(super) fn affinity(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (node, node_path) = (affinity.sub("nodeAffinity"), path.child("nodeAffinity"));
    if node.has(REQUIRED) {
        node_selector_terms(node.sub(REQUIRED), &node_path.child(REQUIRED), errors);
    }
    let preferred = node_path.child(PREFERRED);
    for (index, term) in node.list(PREFERRED).iter().enumerate() {
        let path = preferred.index(index);
        weight(term, &path, errors);
        node_term(term.sub("preference"), &path.child("preference"), errors);
    }
    for key in ["podAffinity", "podAntiAffinity"] {
        let (pods, path) = (affinity.sub(key), path.child(key));
        let required = path.child(REQUIRED);
        for (index, term) in pods.list(REQUIRED).iter().enumerate() {
            pod_term(term, &required.index(index), errors);
        }
        let preferred = path.child(PREFERRED);
        for (index, term) in pods.list(PREFERRED).iter().enumerate() {
            let path = preferred.index(index);
            weight(term, &path, errors);
            pod_term(term.sub("podAffinityTerm"), &path.child("podAffinityTerm"), errors);
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn weight(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    let weight = term.int_of("weight").unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errors.push(path.child("weight").invalid(weight, "must be in the range 1-100"));
    }
}

/// The terms by which a pod or volume chooses nodes.
pub(crate) fn node_selector_terms(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = selector.list("nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(path.required("must have at least one node selector term"));
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, &path.index(index), errors);
    }
}

fn node_term(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("matchExpressions");
    for (index, expression) in term.list("matchExpressions").iter().enumerate() {
        let path = list.index(index);
        let values = expression.list("values");
        match expression.str_of("operator") {
            "In" | "NotIn" if values.is_empty() => errors
                .push(path.child("values").required("must be specified when `operator` is 'In' or 'NotIn'")),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(
                path.child("values")
                    .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            ),
            "Gt" | "Lt" if values.len() != 1 => errors.push(
                path.child("values")
                    .required("must be specified single value when `operator` is 'Lt' or 'Gt'"),
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
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

fn pod_term(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    for key in ["labelSelector", "namespaceSelector"] {
        selector::validate(term.sub(key), &path.child(key), errors);
    }
    for name in term.list("namespaces").iter().filter_map(Value::as_str) {
        path.child("namespace").all_invalid(name, names::label(name), errors);
    }
    let key = term.str_of("topologyKey");
    if key.is_empty() {
        errors.push(path.child("topologyKey").required("can not be empty"));
    }
    path.child("topologyKey").all_invalid(key, names::qualified(key), errors);
}
