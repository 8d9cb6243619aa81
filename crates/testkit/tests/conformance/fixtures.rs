//! Objects that many cases start from, and the paths they live at. `{ns}` is filled in by the tape.

use serde_json::{Value, json};

pub(crate) const CM: &str = "/api/v1/namespaces/{ns}/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/{ns}/pods";
pub(crate) const SERVICES: &str = "/api/v1/namespaces/{ns}/services";
pub(crate) const SECRETS: &str = "/api/v1/namespaces/{ns}/secrets";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/{ns}/deployments";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const WIDGETS: &str = "/apis/{ns}.example.com/v1/namespaces/{ns}/widgets";
pub(crate) const WIDGET_CRD: &str = "widgets.{ns}.example.com";

pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// A ConfigMap with labels.
pub(crate) fn labelled(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
    })
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
            },
        },
    })
}

/// A definition of `Widget` whose spec has the given properties; a status subresource, no scale.
pub(crate) fn widget_crd(spec_properties: Value) -> Value {
    widget_crd_with(json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec_properties},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    }))
}

/// A definition of `Widget` with the given whole schema and a status subresource.
pub(crate) fn widget_crd_with(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGET_CRD},
        "spec": {
            "group": "{ns}.example.com", "scope": "Namespaced",
            "names": {
                "kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList",
                "shortNames": ["wd"], "categories": ["all"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
            }],
        },
    })
}

pub(crate) fn widget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "{ns}.example.com/v1", "kind": "Widget",
        "metadata": {"name": name, "namespace": "{ns}"}, "spec": spec,
    })
}
