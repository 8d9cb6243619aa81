//! Every example fits the Rust types without losing a field, and every CEL rule has an example that it refuses.
//! Whether servers accept and refuse them is tested with the servers.
// The whole file is a test; clippy sees that of functions marked so only.
#![allow(clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agentcube_api::{
    App, Component, FrontendIntegration, Group, JSBundle, Plugin, Quantity, Sandbox, SandboxPool, Task,
    TaskGateway,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn files(refused: bool) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let folders = std::fs::read_dir(root).expect("examples").map(|e| e.expect("an entry").path());
    let mut files: Vec<PathBuf> = folders
        .filter(|path| path.is_dir() && path.ends_with("refused") == refused)
        .flat_map(|folder| std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn round_trip<K: DeserializeOwned + Serialize>(document: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<K>(document.clone())?)
}

/// The document after a trip through its Rust type; `None` for kinds that are not ours.
fn through_rust(document: &Value) -> Option<Result<Value, serde_json::Error>> {
    Some(match document["kind"].as_str()? {
        "Task" => round_trip::<Task>(document),
        "TaskGateway" => round_trip::<TaskGateway>(document),
        "Sandbox" => round_trip::<Sandbox>(document),
        "SandboxPool" => round_trip::<SandboxPool>(document),
        "App" => round_trip::<App>(document),
        "Component" => round_trip::<Component>(document),
        "Group" => round_trip::<Group>(document),
        "Plugin" => round_trip::<Plugin>(document),
        "FrontendIntegration" => round_trip::<FrontendIntegration>(document),
        "JSBundle" => round_trip::<JSBundle>(document),
        _ => return None,
    })
}

/// Everything that is in `given` must be in `kept`; quantities and durations may be written otherwise.
fn assert_kept(given: &Value, kept: &Value, path: &str) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                let default = value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value == "";
                match kept.get(key) {
                    Some(inner) => assert_kept(value, inner, &format!("{path}.{key}")),
                    None => assert!(default, "{path}.{key} was lost"),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            assert_eq!(given.len(), kept.len(), "{path}");
            for (index, (a, b)) in given.iter().zip(kept).enumerate() {
                assert_kept(a, b, &format!("{path}[{index}]"));
            }
        }
        (given, kept) if given == kept => {}
        (given, kept) => {
            let quantity = |v: &Value| serde_json::from_value::<Quantity>(v.clone()).ok();
            let duration = |v: &Value| serde_json::from_value::<agentcube_api::GoDuration>(v.clone()).ok();
            let same = quantity(given).is_some_and(|q| Some(q) == quantity(kept))
                || duration(given).is_some_and(|d| Some(d) == duration(kept));
            assert!(same, "{path}: {given} became {kept}");
        }
    }
}

#[test]
fn accepted_examples_lose_nothing_in_rust() {
    let mut kinds = BTreeSet::new();
    for path in files(false) {
        for document in documents(&path) {
            let Some(result) = through_rust(&document) else { continue };
            let kept = result.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_kept(&document, &kept, &path.display().to_string());
            kinds.insert(document["kind"].to_string());
        }
    }
    assert_eq!(kinds.len(), 10, "every kind has an example: {kinds:?}");
}

fn messages(schema: &JSONSchemaProps, found: &mut BTreeSet<String>) {
    let rules = schema.x_kubernetes_validations.iter().flatten();
    found.extend(rules.filter_map(|rule| rule.message.clone()));
    schema.properties.iter().flatten().for_each(|(_, property)| messages(property, found));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        messages(items, found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        messages(values, found);
    }
}

#[test]
fn every_rule_has_a_refused_example() {
    let mut refusals = Vec::new();
    for path in files(true) {
        let text = std::fs::read_to_string(&path).expect("a file");
        let fragment = text.lines().next().and_then(|line| line.strip_prefix("# refused: "));
        let fragment = fragment.unwrap_or_else(|| panic!("{} does not say why", path.display())).to_string();
        let documents = documents(&path);
        let last = documents.last().expect("a document");
        refusals.push((last["kind"].as_str().expect("a kind").to_string(), fragment));
    }
    for crd in agentcube_api::crds() {
        let mut found = BTreeSet::new();
        for version in &crd.spec.versions {
            let schema =
                version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
            messages(schema, &mut found);
        }
        for message in found {
            let covered = refusals
                .iter()
                .any(|(kind, fragment)| *kind == crd.spec.names.kind && message.contains(fragment));
            assert!(covered, "{}: no example in examples/refused for {message:?}", crd.spec.names.kind);
        }
    }
}
