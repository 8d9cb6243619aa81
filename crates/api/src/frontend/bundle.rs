//! The `JSBundle` kind: the files that an integration was built into. Its spec is in snake_case where the system that
//! it comes from is, so it carries no CEL rules.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The files that an integration was built into.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "frontend-forge.io",
    version = "v1alpha1",
    kind = "JSBundle",
    plural = "jsbundles",
    shortname = "jsb",
    category = "agentcube",
    namespaced,
    status = "JSBundleStatus",
    derive = "PartialEq",
    doc = "JSBundle is the files that a FrontendIntegration was built into. The build's runner writes it.",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Integration",
        type_ = "string",
        json_path = ".metadata.labels.frontend-forge\\.io/fi-name"
    ),
    printcolumn(name = "Manifest", type_ = "string", json_path = ".spec.manifest_hash"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Link", type_ = "string", json_path = ".status.link", priority = 1)
)]
pub struct JSBundleSpec {
    /// Hash of the manifest that the files were built from, `sha256:<hex>`.
    #[schemars(length(max = 128))]
    pub manifest_hash: String,
    /// The files.
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Vec<BundleFile>,
}

/// A file of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleFile {
    /// Path of the file, relative to the bundle.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^/].*$"))]
    pub path: String,
    /// How the content is written: base64 or utf-8.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// The content.
    pub content: String,
    /// SHA-256 of the decoded content in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// Bytes of the decoded content.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size: Option<i64>,
    /// Media type with which it is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub content_type: Option<String>,
}

/// How a file's content is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FileEncoding {
    /// In base64.
    #[default]
    #[serde(rename = "base64")]
    Base64,
    /// As it is.
    #[serde(rename = "utf-8")]
    Utf8,
}

/// What was observed of a JSBundle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JSBundleStatus {
    /// Whether it is served: Available, Disabled, Invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<BundleState>,
    /// Address at which the console loads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Conditions: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Whether a bundle is served: Available, Disabled, Invalid (a digest or size does not fit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BundleState {
    /// It is.
    Available,
    /// Its integration is switched off.
    Disabled,
    /// A digest or size does not fit.
    Invalid,
}
