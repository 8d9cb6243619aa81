//! The CustomResourceDefinitions of all kinds, in a stable order, and the files they are written to.
//! What `kube` generates is put right here: fields are optional without being nullable, as Go's tools have it,
//! because a null would pass `has()` in a CEL rule and then fail its comparison.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::Value;

use crate::agentcube::{Task, TaskGateway};
use crate::frontend::{FrontendIntegration, JSBundle};
use crate::middleware::{App, Backup, Component, Group, Plugin};
use crate::sandbox::{Sandbox, SandboxPool};
use crate::yaml;

const HEADER: &str = "# Generated from crates/api by `cargo xtask gen`. Do not edit.\n";

/// The CustomResourceDefinitions of all kinds.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        Task::crd(),
        TaskGateway::crd(),
        Sandbox::crd(),
        SandboxPool::crd(),
        App::crd(),
        Component::crd(),
        Group::crd(),
        Plugin::crd(),
        Backup::crd(),
        FrontendIntegration::crd(),
        JSBundle::crd(),
    ];
    crds.iter_mut().for_each(put_right);
    crds
}

/// Name and content of the file of each CustomResourceDefinition: `<group>_<plural>.yaml`.
pub fn crd_files() -> Vec<(String, String)> {
    crds().iter().map(|crd| (file_name(crd), render(crd))).collect()
}

fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

/// A CustomResourceDefinition as YAML, the same text every time.
pub fn render(crd: &CustomResourceDefinition) -> String {
    format!("{HEADER}{}", yaml::render(&to_json(crd)))
}

fn to_json(crd: &CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(crd).expect("a definition is always JSON");
    whole_numbers(&mut value);
    value
}

/// Bounds of integers are written as integers: k8s-openapi holds them as floating point.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Number(number) => {
            if let Some(float) = number.as_f64()
                && number.is_f64()
                && float.fract() == 0.0
                && float.abs() < 9e15
            {
                *number = (float as i64).into();
            }
        }
        _ => {}
    }
}

fn put_right(crd: &mut CustomResourceDefinition) {
    let nullable_orders = crd.spec.names.kind == "Plugin";
    let short_name = crd.spec.names.kind == "Task";
    for version in &mut crd.spec.versions {
        let Some(root) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) else {
            continue;
        };
        root.title = None;
        put_schema_right(root);
        if nullable_orders {
            allow_null_orders(root);
        }
        if short_name {
            root.x_kubernetes_validations.get_or_insert_default().push(short_name_rule());
        }
    }
}

/// Removes `nullable`, and the line breaks of our source from descriptions, everywhere below. The depth is that of our
/// own types.
fn put_schema_right(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(description) = &mut schema.description {
        let paragraphs: Vec<String> = description.split("\n\n").map(|p| p.replace('\n', " ")).collect();
        *description = paragraphs.join("\n\n");
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        put_schema_right(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        put_schema_right(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        put_schema_right(values);
    }
}

/// What is made for a Task is named after it, with a number or a word behind, and some of that may have 63 characters.
fn short_name_rule() -> ValidationRule {
    ValidationRule {
        rule: "self.metadata.name.size() <= 52".into(),
        message: Some(
            "metadata.name must have at most 52 characters: what is made for the Task is named after it"
                .into(),
        ),
        ..ValidationRule::default()
    }
}

/// `orders: {provision: null}` is how the design writes "all at once".
fn allow_null_orders(root: &mut JSONSchemaProps) {
    let orders = ["spec", "orders"].iter().try_fold(root, |schema, name| {
        schema.properties.as_mut().and_then(|properties| properties.get_mut(*name))
    });
    for order in orders.into_iter().flat_map(|o| o.properties.iter_mut()).flat_map(|p| p.values_mut()) {
        order.nullable = Some(true);
    }
}

#[cfg(test)]
mod tests;
