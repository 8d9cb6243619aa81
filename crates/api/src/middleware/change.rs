//! The changes that an App's controller carries out one after another, kept in `App.status.tasks`, and the control
//! annotations by which a user retries or cancels them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::{Scenario, Values};
use crate::duration::GoDuration;

/// One change of one component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeTask {
    /// Id of the task, unique in the App.
    #[schemars(length(min = 1, max = 128))]
    pub task_id: String,
    /// What is changed.
    #[serde(rename = "type")]
    pub type_: ChangeType,
    /// Which of the plugin's orders applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<Scenario>,
    /// The change in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub description: String,
    /// Place in the order; the highest number runs first.
    #[serde(default)]
    pub priority: i32,
    /// Component that is changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub target_component: String,
    /// Part of the component's spec that is to be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub desired_spec: Option<Values>,
    /// Tasks that must be done before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 128)))]
    pub dependencies: Vec<String>,
    /// Where the task stands.
    pub status: ChangeStatus,
    /// The generation of the App that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Attempts that failed.
    #[serde(default)]
    pub retry_count: i32,
    /// Attempts after which it has failed.
    #[serde(default)]
    pub max_retries: i32,
    /// Longest time for one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// When the current attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the latest attempt began to be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone_since: Option<Time>,
    /// When it ended: done, failed, skipped or cancelled tasks have it, and no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When the next attempt begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub error: Option<String>,
    /// Why the latest attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_error: Option<String>,
    /// Whether the latest attempt failed because it took too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Whether somebody asked to cancel it while it was running.
    #[serde(default)]
    pub cancel_requested: bool,
    /// Whether the Component has it: from the start of an attempt until it is undone, or counts as carried out. A task
    /// that failed or was cancelled and still has this was left as it stood.
    #[serde(default)]
    pub in_force: bool,
}

/// What a task changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeType {
    /// Everything: the first installation.
    Provision,
    /// Replicas, resources, affinity (P3).
    K8sResources,
    /// Configuration of the middleware (P2).
    MiddlewareConfig,
    /// Volumes (P1).
    StorageVolume,
    /// The version (P0), which runs last.
    VersionUpgrade,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStatus {
    /// Waits for its turn.
    #[default]
    Pending,
    /// Is being carried out.
    InProgress,
    /// Was carried out.
    Done,
    /// Failed for good, until somebody retries it.
    Failed,
    /// Failed and waits for its next attempt.
    RetryPending,
    /// Is not carried out because a task before it failed.
    Skipped,
    /// Was cancelled.
    Cancelled,
}

impl ChangeStatus {
    /// Whether nothing more happens to the task by itself.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped | Self::Cancelled)
    }
}

/// Content of the annotation `middleware.io/retry-control`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryControl {
    /// Tasks to carry out again: failed, skipped and cancelled ones of the present spec.
    pub retry_task_ids: Vec<String>,
    /// Whether the tasks that they depend on are carried out again too.
    pub reset_dependencies: bool,
}

/// Content of the annotation `middleware.io/cancel-control`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CancelControl {
    /// Tasks to cancel; pending and running ones only.
    pub cancel_task_ids: Vec<String>,
}
