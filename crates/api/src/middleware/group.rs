//! The `Group` kind: equal Pods of a Component, written by the Component's controller.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Affinity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::component::Operation;
use super::parts::{ParentRef, PartPhase, PluginRef, Resources, RuntimeRef, StorageSpec, Values};
use crate::cel;
use crate::duration::GoDuration;

/// What is wanted of a Group.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "middleware.io",
    version = "v1alpha1",
    kind = "Group",
    plural = "groups",
    shortname = "mwg",
    category = "agentcube",
    category = "middleware",
    namespaced,
    status = "GroupStatus",
    derive = "PartialEq",
    doc = "Group is a set of equal Pods of a Component. The Component's controller writes it.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.currentVersion"),
    printcolumn(name = "Component", type_ = "string", json_path = ".spec.componentRef.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GroupSpec {
    /// The Component that it is a part of. Cannot be changed.
    #[schemars(extend("x-kubernetes-validations" = cel::immutable("componentRef is immutable")))]
    pub component_ref: ParentRef,
    /// The recipe.
    pub plugin_ref: PluginRef,
    /// Engine and version.
    pub runtime: RuntimeRef,
    /// Number of Pods.
    #[serde(default = "super::parts::one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// CPU, memory and so on of each Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Volume of each Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Where the Pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::pod_template::affinity")]
    pub affinity: Option<Affinity>,
    /// Values for the plugin's templates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::pod_template::free_object")]
    pub values: Values,
    /// How it is changed, checked and undone.
    #[serde(flatten)]
    pub policies: Policies,
}

/// How Pods are changed, checked, undone, and who leads them. What a group does not say is as the plugin has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Policies {
    /// How many Pods change at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// What must hold before an upgrade begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_upgrade_check: Option<PreUpgradeCheck>,
    /// What must hold after an upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_upgrade_verify: Option<PostUpgradeVerify>,
    /// When a change is undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<Rollback>,
    /// How roles are found and moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_availability: Option<HighAvailability>,
}

impl Policies {
    /// These, and what they leave out from others.
    pub fn over(&self, defaults: &Policies) -> Policies {
        let (own, defaults) = (self.clone(), defaults.clone());
        Policies {
            rolling_update: own.rolling_update.or(defaults.rolling_update),
            pre_upgrade_check: own.pre_upgrade_check.or(defaults.pre_upgrade_check),
            post_upgrade_verify: own.post_upgrade_verify.or(defaults.post_upgrade_verify),
            rollback: own.rollback.or(defaults.rollback),
            high_availability: own.high_availability.or(defaults.high_availability),
        }
    }

    /// Whether a change can be undone; it can unless somebody says otherwise.
    pub fn can_undo(&self) -> bool {
        self.rollback.as_ref().is_none_or(|rollback| rollback.enabled)
    }

    /// Whether a failed change is undone by itself; it is unless somebody says otherwise.
    pub fn undoes_failures(&self) -> bool {
        self.rollback.as_ref().is_none_or(|rollback| rollback.enabled && rollback.on_failure)
    }
}

/// How many Pods change at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("!has(self.maxUnavailable) || !(string(self.maxUnavailable) in ['0', '0%'])",
     "maxUnavailable must not be zero: Pods are made anew in their place, so one at least is missing meanwhile; set 1 or more"),
    ("!has(self.maxSurge) || string(self.maxSurge) in ['0', '0%']",
     "maxSurge is not supported: Pods are made anew in their place; leave it out, and set maxUnavailable"),
])))]
pub struct RollingUpdate {
    /// Pods above the wanted number, as a number or a percentage. Zero, or left out: Pods are made anew in their place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 16, "pattern" = r"^[0-9]+%?$", "minimum" = 0, "maximum" = 1000))]
    pub max_surge: Option<IntOrString>,
    /// Pods that may be missing, as a number or a percentage, which is rounded down, but never to none. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 16, "pattern" = r"^[0-9]+%?$", "minimum" = 0, "maximum" = 1000))]
    pub max_unavailable: Option<IntOrString>,
    /// Pods with a smaller ordinal stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub partition: Option<i32>,
    /// Longest time for one Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

/// What must hold before an upgrade begins. If no Pod can be asked, it does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::rules(&[
    ("self.type in ['health', 'replication']", "preUpgradeCheck.type must be health or replication"),
])))]
pub struct PreUpgradeCheck {
    /// health: the plugin's health command succeeds in every Pod that is ready. replication: also, all Pods are ready, one
    /// leads, and the others follow it.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub type_: String,
    /// Longest time for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

/// What must hold after an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostUpgradeVerify {
    /// Kind of check that the plugin knows, such as command.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub type_: String,
    /// Command to run in each Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub command: Option<String>,
    /// What the command must print.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub expected: Option<String>,
}

/// When a change is undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// Whether changes can be undone.
    #[serde(default)]
    pub enabled: bool,
    /// Whether a failed change is undone by itself.
    #[serde(default)]
    pub on_failure: bool,
    /// Revisions that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub limit: Option<i32>,
}

/// How roles are found and moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HighAvailability {
    /// The middleware elects by itself; we look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive: Option<PassiveHighAvailability>,
    /// We move the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveHighAvailability>,
}

/// The middleware elects by itself; we look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PassiveHighAvailability {
    /// How a Pod's role is found.
    pub role_detection: RoleDetection,
}

/// How a Pod's role is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleDetection {
    /// Command to run in the Pod.
    #[schemars(length(min = 1, max = 4096))]
    pub command: String,
    /// Regular expression whose first group is the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub parse_pattern: Option<String>,
    /// Time between two looks. Defaults to 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<GoDuration>,
    /// What else the command prints, for whoever has to choose a leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<RoleFacts>,
}

/// Regular expressions whose first groups say how much a Pod has of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleFacts {
    /// A number that grows with every change: whoever has the greatest has the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub position: Option<String>,
    /// What positions count within: those of different histories cannot be compared. Each new leader begins one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub history: Option<String>,
    /// The history from which a leader took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub previous_history: Option<String>,
    /// The position at which that history was left: what a Pod has of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub previous_position: Option<String>,
    /// The address of whom a Pod follows. Nothing, or an address of the Pod itself such as 127.0.0.1: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub follows: Option<String>,
}

/// We move the role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveHighAvailability {
    /// Command that makes a Pod the leader.
    #[schemars(length(min = 1, max = 4096))]
    pub failover_command: String,
    /// Command that must succeed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub pre_failover_check: Option<String>,
    /// Command that must succeed after.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub post_failover_verify: Option<String>,
    /// Command in a Pod that makes it the leader in order, while $(LEADER) still leads. Defaults to failoverCommand.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub switchover_command: Option<String>,
    /// Command that has a Pod follow $(LEADER). With it, controllers choose a leader when there is none: whoever has
    /// most of the data, when all Pods but one can be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub follow_command: Option<String>,
    /// Command that has a Pod follow nobody, so that it acknowledges nothing to a leader that is being replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub fence_command: Option<String>,
}

/// What was observed of a Group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Where the Group stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PartPhase>,
    /// Conditions: Ready, TemplatesRendered, OrderKnown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Pods there are.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the Pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Version that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    /// Version that is being reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
    /// What is being done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_operation: Option<Operation>,
    /// State per Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pods: Vec<GroupPodStatus>,
    /// Who leads, where controllers choose the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<Leader>,
    /// Progress of an upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade_status: Option<UpgradeStatus>,
    /// The last revision that was carried out in full; what a cancelled change goes back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_completed_revision: Option<String>,
    /// The revision that could not be reached, and why; it is not tried again until another is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Who leads. Whoever says so and does not come from this history is one of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// Name of the Pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The history that it began.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub history: String,
}

/// A revision that could not be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The revision.
    #[schemars(length(max = 253))]
    pub revision: String,
    /// What went wrong.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// State of a Pod of a Group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupPodStatus {
    /// Name of the Pod.
    pub name: String,
    /// Whether it is ready.
    #[serde(default)]
    pub ready: bool,
    /// Role that it has, such as leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Whether that role leads the others.
    #[serde(default)]
    pub leader: bool,
    /// When it got that role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_role_change: Option<Time>,
    /// Version that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Progress of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStatus {
    /// Where the upgrade stands: Checking, Upgrading, Verifying, Completed, RollingBack, Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpgradePhase>,
    /// Version that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// Version that it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_version: Option<String>,
    /// Pods that have the new version.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Pods there should be.
    #[serde(default)]
    pub total_replicas: i32,
}

/// Where an upgrade stands: Checking, Upgrading, Verifying, Completed, RollingBack, Failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpgradePhase {
    /// The check before it runs.
    Checking,
    /// Pods are being changed.
    Upgrading,
    /// The check after it runs.
    Verifying,
    /// Done.
    Completed,
    /// Being undone.
    RollingBack,
    /// Failed.
    Failed,
}
