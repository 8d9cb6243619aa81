//! Discovery: which groups, versions and resources there are, in the old and the aggregated form.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::reply::{self, ReplyBody};
use crate::registry::Registry;
use crate::resource::Resource;
use crate::status::Status;

/// `/`: the paths that can be asked.
pub(super) fn root(registry: &Registry) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
    for (group, versions) in registry.groups() {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"].map(str::to_owned));
    json!({"paths": paths})
}

/// `/api` and `/apis`; clients that can read the aggregated form get everything in one answer.
pub(super) fn groups(registry: &Registry, core: bool, accept: &str) -> Response<ReplyBody> {
    if let Some(version) = aggregated_version(accept) {
        let mut response = reply::json(StatusCode::OK, &aggregated(registry, core, version));
        let kind = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        if let Ok(kind) = HeaderValue::from_str(&kind) {
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        return response;
    }
    let value = if core {
        json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
        })
    } else {
        let groups: Vec<Value> = registry
            .groups()
            .into_iter()
            .filter(|(group, _)| !group.is_empty())
            .map(|(group, versions)| group_entry(&group, &versions))
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    };
    reply::json(StatusCode::OK, &value)
}

fn aggregated_version(accept: &str) -> Option<&'static str> {
    for clause in accept.split(',') {
        let clause: String = clause.chars().filter(|c| !c.is_whitespace()).collect();
        if !clause.starts_with("application/json") {
            continue;
        }
        if clause.contains("as=APIGroupDiscoveryList") && clause.contains("g=apidiscovery.k8s.io") {
            return Some(if clause.contains("v=v2beta1") { "v2beta1" } else { "v2" });
        }
        return None;
    }
    None
}

fn group_entry(group: &str, versions: &[String]) -> Value {
    let version =
        |version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// `/apis/GROUP`.
pub(super) fn group(registry: &Registry, name: &str) -> Result<Value, Status> {
    let (group, versions) = registry
        .groups()
        .into_iter()
        .find(|(group, _)| group == name && !group.is_empty())
        .ok_or_else(Status::no_such_path)?;
    let mut entry = group_entry(&group, &versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Ok(entry)
}

/// `/apis/GROUP/VERSION`.
pub(super) fn version(registry: &Registry, group: &str, version: &str) -> Result<Value, Status> {
    let resources = registry.of_version(group, version);
    if resources.is_empty() {
        let known = registry.all().any(|r| r.is_builtin() && r.group == group);
        return Err(if known { Status::page_not_found() } else { Status::no_such_path() });
    }
    let mut entries = Vec::new();
    for resource in &resources {
        entries.push(resource_entry(resource));
        entries.extend(resource.subresources().into_iter().map(|sub| {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": sub.kind, "verbs": sub.verbs,
            });
            if !sub.group.is_empty() || !sub.version.is_empty() {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            entry
        }));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": entries});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Ok(list)
}

fn resource_entry(resource: &Resource) -> Value {
    let mut entry = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if let Some(hash) = resource.storage_version_hash() {
        entry["storageVersionHash"] = hash.into();
    }
    entry
}

fn aggregated(registry: &Registry, core: bool, version: &str) -> Value {
    let items: Vec<Value> = registry
        .groups()
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let mut resources: Vec<Value> =
                        registry.of_version(&group, version).iter().map(|r| aggregated_resource(r)).collect();
                    resources.sort_by(|a, b| a["resource"].as_str().cmp(&b["resource"].as_str()));
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = group.into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // Built-in kinds leave out the group and version that the entry stands in.
    let (own_group, own_version) = match resource.is_builtin() {
        true => ("", ""),
        false => (resource.group.as_str(), resource.version.as_str()),
    };
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(own_group, own_version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources()
        .into_iter()
        .map(|sub| {
            let (group, version) = if sub.version.is_empty() {
                (own_group, own_version)
            } else {
                (sub.group, sub.version)
            };
            json!({"subresource": sub.name, "responseKind": kind(group, version, sub.kind), "verbs": sub.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}
