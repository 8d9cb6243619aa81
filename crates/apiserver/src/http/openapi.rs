//! OpenAPI v3: an index, and one document per group and version, as `kubectl` reads them to apply,
//! validate and explain. Documents are made when asked for; nothing of them is kept in memory.

use std::collections::BTreeSet;

use http::{Response, StatusCode};
use ring::digest;
use serde_json::{Map, Value, json};

use super::reply::{self, ReplyBody};
use crate::registry::Registry;
use crate::resource::Resource;
use crate::schema::parse::Definitions;
use crate::status::Status;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

pub(super) fn serve(registry: &Registry, rest: &[&str]) -> Result<Response<ReplyBody>, Status> {
    let document = match rest {
        [] => {
            let index = serde_json::to_vec(&index(registry)).unwrap_or_default();
            return Ok(reply::text(StatusCode::OK, index));
        }
        ["api", version] => match document(registry, "", version) {
            Some(document) => document,
            None => return Ok(reply::missing()),
        },
        ["apis", group, version] => match document(registry, group, version) {
            Some(document) => document,
            None => return Ok(reply::missing()),
        },
        _ => return Ok(reply::missing()),
    };
    Ok(reply::json(StatusCode::OK, &document))
}

fn root_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The hash changes when the document does, so that clients may keep it.
fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let mut hash = digest::Context::new(&digest::SHA256);
            for resource in registry.of_version(&group, &version) {
                hash.update(resource.plural.as_bytes());
                hash.update(resource.schema_revision().as_bytes());
            }
            let hash: String = hash.finish().as_ref().iter().map(|b| format!("{b:02X}")).collect();
            let root = root_of(&group, &version);
            let url = format!("/openapi/v3/{root}?hash={hash}");
            paths.insert(root, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let resources = registry.of_version(group, version);
    if resources.is_empty() {
        return None;
    }
    let mut schemas = Map::new();
    let mut wanted: Vec<String> =
        ["DeleteOptions", "Status", "Patch", "WatchEvent", "ObjectMeta", "ListMeta"]
            .map(|n| format!("{META}.{n}"))
            .into();
    let mut paths = Map::new();
    for resource in &resources {
        let name = match resource.definition() {
            Some(name) => {
                wanted.push(name.to_owned());
                wanted.push(format!("{name}List"));
                name.to_owned()
            }
            None => custom_schemas(resource, &mut schemas),
        };
        if resource.has_subresource("scale") {
            wanted.push("io.k8s.api.autoscaling.v1.Scale".into());
        }
        add_paths(resource, &name, &mut paths);
    }
    add_definitions(wanted, &mut schemas);
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.4"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// The built-in definitions asked for, and all that they refer to.
fn add_definitions(mut wanted: Vec<String>, schemas: &mut Map<String, Value>) {
    let mut seen = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let Some(text) = Definitions::builtin().text(&name) else { continue };
        let Ok(schema) = serde_json::from_str::<Value>(text) else { continue };
        references(&schema, &mut wanted);
        schemas.insert(name, schema);
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
                    value => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// `com.example.v1.Thing` and its list.
fn custom_schemas(resource: &Resource, schemas: &mut Map<String, Value>) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    parts.extend([resource.version.as_str(), resource.kind.as_str()]);
    let name = parts.join(".");
    let reference = |name: &str| format!("#/components/schemas/{name}");
    let described = |what: &str, def: &str| json!({"description": what, "allOf": [{"$ref": reference(&format!("{META}.{def}"))}]});
    let (api_version, kind) = type_meta();
    let mut schema = resource
        .openapi()
        .unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    if schema["properties"].is_object() || schema.get("x-kubernetes-preserve-unknown-fields").is_none() {
        schema["properties"]["apiVersion"] = api_version.clone();
        schema["properties"]["kind"] = kind.clone();
        schema["properties"]["metadata"] = described(
            "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
            "ObjectMeta",
        );
    }
    let gvk = |kind: &str| json!([{"group": resource.group, "kind": kind, "version": resource.version}]);
    schema["x-kubernetes-group-version-kind"] = gvk(&resource.kind);
    let list = json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": api_version,
            "items": {
                "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", resource.plural),
                "type": "array",
                "items": {"$ref": reference(&name)},
            },
            "kind": kind,
            "metadata": described(
                "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
                "ListMeta",
            ),
        },
        "x-kubernetes-group-version-kind": gvk(&resource.list_kind),
    });
    schemas.insert(name.clone(), schema);
    schemas.insert(format!("{}List", name), list);
    name
}

/// The documentation that every object shares, taken from one that has it.
fn type_meta() -> (Value, Value) {
    let text = Definitions::builtin().text("io.k8s.api.core.v1.ConfigMap").unwrap_or("{}");
    let schema: Value = serde_json::from_str(text).unwrap_or_default();
    (schema["properties"]["apiVersion"].clone(), schema["properties"]["kind"].clone())
}

fn add_paths(resource: &Resource, schema: &str, paths: &mut Map<String, Value>) {
    let root = format!("/{}", root_of(&resource.group, &resource.version));
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let item = format!("{collection}/{{name}}");
    if resource.namespaced {
        paths.insert(
            format!("{root}/{}", resource.plural),
            json!({"get": operation(resource, "list", schema)}),
        );
    }
    paths.insert(
        collection,
        json!({
            "get": operation(resource, "list", schema),
            "post": operation(resource, "post", schema),
            "delete": operation(resource, "deletecollection", schema),
        }),
    );
    let object = json!({
        "get": operation(resource, "get", schema),
        "put": operation(resource, "put", schema),
        "patch": operation(resource, "patch", schema),
        "delete": operation(resource, "delete", schema),
    });
    if resource.has_subresource("status") {
        let mut status = object.clone();
        if let Some(status) = status.as_object_mut() {
            status.remove("delete");
        }
        paths.insert(format!("{item}/status"), status);
    }
    paths.insert(item, object);
}

fn operation(resource: &Resource, action: &str, schema: &str) -> Value {
    let parameter = |name: &str, ty: &str| json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}});
    let parameters: Vec<Value> = match action {
        "post" | "put" => {
            ["dryRun", "fieldManager", "fieldValidation"].iter().map(|n| parameter(n, "string")).collect()
        }
        "patch" => {
            let mut all: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
                .iter()
                .map(|n| parameter(n, "string"))
                .collect();
            all.push(parameter("force", "boolean"));
            all
        }
        "delete" => vec![parameter("dryRun", "string"), parameter("propagationPolicy", "string")],
        "list" | "deletecollection" => {
            ["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion"]
                .iter()
                .map(|n| parameter(n, "string"))
                .collect()
        }
        _ => Vec::new(),
    };
    let shown = if action == "list" { format!("{schema}List") } else { schema.to_owned() };
    json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": resource.group, "kind": resource.kind, "version": resource.version},
        "parameters": parameters,
        "responses": {"200": {
            "description": "OK",
            "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{shown}")}}},
        }},
    })
}
