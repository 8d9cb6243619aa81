//! What the lifecycle manager may do, as values that can be compared and printed. Each is one write to one object,
//! names the state of the object that it is meant for, and says why.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use agentcube_api::reasons;

use crate::identity::{InstanceId, SpecId};
use crate::record::Reservation;

/// Why something is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    SessionIdle,
    SessionPaused,
    SessionExpired,
    SessionDeleted,
    SessionLost,
    SessionSpoilt,
    BindingAbandoned,
    InstanceStuck,
    TaskDeleted,
    SessionEnded,
    InstanceReused,
    InstanceExcess,
    InstanceSpent,
    InstanceExpired,
    InstanceLost,
    InstanceDead,
    InstanceSpoilt,
    RevisionDrained,
    OrphanRemoved,
    RouterGone,
    MinimumKept,
}

impl Reason {
    pub const ALL: [Reason; 21] = [
        Reason::SessionIdle,
        Reason::SessionPaused,
        Reason::SessionExpired,
        Reason::SessionDeleted,
        Reason::SessionLost,
        Reason::SessionSpoilt,
        Reason::BindingAbandoned,
        Reason::InstanceStuck,
        Reason::TaskDeleted,
        Reason::SessionEnded,
        Reason::InstanceReused,
        Reason::InstanceExcess,
        Reason::InstanceSpent,
        Reason::InstanceExpired,
        Reason::InstanceLost,
        Reason::InstanceDead,
        Reason::InstanceSpoilt,
        Reason::RevisionDrained,
        Reason::OrphanRemoved,
        Reason::RouterGone,
        Reason::MinimumKept,
    ];

    /// The reason of the Event, the label of the metric, and the value of the mark.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::SessionIdle => reasons::SESSION_IDLE,
            Reason::SessionPaused => reasons::SESSION_PAUSED,
            Reason::SessionExpired => reasons::SESSION_EXPIRED,
            Reason::SessionDeleted => reasons::SESSION_DELETED,
            Reason::SessionLost => reasons::SESSION_LOST,
            Reason::SessionSpoilt => reasons::SESSION_SPOILT,
            Reason::BindingAbandoned => reasons::BINDING_ABANDONED,
            Reason::InstanceStuck => reasons::INSTANCE_STUCK,
            Reason::TaskDeleted => reasons::TASK_DELETED,
            Reason::SessionEnded => reasons::SESSION_ENDED,
            Reason::InstanceReused => reasons::INSTANCE_REUSED,
            Reason::InstanceExcess => reasons::INSTANCE_EXCESS,
            Reason::InstanceSpent => reasons::INSTANCE_SPENT,
            Reason::InstanceExpired => reasons::INSTANCE_EXPIRED,
            Reason::InstanceLost => reasons::INSTANCE_LOST,
            Reason::InstanceDead => reasons::INSTANCE_DEAD,
            Reason::InstanceSpoilt => reasons::INSTANCE_SPOILT,
            Reason::RevisionDrained => reasons::REVISION_DRAINED,
            Reason::OrphanRemoved => reasons::ORPHAN_REMOVED,
            Reason::RouterGone => reasons::ROUTER_GONE,
            Reason::MinimumKept => reasons::MINIMUM_KEPT,
        }
    }

    /// Reads what [`Reason::as_str`] wrote.
    pub fn parse(text: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A Lease in the state that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseRef {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
    pub(super) version: u64,
}

/// An instance's object in the state that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodRef {
    pub(super) namespace: Arc<str>,
    pub(super) id: InstanceId,
    pub(super) version: u64,
}

/// What has to hold in a fresh read before the operation; a cache may be late.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Confirm {
    /// Nothing: the operation's own condition is enough.
    Nothing,
    /// The instance that the Lease names is not bound to it.
    NotBound(InstanceId),
    /// The Lease of this name is not bound to the instance.
    NotHeldBy(Arc<str>),
    /// The Task does not exist. Known by the name that its leftovers give.
    TaskGone(Arc<str>),
}

/// When a deletion of a Pod still applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    /// To this very instance, whatever it says by now.
    Uid,
    /// Only if nothing about it has changed.
    Version,
}

/// How the instance of a session that ends was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Given {
    /// It is free, or being deleted: nobody uses it.
    Back,
    /// It is gone, or dead. A request was under way when the session ended, so less is not enough.
    Gone,
    /// It cannot be deleted, and is taken for lost.
    Lost,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// Ask the routers whether a session may end.
    MarkSession { lease: LeaseRef, reason: Reason },
    /// Take the question back.
    UnmarkSession { lease: LeaseRef },
    /// Say that a session rests, under the number of this version. Nobody serves it from then on.
    RestSession { lease: LeaseRef },
    /// Have the instance of a session that rests stand still.
    PauseInstance { pod: PodRef },
    /// Delete the Lease; if it is `kept`, it stays until its instance was given back.
    EndSession { lease: LeaseRef, kept: bool, reason: Reason, confirm: Confirm },
    /// Remove the Lease's finalizer: its instance was given back.
    FinishSession { lease: LeaseRef, holder: Option<InstanceId>, given: Given, reason: Reason },
    /// Give an instance back to the idle ones.
    FreeInstance { pod: PodRef, reservation: Reservation },
    /// Ask the routers whether an instance may go.
    MarkInstance { pod: PodRef, reason: Reason, confirm: Confirm },
    /// Take the question back.
    UnmarkInstance { pod: PodRef },
    /// Delete an instance, gracefully.
    DeleteInstance { pod: PodRef, reason: Reason, condition: Condition, confirm: Confirm },
    /// Start an instance of the current revision.
    StartInstance { spec: SpecId, slot: u32 },
    /// Change how many Pods a Job keeps. The marked Pods have to be marked still when it is fewer.
    SetParallelism { job: Arc<str>, version: u64, from: i32, to: i32, marked: Vec<PodRef>, reason: Reason },
}

impl Operation {
    /// The one instance that it changes.
    pub(super) fn pod(&self) -> Option<&PodRef> {
        match self {
            Operation::FreeInstance { pod, .. }
            | Operation::MarkInstance { pod, .. }
            | Operation::UnmarkInstance { pod }
            | Operation::PauseInstance { pod }
            | Operation::DeleteInstance { pod, .. } => Some(pod),
            _ => None,
        }
    }

    /// Whether it is done because every router agreed, so that a router yet unknown has to be looked for first.
    pub(super) fn rests_on_routers(&self) -> bool {
        match self {
            Operation::EndSession { reason, .. } => {
                matches!(reason, Reason::SessionIdle | Reason::SessionLost)
            }
            Operation::RestSession { .. }
            | Operation::FinishSession { .. }
            | Operation::FreeInstance { .. } => true,
            Operation::DeleteInstance { reason, .. } => {
                !matches!(reason, Reason::InstanceDead | Reason::InstanceExpired | Reason::TaskDeleted)
            }
            Operation::SetParallelism { from, to, .. } => to < from,
            Operation::MarkSession { .. }
            | Operation::UnmarkSession { .. }
            | Operation::PauseInstance { .. }
            | Operation::MarkInstance { .. }
            | Operation::UnmarkInstance { .. }
            | Operation::StartInstance { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_read_as_they_were_written() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("nonsense"), None);
    }
}
