//! The `binding` subresource: a scheduler puts a pod on a node.

use serde_json::{Value, json};

use super::super::access::{Errors, Path, Peek, Poke};

/// What is wrong with a Binding.
pub fn validate(binding: &Value) -> Errors {
    let (target, path) = (binding.sub("target"), Path::root("target"));
    let mut errors = Errors::new();
    let kind = target.str_of("kind");
    if !["", "Node"].contains(&kind) {
        errors.push(path.child("kind").unsupported(kind, &["Node", "<empty>"]));
    }
    if target.str_of("name").is_empty() {
        errors.push(path.child("name").required(""));
    }
    errors
}

/// Puts a pod on the node that a Binding names. The error is the detail of a conflict.
pub fn bind(pod: &mut Value, binding: &Value, now: &str) -> Result<(), String> {
    let name = pod.sub("metadata").str_of("name").to_owned();
    if pod.sub("metadata").has("deletionTimestamp") {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod.sub("spec").str_of("nodeName");
    if !node.is_empty() {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if !pod.sub("spec").list("schedulingGates").is_empty() {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    if let Some(spec) = pod.make("spec") {
        spec.set("nodeName", binding.sub("target").str_of("name"));
    }
    for field in ["annotations", "labels"] {
        if let Some(given) = binding.sub("metadata").map(field)
            && let Some(own) = pod.make("metadata").and_then(|meta| meta.make(field))
        {
            for (key, value) in given {
                own.set(key, value.clone());
            }
        }
    }
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    if let Some(status) = pod.make("status") {
        status.unset("nominatedNodeName");
        status.fill("conditions", json!([]));
        if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|condition| condition.str_of("type") != "PodScheduled");
            conditions.push(scheduled);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_once() {
        let binding = json!({"target": {"kind": "Node", "name": "n"}});
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}});
        assert!(validate(&binding).is_empty());
        assert_eq!(bind(&mut pod, &binding, "NOW"), Ok(()));
        assert_eq!(pod["spec"]["nodeName"], "n");
        assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
        assert_eq!(
            bind(&mut pod, &binding, "NOW"),
            Err("pod p is already assigned to node \"n\"".to_owned())
        );
        let errors: Vec<String> =
            validate(&json!({"target": {"kind": "Foo"}})).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "target.kind: Unsupported value: \"Foo\": supported values: \"Node\", \"<empty>\"",
                "target.name: Required value"
            ]
        );
    }
}
