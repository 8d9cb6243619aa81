//! The `Component` kind: a part of an App, written by the App's controller.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::{GroupTemplate, ParentRef, PartPhase, PluginRef, RuntimeRef, Scenario, Values};
use crate::cel;

/// What is wanted of a Component.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "middleware.io",
    version = "v1alpha1",
    kind = "Component",
    plural = "components",
    shortname = "mwc",
    category = "agentcube",
    category = "middleware",
    namespaced,
    status = "ComponentStatus",
    derive = "PartialEq",
    doc = "Component is a part of an App, such as its data nodes. The App's controller writes it.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "App", type_ = "string", json_path = ".spec.appRef.name"),
    printcolumn(name = "Operation", type_ = "string", json_path = ".status.currentOperation.scenario"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSpec {
    /// The App that it is a part of. Cannot be changed.
    #[schemars(extend("x-kubernetes-validations" = cel::immutable("appRef is immutable")))]
    pub app_ref: ParentRef,
    /// The recipe.
    pub plugin_ref: PluginRef,
    /// Engine and version.
    pub runtime: RuntimeRef,
    /// Groups of Pods.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub groups: Vec<GroupTemplate>,
    /// Values for the plugin's templates: the App's configuration. The plugin's defaults are under them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub values: Values,
}

/// What was observed of a Component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// Where the Component stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PartPhase>,
    /// Conditions: Ready, OrderKnown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What is being done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_operation: Option<Operation>,
    /// State per group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub groups: Vec<ComponentGroupStatus>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A change that is being carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Which of the plugin's orders applies.
    pub scenario: Scenario,
    /// The generation of the spec that is being reached.
    pub observed_generation: i64,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// The order in which it is done: names of groups, or of Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub order: Vec<String>,
    /// Whether all are done at once.
    #[serde(default)]
    pub concurrent: bool,
    /// The revision of a Group that is being reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub revision: Option<String>,
    /// How much of it is done.
    #[serde(default)]
    pub progress: i32,
    /// When it last came nearer to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressed_at: Option<Time>,
}

/// State of a group of a Component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentGroupStatus {
    /// Name of the group.
    pub name: String,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PartPhase>,
    /// Pods there should be.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// The generation of the Group that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
