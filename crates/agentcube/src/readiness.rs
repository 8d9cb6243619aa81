//! Whether an object has become what its spec asks for. Pure: an object in, a judgement out.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Not yet, and for what reason.
    Waiting(String),
    /// It will not become ready by itself.
    Failed(String),
}

/// Judges any kind: those of Kubernetes by their own rules, others by a `Ready` or `Available` condition. An object
/// without conditions has nothing to wait for.
pub(crate) fn readiness(object: &Value) -> Readiness {
    let generation = object["metadata"]["generation"].as_i64();
    let observed = object["status"]["observedGeneration"].as_i64();
    if let (Some(generation), Some(observed)) = (generation, observed)
        && observed < generation
    {
        return Readiness::Waiting("its controller has not seen the change yet".into());
    }
    let group =
        object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(g, _)| g);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("", "Pod") => pod(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("apps", "Deployment") => replicas(object, "updatedReplicas", "availableReplicas"),
        ("apps", "ReplicaSet") => replicas(object, "fullyLabeledReplicas", "readyReplicas"),
        ("apps", "StatefulSet") => stateful(object),
        ("batch", "Job") => job(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => by_condition(object, &["Established"]),
        // Their controllers always say something.
        ("agentcube.io", _) if object["status"]["conditions"].is_null() => {
            Readiness::Waiting("its controller has not seen it yet".into())
        }
        _ => by_condition(object, &["Ready", "Available"]),
    }
}

fn pod(object: &Value) -> Readiness {
    match object["status"]["phase"].as_str() {
        Some("Succeeded") => Readiness::Ready,
        Some("Failed") => Readiness::Failed(because(&object["status"], "the Pod failed")),
        _ if is_true(object, "Ready") => Readiness::Ready,
        phase => Readiness::Waiting(phase.unwrap_or("Pending").to_owned()),
    }
}

fn claim(object: &Value) -> Readiness {
    match object["status"]["phase"].as_str() {
        Some("Bound") => Readiness::Ready,
        phase => Readiness::Waiting(phase.unwrap_or("Pending").to_owned()),
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn replicas(object: &Value, updated: &str, serving: &str) -> Readiness {
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let status = &object["status"];
    if status["observedGeneration"].is_null() {
        return Readiness::Waiting("its controller has not seen it yet".into());
    }
    if let Some(condition) = condition(object, "Progressing")
        && condition["reason"] == "ProgressDeadlineExceeded"
    {
        return Readiness::Failed(because(condition, "it makes no progress"));
    }
    let (updated, serving, all) =
        (number(&status[updated]), number(&status[serving]), number(&status["replicas"]));
    if updated < wanted {
        Readiness::Waiting(format!("{updated} of {wanted} Pods are new"))
    } else if all > updated {
        Readiness::Waiting(format!("{} old Pods are still there", all - updated))
    } else if serving < wanted {
        Readiness::Waiting(format!("{serving} of {wanted} Pods are ready"))
    } else {
        Readiness::Ready
    }
}

fn stateful(object: &Value) -> Readiness {
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let status = &object["status"];
    let ready = number(&status["readyReplicas"]);
    if status["observedGeneration"].is_null() {
        return Readiness::Waiting("its controller has not seen it yet".into());
    }
    if ready < wanted {
        return Readiness::Waiting(format!("{ready} of {wanted} Pods are ready"));
    }
    let rolling = object["spec"]["updateStrategy"]["type"] != "OnDelete";
    if rolling && status["updateRevision"] != status["currentRevision"] {
        let updated = number(&status["updatedReplicas"]);
        let partition = number(&object["spec"]["updateStrategy"]["rollingUpdate"]["partition"]);
        if updated < wanted - partition {
            return Readiness::Waiting(format!("{updated} of {} Pods are new", wanted - partition));
        }
    }
    Readiness::Ready
}

fn job(object: &Value) -> Readiness {
    if is_true(object, "Complete") {
        Readiness::Ready
    } else if is_true(object, "Failed") {
        let condition = condition(object, "Failed").unwrap_or(&Value::Null);
        Readiness::Failed(because(condition, "the Job failed"))
    } else {
        Readiness::Waiting(format!("{} of its Pods have succeeded", number(&object["status"]["succeeded"])))
    }
}

fn by_condition(object: &Value, types: &[&str]) -> Readiness {
    let Some(condition) = types.iter().find_map(|name| condition(object, name)) else {
        return Readiness::Ready;
    };
    match condition["status"].as_str() {
        Some("True") => Readiness::Ready,
        _ => Readiness::Waiting(because(condition, "it is not ready")),
    }
}

pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}

pub(crate) fn is_true(object: &Value, name: &str) -> bool {
    condition(object, name).is_some_and(|condition| condition["status"] == "True")
}

/// The message of a condition or status, else its reason, else the default.
fn because(value: &Value, default: &str) -> String {
    let text = |key: &str| value[key].as_str().filter(|text| !text.is_empty());
    text("message").or_else(|| text("reason")).unwrap_or(default).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(api_version: &str, kind: &str, spec: Value, status: Value) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"generation": 2}, "spec": spec, "status": status})
    }

    fn condition(name: &str, status: &str, reason: &str) -> Value {
        json!({"conditions": [{"type": name, "status": status, "reason": reason}]})
    }

    #[test]
    fn judgements() {
        let waiting = |text: &str| Readiness::Waiting(text.into());
        let failed = |text: &str| Readiness::Failed(text.into());
        let cases = [
            (object("v1", "ConfigMap", json!({}), Value::Null), Readiness::Ready),
            (object("v1", "Pod", json!({}), json!({})), waiting("Pending")),
            (object("v1", "Pod", json!({}), json!({"phase": "Running"})), waiting("Running")),
            (object("v1", "Pod", json!({}), condition("Ready", "True", "")), Readiness::Ready),
            (object("v1", "Pod", json!({}), json!({"phase": "Succeeded"})), Readiness::Ready),
            (
                object("v1", "Pod", json!({}), json!({"phase": "Failed", "reason": "Evicted"})),
                failed("Evicted"),
            ),
            (object("v1", "PersistentVolumeClaim", json!({}), json!({"phase": "Bound"})), Readiness::Ready),
            (
                object("apps/v1", "Deployment", json!({"replicas": 2}), json!({})),
                waiting("its controller has not seen it yet"),
            ),
            (
                object("apps/v1", "Deployment", json!({}), json!({"observedGeneration": 1})),
                waiting("its controller has not seen the change yet"),
            ),
            (
                object(
                    "apps/v1",
                    "Deployment",
                    json!({"replicas": 2}),
                    json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3}),
                ),
                waiting("1 old Pods are still there"),
            ),
            (
                object(
                    "apps/v1",
                    "Deployment",
                    json!({"replicas": 2}),
                    json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}),
                ),
                waiting("1 of 2 Pods are ready"),
            ),
            (
                object("apps/v1", "Deployment", json!({"replicas": 0}), json!({"observedGeneration": 2})),
                Readiness::Ready,
            ),
            (
                object(
                    "apps/v1",
                    "StatefulSet",
                    json!({"replicas": 2}),
                    json!({"observedGeneration": 2, "readyReplicas": 2, "updateRevision": "b", "currentRevision": "a"}),
                ),
                waiting("0 of 2 Pods are new"),
            ),
            (object("batch/v1", "Job", json!({}), condition("Complete", "True", "")), Readiness::Ready),
            (
                object("batch/v1", "Job", json!({}), condition("Failed", "True", "BackoffLimitExceeded")),
                failed("BackoffLimitExceeded"),
            ),
            (object("batch/v1", "Job", json!({}), json!({})), waiting("0 of its Pods have succeeded")),
            (
                object("agentcube.io/v1", "Task", json!({}), condition("Ready", "False", "NoPods")),
                waiting("NoPods"),
            ),
            (object("agentcube.io/v1", "Task", json!({}), condition("Ready", "True", "")), Readiness::Ready),
        ];
        for (object, expected) in cases {
            assert_eq!(readiness(&object), expected, "{object}");
        }
    }
}
