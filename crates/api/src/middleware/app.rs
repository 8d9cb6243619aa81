//! The `App` kind: a middleware as its user sees it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backup::BackupSpec;
use super::change::ChangeTask;
use super::parts::{GroupTemplate, PartPhase, RuntimeRef, Values};
use super::taken::ArchiveRef;
use crate::cel;
use crate::duration::GoDuration;

/// What is wanted of an App.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "middleware.io",
    version = "v1alpha1",
    kind = "App",
    plural = "apps",
    shortname = "mwapp",
    category = "agentcube",
    category = "middleware",
    namespaced,
    status = "AppStatus",
    derive = "PartialEq",
    doc = "App is a stateful service, such as a database or a queue, run after the recipe of a Plugin.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Engine", type_ = "string", json_path = ".spec.runtime.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.runtime.version"),
    printcolumn(
        name = "Task",
        type_ = "string",
        json_path = ".status.tasks[?(@.status==\"in_progress\")].description"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.plugin.name", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.restore) || has(oldSelf.restore)",
     "restore cannot be added to an App that is there: create another App instead"),
])))]
pub struct AppSpec {
    /// The recipe.
    pub plugin: AppPlugin,
    /// Engine and version.
    pub runtime: RuntimeRef,
    /// Configuration of the middleware, over the plugin's defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub config: Values,
    /// Parts of the middleware.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub components: Vec<AppComponent>,
    /// Metrics, alerts and dashboards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<MonitoringSpec>,
    /// Backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupSpec>,
    /// The archive that its first data come from, as in the status of a Backup. It may be taken away later; the Pods are made
    /// anew then, and the claim is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = cel::immutable("restore is immutable: create another App instead")))]
    pub restore: Option<ArchiveRef>,
}

/// The recipe of an App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppPlugin {
    /// Name of the plugin. Cannot be changed.
    #[schemars(
        length(min = 1, max = 63),
        extend("x-kubernetes-validations" = cel::immutable("plugin name is immutable: create another App instead"))
    )]
    pub name: String,
    /// Version of the plugin.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
}

/// A part of a middleware, such as its data nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppComponent {
    /// Name of the component, unique in the App.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Groups of Pods.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub groups: Vec<GroupTemplate>,
}

/// Metrics, alerts and dashboards of an App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MonitoringSpec {
    /// Whether the App is monitored.
    #[serde(default)]
    pub enabled: bool,
    /// How it is monitored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<MonitoringSettings>,
}

/// How an App is monitored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MonitoringSettings {
    /// Time between two readings. Defaults to 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<GoDuration>,
    /// Whether a ServiceMonitor is created.
    #[serde(default)]
    pub service_monitor: bool,
    /// Which alerts are set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alerts: Option<AlertSettings>,
    /// Whether a dashboard is created.
    #[serde(default)]
    pub dashboard: bool,
    /// Receiver of notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub notification: Option<String>,
    /// How long readings are kept, such as 360h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<GoDuration>,
}

/// Which alerts are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlertSettings {
    /// Whether the plugin's alerts are used.
    #[serde(default)]
    pub use_builtin: bool,
    /// Alerts of the plugin that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub disabled_rules: Vec<String>,
}

/// What was observed of an App.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppStatus {
    /// Where the App stands: Pending, Provisioning, Running, Updating, Upgrading, Degraded, Failed, Terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<AppPhase>,
    /// Conditions: Ready, PluginValid, TasksReady, PendingChange.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// State per component.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub components: Vec<AppComponentStatus>,
    /// Changes to carry out and the latest that were, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["taskId"]))]
    pub tasks: Vec<ChangeTask>,
    /// What was carried out, for each component; what a new spec is compared with. It grows with every task that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub last_completed_spec: Option<Values>,
    /// The last generation that was carried out in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_completed_generation: Option<i64>,
    /// The control annotation that was last obeyed, so that none is obeyed twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub last_control: Option<String>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where the App stands: Pending, Provisioning, Running, Updating, Upgrading, Degraded, Failed (a task failed and
/// waits for a retry or another spec), Terminating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AppPhase {
    /// Seen, nothing done yet.
    #[default]
    Pending,
    /// First installation.
    Provisioning,
    /// As wanted.
    Running,
    /// Resources, configuration or storage are being changed.
    Updating,
    /// The version is being changed.
    Upgrading,
    /// As wanted, but not everything answers.
    Degraded,
    /// A task failed.
    Failed,
    /// Being removed.
    Terminating,
}

/// State of a component of an App.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppComponentStatus {
    /// Name of the component.
    pub name: String,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PartPhase>,
    /// Whether all its groups are ready.
    #[serde(default)]
    pub ready: bool,
    /// Groups that are ready.
    #[serde(default)]
    pub ready_groups: i32,
    /// Groups there should be.
    #[serde(default)]
    pub total_groups: i32,
}
