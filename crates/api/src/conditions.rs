//! Conditions: setting one keeps its transition time unless its status changes, and leaves all others alone.
//! Types and reasons are constants per kind, as the design's tables have them. No clock here: the caller says when.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Status of a condition that holds.
pub const TRUE: &str = "True";
/// Status of a condition that does not hold.
pub const FALSE: &str = "False";
/// Status of a condition of which it is not known whether it holds.
pub const UNKNOWN: &str = "Unknown";

/// The condition that sums up all others, in every kind.
pub const READY: &str = "Ready";

/// What a controller says of one aspect of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// [`TRUE`], [`FALSE`] or [`UNKNOWN`].
    pub status: &'a str,
    /// One word for programs.
    pub reason: &'a str,
    /// A sentence for people.
    pub message: String,
    /// The generation that was looked at.
    pub observed_generation: Option<i64>,
}

/// Sets one condition. Returns whether anything changed; when not, there is nothing to write.
pub fn set(conditions: &mut Vec<Condition>, update: Update<'_>, now: &Time) -> bool {
    let Some(current) = conditions.iter_mut().find(|c| c.type_ == update.type_) else {
        conditions.push(Condition {
            type_: update.type_.into(),
            status: update.status.into(),
            reason: update.reason.into(),
            message: update.message,
            observed_generation: update.observed_generation,
            last_transition_time: now.clone(),
        });
        return true;
    };
    let transition = current.status != update.status;
    let changed = transition
        || current.reason != update.reason
        || current.message != update.message
        || current.observed_generation != update.observed_generation;
    if transition {
        current.last_transition_time = now.clone();
    }
    if changed {
        current.status = update.status.into();
        current.reason = update.reason.into();
        current.message = update.message;
        current.observed_generation = update.observed_generation;
    }
    changed
}

/// Removes a condition, such as that of a feature that was switched off. Returns whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|c| c.type_ != type_);
    conditions.len() != before
}

/// The condition of a type, if there is one.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether a condition holds and is about `generation` or a later one.
pub fn is_true_for(conditions: &[Condition], type_: &str, generation: i64) -> bool {
    find(conditions, type_)
        .is_some_and(|c| c.status == TRUE && c.observed_generation.is_none_or(|seen| seen >= generation))
}

/// Conditions of a Task.
pub mod task {
    /// Instances can be made.
    pub const SPEC_READY: &str = "SpecReady";
    /// The route exists and is accepted.
    pub const ROUTE_READY: &str = "RouteReady";
    /// The shared policy exists, is accepted and selects this Task's route.
    pub const EXT_PROC_READY: &str = "ExtProcReady";

    /// Ready: spec, route and external processor are.
    pub const REASON_READY: &str = "TaskReady";
    /// Ready is false: at least one is not.
    pub const REASON_NOT_READY: &str = "NotReady";
    /// SpecReady: what instances are made from is there.
    pub const REASON_SPEC_INITIALIZED: &str = "SpecInitialized";
    /// SpecReady is false: it could not be made; will be retried.
    pub const REASON_INITIALIZE_FAILED: &str = "InitializeFailed";
    /// SpecReady is false: the spec cannot work until it changes.
    pub const REASON_SPEC_INVALID: &str = "SpecInvalid";
    /// SpecReady is false: no RuntimeClass for the wanted runtime.
    pub const REASON_RUNTIME_CLASS_MISSING: &str = "RuntimeClassMissing";
    /// SpecReady is false: the SandboxPool does not exist.
    pub const REASON_POOL_MISSING: &str = "SandboxPoolMissing";
    /// The SandboxPool that the Task names has another runtime than the Task asks for.
    pub const REASON_POOL_RUNTIME: &str = "SandboxPoolRuntime";
    /// SpecReady is false: a Secret that instances need does not exist.
    pub const REASON_SECRET_MISSING: &str = "SecretMissing";
    /// SpecReady is false: a ConfigMap that instances need does not exist.
    pub const REASON_CONFIG_MAP_MISSING: &str = "ConfigMapMissing";
    /// SpecReady is false: a PersistentVolumeClaim that instances need does not exist.
    pub const REASON_CLAIM_MISSING: &str = "PersistentVolumeClaimMissing";
    /// SpecReady is false: the ServiceAccount of instances does not exist.
    pub const REASON_SERVICE_ACCOUNT_MISSING: &str = "ServiceAccountMissing";
    /// SpecReady is false: the PriorityClass of instances does not exist.
    pub const REASON_PRIORITY_CLASS_MISSING: &str = "PriorityClassMissing";
    /// SpecReady is false: what instances need is still being prepared, such as a bundle that is fetched.
    pub const REASON_PREPARING: &str = "Preparing";
    /// SpecReady is false: what instances need cannot be prepared, such as a bundle that is not what it should be.
    pub const REASON_BUNDLE_BROKEN: &str = "BundleBroken";
    /// SpecReady is false: instances are started and none comes up.
    pub const REASON_INSTANCES_FAILING: &str = "InstancesFailing";
    /// RouteReady: the route was made.
    pub const REASON_ROUTE_CREATED: &str = "RouteCreated";
    /// RouteReady: the route was gone or changed and was put right.
    pub const REASON_AUTO_REPAIRED: &str = "AutoRepaired";
    /// RouteReady is false: the gateway does not exist.
    pub const REASON_GATEWAY_MISSING: &str = "GatewayMissing";
    /// RouteReady is false: the gateway has not accepted the route.
    pub const REASON_NOT_ACCEPTED: &str = "NotAccepted";
    /// RouteReady is false: the gateway cannot do what the Task asks for.
    pub const REASON_UNSUPPORTED: &str = "Unsupported";
    /// ExtProcReady: the external processor is set up.
    pub const REASON_EXT_PROC_CONFIGURED: &str = "ExtProcConfigured";
    /// RouteReady or ExtProcReady is false: a write failed; will be retried.
    pub const REASON_CREATION_FAILED: &str = "CreationFailed";
}

/// Conditions of a TaskGateway.
pub mod gateway {
    /// The Gateway exists and is programmed.
    pub const GATEWAY_READY: &str = "GatewayReady";
    /// Authentication and CORS are set up.
    pub const SECURITY_POLICY_READY: &str = "SecurityPolicyReady";
    /// Rate limits are set up.
    pub const RATE_LIMIT_READY: &str = "RateLimitReady";

    /// Of a Gateway of the built-in class: its TaskGateway's authentication and CORS are in force. Observed is the
    /// generation of the TaskGateway.
    pub const SECURITY_IN_FORCE: &str = "agentcube.io/SecurityInForce";
    /// The same of rate limits.
    pub const LIMITS_IN_FORCE: &str = "agentcube.io/RateLimitsInForce";

    /// Ready: everything is.
    pub const REASON_ALL_READY: &str = "AllComponentsReady";
    /// Ready is false: something is not.
    pub const REASON_NOT_READY: &str = "ComponentsNotReady";
    /// GatewayReady: the Gateway was made.
    pub const REASON_GATEWAY_CREATED: &str = "GatewayCreated";
    /// SecurityPolicyReady or RateLimitReady: the policy was made.
    pub const REASON_POLICY_CREATED: &str = "PolicyCreated";
    /// A write failed; will be retried.
    pub const REASON_CREATION_FAILED: &str = "CreationFailed";
    /// The object exists, and its controller has not accepted it.
    pub const REASON_NOT_ACCEPTED: &str = "NotAccepted";
    /// An object was gone or changed and was put right.
    pub const REASON_AUTO_REPAIRED: &str = "AutoRepaired";
    /// The class of the gateway cannot do what the TaskGateway asks for.
    pub const REASON_UNSUPPORTED: &str = "Unsupported";
}

/// Conditions of a SandboxPool and a Sandbox.
pub mod sandbox {
    /// The allocation annotation of a Sandbox can be trusted.
    pub const ALLOCATION_VALID: &str = "AllocationValid";

    /// Ready: it runs, or the pool has its agents.
    pub const REASON_RUNNING: &str = "Running";
    /// Ready is false: agents are missing.
    pub const REASON_AGENTS_MISSING: &str = "AgentsMissing";
    /// Ready is false: no agent has a free slot.
    pub const REASON_NO_CAPACITY: &str = "NoCapacity";
    /// Ready is false: an agent is chosen and has not confirmed yet.
    pub const REASON_BOUND: &str = "Bound";
    /// Ready is false: `expireTime` is past.
    pub const REASON_EXPIRED: &str = "Expired";
    /// Ready is false: the agent is silent.
    pub const REASON_AGENT_LOST: &str = "AgentLost";
    /// Ready is false: the pool does not exist.
    pub const REASON_POOL_MISSING: &str = "SandboxPoolMissing";
    /// Ready is false: the agent could not start it.
    pub const REASON_START_FAILED: &str = "StartFailed";
    /// AllocationValid is false: the annotation cannot be read.
    pub const REASON_ALLOCATION_CORRUPT: &str = "AllocationCorrupt";
    /// AllocationValid is false: pool, namespace or agent Pod do not fit.
    pub const REASON_ALLOCATION_MISMATCH: &str = "AllocationMismatch";

    /// The janitor removed a container: its agent Pod is gone.
    pub const REASON_AGENT_POD_DISAPPEARED: &str = "AgentPodDisappeared";
    /// The janitor removed a container: it has no Sandbox.
    pub const REASON_SANDBOX_NOT_FOUND: &str = "SandboxCRDNotFound";
    /// The janitor removed a container: its Sandbox is another of the same name.
    pub const REASON_UID_MISMATCH: &str = "UIDMismatch";
}

/// Conditions of an App, a Component, a Group and a Plugin.
pub mod middleware {
    /// The Plugin exists and fits the App.
    pub const PLUGIN_VALID: &str = "PluginValid";
    /// No task of the App has failed.
    pub const TASKS_READY: &str = "TasksReady";
    /// A newer spec waits for the running tasks.
    pub const PENDING_CHANGE: &str = "PendingChange";
    /// The order of groups or Pods is known.
    pub const ORDER_KNOWN: &str = "OrderKnown";
    /// The plugin's templates were rendered.
    pub const TEMPLATES_RENDERED: &str = "TemplatesRendered";
    /// The Plugin can be used.
    pub const VALID: &str = "Valid";

    /// Everything is as wanted.
    pub const REASON_AS_WANTED: &str = "AsWanted";
    /// A change is being carried out.
    pub const REASON_PROGRESSING: &str = "Progressing";
    /// A task failed.
    pub const REASON_TASK_FAILED: &str = "TaskFailed";
    /// A task took too long.
    pub const REASON_TASK_TIMED_OUT: &str = "TaskTimedOut";
    /// A revision could not be reached, and the last complete one was taken again.
    pub const REASON_ROLLED_BACK: &str = "RolledBack";
    /// A task was cancelled.
    pub const REASON_CANCELLED: &str = "Cancelled";
    /// The configuration is wrong; waits for a change.
    pub const REASON_CONFIGURATION: &str = "ConfigurationInvalid";
    /// The controller may not do it; waits for a change.
    pub const REASON_FORBIDDEN: &str = "Forbidden";
    /// A quota is full, or no node has room.
    pub const REASON_RESOURCES: &str = "ResourcesInsufficient";
    /// The Plugin does not exist.
    pub const REASON_PLUGIN_MISSING: &str = "PluginMissing";
    /// The plugin does not run this engine or version.
    pub const REASON_RUNTIME_UNSUPPORTED: &str = "RuntimeUnsupported";
    /// The plugin does not allow this upgrade.
    pub const REASON_UPGRADE_REFUSED: &str = "UpgradeRefused";
    /// A StorageClass cannot be changed without a migration.
    pub const REASON_MIGRATION_NEEDED: &str = "MigrationNeeded";
    /// A template has an error; the message says where.
    pub const REASON_TEMPLATE_ERROR: &str = "TemplateError";
    /// The agent cannot be reached: one after another, leader last.
    pub const REASON_AGENT_UNREACHABLE: &str = "AgentUnreachable";
    /// The agent's order is no permutation of what was asked.
    pub const REASON_ORDER_INVALID: &str = "OrderInvalid";
    /// A Backup waits until its App is ready.
    pub const REASON_APP_NOT_READY: &str = "AppNotReady";
    /// A Backup's archive is there.
    pub const REASON_ARCHIVED: &str = "Archived";
    /// A Backup could not be taken.
    pub const REASON_BACKUP_FAILED: &str = "BackupFailed";
}

/// Conditions of a FrontendIntegration and a JSBundle.
pub mod frontend {
    /// The bundle fits the spec.
    pub const BUILT: &str = "Built";

    /// Built: the bundle is that of the spec.
    pub const REASON_BUNDLE_CURRENT: &str = "BundleCurrent";
    /// Built is false: a build runs.
    pub const REASON_BUILDING: &str = "Building";
    /// Built is false: the builds failed.
    pub const REASON_BUILD_FAILED: &str = "BuildFailed";
    /// Built is false: `engineVersion` is not known.
    pub const REASON_UNSUPPORTED_ENGINE: &str = "UnsupportedEngineVersion";
    /// Built is false: the bundle does not fit into one object.
    pub const REASON_BUNDLE_TOO_LARGE: &str = "BundleTooLarge";
    /// Ready is false: switched off.
    pub const REASON_DISABLED: &str = "Disabled";
    /// Built is false: the build service has no bundler to build with.
    pub const REASON_BUNDLER_MISSING: &str = "BundlerMissing";
    /// Built is false: the spec cannot be made into pages.
    pub const REASON_SPEC_INVALID: &str = "SpecInvalid";
    /// Built is false: the spec changed while it was being built.
    pub const REASON_STALE: &str = "Stale";
    /// Ready, of a JSBundle: it is whole, and may be loaded.
    pub const REASON_AVAILABLE: &str = "Available";
    /// Ready is false: a digest or size does not fit.
    pub const REASON_DIGEST_MISMATCH: &str = "DigestMismatch";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        serde_json::from_value(serde_json::Value::String(text.into())).expect("a time")
    }

    fn update(status: &str, reason: &'static str, generation: i64) -> Update<'static> {
        let status = if status == TRUE { TRUE } else { FALSE };
        Update { type_: READY, status, reason, message: String::new(), observed_generation: Some(generation) }
    }

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let (t0, t1, t2) =
            (at("2025-01-19T10:00:00Z"), at("2025-01-19T10:01:00Z"), at("2025-01-19T10:02:00Z"));
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, update(FALSE, "NotReady", 1), &t0));
        assert!(set(&mut conditions, update(FALSE, "Other", 2), &t1));
        assert_eq!(conditions[0].last_transition_time, t0);
        assert!(set(&mut conditions, update(TRUE, "TaskReady", 2), &t2));
        assert_eq!(conditions[0].last_transition_time, t2);
    }

    #[test]
    fn nothing_new_is_no_change() {
        let mut conditions = Vec::new();
        set(&mut conditions, update(TRUE, "TaskReady", 1), &at("2025-01-19T10:00:00Z"));
        let before = conditions.clone();
        assert!(!set(&mut conditions, update(TRUE, "TaskReady", 1), &at("2025-01-19T11:00:00Z")));
        assert_eq!(conditions, before);
    }

    #[test]
    fn foreign_conditions_stay() {
        let now = at("2025-01-19T10:00:00Z");
        let mut conditions = Vec::new();
        set(&mut conditions, Update { type_: "example.com/Foreign", ..update(TRUE, "x", 1) }, &now);
        let foreign = conditions[0].clone();
        set(&mut conditions, update(TRUE, "TaskReady", 1), &now);
        assert!(remove(&mut conditions, READY));
        assert!(!remove(&mut conditions, READY));
        assert_eq!(conditions, [foreign]);
    }

    #[test]
    fn old_news_is_not_true() {
        let mut conditions = Vec::new();
        set(&mut conditions, update(TRUE, "TaskReady", 1), &at("2025-01-19T10:00:00Z"));
        assert!(is_true_for(&conditions, READY, 1));
        assert!(!is_true_for(&conditions, READY, 2));
    }
}
