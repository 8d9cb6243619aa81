//! What is reported of a Sandbox. Pure: each builds on the status there is, and leaves conditions of others alone.

use agentcube_api::Sandbox;
use agentcube_api::conditions::{self, FALSE, READY, TRUE, Update, sandbox as reasons};
use agentcube_api::sandbox::{SandboxPhase, SandboxStatus};
use agentcube_protos::agent::Entry;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::observe::Allocated;

/// Condition: its processes stand still because somebody wants them to.
pub(super) const PAUSED: &str = "Paused";
/// Reason: it runs and does not listen on all of its ports yet.
pub(super) const STARTING: &str = "Starting";
/// Reason: its program ended by itself.
pub(super) const EXITED: &str = "Exited";
/// Reason: its agent has ended and begun anew, without it.
pub(super) const AGENT_RESTARTED: &str = "AgentRestarted";
/// Reason: it is being removed.
pub(super) const TERMINATING: &str = "Terminating";

/// A status that is being put together.
struct Draft<'a> {
    object: &'a Sandbox,
    status: SandboxStatus,
    now: Time,
}

impl<'a> Draft<'a> {
    fn new(object: &'a Sandbox, phase: SandboxPhase, now: Timestamp) -> Draft<'a> {
        let mut status = object.status.clone().unwrap_or_default();
        status.phase = Some(phase);
        status.observed_generation = object.metadata.generation;
        Draft { object, status, now: Time(now) }
    }

    fn say(mut self, type_: &str, holds: bool, reason: &str, message: &str) -> Self {
        let update = Update {
            type_,
            status: if holds { TRUE } else { FALSE },
            reason,
            message: message.into(),
            observed_generation: self.object.metadata.generation,
        };
        conditions::set(&mut self.status.conditions, update, &self.now);
        self
    }

    fn at(mut self, at: &Allocated) -> Self {
        self.status.assigned_pod = Some(at.agent.name.clone());
        self.status.assigned_pod_uid = Some(at.agent.uid.clone());
        self.status.node_name = (!at.node.is_empty()).then(|| at.node.clone());
        self.status.sandbox_id = Some(at.run.to_string());
        self.status.lost_since = None;
        self.status.exit_code = None;
        self
    }

    /// Nothing runs for it any more.
    fn nowhere(mut self) -> Self {
        self.status.sandbox_id = None;
        self.status.endpoints.clear();
        self.status.lost_since = None;
        self
    }

    fn done(self) -> Box<SandboxStatus> {
        Box::new(self.status)
    }
}

/// It waits for something before an agent is chosen.
pub(super) fn pending(object: &Sandbox, reason: &str, message: &str, now: Timestamp) -> Box<SandboxStatus> {
    let mut draft =
        Draft::new(object, SandboxPhase::Pending, now).nowhere().say(READY, false, reason, message);
    (draft.status.assigned_pod, draft.status.assigned_pod_uid, draft.status.node_name) = (None, None, None);
    draft.done()
}

/// An agent is chosen.
pub(super) fn bound(object: &Sandbox, at: &Allocated, now: Timestamp) -> Box<SandboxStatus> {
    let message = format!("agent {} is to start it", at.agent.name);
    let mut draft = Draft::new(object, SandboxPhase::Bound, now).at(at);
    draft.status.endpoints.clear();
    draft.status.started_at = None;
    // A new run carries out every reset that was asked for.
    draft.status.accepted_reset_revision = object.spec.reset_revision;
    conditions::remove(&mut draft.status.conditions, PAUSED);
    draft.say(READY, false, reasons::REASON_BOUND, &message).done()
}

/// It runs.
pub(super) fn running(object: &Sandbox, at: &Allocated, entry: &Entry, now: Timestamp) -> Box<SandboxStatus> {
    let first = object.status.as_ref().is_none_or(|status| status.sandbox_id.is_none());
    let mut draft = Draft::new(object, SandboxPhase::Running, now).at(at);
    if first {
        draft.status.accepted_reset_revision = object.spec.reset_revision;
    }
    draft.status.endpoints.clone_from(&entry.endpoints);
    let started = (entry.started_unix_ms > 0).then(|| Timestamp::from_millisecond(entry.started_unix_ms));
    // Once it is written it stays: an agent may round it otherwise than we do.
    let kept = draft.status.started_at.take().filter(|_| !first);
    draft.status.started_at = kept.or_else(|| started.and_then(Result::ok).map(Time));
    let ready = entry.ready || object.spec.exposed_ports.is_empty();
    let paused = entry.paused;
    let draft = match (paused, ready) {
        (true, _) => draft.say(READY, false, PAUSED, "its processes stand still"),
        (false, true) => draft.say(READY, true, reasons::REASON_RUNNING, ""),
        (false, false) => draft.say(READY, false, STARTING, "it does not listen on all of its ports yet"),
    };
    let known = conditions::find(&draft.status.conditions, PAUSED).is_some();
    if paused || known {
        draft.say(PAUSED, paused, if paused { PAUSED } else { "Resumed" }, "")
    } else {
        draft
    }
    .done()
}

/// Its agent is silent, or has lost it.
pub(super) fn lost(
    object: &Sandbox,
    since: Timestamp,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Box<SandboxStatus> {
    let before = object.status.as_ref().and_then(|status| status.lost_since.clone());
    let mut draft = Draft::new(object, SandboxPhase::Lost, now).say(READY, false, reason, message);
    let seconds = Timestamp::from_second(since.as_second()).unwrap_or(since);
    draft.status.lost_since = before.or(Some(Time(seconds)));
    draft.done()
}

/// It ran, as its allocation says, and its agent does not have it any more.
pub(super) fn lost_unseen(
    object: &Sandbox,
    at: &Allocated,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Box<SandboxStatus> {
    let mut draft = Draft::new(object, SandboxPhase::Lost, now).at(at).say(READY, false, reason, message);
    let seconds = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    (draft.status.lost_since, draft.status.started_at) = (Some(seconds.clone()), Some(seconds));
    draft.status.accepted_reset_revision = object.spec.reset_revision;
    draft.done()
}

/// It is over: expired, or failed.
pub(super) fn ended(
    object: &Sandbox,
    phase: SandboxPhase,
    reason: &str,
    message: &str,
    exit_code: Option<i32>,
    now: Timestamp,
) -> Box<SandboxStatus> {
    let mut draft = Draft::new(object, phase, now).nowhere().say(READY, false, reason, message);
    draft.status.exit_code = exit_code;
    draft.done()
}

/// It is being removed.
pub(super) fn terminating(object: &Sandbox, now: Timestamp) -> Box<SandboxStatus> {
    let message = "its agent has not confirmed yet that it is stopped";
    Draft::new(object, SandboxPhase::Terminating, now).say(READY, false, TERMINATING, message).done()
}

/// Its annotation cannot be trusted.
pub(super) fn untrusted(object: &Sandbox, reason: &str, message: &str, now: Timestamp) -> Box<SandboxStatus> {
    let phase = object.status.as_ref().and_then(|status| status.phase).unwrap_or_default();
    Draft::new(object, phase, now).say(reasons::ALLOCATION_VALID, false, reason, message).done()
}
