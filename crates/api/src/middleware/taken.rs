//! The `Backup` kind: the data of an App, taken once and kept as an archive.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::Values;
use crate::cel;

/// What is wanted of a Backup.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "middleware.io",
    version = "v1alpha1",
    kind = "Backup",
    plural = "backups",
    shortname = "mwb",
    category = "agentcube",
    category = "middleware",
    namespaced,
    status = "BackupStatus",
    derive = "PartialEq",
    doc = "Backup is the data of an App, taken once. Its archive outlives the App and the Backup; another App can be made from it.",
    printcolumn(name = "App", type_ = "string", json_path = ".spec.appRef.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Engine", type_ = "string", json_path = ".status.runtime.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.runtime.version"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct BackupOrder {
    /// The App whose data are taken.
    pub app_ref: AppRef,
}

/// An App of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppRef {
    /// Name of the App. Cannot be changed.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-kubernetes-validations" = cel::immutable("the App of a Backup is immutable: create another Backup instead"))
    )]
    pub name: String,
}

/// An archive that an App can be made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveRef {
    /// PersistentVolumeClaim of the same namespace that holds it.
    #[schemars(length(min = 1, max = 253))]
    pub claim: String,
    /// Name of the file.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9][-a-z0-9.]*$"))]
    pub file: String,
    /// SHA-256 of the file in hexadecimal.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: String,
}

/// What data are of, and of which version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Version.
    #[schemars(length(max = 63))]
    pub version: String,
}

/// What was observed of a Backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// Where it stands: Pending, Running, Succeeded, Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<BackupPhase>,
    /// What happened, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Plugin by which it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Origin>,
    /// Engine and version whose data they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Origin>,
    /// The spec of the App when it was begun, if it is not too large; `agentcube app restore` makes another App of it.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub app_spec: Values,
    /// The archive; the same as an App's `spec.restore` makes an App from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveRef>,
    /// Bytes of the archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Conditions: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where a Backup stands: Pending, Running, Succeeded, Failed. The last two stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupPhase {
    /// It waits until its App is ready.
    #[default]
    Pending,
    /// It is being taken.
    Running,
    /// The archive is there.
    Succeeded,
    /// There is none.
    Failed,
}
