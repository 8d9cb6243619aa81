//! What goes over the wire between a runner and the build service.

use agentcube_api::frontend::bundle::BundleFile;
use serde::{Deserialize, Serialize};

/// Where builds are.
pub const BUILDS: &str = "/v1/builds";

/// `POST /v1/builds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    pub manifest_hash: String,
    /// The manifest, as text.
    pub manifest: String,
    pub context: Context,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    pub namespace: String,
    pub frontend_integration: String,
}

/// The answer to that, and to `GET /v1/builds/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    pub build_id: String,
    pub status: BuildStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Of a failure: one word, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a failure: the same manifest fails again.
    #[serde(rename = "final", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum BuildStatus {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// `GET /v1/builds/{id}/files`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Files {
    pub build_id: String,
    pub files: Vec<BundleFile>,
}
