//! Nodes, Leases, RuntimeClasses and PriorityClasses.

use serde_json::{Value, json};

use super::access::{Errors, IMMUTABLE, Path, Peek, Poke, top};
use super::quantity::Quantity;
use super::{PLAIN, Strategy, names, pod};

pub(crate) const NODE: Strategy = Strategy {
    status_on_create: true,
    defaults: |node| {
        if let Some(spec) = node.part("spec") {
            mirror_cidr(spec);
        }
        if let Some(status) = node.part("status")
            && !status.has("allocatable")
            && status.has("capacity")
        {
            let capacity = status.sub("capacity").clone();
            status.set("allocatable", capacity);
        }
    },
    admit: taint_not_ready,
    validate: validate_node,
    validate_update: |new, old, errors| {
        validate_node(new, errors);
        let path = Path::root("spec");
        let (spec, before) = (new.sub("spec"), old.sub("spec"));
        if !before.list("podCIDRs").is_empty() && spec.sub("podCIDRs") != before.sub("podCIDRs") {
            errors.push(
                path.child("podCIDRs")
                    .forbidden("node updates may not change podCIDR except from \"\" to valid"),
            );
        }
        if !before.str_of("providerID").is_empty() && spec.str_of("providerID") != before.str_of("providerID")
        {
            errors.push(
                path.child("providerID")
                    .forbidden("node updates may not change providerID except from \"\" to valid"),
            );
        }
    },
    ..PLAIN
};

fn mirror_cidr(spec: &mut Value) {
    let single = spec.str_of("podCIDR").to_owned();
    if !single.is_empty() && spec.list("podCIDRs").is_empty() {
        spec.set("podCIDRs", json!([single]));
    } else if single.is_empty()
        && let Some(first) = spec.list("podCIDRs").first().cloned()
    {
        spec.set("podCIDR", first);
    }
}

/// A new node takes no pods until its kubelet says that it is ready.
fn taint_not_ready(node: &mut Value) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let Some(spec) = node.make("spec") else { return };
    let tainted = |taint: &Value| taint.str_of("key") == KEY && taint.str_of("effect") == "NoSchedule";
    if spec.list("taints").iter().any(tainted) {
        return;
    }
    spec.fill("taints", json!([]));
    if let Some(list) = spec.get_mut("taints").and_then(Value::as_array_mut) {
        list.push(json!({"key": KEY, "effect": "NoSchedule"}));
    }
}

fn validate_node(node: &Value, errors: &mut Errors) {
    let spec = node.sub("spec");
    // The real server says `metadata.taints`.
    let path = Path::root("metadata").child("taints").to_string();
    let path = Path::root(&path);
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in spec.list("taints").iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (taint.str_of("key"), taint.str_of("value"), taint.str_of("effect"));
        path.child("key").all_invalid(key, names::qualified(key), errors);
        path.child("value").all_invalid(value, names::label_value(value), errors);
        path.one_of(taint, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        if seen.contains(&(key, effect)) {
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{}}}: taints must be unique by key and effect pair",
                Value::from(key),
                Value::from(value),
                Value::from(effect),
                taint.sub("timeAdded"),
            );
            errors.push(crate::status::FieldError::new(
                crate::status::FieldErrorKind::Duplicate,
                path.to_string(),
                None,
                shown,
            ));
        }
        seen.push((key, effect));
    }
    for part in ["capacity", "allocatable"] {
        for (name, quantity) in node.sub("status").map(part).into_iter().flatten() {
            let text = quantity.as_str().unwrap_or_default();
            if Quantity::parse(text).is_some_and(Quantity::is_negative) {
                errors.push(
                    Path::root("status").child(part).child(name).invalid(text, super::access::NOT_NEGATIVE),
                );
            }
        }
    }
    validate_cidrs(spec, errors);
}

fn validate_cidrs(spec: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let path = path.child("podCIDRs");
    let mut widths = Vec::new();
    for (index, cidr) in spec.list("podCIDRs").iter().enumerate() {
        let text = cidr.as_str().unwrap_or_default();
        match names::cidr(text) {
            Ok((_, _, width)) => widths.push(width),
            Err(message) => errors.push(path.index(index).invalid(text, message)),
        }
    }
    let repeated = widths.iter().filter(|width| **width == 32).count() > 1
        || widths.iter().filter(|width| **width == 128).count() > 1;
    if repeated {
        errors.push(
            path.invalid(
                spec.sub("podCIDRs").clone(),
                "may specify no more than one CIDR for each IP family",
            ),
        );
    }
}

pub(crate) const LEASE: Strategy = Strategy {
    validate: validate_lease,
    validate_update: |new, _, errors| validate_lease(new, errors),
    ..PLAIN
};

fn validate_lease(lease: &Value, errors: &mut Errors) {
    let (spec, path) = (lease.sub("spec"), Path::root("spec"));
    if let Some(seconds) = spec.int_of("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.push(path.child("leaseDurationSeconds").invalid(seconds, "must be greater than 0"));
    }
    path.not_negative(spec, "leaseTransitions", errors);
}

pub(crate) const RUNTIME_CLASS: Strategy = Strategy {
    validate: validate_runtime_class,
    validate_update: |new, old, errors| {
        if new.str_of("handler") != old.str_of("handler") {
            errors.push(top("handler").invalid(new.str_of("handler"), IMMUTABLE));
        }
    },
    ..PLAIN
};

fn validate_runtime_class(class: &Value, errors: &mut Errors) {
    match class.str_of("handler") {
        "" => errors.push(top("handler").required("")),
        handler => top("handler").all_invalid(handler, names::label(handler), errors),
    }
    let path = Path::root("scheduling");
    pod::tolerations(class.sub("scheduling"), &path, errors);
}

pub(crate) const PRIORITY_CLASS: Strategy = Strategy {
    defaults: |class| class.fill("preemptionPolicy", "PreemptLowerPriority"),
    validate: |class, errors| {
        let name = class.sub("metadata").str_of("name");
        if name.starts_with("system-") {
            let known = match name {
                "system-node-critical" => Some(2_000_001_000),
                "system-cluster-critical" => Some(2_000_000_000),
                _ => None,
            };
            if known.is_none() || known != class.int_of("value") {
                errors.push(Path::root("metadata").child("name").forbidden(format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {name} is \
                     not a known system priority class"
                )));
            }
        } else if class.int_of("value").is_some_and(|value| value > 1_000_000_000) {
            errors.push(
                top("value").forbidden("maximum allowed value of a user defined priority is 1000000000"),
            );
        }
        if let Some(policy) = class.sub("preemptionPolicy").as_str()
            && !pod::PREEMPTION.contains(&policy)
        {
            errors.push(top("preemptionPolicy").unsupported(policy, pod::PREEMPTION));
        }
    },
    validate_update: |new, old, errors| {
        if new.int_of("value").unwrap_or_default() != old.int_of("value").unwrap_or_default() {
            errors.push(top("value").forbidden("may not be changed in an update."));
        }
        if new.str_of("preemptionPolicy") != old.str_of("preemptionPolicy") {
            errors.push(top("preemptionPolicy").invalid(new.str_of("preemptionPolicy"), IMMUTABLE));
        }
    },
    ..PLAIN
};
