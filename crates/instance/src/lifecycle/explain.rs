//! Says what was taken back and why: an Event on the Task, and on the instance where somebody should look at it, and
//! a count per reason. Never names a session's key, which may be a secret of its user.

use agentcube_api::{Task, reasons};
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::{Counter, Family, Registry};

use super::operation::{Operation, Reason};
use crate::bearer::Body;

/// How much was taken back, by reason; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reclaimed(Family<Counter>);

impl Reclaimed {
    pub(super) fn new(registry: &Registry) -> Reclaimed {
        let help = "Sessions, instances and routers' Leases that were taken back, by why";
        Reclaimed(registry.counter("agentcube_reclaimed_total", help, &["reason"]))
    }

    pub fn of(&self, reason: Reason) -> u64 {
        self.0.with(&[reason.as_str()]).get()
    }

    pub(super) fn add(&self, reason: Reason) {
        self.0.with(&[reason.as_str()]).inc();
    }
}

#[derive(Clone, Debug)]
pub(super) struct Explainer {
    pub(super) events: Recorder,
    pub(super) reclaimed: Reclaimed,
}

impl Explainer {
    /// Takes in an operation that was carried out.
    pub(super) fn done(&self, task: Option<&Task>, body: Option<&Body>, operation: &Operation) {
        let Some((reason, message)) = story(operation) else { return };
        if reason != Reason::MinimumKept {
            self.reclaimed.add(reason);
        }
        let worrying = matches!(
            reason,
            Reason::InstanceSpoilt | Reason::SessionSpoilt | Reason::OrphanRemoved | Reason::InstanceStuck
        );
        match task {
            Some(task) if worrying => self.events.warning(task, reason.as_str(), &message),
            Some(task) => self.events.normal(task, reason.as_str(), &message),
            None => {}
        }
        match body.filter(|_| worrying) {
            Some(Body::Pod(pod)) => self.events.warning(&**pod, reason.as_str(), message),
            Some(Body::Sandbox(sandbox)) => self.events.warning(&**sandbox, reason.as_str(), message),
            None => {}
        }
    }

    pub(super) fn start_failed(&self, task: Option<&Task>, name: &str, error: &str) {
        if let Some(task) = task {
            let message = format!("cannot start instance {name}: {error}");
            self.events.warning(task, reasons::START_FAILED, message);
        }
    }
}

/// What is told of an operation; nothing if it is only a step on the way.
fn story(operation: &Operation) -> Option<(Reason, String)> {
    let told = match operation {
        Operation::FinishSession { lease, holder, reason, .. } => {
            let of =
                holder.as_ref().map_or_else(String::new, |holder| format!(" of instance {}", holder.name));
            (*reason, format!("session {}{of} ended: {}", lease.name, because(*reason)))
        }
        // One that is kept is told of when its instance was given back.
        Operation::EndSession { lease, kept: false, reason, .. } => {
            (*reason, format!("session {} is removed: {}", lease.name, because(*reason)))
        }
        Operation::PauseInstance { pod } => {
            let reason = Reason::SessionPaused;
            (reason, format!("instance {} is paused: {}", pod.id.name, because(reason)))
        }
        Operation::FreeInstance { pod, .. } => {
            let reason = Reason::InstanceReused;
            (reason, format!("instance {} is free again: {}", pod.id.name, because(reason)))
        }
        Operation::DeleteInstance { pod, reason, .. } => {
            (*reason, format!("instance {} is deleted: {}", pod.id.name, because(*reason)))
        }
        Operation::StartInstance { spec, slot } => {
            let reason = Reason::MinimumKept;
            (reason, format!("an instance of {spec} is started in slot {slot}: {}", because(reason)))
        }
        Operation::SetParallelism { job, from, to, reason, .. } => {
            (*reason, format!("Job {job} is scaled from {from} to {to}: {}", because(*reason)))
        }
        Operation::EndSession { .. }
        | Operation::MarkSession { .. }
        | Operation::RestSession { .. }
        | Operation::UnmarkSession { .. }
        | Operation::MarkInstance { .. }
        | Operation::UnmarkInstance { .. } => return None,
    };
    Some(told)
}

fn because(reason: Reason) -> &'static str {
    match reason {
        Reason::SessionIdle => "it was idle for longer than idleTimeout",
        Reason::SessionPaused => "its session was idle for longer than idleTimeout, and idleAction is Pause",
        Reason::SessionExpired => "its instance has lived for longer than ttl",
        Reason::SessionDeleted => "its Lease was deleted",
        Reason::SessionLost => "its instance was lost and nobody asked for it again",
        Reason::SessionSpoilt => "its Lease was changed by hand and makes no sense any more",
        Reason::BindingAbandoned => "the router that was giving it an instance stopped half way",
        Reason::InstanceStuck => "its instance cannot be deleted, and its node may be lost; look at the node",
        Reason::TaskDeleted => "the Task is deleted",
        Reason::SessionEnded => "its session ended",
        Reason::InstanceReused => "its session ended, and reusePolicy is Always",
        Reason::InstanceExcess => "it is idle and not needed for minInstances, or beyond maxInstances",
        Reason::InstanceSpent => "it had its one request, and did not end by itself",
        Reason::InstanceExpired => "it has lived for longer than ttl",
        Reason::InstanceLost => "its agent is silent or has lost it",
        Reason::InstanceDead => "its processes have ended",
        Reason::InstanceSpoilt => "its annotations were changed by hand and make no sense any more",
        Reason::RevisionDrained => "it is idle and of a revision that is no longer current",
        Reason::OrphanRemoved => "it says that it belongs to a session, and there is no such session",
        Reason::RouterGone => "the router has been silent for too long",
        Reason::MinimumKept => "minInstances asks for it",
    }
}
