//! Which Pods somebody means who writes `web-0`, `deploy/web` or `svc/web`.

use anyhow::{Context, bail};
use serde_json::Value;

use crate::client::{Discovery, Kind, Server, query};
use crate::readiness;

/// A Pod, or what has Pods.
pub(crate) enum Target {
    Pod(String),
    Owner {
        /// As people call it: `deployment.apps/web`.
        called: String,
        object: Value,
        /// The labels of its Pods.
        selector: String,
    },
}

impl Target {
    pub(crate) async fn find(server: &Server, text: &str) -> anyhow::Result<Self> {
        let Some((kind, name)) = text.split_once('/') else { return Ok(Self::Pod(text.to_owned())) };
        let discovery = Discovery::fetch(server).await?;
        let kind = discovery.find(kind)?;
        if kind.group.is_empty() && kind.kind == "Pod" {
            return Ok(Self::Pod(name.to_owned()));
        }
        let called = kind.called(name);
        let object = server.get(&kind.path(Some(&server.namespace), Some(name))).await?;
        let selector = selector(&object);
        let selector = selector.with_context(|| format!("{called} does not say which Pods are its own"))?;
        Ok(Self::Owner { called, object, selector })
    }

    /// All of them, by name.
    pub(crate) async fn pods(&self, server: &Server) -> anyhow::Result<Vec<Value>> {
        match self {
            Self::Pod(name) => {
                Ok(vec![server.get(&Kind::pods().path(Some(&server.namespace), Some(name))).await?])
            }
            Self::Owner { selector, .. } => selected(server, selector).await,
        }
    }
}

/// The Pods with these labels.
pub(crate) async fn selected(server: &Server, labels: &str) -> anyhow::Result<Vec<Value>> {
    let path = Kind::pods().path(Some(&server.namespace), None);
    let mut list = server.get(&format!("{path}{}", query(&[("labelSelector", Some(labels))]))).await?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => bail!("the server's list of Pods has no items"),
    }
}

pub(crate) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// Runs, and is to go on doing so.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Runs, and takes requests.
pub(crate) fn is_ready(pod: &Value) -> bool {
    is_running(pod) && readiness::is_true(pod, "Ready")
}

/// The labels by which an object selects its Pods: of a workload, or of a Service.
fn selector(object: &Value) -> Option<String> {
    let selector = object["spec"]["selector"].as_object().filter(|selector| !selector.is_empty())?;
    let structured = selector.contains_key("matchLabels") || selector.contains_key("matchExpressions");
    let labels =
        if structured { selector.get("matchLabels").and_then(Value::as_object) } else { Some(selector) };
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let equal = |(key, value): (&String, &Value)| Some(format!("{key}={}", value.as_str()?));
    let labels = labels.into_iter().flatten().map(equal);
    let terms =
        labels.chain(expressions.into_iter().flatten().map(expression)).collect::<Option<Vec<_>>>()?;
    // Nothing would select everything.
    (!terms.is_empty()).then(|| terms.join(","))
}

fn expression(expression: &Value) -> Option<String> {
    let key = expression["key"].as_str()?;
    let values = || {
        let values =
            expression["values"].as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
        Some(values.join(","))
    };
    match expression["operator"].as_str()? {
        "In" => Some(format!("{key} in ({})", values()?)),
        "NotIn" => Some(format!("{key} notin ({})", values()?)),
        "Exists" => Some(key.to_owned()),
        "DoesNotExist" => Some(format!("!{key}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_of_workloads_and_services() {
        let expressions = json!([
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "tier", "operator": "NotIn", "values": ["c"]},
            {"key": "x", "operator": "Exists"},
            {"key": "y", "operator": "DoesNotExist"},
        ]);
        for (selector, expected) in [
            (json!({"matchLabels": {"a": "b", "c": "d"}}), Some("a=b,c=d")),
            (json!({"a": "b"}), Some("a=b")),
            (
                json!({"matchLabels": {"a": "b"}, "matchExpressions": expressions}),
                Some("a=b,tier in (a,b),tier notin (c),x,!y"),
            ),
            // To leave a term out would be to select more Pods than are meant.
            (
                json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Near"}]}),
                None,
            ),
            (json!({}), None),
            (json!({"matchLabels": {}}), None),
            (Value::Null, None),
        ] {
            let object = json!({"spec": {"selector": selector}});
            assert_eq!(super::selector(&object).as_deref(), expected, "{object}");
        }
    }

    #[test]
    fn a_pod_that_ends_is_not_ready() {
        let mut pod = json!({
            "metadata": {"name": "a"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        assert!(is_ready(&pod));
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_ready(&pod) && !is_running(&pod));
    }
}
