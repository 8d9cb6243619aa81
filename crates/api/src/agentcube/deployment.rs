//! How the instances of a Task are made: Pods, sandboxes, or a code bundle in a runtime image.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cel;
use crate::pod_template;
use crate::quantity::Quantity;

/// How instances are made: exactly the template that `type` names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("(self.type == 'pod') == has(self.podTemplate)", "podTemplate must be set exactly when type is pod"),
    ("(self.type == 'sandbox') == has(self.sandboxTemplate)",
     "sandboxTemplate must be set exactly when type is sandbox"),
    ("(self.type == 'code-bundle') == has(self.codeBundle)",
     "codeBundle must be set exactly when type is code-bundle"),
])))]
pub struct DeploymentSpec {
    /// What an instance is: pod, sandbox or code-bundle. Cannot be changed.
    #[serde(rename = "type")]
    #[schemars(extend("x-kubernetes-validations" =
        cel::immutable("deployment type is immutable: create another Task instead")))]
    pub type_: DeploymentType,
    /// The Pod that an instance is, for type pod.
    #[serde(
        default,
        deserialize_with = "pod_template::deserialize",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "pod_template::schema")]
    pub pod_template: Option<PodTemplateSpec>,
    /// The sandbox that an instance is, for type sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_template: Option<SandboxTemplateSpec>,
    /// The code that an instance runs, for type code-bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_bundle: Option<CodeBundleSpec>,
}

impl DeploymentSpec {
    /// The SandboxPool on which instances start; none if they are Pods.
    pub fn pool_ref(&self) -> Option<&str> {
        let of_sandbox = self.sandbox_template.as_ref().and_then(|template| template.pool_ref.as_deref());
        of_sandbox.or_else(|| self.code_bundle.as_ref()?.pool_ref.as_deref())
    }
}

/// What an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeploymentType {
    /// A Pod made from `podTemplate`.
    Pod,
    /// A strongly isolated sandbox made from `sandboxTemplate`.
    Sandbox,
    /// A runtime image with the code of `codeBundle` in it.
    CodeBundle,
}

/// A strongly isolated instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.poolRef) == has(oldSelf.poolRef)",
     "poolRef can be changed, but neither added nor removed: create another Task instead"),
])))]
pub struct SandboxTemplateSpec {
    /// The isolation, such as firecracker, kata-qemu or gvisor; the operator's configuration maps it to a
    /// RuntimeClass. Defaults to the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub runtime: Option<String>,
    /// SandboxPool of the same namespace on which instances start, on the fast path. Without it an instance is a Pod
    /// under the RuntimeClass of `runtime`. Neither can become the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pool_ref: Option<String>,
    /// CPU, memory and disk of an instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SandboxResources>,
    /// The guest kernel, for runtimes that boot one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelSpec>,
    /// The root file system. Defaults to the image that the operator's configuration names for the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<RootfsSpec>,
    /// Command that replaces the entry point of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub command: Vec<String>,
    /// Arguments of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Directory in which the command starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,
    /// Node labels that an instance needs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// An environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value of the variable; empty when left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32768))]
    pub value: String,
}

/// CPU, memory and disk of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxResources {
    /// CPU, such as 2000m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory, such as 4Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Size of the writable disk, such as 10Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<Quantity>,
}

/// A guest kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelSpec {
    /// Image that holds the kernel.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Kernel command line, appended to the runtime's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub args: Option<String>,
}

/// A root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RootfsSpec {
    /// Image that holds the files.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Whether the instance is kept from writing to it.
    #[serde(default)]
    pub read_only: bool,
}

/// Code that runs in a runtime image: from exactly one of zipUrl, inline, configMap and pvc.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.poolRef) == has(oldSelf.poolRef)",
     "poolRef can be changed, but neither added nor removed: create another Task instead"),
    ("[has(self.zipUrl), has(self.inline), has(self.configMap), has(self.pvc)].filter(x, x).size() == 1",
     "exactly one of zipUrl, inline, configMap and pvc must be set"),
    ("!has(self.zipUrl) || self.zipUrl.startsWith('https://') || has(self.sha256)",
     "zipUrl must begin with https:// unless sha256 is set: on the way of plain http anybody can change the code"),
])))]
pub struct CodeBundleSpec {
    /// Address of a zip archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = r"^https?://.+"))]
    pub zip_url: Option<String>,
    /// Files by path, small programs written into the Task itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = 64))]
    pub inline: Option<BTreeMap<String, String>>,
    /// ConfigMap whose keys are files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSource>,
    /// Directory on a PersistentVolumeClaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
    /// SHA-256 of the zip archive in hexadecimal; an archive with another digest is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// The most that the code may measure when unpacked. Defaults to 100Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
    /// File that is run, relative to the root of the bundle.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^/].*$"))]
    pub entrypoint: String,
    /// Language and version that run it.
    pub code_runtime: CodeRuntimeSpec,
    /// What is installed before the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<DependenciesSpec>,
    /// Arguments of the entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// CPU, memory and disk of an instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SandboxResources>,
    /// SandboxPool of the same namespace on which instances start, on the fast path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pool_ref: Option<String>,
}

/// A ConfigMap of the Task's namespace whose keys are files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSource {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Where keys become files; a key that is not listed keeps its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key"]))]
    pub items: Vec<KeyToFile>,
}

/// A key of a ConfigMap and the file it becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyToFile {
    /// Key of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Path of the file, relative to the root of the bundle.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[^/].*$"))]
    pub path: String,
}

/// A directory on a PersistentVolumeClaim of the Task's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// Name of the PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Directory that holds the code; the whole volume when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = r"^[^/].*$"))]
    pub sub_path: Option<String>,
}

/// Language and version that run a code bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CodeRuntimeSpec {
    /// Name of a runtime of the operator's configuration, such as python3.11 or node20.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Image to use instead of the configured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,
}

/// What is installed before a code bundle's first start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependenciesSpec {
    /// File in the bundle that lists them, such as requirements.txt or package.json.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = r"^[^/].*$"))]
    pub file: Option<String>,
    /// Packages in the notation of the runtime's package manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub packages: Vec<String>,
}
