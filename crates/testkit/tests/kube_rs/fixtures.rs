//! The objects that trials work on: a custom kind, and small built-in ones.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta};
use kube::discovery::{self, ApiCapabilities};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A text that a controller keeps in a ConfigMap.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[kube(
    group = "kubers.example.com",
    version = "v1",
    kind = "Widget",
    namespaced,
    shortname = "wd",
    derive = "PartialEq",
    status = "WidgetStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas")
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WidgetSpec {
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) replicas: i32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WidgetStatus {
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) replicas: i32,
    #[serde(default)]
    pub(crate) observed_generation: i64,
}

pub(crate) fn widget(name: &str, text: &str) -> Widget {
    Widget::new(name, WidgetSpec { text: text.to_owned(), replicas: 1 })
}

/// Installs the definition and waits until it serves.
pub(crate) async fn install(client: &Client) -> Result<()> {
    establish(client, &Widget::crd()).await?;
    announced(client, &GroupVersionKind::gvk("kubers.example.com", "v1", "Widget")).await?;
    Ok(())
}

/// The real server announces a kind a moment after it is established, and nothing tells when: so this asks again.
pub(crate) async fn announced(
    client: &Client,
    kind: &GroupVersionKind,
) -> Result<(ApiResource, ApiCapabilities)> {
    let asking = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            if let Ok(found) = discovery::pinned_kind(client, kind).await {
                break found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking).await.context("the kind is never announced")
}

pub(crate) async fn establish(client: &Client, definition: &CustomResourceDefinition) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.metadata.name.clone().context("a definition has a name")?;
    definitions.patch(&name, &PatchParams::apply("kube-rs").force(), &Patch::Apply(definition)).await?;
    await_condition(definitions, &name, conditions::is_crd_established()).await?;
    Ok(())
}

pub(crate) fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ConfigMap { metadata: named(name), data: Some(data), ..ConfigMap::default() }
}

pub(crate) fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

pub(crate) fn labels(labels: &[(&str, &str)]) -> Option<BTreeMap<String, String>> {
    Some(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

pub(crate) fn deployment(name: &str) -> Result<Deployment> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [
                    {"name": "web", "image": "web:1", "env": [{"name": "A", "value": "1"}]},
                    {"name": "log", "image": "log:1"},
                ]},
            },
        },
    }))?)
}

/// A Pod that already has a node, so that nothing waits for a scheduler.
pub(crate) fn pod(name: &str, containers: &[&str], node: Option<&str>) -> Result<Pod> {
    let containers: Vec<_> = containers.iter().map(|name| json!({"name": name, "image": "x:1"})).collect();
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": containers}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    Ok(serde_json::from_value(pod)?)
}
