//! The `Sandbox` kind: one isolated process tree on an agent of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agentcube::deployment::{EnvVar, SandboxResources};
use crate::cel;

/// Times that a user writes, narrower than what the format date-time allows: a time that the server accepts and we
/// cannot read would keep every Sandbox from being seen.
const TIME_PATTERN: &str =
    r"^[0-8][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$";

/// What is wanted of a Sandbox.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sandbox.fast.io",
    version = "v1alpha1",
    kind = "Sandbox",
    plural = "sandboxes",
    shortname = "sbx",
    category = "agentcube",
    namespaced,
    status = "SandboxStatus",
    derive = "PartialEq",
    doc = "Sandbox is one isolated environment on an agent of a SandboxPool.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.assignedPod"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoints[0]"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName", priority = 1),
    printcolumn(name = "Paused", type_ = "boolean", json_path = ".spec.paused", priority = 1),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expireTime", priority = 1),
    selectable = ".spec.poolRef"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("has(self.command) == has(oldSelf.command) && (!has(self.command) || self.command == oldSelf.command)",
     "command is immutable: delete the Sandbox and create another"),
    ("has(self.args) == has(oldSelf.args) && (!has(self.args) || self.args == oldSelf.args)",
     "args are immutable: delete the Sandbox and create another"),
    ("has(self.envs) == has(oldSelf.envs) && (!has(self.envs) || self.envs == oldSelf.envs)",
     "envs are immutable: delete the Sandbox and create another"),
    ("has(self.workingDir) == has(oldSelf.workingDir) && \
      (!has(self.workingDir) || self.workingDir == oldSelf.workingDir)",
     "workingDir is immutable: delete the Sandbox and create another"),
    ("has(self.exposedPorts) == has(oldSelf.exposedPorts) && \
      (!has(self.exposedPorts) || self.exposedPorts == oldSelf.exposedPorts)",
     "exposedPorts are immutable: delete the Sandbox and create another"),
    ("has(self.resources) == has(oldSelf.resources) && \
      (!has(self.resources) || self.resources == oldSelf.resources)",
     "resources are immutable: delete the Sandbox and create another"),
    ("has(self.files) == has(oldSelf.files) && (!has(self.files) || self.files == oldSelf.files)",
     "files are immutable: delete the Sandbox and create another"),
    ("has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network == oldSelf.network)",
     "network is immutable: delete the Sandbox and create another"),
    ("has(self.runAsUser) == has(oldSelf.runAsUser) && \
      (!has(self.runAsUser) || self.runAsUser == oldSelf.runAsUser)",
     "runAsUser is immutable: delete the Sandbox and create another"),
    ("has(self.readOnlyRoot) == has(oldSelf.readOnlyRoot) && \
      (!has(self.readOnlyRoot) || self.readOnlyRoot == oldSelf.readOnlyRoot)",
     "readOnlyRoot is immutable: delete the Sandbox and create another"),
])))]
pub struct SandboxSpec {
    /// Image of the sandbox. Cannot be changed.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" =
            cel::immutable("image is immutable: delete the Sandbox and create another"))
    )]
    pub image: String,
    /// SandboxPool of the same namespace on whose agents it runs. Cannot be changed.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-kubernetes-validations" =
            cel::immutable("poolRef is immutable: delete the Sandbox and create another"))
    )]
    pub pool_ref: String,
    /// Command that replaces the entry point of the image. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Arguments of the command. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Environment variables. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub envs: Vec<EnvVar>,
    /// Directory in which the command starts. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,
    /// Ports on which the sandbox is reached. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(range(min = 1, max = 65535)), extend("x-kubernetes-list-type" = "set"))]
    pub exposed_ports: Vec<i32>,
    /// CPU, memory and disk that it may use; those of the pool when left out. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SandboxResources>,
    /// Whether the root file system can only be read. Cannot be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only_root: bool,
    /// User that the command runs as; that of the image when left out. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_user: Option<i64>,
    /// What it reaches; as the pool says when left out. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<SandboxNetwork>,
    /// Files that are there when the command starts, 256 KiB together. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Vec<SandboxFile>,
    /// Whether its processes stand still; they keep their memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When the sandbox ends; the object is kept, in phase Expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = TIME_PATTERN))]
    pub expire_time: Option<Time>,
    /// What happens when the agent is lost: Manual waits for somebody to decide, AutoRecreate starts it again
    /// elsewhere.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// How long an agent may be silent before AutoRecreate starts the sandbox elsewhere. Never goes down: a silent
    /// agent goes by what it was told.
    #[serde(default = "default_recovery_timeout")]
    #[schemars(
        range(min = 0, max = 86400),
        extend("x-kubernetes-validations" =
            cel::rules(&[("self >= oldSelf", "recoveryTimeoutSeconds must not go down")]))
    )]
    pub recovery_timeout_seconds: i32,
    /// A number greater than status.acceptedResetRevision starts the sandbox afresh. Never goes down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 0),
        extend("x-kubernetes-validations" =
            cel::rules(&[("self >= oldSelf", "resetRevision must not go down")]))
    )]
    pub reset_revision: Option<i64>,
}

fn default_recovery_timeout() -> i32 {
    60
}

/// What a sandbox reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNetwork {
    /// Where connections may go: Closed (nowhere), Public (addresses of the internet only), Open (as Pods; only on
    /// the embedded platform).
    pub egress: SandboxEgress,
}

/// Where the connections of a sandbox may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SandboxEgress {
    /// Nowhere.
    Closed,
    /// To addresses of the internet, to none of the cluster or of private networks.
    #[default]
    Public,
    /// Wherever a Pod gets.
    Open,
}

/// A file that is there when the command starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("(has(self.content) ? 1 : 0) + (has(self.secretKeyRef) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) == 1",
     "a file has one of content, secretKeyRef, configMapKeyRef"),
])))]
pub struct SandboxFile {
    /// Where it is, absolute and without `..`.
    #[schemars(length(min = 2, max = 1024), regex(pattern = r"^(/([^/.]|\.[^/.]|\.\.[^/])[^/]*)+$"))]
    pub path: String,
    /// Permissions; 420 (0644) when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 511))]
    pub mode: Option<i32>,
    /// The content, as it stands here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262144))]
    pub content: Option<String>,
    /// A key of a Secret of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// A key of a Secret or ConfigMap of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What happens when the agent of a sandbox is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// It stays Lost until somebody resets or deletes it.
    #[default]
    Manual,
    /// It is started again on another agent.
    AutoRecreate,
}

/// What was observed of a Sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Where the sandbox stands: Pending, Bound, Running, Terminating, Expired, Failed, Lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SandboxPhase>,
    /// Agent Pod that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_pod: Option<String>,
    /// UID of that Pod: a Pod of the same name may be another.
    #[serde(rename = "assignedPodUID", skip_serializing_if = "Option::is_none")]
    pub assigned_pod_uid: Option<String>,
    /// Node of that Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Id of the sandbox on the agent.
    #[serde(rename = "sandboxID", skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// Addresses, `<ip>:<port>`, in the order of exposedPorts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub endpoints: Vec<String>,
    /// The last resetRevision that was carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_reset_revision: Option<i64>,
    /// Since when the agent is silent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<Time>,
    /// When its program was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// What its program ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Conditions: Ready, AllocationValid, Paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where the sandbox stands: Pending (no agent yet), Bound (an agent is chosen), Running, Terminating, Expired (ended
/// at expireTime), Failed, Lost (its agent is silent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SandboxPhase {
    /// No agent is chosen.
    #[default]
    Pending,
    /// An agent is chosen; whether it runs is not known yet.
    Bound,
    /// It runs.
    Running,
    /// It is being removed.
    Terminating,
    /// It ended at `expireTime`.
    Expired,
    /// It cannot run.
    Failed,
    /// Its agent is silent.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_of_time_that_the_pattern_allows() {
        for text in [
            "2035-01-01T00:00:00Z",
            "8999-12-31T23:59:59Z",
            "2035-01-01T00:00:00.123456789+02:00",
            "0000-01-01T00:00:00-12:00",
        ] {
            let json = serde_json::json!({ "image": "a", "poolRef": "b", "expireTime": text });
            let spec: SandboxSpec = serde_json::from_value(json).expect(text);
            assert!(spec.expire_time.is_some(), "{text}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let spec: SandboxSpec =
            serde_json::from_str(r#"{"image": "a", "poolRef": "b"}"#).expect("the required fields");
        assert_eq!((spec.failure_policy, spec.recovery_timeout_seconds), (FailurePolicy::Manual, 60));
    }
}
