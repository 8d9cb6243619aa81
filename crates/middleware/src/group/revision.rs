//! Revisions: what was rendered for a Group, made ready to be applied. Pure.

use std::collections::BTreeMap;
use std::str::FromStr;

use agentcube_api::Quantity;
use agentcube_api::labels::MIDDLEWARE_REVISION;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Everything that a Group is made of at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Hash of all the rest.
    pub name: String,
    /// Version of the engine.
    pub version: String,
    /// Number of Pods.
    pub replicas: i32,
    /// Revision of the template of its Pods; empty if it has no StatefulSet.
    pub pods: String,
    /// Revision of what Pods can take without a restart; empty if they cannot.
    pub configuration: String,
    /// Size of the volumes, by the name of their template.
    pub volumes: BTreeMap<String, String>,
    pub objects: Vec<Value>,
}

/// A short hash of some JSON, fit for a label.
pub fn hash(value: &Value) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, value.to_string().as_bytes());
    digest.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is(object: &Value, kind: &str) -> bool {
    object["kind"] == kind
}

impl Revision {
    /// Makes a revision of objects. Pods are deleted by us, one by one, so StatefulSets leave them alone. Where the
    /// middleware `reloads` its configuration, a change of that is no change of the Pods.
    pub fn new(version: &str, replicas: i32, mut objects: Vec<Value>, reloads: bool) -> Revision {
        let configuration: Vec<&Value> =
            objects.iter().filter(|object| is(object, "ConfigMap") || is(object, "Secret")).collect();
        let configuration = hash(&json!(configuration));
        let mut pods = String::new();
        let mut volumes = BTreeMap::new();
        for object in objects.iter_mut().filter(|object| is(object, "StatefulSet")) {
            let spec = &mut object["spec"];
            spec["replicas"] = replicas.into();
            spec["updateStrategy"] = json!({ "type": "OnDelete" });
            let made_of = match reloads {
                true => json!([&spec["template"]]),
                false => json!([&spec["template"], &configuration]),
            };
            pods = hash(&made_of);
            spec["template"]["metadata"]["labels"][MIDDLEWARE_REVISION] = pods.clone().into();
            for template in spec["volumeClaimTemplates"].as_array().into_iter().flatten() {
                let name = template.pointer("/metadata/name").and_then(Value::as_str);
                let size = template.pointer("/spec/resources/requests/storage").and_then(Value::as_str);
                if let (Some(name), Some(size)) = (name, size) {
                    volumes.insert(name.to_owned(), size.to_owned());
                }
            }
        }
        let configuration = if reloads { configuration } else { String::new() };
        let name = hash(&json!([version, objects]));
        Revision { name, version: version.into(), replicas, pods, configuration, volumes, objects }
    }

    /// Its objects as they are applied: with so many Pods for now, and volumes' templates as they were first.
    pub fn applied(&self, replicas: i32, claim_templates: Option<&Value>) -> Vec<Value> {
        let mut objects = self.objects.clone();
        for object in objects.iter_mut().filter(|object| is(object, "StatefulSet")) {
            object["spec"]["replicas"] = replicas.into();
            if let Some(templates) = claim_templates.filter(|templates| !templates.is_null()) {
                object["spec"]["volumeClaimTemplates"] = templates.clone();
            }
        }
        objects
    }

    /// The files that its ConfigMaps have, and their digests.
    pub fn files(&self) -> Vec<(String, String)> {
        let maps = self.objects.iter().filter(|object| is(object, "ConfigMap"));
        let entries = maps.filter_map(|map| map["data"].as_object()).flatten();
        let digest = |text: &str| {
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
        };
        entries.filter_map(|(name, text)| Some((name.clone(), digest(text.as_str()?)))).collect()
    }

    /// The size that volumes of this template should have.
    pub fn volume(&self, template: &str) -> Option<Quantity> {
        Quantity::from_str(self.volumes.get(template)?).ok()
    }
}
