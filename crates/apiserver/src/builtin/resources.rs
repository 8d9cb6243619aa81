//! Amounts of resources, and the kinds that limit them: LimitRanges and ResourceQuotas.

use serde_json::{Map, Value};

use super::access::{Errors, NOT_NEGATIVE, Path, Peek, Poke};
use super::quantity::Quantity;
use super::{PLAIN, Strategy, names};

const CONTAINER: &[&str] = &["cpu", "memory", "ephemeral-storage"];
const COUNTED: &[&str] = &[
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const MEASURED: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

pub(crate) fn parse(amount: &Value) -> Option<Quantity> {
    amount.as_str().and_then(Quantity::parse)
}

/// A resource of Kubernetes itself, as opposed to one that a device plugin offers.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_standard(name: &str) -> bool {
    COUNTED.contains(&name) || MEASURED.contains(&name) || name.starts_with("hugepages-")
}

/// The name of a resource, before it is asked where it is used. False if it makes no sense at all.
fn named(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let wrong = names::qualified(name);
    if !wrong.is_empty() {
        path.all_invalid(name, wrong, errors);
    } else if !name.contains('/') && !is_standard(name) {
        errors.push(path.invalid(name, "must be a standard resource type or fully qualified"));
    }
}

/// An entry of `requests` or `limits` of a container.
pub(crate) fn container_amount(name: &str, amount: &Value, path: &Path<'_>, errors: &mut Errors) {
    container_name(name, path, errors);
    amount_value(name, amount, path, errors);
}

fn container_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    named(name, path, errors);
    if !name.contains('/') && !CONTAINER.contains(&name) && !name.starts_with("hugepages-") {
        errors.push(path.invalid(name, "must be a standard resource for containers"));
    }
}

fn amount_value(name: &str, amount: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(quantity) = parse(amount) else { return };
    if quantity.is_negative() {
        errors.push(path.invalid(quantity.canonical(), NOT_NEGATIVE));
    }
    if (!is_native(name) || COUNTED.contains(&name)) && !quantity.is_integer() {
        errors.push(path.invalid(quantity.canonical(), "must be an integer"));
    }
}

pub(crate) const QUOTA: Strategy = Strategy {
    validate: validate_quota,
    validate_update: |new, old, errors| {
        validate_quota(new, errors);
        let mut scopes: Vec<&Value> = new.sub("spec").list("scopes").iter().collect();
        let mut before: Vec<&Value> = old.sub("spec").list("scopes").iter().collect();
        scopes.sort_by_key(|scope| scope.as_str());
        before.sort_by_key(|scope| scope.as_str());
        if scopes != before {
            let path = Path::root("spec");
            errors.push(
                path.child("scopes").invalid(new.sub("spec").sub("scopes").clone(), super::access::IMMUTABLE),
            );
        }
    },
    ..PLAIN
};

fn validate_quota(quota: &Value, errors: &mut Errors) {
    let (spec, path) = (quota.sub("spec"), Path::root("spec"));
    let hard = path.child("hard");
    for (name, amount) in spec.map("hard").into_iter().flatten() {
        let path = hard.key(name);
        named(name, &path, errors);
        if !name.contains('/') && !is_standard(name) {
            errors.push(path.invalid(name.as_str(), "must be a standard resource for quota"));
        }
        amount_value(name, amount, &path, errors);
    }
    const SCOPES: &[&str] = &[
        "Terminating",
        "NotTerminating",
        "BestEffort",
        "NotBestEffort",
        "PriorityClass",
        "CrossNamespacePodAffinity",
        "VolumeAttributesClass",
    ];
    let scopes = spec.list("scopes");
    let has = |name: &str| scopes.iter().any(|scope| scope == name);
    let path = path.child("scopes");
    for _ in scopes.iter().filter(|scope| !SCOPES.contains(&scope.as_str().unwrap_or_default())) {
        errors.push(path.invalid(spec.sub("scopes").clone(), "unsupported scope"));
    }
    if (has("BestEffort") && has("NotBestEffort")) || (has("Terminating") && has("NotTerminating")) {
        errors.push(path.invalid(spec.sub("scopes").clone(), "conflicting scopes"));
    }
}

pub(crate) const LIMIT_RANGE: Strategy = Strategy {
    defaults: |range| {
        if let Some(spec) = range.part("spec") {
            spec.each("limits", limit_defaults);
        }
    },
    validate: validate_range,
    validate_update: |new, _, errors| validate_range(new, errors),
    ..PLAIN
};

/// Containers get the maximum by default, and request what they get.
fn limit_defaults(limit: &mut Value) {
    if limit.str_of("type") != "Container" {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let Some(source) = limit.map(from).filter(|source| !source.is_empty()).cloned() else { continue };
        limit.fill(to, Value::Object(Map::new()));
        if let Some(target) = limit.part(to) {
            for (name, amount) in source {
                target.fill(&name, amount);
            }
        }
    }
}

fn validate_range(range: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let path = path.child("limits");
    let mut seen = Vec::new();
    for (index, limit) in range.sub("spec").list("limits").iter().enumerate() {
        let path = path.index(index);
        let kind = limit.str_of("type");
        let wrong = names::qualified(kind);
        let named = wrong.is_empty();
        path.child("type").all_invalid(kind, wrong, errors);
        if named && !kind.contains('/') && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind) {
            errors.push(path.child("type").invalid(kind, "must be a standard limit type or fully qualified"));
        }
        if seen.contains(&kind) {
            errors.push(path.child("type").duplicate(kind));
        }
        seen.push(kind);
        limit_names(limit, kind, &path, errors);
        limit_order(limit, &path, errors);
    }
}

fn limit_names(limit: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    for key in ["max", "min", "default", "defaultRequest"] {
        let path = path.child(key);
        if kind == "Pod" && key.starts_with("default") {
            if limit.map(key).is_some_and(|map| !map.is_empty()) {
                errors.push(path.forbidden("may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        for name in limit.map(key).into_iter().flat_map(Map::keys) {
            if ["Pod", "Container"].contains(&kind) {
                container_name(name, &path.key(name), errors);
            } else {
                named(name, &path.key(name), errors);
            }
        }
    }
    let storage = limit.sub("min").has("storage") || limit.sub("max").has("storage");
    if kind == "PersistentVolumeClaim" && !storage {
        errors.push(
            path.child("limits")
                .required("either minimum or maximum storage value is required, but neither was provided"),
        );
    }
}

/// Minimum ≤ default request ≤ default ≤ maximum.
fn limit_order(limit: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut all: Vec<&String> = ["max", "min", "default", "defaultRequest"]
        .iter()
        .flat_map(|key| limit.map(key).into_iter().flat_map(Map::keys))
        .collect();
    all.sort();
    all.dedup();
    for name in all {
        let get = |key: &str| parse(limit.sub(key).sub(name));
        // Which may not exceed which; the field to blame and the value to show are the real server's choice.
        let pairs = [
            ("min", "max", "min", "min", "min value", "max value"),
            (
                "min",
                "defaultRequest",
                "defaultRequest",
                "defaultRequest",
                "min value",
                "default request value",
            ),
            (
                "defaultRequest",
                "max",
                "defaultRequest",
                "defaultRequest",
                "default request value",
                "max value",
            ),
            (
                "defaultRequest",
                "default",
                "defaultRequest",
                "defaultRequest",
                "default request value",
                "default limit value",
            ),
            ("min", "default", "default", "min", "min value", "default value"),
            ("default", "max", "default", "max", "default value", "max value"),
        ];
        for (low, high, field, shown, low_name, high_name) in pairs {
            let (Some(low), Some(high), Some(shown)) = (get(low), get(high), get(shown)) else { continue };
            if low.compare(high).is_gt() {
                errors.push(path.child(field).key(name).invalid(
                    shown.canonical(),
                    format!(
                        "{low_name} {} is greater than {high_name} {}",
                        low.canonical(),
                        high.canonical()
                    ),
                ));
            }
        }
    }
}
