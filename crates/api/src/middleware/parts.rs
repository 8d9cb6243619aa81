//! What Apps, Components and Groups have in common: references, resources, storage, group templates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Affinity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::group::Policies;
use crate::cel;
use crate::quantity::Quantity;

/// Values that only the plugin understands.
pub type Values = BTreeMap<String, Value>;

/// Engine and version of the middleware, such as redis 7.2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeRef {
    /// Name of the engine, one of the plugin's runtimes. Cannot be changed.
    #[schemars(
        length(min = 1, max = 63),
        extend("x-kubernetes-validations" = cel::immutable("runtime name is immutable: data of one engine is not data of another"))
    )]
    pub name: String,
    /// Version of the engine; changing it is an upgrade.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
}

/// A Plugin object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginRef {
    /// Name of the Plugin object, by convention `<plugin>-v<version>`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Plugin; that of the referring object when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// An object that the referring one belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the object; that of the referring object when left out, and never another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// A group of equal Pods, such as the masters or the replicas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupTemplate {
    /// Name of the group, unique in its component.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Number of Pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// CPU, memory and so on of each Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Volume of each Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Values for the plugin's templates, over those of the App.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub values: Values,
    /// Where the Pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::affinity")]
    pub affinity: Option<Affinity>,
    /// How it is changed, checked and undone.
    #[serde(flatten)]
    pub policies: Policies,
}

pub(super) fn one() -> i32 {
    1
}

/// What a Pod asks for and what it may use at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is kept free for the Pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub requests: BTreeMap<String, Quantity>,
    /// What the Pod may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub limits: BTreeMap<String, Quantity>,
}

/// The volume of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Size of the volume. May grow, never shrink.
    #[schemars(extend("x-kubernetes-validations" = cel::rules(&[
        ("quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",
         "storage size must not shrink: a volume cannot be made smaller"),
    ])))]
    pub size: Quantity,
    /// StorageClass; the cluster's default when left out. Changing it is a migration that the plugin must provide.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class: Option<String>,
    /// How the volume may be mounted. Defaults to ReadWriteOnce.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub access_modes: Vec<AccessMode>,
    /// Path at which the plugin's templates mount it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub mount_path: Option<String>,
}

/// How a volume may be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// By one node.
    ReadWriteOnce,
    /// By many nodes, to read.
    ReadOnlyMany,
    /// By many nodes.
    ReadWriteMany,
    /// By one Pod.
    ReadWriteOncePod,
}

/// A Secret of the same namespace, or one key of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret, where one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub key: Option<String>,
}

/// What is being done, and so which order applies: provision, stop, update, upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// The first installation.
    Provision,
    /// Removal.
    Stop,
    /// A change of resources, configuration or storage.
    Update,
    /// A change of version.
    Upgrade,
}

/// Where a Component or Group stands: Pending, Progressing, Ready, Degraded, Failed, Cancelled, Terminating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartPhase {
    /// Seen, nothing done yet.
    #[default]
    Pending,
    /// A change is being carried out.
    Progressing,
    /// As wanted.
    Ready,
    /// As wanted, but not everything answers.
    Degraded,
    /// The change failed.
    Failed,
    /// The change was cancelled and undone.
    Cancelled,
    /// Being removed.
    Terminating,
}
