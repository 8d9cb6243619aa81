//! Pods, and the templates that others make pods from.

mod binding;
mod container;
mod defaults;
mod placement;
mod probe;
mod update;
mod validate;
mod volume;

use serde_json::{Value, json};

use super::access::{Peek, Poke};
use super::quantity::Quantity;
use super::{PLAIN, Strategy};

pub use binding::{bind, validate as validate_binding};
pub(crate) use defaults::{claim_spec as claim_defaults, template as template_defaults};
pub(crate) use placement::{node_selector_terms, tolerations};
pub(crate) use validate::template as validate_template;
pub(crate) use volume::{host_path, nfs, path_without_backsteps};

pub(crate) const PREEMPTION: &[&str] = &["PreemptLowerPriority", "Never"];

pub(crate) const STRATEGY: Strategy = Strategy {
    defaults: defaults::pod,
    admit,
    admit_update: |new, old| {
        let Some(spec) = new.make("spec") else { return };
        add_tolerations(spec);
        for key in ["priority", "preemptionPolicy"] {
            if !spec.has(key) {
                super::copy(spec, old.sub("spec"), key);
            }
        }
    },
    create: |pod, now| {
        let class = qos_class(pod);
        pod.set("status", json!({"phase": "Pending", "qosClass": class}));
        // A negative time to stop in is taken for the shortest.
        if let Some(spec) = pod.make("spec")
            && spec.int_of("terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0)
        {
            spec.set("terminationGracePeriodSeconds", 1);
        }
        mark_gated(pod, now);
    },
    update_status: |new, old, _| {
        // The status endpoint touches neither owners nor deletion.
        if let Some(meta) = new.make("metadata") {
            super::copy(meta, old.sub("metadata"), "ownerReferences");
        }
        let class = old.sub("status").str_of("qosClass").to_owned();
        if let Some(status) = new.make("status")
            && !class.is_empty()
        {
            status.fill_str("qosClass", &class);
        }
    },
    validate: |pod, errors| validate::pod(pod, true, errors),
    validate_update: update::validate,
    ..PLAIN
};

/// What admission adds: tolerations and priority (service accounts are not served yet). A pod that names a
/// PriorityClass gets the values of that class by [`set_priority`] instead.
fn admit(pod: &mut Value) {
    let Some(spec) = pod.make("spec") else { return };
    add_tolerations(spec);
    if spec.str_of("priorityClassName").is_empty() {
        spec.set("priority", 0);
        spec.fill("preemptionPolicy", "PreemptLowerPriority");
    }
}

/// Gives a pod the priority of the class that it names.
pub fn set_priority(pod: &mut Value, class: &Value) {
    if let Some(spec) = pod.make("spec") {
        spec.set("priority", class.int_of("value").unwrap_or_default());
        let policy = class.str_of("preemptionPolicy");
        spec.fill("preemptionPolicy", if policy.is_empty() { "PreemptLowerPriority" } else { policy });
    }
}

/// A pod stays for five minutes on a node that fails, unless it says otherwise.
fn add_tolerations(spec: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        tolerate(spec, key);
    }
}

fn tolerate(spec: &mut Value, key: &str) {
    let tolerated = |toleration: &Value| {
        let (its_key, effect) = (toleration.str_of("key"), toleration.str_of("effect"));
        (its_key == key || its_key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
    };
    if spec.list("tolerations").iter().any(tolerated) {
        return;
    }
    spec.fill("tolerations", json!([]));
    if let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
    }
}

fn mark_gated(pod: &mut Value, now: &str) {
    if pod.sub("spec").list("schedulingGates").is_empty() {
        return;
    }
    if let Some(status) = pod.part("status") {
        status.set(
            "conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]),
        );
    }
}

/// Guaranteed, Burstable or BestEffort: by requests and limits of cpu and memory.
pub fn qos_class(pod: &Value) -> &'static str {
    let spec = pod.sub("spec");
    let own = [spec.sub("resources")];
    let of_containers: Vec<&Value> = spec
        .list("containers")
        .iter()
        .chain(spec.list("initContainers"))
        .map(|container| container.sub("resources"))
        .collect();
    let all: &[&Value] = if spec.has("resources") { &own } else { &of_containers };
    let (mut any, mut guaranteed) = (false, true);
    for resources in all {
        for name in ["cpu", "memory"] {
            let amount = |part: &str| {
                Quantity::parse(resources.sub(part).str_of(name)).filter(|quantity| !quantity.is_zero())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= match (request, limit) {
                (Some(request), Some(limit)) => request.compare(limit).is_eq(),
                _ => false,
            };
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
