//! Why the lifecycle manager took something back: reasons of Events and values of the label `reason` of the metric
//! `agentcube_reclaimed_total`. One word each, for programs; the Event's message is for people.

/// A session had been idle for longer than `idleTimeout`.
pub const SESSION_IDLE: &str = "SessionIdle";
/// A session was idle for longer than `idleTimeout` and is paused; a request wakes it.
pub const SESSION_PAUSED: &str = "SessionPaused";
/// A session's instance had lived for longer than `ttl`.
pub const SESSION_EXPIRED: &str = "SessionExpired";
/// A session's Lease was deleted by hand.
pub const SESSION_DELETED: &str = "SessionDeleted";
/// A session's instance was lost, and nobody asked for the session again.
pub const SESSION_LOST: &str = "SessionLost";
/// A session's Lease had been edited so that it could not be read.
pub const SESSION_SPOILT: &str = "SessionSpoilt";
/// A session was being given an instance, and whoever did that stopped half way.
pub const BINDING_ABANDONED: &str = "BindingAbandoned";
/// A session's instance is being deleted for so long that its node has to be taken for lost.
pub const INSTANCE_STUCK: &str = "InstanceStuck";
/// The Task is deleted.
pub const TASK_DELETED: &str = "TaskDeleted";
/// An instance was deleted because its session ended.
pub const SESSION_ENDED: &str = "SessionEnded";
/// An instance went back to the idle ones because its session ended.
pub const INSTANCE_REUSED: &str = "InstanceReused";
/// An instance was idle and beyond the minimum, or beyond the maximum.
pub const INSTANCE_EXCESS: &str = "InstanceExcess";
/// It had its one request, and did not end by itself.
pub const INSTANCE_SPENT: &str = "InstanceSpent";
/// An instance without a session had lived for longer than `ttl`.
pub const INSTANCE_EXPIRED: &str = "InstanceExpired";
/// The agent of a free instance is silent, or has lost it.
pub const INSTANCE_LOST: &str = "InstanceLost";
/// An instance had ended by itself.
pub const INSTANCE_DEAD: &str = "InstanceDead";
/// An instance's annotations had been edited so that they could not be read.
pub const INSTANCE_SPOILT: &str = "InstanceSpoilt";
/// An idle instance was of a revision that is no longer current.
pub const REVISION_DRAINED: &str = "RevisionDrained";
/// Something had lost what it belonged to: an instance its session, or anything its Task.
pub const ORPHAN_REMOVED: &str = "OrphanRemoved";
/// A router has been silent for so long that it counts as dead.
pub const ROUTER_GONE: &str = "RouterGone";
/// Instances were started to keep up the minimum; nothing was taken back.
pub const MINIMUM_KEPT: &str = "MinimumKept";
/// An instance could not be started.
pub const START_FAILED: &str = "InstanceStartFailed";
