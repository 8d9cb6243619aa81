//! The `SandboxPool` kind: how many agents there are and how many sandboxes each holds.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sandbox::SandboxNetwork;
use crate::agentcube::deployment::SandboxResources;
use crate::cel;
use crate::pod_template;

/// Sandboxes that one agent holds when the spec does not say.
pub const DEFAULT_SANDBOXES_PER_POD: i32 = 5;

/// What is wanted of a SandboxPool.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sandbox.fast.io",
    version = "v1alpha1",
    kind = "SandboxPool",
    plural = "sandboxpools",
    shortname = "sbp",
    category = "agentcube",
    namespaced,
    status = "SandboxPoolStatus",
    derive = "PartialEq",
    doc = "SandboxPool is a set of agent Pods that start sandboxes on the fast path.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents.ready"),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".status.agents.wanted"),
    printcolumn(name = "Sandboxes", type_ = "integer", json_path = ".status.sandboxes.active"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.sandboxes.freeSlots"),
    printcolumn(name = "Runtime", type_ = "string", json_path = ".spec.runtimeType"),
    printcolumn(
        name = "Prepared",
        type_ = "integer",
        json_path = ".status.sandboxes.prepared",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.prepared) || size(self.prepared) == 0 || self.runtimeType == 'native'",
     "prepared needs runtimeType native"),
])))]
pub struct SandboxPoolSpec {
    /// How many agents there are. Wanted are enough for the sandboxes there are and bufferMin more.
    pub capacity: CapacitySpec,
    /// Sandboxes that one agent holds at most.
    #[serde(default = "default_sandboxes_per_pod")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_sandboxes_per_pod: i32,
    /// How agents isolate sandboxes: native (namespaces of the kernel), or container, gvisor, kata, firecracker as
    /// far as the agent's image has them. Cannot be changed.
    #[serde(default = "default_runtime_type")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
        extend("x-kubernetes-validations" =
            cel::immutable("runtimeType is immutable: create another SandboxPool instead"))
    )]
    pub runtime_type: String,
    /// Images that agents keep, so that no sandbox waits for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)), extend("x-kubernetes-list-type" = "set"))]
    pub images: Vec<String>,
    /// Sandboxes that each agent keeps ready, isolated and rooted, to be told what to run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["image"]))]
    pub prepared: Vec<PreparedSpec>,
    /// What sandboxes get that do not say it themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_defaults: Option<SandboxDefaults>,
    /// The Pod that an agent is. Defaults to the agent of this AgentCube.
    #[serde(
        default,
        deserialize_with = "pod_template::deserialize",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "pod_template::schema")]
    pub agent_template: Option<PodTemplateSpec>,
}

fn default_sandboxes_per_pod() -> i32 {
    DEFAULT_SANDBOXES_PER_POD
}

fn default_runtime_type() -> String {
    "native".into()
}

/// Sandboxes that are kept ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreparedSpec {
    /// Their image.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// How many each agent keeps.
    #[schemars(range(min = 1, max = 1000))]
    pub count: i32,
    /// CPU, memory and disk of each; those of sandboxDefaults when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SandboxResources>,
    /// Whether their root file system can only be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only_root: bool,
}

/// What the sandboxes of a pool get that do not say it themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDefaults {
    /// CPU, memory and disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SandboxResources>,
    /// What they reach; Public when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<SandboxNetwork>,
    /// User that commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_user: Option<i64>,
}

/// How many agents a pool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.poolMin <= self.poolMax", "poolMin must not exceed poolMax"),
    ("!has(self.bufferMax) || self.bufferMin <= self.bufferMax", "bufferMin must not exceed bufferMax"),
])))]
pub struct CapacitySpec {
    /// The least agents.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10000))]
    pub pool_min: i32,
    /// The most agents.
    #[schemars(range(min = 1, max = 10000))]
    pub pool_max: i32,
    /// Free slots to keep for sandboxes to come.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000000))]
    pub buffer_min: i32,
    /// Free slots above which empty agents are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000000))]
    pub buffer_max: Option<i32>,
}

/// What was observed of a SandboxPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxPoolStatus {
    /// Conditions: Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Counts of agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentCounts>,
    /// Counts of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<SandboxCounts>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Counts of a pool's agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounts {
    /// Agents that the pool should have now.
    #[serde(default)]
    pub wanted: i32,
    /// Agent Pods there are.
    #[serde(default)]
    pub total: i32,
    /// Agents that answer.
    #[serde(default)]
    pub ready: i32,
    /// Agents without a sandbox.
    #[serde(default)]
    pub empty: i32,
    /// Agents that take no sandbox any more and are about to go.
    #[serde(default)]
    pub draining: i32,
}

/// Counts of a pool's sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxCounts {
    /// Sandboxes that hold a slot.
    #[serde(default)]
    pub active: i32,
    /// Sandboxes that wait for a slot.
    #[serde(default)]
    pub pending: i32,
    /// Slots that are free.
    #[serde(default)]
    pub free_slots: i32,
    /// Sandboxes that are paused.
    #[serde(default)]
    pub paused: i32,
    /// Sandboxes that are kept ready.
    #[serde(default)]
    pub prepared: i32,
}
