//! The `FrontendIntegration` kind. Its status is in snake_case, so it carries no CEL rules.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::page::{Column, IntegrationSpec, Menu, MenuItem, Page};
use crate::cel;

/// What is wanted of a FrontendIntegration: one page as `integration`, or several as `pages`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "frontend-forge.io",
    version = "v1alpha1",
    kind = "FrontendIntegration",
    plural = "frontendintegrations",
    shortname = "fi",
    category = "agentcube",
    namespaced,
    status = "FrontendIntegrationStatus",
    derive = "PartialEq",
    doc = "FrontendIntegration is a page of the console: a table of custom resources, or a frame with another site.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.integration.type"),
    printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled"),
    printcolumn(name = "Bundle", type_ = "string", json_path = ".status.bundle_ref.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.integration) != has(self.pages)", "exactly one of integration and pages must be set"),
    ("!has(self.integration) || self.integration.type != 'crd' || (has(self.columns) && size(self.columns) > 0)",
     "an integration of type crd needs columns"),
    ("!has(self.integration) || has(self.routing)", "an integration needs routing.path"),
    ("!has(self.menu) || !has(self.menus)", "menu and menus must not both be set"),
])))]
pub struct FrontendIntegrationSpec {
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub display_name: Option<String>,
    /// Whether it is built and served. Switching off and on does not build again.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The page, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integration: Option<IntegrationSpec>,
    /// Where the page is found, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<RoutingSpec>,
    /// Columns of the table, for an integration of type crd.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub columns: Vec<Column>,
    /// Entry in the console's menu, when there is one page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub menu: Option<Menu>,
    /// Entries in the console's menu.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub menus: Option<Vec<MenuItem>>,
    /// The pages, when there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"])
    )]
    pub pages: Option<Vec<Page>>,
    /// How it is built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builder: Option<BuilderSpec>,
}

fn yes() -> bool {
    true
}

/// Where the page is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoutingSpec {
    /// Path in the console, without a leading slash.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~:-]+)*$"))]
    pub path: String,
}

/// How an integration is built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuilderSpec {
    /// Version of the rules by which the manifest is made: v1 (also v1alpha1, 1, 1.0).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub engine_version: Option<String>,
}

/// What was observed of a FrontendIntegration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrontendIntegrationStatus {
    /// Where it stands: Pending, Building, Succeeded, Failed, Disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<IntegrationPhase>,
    /// Hash of the spec that this status is about, `sha256:<hex>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_spec_hash: Option<String>,
    /// Hash of the manifest that the current bundle was built from, `sha256:<hex>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_manifest_hash: Option<String>,
    /// The build that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_build: Option<ActiveBuild>,
    /// The bundle that is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_ref: Option<LocalRef>,
    /// How many builds were begun; the last one's Job has this number in its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builds: Option<i64>,
    /// The request for a rebuild that was obeyed last: the value of the annotation frontend-forge.io/rebuild.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_rebuild: Option<String>,
    /// What happened, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// Conditions: Ready, Built.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status is about.
    #[serde(rename = "observedGeneration", skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where it stands: Pending, Building, Succeeded, Failed (until the spec changes or a rebuild is asked for), Disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IntegrationPhase {
    /// Seen, nothing done yet.
    #[default]
    Pending,
    /// A build runs.
    Building,
    /// The bundle fits the spec.
    Succeeded,
    /// The builds failed.
    Failed,
    /// Switched off.
    Disabled,
}

/// A build that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActiveBuild {
    /// The Job that runs it.
    pub job_ref: LocalRef,
    /// Which attempt it is, from 1.
    #[serde(default)]
    pub attempt: i32,
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalRef {
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}
