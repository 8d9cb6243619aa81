//! Pod templates inside our kinds: the whole schema of Kubernetes, with descriptions cut to their first sentence so
//! that a CRD stays small enough for `kubectl apply`, list keys for server-side apply, and quantities that may be
//! numbers. See docs/decisions/0005.

use k8s_openapi::api::core::v1::{Affinity, PodSpec, PodTemplateSpec};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

use crate::quantity;

/// Lists of a Pod spec whose items have a name, and what makes it: as Kubernetes itself merges them.
const LIST_KEYS: [(&str, &[&str]); 12] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("env", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("volumes", &["name"]),
    ("imagePullSecrets", &["name"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
];

/// Fields of a Pod spec that a template must leave out: `kubectl debug` makes them, nobody else.
const NOT_IN_TEMPLATES: [&str; 1] = ["ephemeralContainers"];

/// Objects below a template that are quantities, or whose values are; users write them as numbers too.
const QUANTITY_MAPS: [&str; 4] = ["limits", "requests", "overhead", "capacity"];
const QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

/// The schema of a Pod template: labels and annotations, and the Pod spec.
pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
    let mut spec = generator.subschema_for::<PodSpec>().to_value();
    if let Some(properties) = spec.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !NOT_IN_TEMPLATES.contains(&name.as_str()));
    }
    polish(&mut spec);
    let strings = |description: &str| {
        json!({
            "type": "object",
            "additionalProperties": { "type": "string" },
            "description": description,
        })
    };
    let mut schema = json_schema!({
        "type": "object",
        "description": "The Pod that an instance is: labels, annotations and Pod spec, as in a Deployment.",
        "properties": {
            "metadata": {
                "type": "object",
                "description": "Labels and annotations of the Pods; names and owners are given to them.",
                "properties": {
                    "labels": strings("Labels of the Pods."),
                    "annotations": strings("Annotations of the Pods."),
                },
            },
        },
        "required": ["spec"],
    });
    if let Some(properties) = schema.get_mut("properties") {
        properties["spec"] = spec;
    }
    schema
}

/// The schema of Pod affinity, cut down in the same way.
pub(crate) fn affinity(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Affinity>().to_value();
    polish(&mut schema);
    Schema::try_from(schema).unwrap_or_default()
}

/// An object whose fields are not ours to know.
pub(crate) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Shortens descriptions and names list keys, everywhere below. The depth is that of Kubernetes' own types.
fn polish(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::String(description)) = object.get_mut("description") {
        *description = first_sentence(description);
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            if let Some((_, keys)) = LIST_KEYS.iter().find(|(list, _)| list == name) {
                name_list_keys(property, keys);
            }
            polish(property);
            bound_scalars(name, property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            polish(inner);
        }
    }
}

/// Refuses what a Pod could not have and k8s-openapi could not read: quantities that are none, ports past their range.
fn bound_scalars(name: &str, property: &mut Value) {
    let bounded = match name {
        _ if QUANTITIES.contains(&name) => Some(property),
        _ if QUANTITY_MAPS.contains(&name) => property.get_mut("additionalProperties"),
        "port" if property["x-kubernetes-int-or-string"] == json!(true) => {
            property["minimum"] = json!(1);
            property["maximum"] = json!(65535);
            None
        }
        _ => None,
    };
    if let Some(quantity) = bounded
        && quantity["x-kubernetes-int-or-string"] == json!(true)
    {
        quantity["pattern"] = json!(quantity::PATTERN);
    }
}

/// Marks a list as a map by `keys`, unless its items lack one of them or are no objects.
fn name_list_keys(list: &mut Value, keys: &[&str]) {
    let Some(item) = list.pointer_mut("/items").and_then(Value::as_object_mut) else { return };
    let Some(properties) = item.get("properties").and_then(Value::as_object) else { return };
    if !keys.iter().all(|key| properties.contains_key(*key)) {
        return;
    }
    // A key must be required or have a default.
    if keys.contains(&"protocol") {
        item["properties"]["protocol"]["default"] = json!("TCP");
    }
    let required = item.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for key in keys.iter().filter(|key| **key != "protocol") {
            if !required.iter().any(|name| name == key) {
                required.push(json!(key));
            }
        }
    }
    list["x-kubernetes-list-type"] = json!("map");
    list["x-kubernetes-list-map-keys"] = json!(keys);
}

fn first_sentence(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or(text).trim();
    let end = paragraph
        .match_indices(". ")
        .map(|(at, _)| at)
        .find(|at| !paragraph[..*at].ends_with("e.g") && !paragraph[..*at].ends_with("i.e"))
        .map_or(paragraph.len(), |at| at + 1);
    paragraph[..end].to_string()
}

/// Reads a template whose quantities may be numbers, which the schema allows and k8s-openapi does not.
pub(crate) fn deserialize<'de, D>(deserializer: D) -> Result<Option<PodTemplateSpec>, D::Error>
where
    D: Deserializer<'de>,
{
    let Some(mut template) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    quantities_as_text(&mut template);
    serde_json::from_value(template).map(Some).map_err(de::Error::custom)
}

/// Bounded by the depth that serde_json reads.
fn quantities_as_text(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, child) in object.iter_mut() {
                match child {
                    Value::Object(map) if QUANTITY_MAPS.contains(&key.as_str()) => numbers_as_text(map),
                    Value::Number(number) if QUANTITIES.contains(&key.as_str()) => {
                        *child = Value::String(number.to_string());
                    }
                    _ => quantities_as_text(child),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities_as_text),
        _ => {}
    }
}

fn numbers_as_text(map: &mut Map<String, Value>) {
    for value in map.values_mut() {
        if let Value::Number(number) = value {
            *value = Value::String(number.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_quantities_too() {
        let json = json!({ "spec": { "containers": [{
            "name": "agent",
            "resources": { "limits": { "cpu": 2, "memory": "4Gi" } },
        }], "volumes": [{ "name": "tmp", "emptyDir": { "sizeLimit": 1024 } }] } });
        let template = deserialize(json).expect("a template").expect("not null");
        let spec = template.spec.expect("a spec");
        let limits = spec.containers[0].resources.as_ref().and_then(|r| r.limits.as_ref()).expect("limits");
        assert_eq!(limits["cpu"].0, "2");
        let empty_dir = spec.volumes.as_ref().and_then(|v| v[0].empty_dir.as_ref()).expect("an emptyDir");
        assert_eq!(empty_dir.size_limit.as_ref().map(|q| q.0.as_str()), Some("1024"));
    }

    #[test]
    fn sentences_end_where_they_end() {
        assert_eq!(first_sentence("One, e.g. this. Two."), "One, e.g. this.");
        assert_eq!(first_sentence("Only one"), "Only one");
        assert_eq!(first_sentence("First\n\nSecond"), "First");
    }
}
