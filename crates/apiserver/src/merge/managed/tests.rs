//! Replays sequences of requests that were sent to a real API server: from each object that it stored, our functions
//! must come to the next one.

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    merge::{
        blank, json_patch, merge_patch, strategic,
        typed::testing::{any_json, built_in, custom, document},
    },
    status::Status,
};

#[derive(Deserialize)]
struct Case {
    name: String,
    kind: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    op: String,
    manager: String,
    body: Value,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    now: String,
    /// The real server found nothing to write.
    #[serde(default)]
    unchanged: bool,
    /// What a controller made of the object since the step before.
    live: Option<Value>,
    result: Option<Value>,
    error: Option<Value>,
}

/// What the server knows about a kind.
struct Served {
    api_version: String,
    schema: Schema,
    built_in: Option<&'static Schema>,
    blank: Value,
    has_status: bool,
    status_reset: &'static [&'static [&'static str]],
}

fn served(kind: &str) -> Served {
    if kind == "Widget" {
        let schema: Value = serde_json::from_str(include_str!("../testdata/widget.json")).expect("JSON");
        return Served {
            api_version: "merge.test/v1".to_owned(),
            schema: custom(&schema),
            built_in: None,
            blank: json!({}),
            has_status: true,
            status_reset: &[&["metadata"], &["spec"]],
        };
    }
    let (name, schema) = document()
        .as_object()
        .into_iter()
        .flatten()
        .find(|(name, schema)| {
            let gvk = &schema["x-kubernetes-group-version-kind"][0];
            gvk["kind"] == kind && !name.contains("events.v1")
        })
        .expect("the kind is built in");
    let gvk = &schema["x-kubernetes-group-version-kind"][0];
    let text = |key: &str| gvk[key].as_str().unwrap_or_default();
    let api_version = [text("group"), text("version")].join("/").trim_start_matches('/').to_owned();
    Served {
        api_version,
        schema: Schema::default(),
        built_in: Some(built_in(name)),
        blank: blank(&|name| document().get(name).cloned(), name),
        has_status: schema["properties"].get("status").is_some(),
        status_reset: match kind {
            "Pod" => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
            "Deployment" => &[&["spec"], &["metadata", "labels"]],
            _ => &[&["spec"]],
        },
    }
}

impl Served {
    fn schema(&self) -> &Schema {
        self.built_in.unwrap_or(&self.schema)
    }

    fn reset(&self, subresource: &str) -> FieldSet {
        match subresource {
            "" if self.has_status => FieldSet::of_fields(&[&["status"]]),
            "" => FieldSet::new(),
            _ => FieldSet::of_fields(self.status_reset),
        }
    }
}

fn replay(cases: &str) {
    let cases: Vec<Case> = serde_json::from_str(cases).expect("the cases are JSON");
    let mut failures = Vec::new();
    for case in &cases {
        let served = served(&case.kind);
        let mut live: Option<Value> = None;
        for (i, step) in case.steps.iter().enumerate() {
            let before = failures.len();
            live = step.live.clone().or(live);
            play(case, &served, live.as_ref(), step, &mut failures);
            for failure in &mut failures[before..] {
                *failure = format!("{}, step {i} ({} by {}): {failure}", case.name, step.op, step.manager);
            }
            live = step.result.clone().or(live);
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

fn play(case: &Case, served: &Served, live: Option<&Value>, step: &Step, failures: &mut Vec<String>) {
    let reset = served.reset(&step.subresource);
    let kind = Kind {
        api_version: &served.api_version,
        kind: &case.kind,
        schema: served.schema(),
        blank: &served.blank,
        reset: &reset,
    };
    let writer = Writer { manager: &step.manager, subresource: &step.subresource, now: &step.now };
    let nothing = json!({});
    let patched: Result<Value, Status> = match step.op.as_str() {
        "json" => json_patch::apply(live.unwrap_or(&nothing), &step.body).map_err(Status::from),
        "merge" => merge_patch::apply(live.unwrap_or(&nothing), &step.body).map_err(Status::from),
        "strategic" => {
            strategic::apply(kind.schema, live.unwrap_or(&nothing), &step.body).map_err(Status::from)
        }
        "apply" => apply(&kind, live, &step.body, &writer, step.force).map_err(Status::from),
        _ => Ok(step.body.clone()),
    };
    let (ours, expected) = match (patched, &step.result) {
        (Ok(ours), Some(expected)) => (ours, expected),
        (Err(status), None) => {
            let (ours, mut theirs) = (status.to_json(), step.error.clone().unwrap_or_default());
            // The real server lists owners in any order.
            if let Some(causes) = theirs.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
                causes.sort_by_key(|cause| cause["message"].as_str().map(str::to_owned));
            }
            if ours != theirs {
                failures.push(format!("error\n  ours   {ours}\n  theirs {theirs}"));
            }
            return;
        }
        // What our functions let through, validation refuses.
        (Ok(_), None) if step.error.as_ref().is_some_and(|e| e["reason"] == "Invalid") => return,
        (ours, theirs) => return failures.push(format!("ours {ours:?}, theirs {theirs:?} {:?}", step.error)),
    };
    let is_write = matches!(step.op.as_str(), "create" | "update");
    if !is_write && let Err(difference) = fits(&ours, expected, &kind, &case.kind) {
        failures.push(format!("object {difference}\n  ours   {ours}\n  theirs {expected}"));
    }
    let mut ours = if is_write || step.op == "apply" { ours } else { defaulted(&ours, expected) };
    if step.op != "apply" {
        on_update(&kind, live, &mut ours, &writer);
    }
    let (ours_owned, theirs_owned) =
        (&ours["metadata"]["managedFields"], &expected["metadata"]["managedFields"]);
    if ours_owned != theirs_owned {
        failures.push(format!("owners\n  ours   {ours_owned}\n  theirs {theirs_owned}"));
    }
    if let (true, Some(live)) = (step.unchanged, live) {
        revert_times(live, &mut ours);
        if ours["metadata"]["managedFields"] != live["metadata"]["managedFields"] {
            failures.push("not seen to be unchanged".to_owned());
        }
    }
}

/// The object that the real server stored, with the managed fields that it started from.
fn defaulted(patched: &Value, stored: &Value) -> Value {
    let mut object = stored.clone();
    object["metadata"]["managedFields"] = patched["metadata"]["managedFields"].clone();
    object
}

/// Whether our object is the stored one but for what the server added: defaults, and what it sets itself.
fn fits(ours: &Value, theirs: &Value, kind: &Kind<'_>, name: &str) -> Result<(), String> {
    let reset = |key: &str| kind.reset.has(&[crate::merge::PathElement::field(key)]);
    for (key, value) in ours.as_object().into_iter().flatten() {
        if key != "metadata" && !reset(key) {
            within(value, &theirs[key], key)?;
        }
    }
    let exact = matches!(name, "ConfigMap" | "Widget" | "Secret" | "ServiceAccount");
    for (key, value) in theirs.as_object().into_iter().flatten().filter(|_| exact) {
        if key != "metadata" && !reset(key) {
            within(value, &ours[key], key).map_err(|e| format!("missing {e}"))?;
        }
    }
    if !reset("metadata") {
        for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
            let (ours, theirs) = (&ours["metadata"][key], &theirs["metadata"][key]);
            let empty = |v: &Value| *v == json!({}) || *v == json!([]) || v.is_null();
            if !(ours == theirs || empty(ours) && empty(theirs) || kind.reset.has(&meta(key))) {
                return Err(format!("metadata.{key}"));
            }
        }
    }
    Ok(())
}

fn meta(key: &str) -> [crate::merge::PathElement; 2] {
    [crate::merge::PathElement::field("metadata"), crate::merge::PathElement::field(key)]
}

fn within(part: &Value, whole: &Value, path: &str) -> Result<(), String> {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().try_for_each(|(key, part)| {
            let defaults = ["mode", "protocol", "targetPort"];
            match whole.get(key) {
                Some(whole) => within(part, whole, &format!("{path}.{key}")),
                None if part.is_null() || defaults.contains(&key.as_str()) => Ok(()),
                None => Err(format!("{path}.{key}")),
            }
        }),
        (Value::Array(part), Value::Array(whole)) if part.len() == whole.len() => {
            part.iter().zip(whole).try_for_each(|(part, whole)| within(part, whole, &format!("{path}[]")))
        }
        (Value::Null, _) => Ok(()),
        (part, Value::Null) if *part == json!({}) || *part == json!([]) => Ok(()),
        (part, whole) if part == whole => Ok(()),
        _ => Err(path.to_owned()),
    }
}

#[test]
fn plain_kinds_like_the_real_server() {
    replay(include_str!("../testdata/plain.json"));
}

#[test]
fn creations_like_the_real_server() {
    replay(include_str!("../testdata/creations.json"));
}

#[test]
fn workloads_like_the_real_server() {
    replay(include_str!("../testdata/workloads.json"));
}

#[test]
fn custom_resources_like_the_real_server() {
    replay(include_str!("../testdata/custom.json"));
}

#[test]
fn scaling_takes_the_replicas_without_a_time() {
    let served = served("Deployment");
    let reset = served.reset("");
    let kind = Kind {
        api_version: &served.api_version,
        kind: "Deployment",
        schema: served.schema(),
        blank: &served.blank,
        reset: &reset,
    };
    let mut live = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "paused": true}});
    on_update(&kind, None, &mut live, &Writer { manager: "a", ..WRITER });
    let mut new = live.clone();
    new["spec"]["replicas"] = json!(3);
    on_update(&kind, Some(&live), &mut new, &Writer { manager: "s", subresource: "scale", now: "" });
    assert_eq!(
        new["metadata"]["managedFields"],
        json!([
            {
                "manager": "s", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
            },
            {
                "manager": "a", "operation": "Update", "apiVersion": "apps/v1", "time": WRITER.now,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:paused": {}}},
            },
        ])
    );
}

const WRITER: Writer<'_> = Writer { manager: "m", subresource: "", now: "2026-01-02T03:04:05Z" };

fn schema() -> Schema {
    custom(&json!({"type": "object", "properties": {
        "a": {"x-kubernetes-preserve-unknown-fields": true},
        "b": {"type": "string"},
        "list": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {}},
        },
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {}},
        "c": {"type": "object", "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true}},
    }}))
}

fn with_kind<T>(run: impl FnOnce(&Kind<'_>) -> T) -> T {
    let (schema, blank, reset) = (schema(), json!({}), FieldSet::new());
    run(&Kind { api_version: "t/v1", kind: "T", schema: &schema, blank: &blank, reset: &reset })
}

/// Objects that mostly fit the schema, with a few names that recur.
fn any_object() -> impl Strategy<Value = Value> {
    let element = ("[a-c]", any_json()).prop_map(|(name, value)| json!({"name": name, "v": value}));
    let members = (
        prop::option::of(any_json()),
        prop::option::of("[a-b]"),
        prop::option::of(prop::collection::vec(element, 0..4)),
        prop::option::of(prop::collection::vec("[a-d]", 0..4)),
        prop::option::of(prop::collection::btree_map("[a-c]", any_json(), 0..3)),
    );
    members.prop_map(|(a, b, list, set, c)| {
        let mut object = json!({"apiVersion": "t/v1", "kind": "T", "metadata": {"name": "x"}});
        let members =
            [("a", json!(a)), ("b", json!(b)), ("list", json!(list)), ("set", json!(set)), ("c", json!(c))];
        for (name, value) in members {
            if !value.is_null() {
                object[name] = value;
            }
        }
        object
    })
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(mut live in any_object(), mut config in any_object()) {
        // An empty list is not owned; an applier of nothing else leaves an object that nobody tracks.
        config["b"] = json!("b");
        with_kind(|kind| {
            on_update(kind, None, &mut live, &Writer { manager: "u", ..WRITER });
            if let Ok(once) = apply(kind, Some(&live), &config, &WRITER, true) {
                let later = Writer { now: "2030-01-01T00:00:00Z", ..WRITER };
                let twice = apply(kind, Some(&once), &config, &later, true);
                prop_assert_eq!(twice, Ok(once));
            }
            Ok(())
        })?;
    }

    #[test]
    fn updating_to_the_same_changes_nothing(mut live in any_object(), mut new in any_object()) {
        with_kind(|kind| {
            on_update(kind, None, &mut live, &Writer { manager: "u", ..WRITER });
            on_update(kind, Some(&live), &mut new, &WRITER);
            let mut again = new.clone();
            on_update(kind, Some(&new), &mut again, &Writer { now: "2030-01-01T00:00:00Z", ..WRITER });
            prop_assert_eq!(again, new);
            Ok(())
        })?;
    }
}
