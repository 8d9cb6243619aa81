//! The schemas of the built-in kinds that the embedded server knows, cut out of the OpenAPI documents of a
//! real one: each kind, its list, and whatever they refer to.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Map, Value};

use crate::http_client::{HttpClient, Request};

/// Group, version, kinds.
const KINDS: &[(&str, &str, &[&str])] = &[
    (
        "",
        "v1",
        &[
            "Pod",
            "Service",
            "Namespace",
            "Node",
            "ConfigMap",
            "Secret",
            "ServiceAccount",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Endpoints",
            "Event",
            "PodTemplate",
            "LimitRange",
            "ResourceQuota",
        ],
    ),
    ("apps", "v1", &["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ControllerRevision"]),
    ("batch", "v1", &["Job", "CronJob"]),
    ("coordination.k8s.io", "v1", &["Lease"]),
    ("discovery.k8s.io", "v1", &["EndpointSlice"]),
    ("events.k8s.io", "v1", &["Event"]),
    ("networking.k8s.io", "v1", &["NetworkPolicy"]),
    ("node.k8s.io", "v1", &["RuntimeClass"]),
    ("policy", "v1", &["PodDisruptionBudget", "Eviction"]),
    ("rbac.authorization.k8s.io", "v1", &["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]),
    ("scheduling.k8s.io", "v1", &["PriorityClass"]),
    ("storage.k8s.io", "v1", &["StorageClass"]),
    ("apiextensions.k8s.io", "v1", &["CustomResourceDefinition"]),
    ("autoscaling", "v1", &["Scale"]),
];

/// Schemas that belong to requests rather than to a kind.
const OF_REQUESTS: [&str; 4] =
    ["meta.v1.DeleteOptions", "meta.v1.Status", "meta.v1.WatchEvent", "meta.v1.Patch"];

/// Shared schemas: of no kind of their own.
const SHARED: &str = "io.k8s.apimachinery";
const GVK: &str = "x-kubernetes-group-version-kind";

/// The text of the schemas file: one line for each schema.
pub async fn builtin_schemas(http: &HttpClient) -> Result<String> {
    let all = published(http).await?;
    let mut kept = BTreeMap::new();
    for (name, schema) in all.iter().filter(|(name, _)| !name.starts_with(SHARED)) {
        if kinds_of(schema).any(is_kept) {
            keep(name, &all, &mut kept)?;
            let list = format!("{name}List");
            if all.contains_key(&list) {
                keep(&list, &all, &mut kept)?;
            }
        }
    }
    for name in all.keys().filter(|name| OF_REQUESTS.iter().any(|end| name.ends_with(end))) {
        keep(name, &all, &mut kept)?;
    }
    let lines: Result<Vec<String>> = kept
        .into_iter()
        .map(|(name, schema)| {
            Ok(format!("{}:{}", serde_json::to_string(&name)?, serde_json::to_string(&schema)?))
        })
        .collect();
    Ok(format!("{{\n{}\n}}\n", lines?.join(",\n")))
}

/// Every schema that the server publishes, of all groups.
async fn published(http: &HttpClient) -> Result<BTreeMap<String, Value>> {
    let index = document(http, "/openapi/v3").await?;
    let paths = index["paths"].as_object().context("no paths in the OpenAPI index")?;
    let mut all = BTreeMap::new();
    // Schemas that several groups share say so differently in each document: the core group has the last word.
    for (_, entry) in paths.iter().filter(|(path, _)| *path != "api/v1").chain(paths.get_key_value("api/v1"))
    {
        let url = entry["serverRelativeURL"].as_str().context("no URL in the OpenAPI index")?;
        let document = document(http, url).await?;
        if let Some(Value::Object(schemas)) = document.pointer("/components/schemas") {
            all.extend(schemas.clone());
        }
    }
    Ok(all)
}

async fn document(http: &HttpClient, path: &str) -> Result<Value> {
    let reply = http.send(Request::new(Method::GET, path).header("accept", "application/json")).await?;
    ensure!(reply.is_success(), "{path}: {}", reply.value());
    Ok(reply.value())
}

fn kinds_of(schema: &Value) -> impl Iterator<Item = &Value> {
    schema[GVK].as_array().into_iter().flatten()
}

fn is_kept(kind: &Value) -> bool {
    KINDS.iter().any(|(group, version, kinds)| {
        kind["group"] == *group
            && kind["version"] == *version
            && kinds.iter().any(|name| kind["kind"] == *name)
    })
}

/// Keeps a schema and all that it refers to. A reference that is kept already ends the descent.
fn keep(name: &str, all: &BTreeMap<String, Value>, kept: &mut BTreeMap<String, Value>) -> Result<()> {
    let mut wanted = vec![name.to_owned()];
    while let Some(name) = wanted.pop() {
        if kept.contains_key(&name) {
            continue;
        }
        let mut schema = all.get(&name).with_context(|| format!("no schema {name}"))?.clone();
        references(&schema, &mut wanted);
        if name.starts_with(SHARED) {
            drop_other_groups(&mut schema);
        }
        kept.insert(name, schema);
    }
    Ok(())
}

/// The schemas of options and the like list every group that uses them; only ours are of interest.
fn drop_other_groups(schema: &mut Value) {
    if let Some(Value::Array(kinds)) =
        schema.as_object_mut().and_then(|schema: &mut Map<_, _>| schema.get_mut(GVK))
    {
        kinds.retain(|kind| {
            KINDS.iter().any(|(group, version, _)| kind["group"] == *group && kind["version"] == *version)
        });
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" => {
                        found.extend(target.rsplit('/').next().map(str::to_owned));
                    }
                    other => references(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}
