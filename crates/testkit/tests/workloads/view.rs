//! What is recorded of objects and Events: what a user relies on, without what differs from run to run.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::world::{KINDS, World, is_ready, number, text};

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").expect("a constant")
});
static TIME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z").expect("a constant"));

/// What is there, masked: the objects of each kind, and the Events.
pub(crate) fn snapshot(world: &World, namespace: &str) -> Value {
    let mask = Mask::new(world, namespace);
    let mut shown = Map::new();
    // Endpoints have cases of their own, which show them in full.
    for (kind, _) in KINDS.into_iter().filter(|(kind, _)| !kind.starts_with("Endpoint")) {
        let mut objects: Vec<Value> = match kind {
            "Event" => events(world, &mask),
            "Pod" => world.all(kind).map(|pod| mask.value(&of_pod(pod))).collect(),
            _ => world.all(kind).map(|object| mask.value(&of_object(object))).collect(),
        };
        objects.sort_by_key(Value::to_string);
        if !objects.is_empty() {
            shown.insert(kind.to_owned(), Value::Array(objects));
        }
    }
    Value::Object(shown)
}

/// A value, masked.
pub(crate) fn masked(world: &World, namespace: &str, value: &Value) -> Value {
    Mask::new(world, namespace).value(value)
}

/// Literal texts and what stands for them.
struct Mask {
    literals: Vec<(String, String)>,
}

impl Mask {
    fn new(world: &World, namespace: &str) -> Mask {
        let mut literals = Vec::new();
        for (name, (prefix, _)) in &world.pods {
            if !prefix.is_empty() && name.len() == prefix.len() + 5 {
                literals.push((name.clone(), format!("{prefix}{{random}}")));
            }
        }
        for (number, hash) in (1..).zip(&world.hashes) {
            literals.push((hash.clone(), format!("{{hash{number}}}")));
        }
        literals.push((namespace.to_owned(), "{ns}".to_owned()));
        Mask { literals }
    }

    fn text(&self, text: &str) -> String {
        let literals = self.literals.iter();
        let text = literals.fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        TIME.replace_all(&UUID.replace_all(&text, "{uid}"), "{time}").into_owned()
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(key, value)| (self.text(key), self.value(value))).collect())
            }
            other => other.clone(),
        }
    }
}

fn of_object(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    if let Some(template) = spec.get_mut("template") {
        *template = json!({
            "labels": template["metadata"]["labels"], "images": images(&template["spec"]),
        });
    }
    let mut shown = json!({ "metadata": metadata(object) });
    for (key, value) in [("spec", spec), ("status", status(&object["status"]))] {
        if !value.is_null() {
            shown[key] = value;
        }
    }
    if let Some(revision) = object.get("revision") {
        shown["revision"] = revision.clone();
    }
    shown
}

fn of_pod(pod: &Value) -> Value {
    let mut shown = json!({
        "metadata": metadata(pod),
        "images": images(&pod["spec"]),
        "assigned": !text(pod, "/spec/nodeName").is_empty(),
        "phase": pod["status"]["phase"],
        "ready": is_ready(pod),
    });
    for key in ["hostname", "subdomain"] {
        if let Some(value) = pod["spec"].get(key) {
            shown[key] = value.clone();
        }
    }
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let volumes = list(&pod["spec"]["volumes"]);
    let claims: Vec<Value> =
        volumes.into_iter().filter(|volume| !volume["persistentVolumeClaim"].is_null()).collect();
    let env = list(&pod["spec"]["containers"][0]["env"]);
    for (key, values) in [("claims", claims), ("env", env)] {
        if !values.is_empty() {
            shown[key] = values.into();
        }
    }
    shown
}

fn images(spec: &Value) -> Value {
    let containers = spec["containers"].as_array().into_iter().flatten();
    containers.map(|container| container["image"].clone()).collect()
}

/// The metadata that controllers write or read.
fn metadata(object: &Value) -> Value {
    let mut shown = Map::new();
    let from = &object["metadata"];
    let kept = ["name", "generateName", "labels", "annotations", "finalizers", "generation"];
    for key in kept.into_iter().chain(["deletionGracePeriodSeconds", "ownerReferences"]) {
        if let Some(value) = from.get(key) {
            shown.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(Value::Object(annotations)) = shown.get_mut("annotations") {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if annotations.is_empty() {
            shown.remove("annotations");
        }
    }
    if !from["deletionTimestamp"].is_null() {
        shown.insert("deleting".to_owned(), true.into());
    }
    Value::Object(shown)
}

/// A status without the times of its conditions, which are in no particular order.
fn status(status: &Value) -> Value {
    let mut shown = status.clone();
    if let Some(Value::Array(conditions)) = shown.get_mut("conditions") {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.retain(|key, _| !key.ends_with("Time"));
        }
        conditions.sort_by_key(|condition| text(condition, "/type").to_owned());
    }
    shown
}

/// How often an Event tells something. That a set has deleted a Pod counts once for each time that the Pod was made: a
/// controller that has not seen yet that it is leaving tells it to go again.
fn times(world: &World, event: &Value) -> i64 {
    let count = number(event, "/count").max(1);
    let deleted = text(event, "/message").strip_prefix("Delete Pod ");
    match deleted.and_then(|rest| rest.split(' ').next()) {
        Some(pod) => count.min(world.times_made(pod).max(1)),
        None => count,
    }
}

/// Events as lines, the same ones added up.
fn events(world: &World, mask: &Mask) -> Vec<Value> {
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    // What becomes of a claim is the business of whoever has volumes.
    let of_claim = |event: &&Value| text(event, "/involvedObject/kind") == "PersistentVolumeClaim";
    for event in world.all("Event").filter(|event| !of_claim(event)) {
        let about = &event["involvedObject"];
        let line = format!(
            "{} {} {}/{} by {}: {}",
            text(event, "/type"),
            text(event, "/reason"),
            text(about, "/kind"),
            text(about, "/name"),
            text(event, "/source/component"),
            text(event, "/message"),
        );
        *lines.entry(mask.text(&line)).or_default() += times(world, event);
    }
    lines.into_iter().map(|(line, count)| Value::String(format!("{count}x {line}"))).collect()
}
