//! The `Plugin` kind: the recipe after which a middleware is run.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::ChangeType;
use super::group::Policies;
use super::parts::{Scenario, Values};
use crate::cel;

/// The recipe after which a middleware is run.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "middleware.io",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    shortname = "mwp",
    category = "agentcube",
    category = "middleware",
    namespaced,
    status = "PluginStatus",
    derive = "PartialEq",
    doc = "Plugin is the recipe after which Apps of one kind are run: images, templates, orders, commands.",
    printcolumn(name = "Plugin", type_ = "string", json_path = ".spec.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(
        name = "Valid",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Valid\")].status"
    ),
    printcolumn(name = "Groups", type_ = "integer", json_path = ".status.groups"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PluginSpec {
    /// Name of the plugin. Cannot be changed.
    #[schemars(
        length(min = 1, max = 63),
        extend("x-kubernetes-validations" = cel::immutable("plugin name is immutable: create another Plugin instead"))
    )]
    pub name: String,
    /// Version of the plugin. Cannot be changed.
    #[schemars(
        length(min = 1, max = 63),
        extend("x-kubernetes-validations" = cel::immutable("plugin version is immutable: create another Plugin instead"))
    )]
    pub version: String,
    /// What it is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Engines and versions that it can run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub runtimes: Vec<PluginRuntime>,
    /// Image of each version of the engine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub images: BTreeMap<String, String>,
    /// Which upgrades are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<Compatibility>,
    /// What it can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// In which order components are treated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orders: Option<Orders>,
    /// In which order the changes of one spec are carried out. Defaults to k8s_resources, middleware_config,
    /// storage_volume, version_upgrade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub task_order: Vec<ChangeType>,
    /// Values for the templates, under those of the App.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub default_values: Values,
    /// Templates of the objects that a Group is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub templates: Vec<PluginTemplate>,
    /// How clients reach it; without, Apps get no Secret to connect with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// Alerts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<PluginMonitoring>,
    /// How groups that do not say are changed, checked and undone, and who leads them.
    #[serde(flatten)]
    pub policies: Policies,
    /// How backups are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<PluginBackup>,
}

/// An engine and the versions of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginRuntime {
    /// Name of the engine.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Versions of it.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub versions: Vec<String>,
}

/// Which upgrades are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compatibility {
    /// For each version, those from which it can be reached; any other upgrade is refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 256))]
    pub migrate_from: BTreeMap<String, Vec<String>>,
}

/// What a plugin can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Change the number of Pods.
    #[serde(default)]
    pub scaling: bool,
    /// Move the leader's role.
    #[serde(default)]
    pub failover: bool,
    /// Take and restore backups.
    #[serde(default)]
    pub backup: bool,
    /// Take a new configuration without a restart.
    #[serde(default)]
    pub config_reload: bool,
}

/// For each scenario, names of components in the order in which they are treated; left out, null or empty: all at
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orders {
    /// Order of the first installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub provision: Option<Vec<String>>,
    /// Order of removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub stop: Option<Vec<String>>,
    /// Order of changes of resources, configuration and storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub update: Option<Vec<String>>,
    /// Order of upgrades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub upgrade: Option<Vec<String>>,
}

impl Orders {
    /// The order of a scenario; `None` means all at once.
    pub fn of(&self, scenario: Scenario) -> Option<&[String]> {
        let order = match scenario {
            Scenario::Provision => &self.provision,
            Scenario::Stop => &self.stop,
            Scenario::Update => &self.update,
            Scenario::Upgrade => &self.upgrade,
        };
        order.as_deref().filter(|names| !names.is_empty())
    }
}

/// A template of an object, written in the plugin or kept in a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.template) != has(self.configMapRef)", "exactly one of template and configMapRef must be set"),
])))]
pub struct PluginTemplate {
    /// Name of the template, unique in the plugin.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Kind of object that it makes, such as deployment, statefulset, service, configmap or pvc.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub type_: String,
    /// The template, in the notation of Go templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262144))]
    pub template: Option<String>,
    /// ConfigMap of the plugin's namespace that holds the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<TemplateConfigMapRef>,
    /// Whether nothing is made when it renders to nothing.
    #[serde(default)]
    pub optional: bool,
}

/// A ConfigMap that holds a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateConfigMapRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key of the ConfigMap.
    #[serde(default = "default_template_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_template_key() -> String {
    "template".into()
}

/// How clients reach a middleware. The controller makes a Secret `<app>-connection` with host, port, user and a password of
/// its own, which templates find under `.Values.connectionSecret`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Component that serves clients.
    #[schemars(length(min = 1, max = 63))]
    pub component: String,
    /// Group of it; the first when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub group: Option<String>,
    /// What follows the name of the group in the name of the Service. Defaults to -primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub service_suffix: Option<String>,
    /// Port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// User, for a middleware that has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub user: Option<String>,
}

/// Alerts of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginMonitoring {
    /// Alerts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub alerts: Vec<AlertRule>,
}

/// An alert, as Prometheus has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlertRule {
    /// Name of the alert, unique in the plugin.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Expression that is true when something is wrong.
    #[schemars(length(min = 1, max = 4096))]
    pub expr: String,
    /// How long it must be true, in Prometheus' notation.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub for_: Option<String>,
    /// How bad it is, such as warning or critical.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub severity: Option<String>,
    /// Texts for people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

/// How backups are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginBackup {
    /// Kinds of stores that it can write to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub providers: Vec<String>,
    /// Commands in the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<BackupCommands>,
    /// Command that uploads, per kind of store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub upload_commands: BTreeMap<String, String>,
}

/// Commands that take and restore a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupCommands {
    /// Command that takes one.
    #[schemars(length(min = 1, max = 4096))]
    pub backup: String,
    /// Command that restores one.
    #[schemars(length(min = 1, max = 4096))]
    pub restore: String,
}

/// What was observed of a Plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Conditions: Valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Groups that use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<i32>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
