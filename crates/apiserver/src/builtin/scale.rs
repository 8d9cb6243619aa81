//! The `scale` subresource of workloads: a view of their replicas.

use serde_json::{Value, json};

use super::access::{Errors, Path, Peek, Poke};
use super::shape;
use crate::table::selector_text;

/// The Scale of a Deployment, ReplicaSet or StatefulSet.
pub fn of(object: &Value) -> Value {
    let (meta, spec) = (object.sub("metadata"), object.sub("spec"));
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {},
        "spec": {"replicas": spec.int_of("replicas").unwrap_or_default()},
        "status": {
            "replicas": object.sub("status").int_of("replicas").unwrap_or_default(),
            "selector": selector_text(spec.sub("selector")),
        },
    });
    if let Some(target) = scale.part("metadata") {
        for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if meta.has(key) {
                target.set(key, meta.sub(key).clone());
            }
        }
    }
    shape::conform(&mut scale, "autoscaling.Scale");
    scale
}

/// What is wrong with a Scale that someone sent.
pub fn validate(scale: &Value) -> Errors {
    let mut errors = Errors::new();
    Path::root("spec").not_negative(scale.sub("spec"), "replicas", &mut errors);
    errors
}

/// Gives an object the replicas of a Scale.
pub fn apply(scale: &Value, object: &mut Value) {
    if let Some(spec) = object.make("spec") {
        spec.set("replicas", scale.sub("spec").int_of("replicas").unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let mut deployment = json!({
            "metadata": {"name": "d", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "x"}}},
            "status": {"replicas": 2},
        });
        let mut scale = of(&deployment);
        assert_eq!(
            scale,
            json!({
                "kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {"name": "d", "namespace": "n", "uid": "u", "resourceVersion": "7"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=x"},
            })
        );
        scale["spec"]["replicas"] = 5.into();
        assert!(validate(&scale).is_empty());
        apply(&scale, &mut deployment);
        assert_eq!(deployment["spec"]["replicas"], 5);
        assert_eq!(of(&json!({}))["spec"], json!({}), "zero replicas are left out");
        scale["spec"]["replicas"] = (-1).into();
        assert_eq!(
            validate(&scale)[0].to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }
}
