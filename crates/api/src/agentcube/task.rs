//! The `Task` kind: its spec, scaling and status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deployment::DeploymentSpec;
use super::gateway::RouteParentStatus;
use super::request::RequestHandlingSpec;
use super::routing::RoutingSpec;
use crate::cel;
use crate::duration::GoDuration;

/// How many instances a Task may have when its spec names no maximum.
pub const DEFAULT_MAX_INSTANCES: i32 = 100;

/// What is wanted of a Task: how its instances are made, how many there are, and who reaches which.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "agentcube.io",
    version = "v1alpha1",
    kind = "Task",
    plural = "tasks",
    shortname = "tk",
    category = "agentcube",
    namespaced,
    status = "TaskStatus",
    derive = "PartialEq",
    doc = "Task is an AI agent: how its instances are deployed, scaled and reached.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Instances", type_ = "integer", json_path = ".status.instances.total"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.routing.routePolicy"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reserved",
        type_ = "integer",
        json_path = ".status.instances.reserved",
        priority = 1
    ),
    printcolumn(name = "Idle", type_ = "integer", json_path = ".status.instances.idle", priority = 1),
    printcolumn(name = "Spec", type_ = "string", json_path = ".status.specID", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.scaling) || !has(self.scaling.instanceLifecycle) || \
      !has(self.scaling.instanceLifecycle.idleAction) || self.scaling.instanceLifecycle.idleAction != 'Pause' || \
      (has(self.deployment.sandboxTemplate) && has(self.deployment.sandboxTemplate.poolRef)) || \
      (has(self.deployment.codeBundle) && has(self.deployment.codeBundle.poolRef))",
     "idleAction Pause needs poolRef: only instances on a SandboxPool can be paused"),
    ("!has(self.scaling) || !has(self.scaling.instanceLifecycle) || \
      !has(self.scaling.instanceLifecycle.idleAction) || self.scaling.instanceLifecycle.idleAction != 'Pause' || \
      (has(self.routing) && has(self.routing.routePolicy) && self.routing.routePolicy == 'BySession')",
     "idleAction Pause needs routePolicy BySession: without sessions there is nothing that a request could wake"),
])))]
pub struct TaskSpec {
    /// How the agent's instances are made.
    pub deployment: DeploymentSpec,
    /// How many instances there are, and how long they live.
    #[serde(default)]
    pub scaling: ScalingSpec,
    /// Where the Task is served, and which instance a request goes to.
    #[serde(default)]
    pub routing: RoutingSpec,
    /// How requests are passed to an instance.
    #[serde(default)]
    pub request_handling: RequestHandlingSpec,
}

/// How many instances there are, and how long they live.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.minInstances) || !has(self.maxInstances) || self.minInstances <= self.maxInstances",
     "minInstances must not exceed maxInstances"),
    ("self.scalingMode != 'None' || !has(self.minInstances) || self.minInstances > 0",
     "scalingMode None needs minInstances of at least 1: without scaling nothing would ever start"),
])))]
pub struct ScalingSpec {
    /// Whether requests start instances (OnDemand) or the number stays at minInstances (None).
    #[serde(default)]
    pub scaling_mode: ScalingMode,
    /// Instances that are kept even when nobody asks for them. Defaults to 0 with OnDemand, to 1 with None.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100000))]
    pub min_instances: Option<i32>,
    /// The most instances that may exist at a time. At the maximum a new session waits for reserveTimeout and is
    /// then refused. Defaults to 100, or to minInstances when that is larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000))]
    pub max_instances: Option<i32>,
    /// When an instance is given back, and what becomes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_lifecycle: Option<InstanceLifecycleSpec>,
}

impl ScalingSpec {
    /// The least and the most instances, defaults filled in.
    pub fn bounds(&self) -> (i32, i32) {
        let least = self.min_instances.unwrap_or(match self.scaling_mode {
            ScalingMode::OnDemand => 0,
            ScalingMode::None => 1,
        });
        (least, self.max_instances.unwrap_or(DEFAULT_MAX_INSTANCES.max(least)))
    }
}

/// Whether requests start instances (OnDemand) or their number is fixed (None).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// A request that finds no idle instance starts one.
    OnDemand,
    /// The number of instances stays at `minInstances`.
    #[default]
    None,
}

/// When an instance is given back, and what becomes of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceLifecycleSpec {
    /// What becomes of an instance when its session ends: Never deletes it, Always gives it to the next session.
    #[serde(default)]
    pub reuse_policy: ReusePolicy,
    /// A session without a byte sent or received for this long ends. A request in flight is never idle.
    /// Without it sessions do not end for being idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<GoDuration>,
    /// What becomes of a session that was idle for idleTimeout: Delete ends it, Pause has its instance stand still until
    /// the next request; it keeps its memory, and its place among maxInstances. Pause needs a poolRef.
    #[serde(default)]
    pub idle_action: IdleAction,
    /// The longest that an instance lives, counted from its creation. Without it there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<GoDuration>,
}

/// What becomes of an idle session: Delete ends it, Pause has its instance stand still until the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IdleAction {
    /// The session ends.
    #[default]
    Delete,
    /// The session keeps its instance, which stands still and keeps its memory.
    Pause,
}

/// What becomes of an instance when its session ends: Never deletes it, Always gives it to the next session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReusePolicy {
    /// The instance is deleted.
    #[default]
    Never,
    /// The instance returns to the idle ones.
    Always,
}

/// What was observed of a Task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// Conditions: Ready, SpecReady, RouteReady, ExtProcReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Name of the current revision of the instances, `<task>-<generation>`, where the generation is that of the
    /// last change to the instance template. Routers read it and never derive it.
    #[serde(rename = "specID", skip_serializing_if = "Option::is_none")]
    pub spec_id: Option<String>,
    /// Hash of the instance template that specID stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// Older revisions that still have sessions; removed when their last session ends.
    #[serde(rename = "drainingSpecIDs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub draining_spec_ids: Vec<String>,
    /// Counts of instances; for people and dashboards, without influence on Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<InstanceStatistics>,
    /// What the gateways say of this Task's HTTPRoute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_status: Option<RouteStatusSummary>,
    /// Address under which the Task is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Where the Task stands: Pending, Deploying, Serving, Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<TaskPhase>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Counts of a Task's instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatistics {
    /// All instances, whatever their state.
    #[serde(default)]
    pub total: i32,
    /// Instances that are starting.
    #[serde(default)]
    pub creating: i32,
    /// Instances that can serve, reserved or not.
    #[serde(default)]
    pub ready: i32,
    /// Instances that belong to a session.
    #[serde(default)]
    pub reserved: i32,
    /// Ready instances that belong to no session.
    #[serde(default)]
    pub idle: i32,
}

/// What the gateways say of a Task's HTTPRoute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatusSummary {
    /// Status per gateway, copied from the HTTPRoute's `status.parents`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub parent_statuses: Vec<RouteParentStatus>,
}

/// Where the Task stands: Pending (seen), Deploying (being set up, or retrying), Serving (takes traffic), Failed
/// (cannot work until its spec changes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskPhase {
    /// Seen, nothing done yet.
    #[default]
    Pending,
    /// Being set up, or a transient error is being retried.
    Deploying,
    /// Everything is in place; traffic is taken.
    Serving,
    /// Cannot work until the spec changes.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_fill_in_defaults() {
        let scaling = |mode, min, max| ScalingSpec {
            scaling_mode: mode,
            min_instances: min,
            max_instances: max,
            instance_lifecycle: None,
        };
        for (spec, bounds) in [
            (scaling(ScalingMode::OnDemand, None, None), (0, 100)),
            (scaling(ScalingMode::None, None, None), (1, 100)),
            (scaling(ScalingMode::OnDemand, Some(200), None), (200, 200)),
            (scaling(ScalingMode::OnDemand, Some(3), Some(7)), (3, 7)),
        ] {
            assert_eq!(spec.bounds(), bounds, "{spec:?}");
        }
    }

    #[test]
    fn a_task_without_routing_is_a_oneshot_on_the_default_gateway() {
        let json = r#"{"deployment": {"type": "sandbox", "sandboxTemplate": {}}}"#;
        let spec: TaskSpec = serde_json::from_str(json).expect("the required fields");
        assert_eq!(spec.routing, RoutingSpec::default());
        assert_eq!(spec.routing.path_prefix_for("ns", "agent"), "/ns/agent");
        assert_eq!(spec.request_handling.backend.port, 8080);
    }
}
