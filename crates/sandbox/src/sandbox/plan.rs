//! The next step for a Sandbox. Pure and total: the same observation at the same time gives the same step, and when
//! nothing is left to do the step is to rest.
//!
//! The order matters: a deletion first, then the finalizer, then the annotation, which is gone before anything else
//! happens to the object; then the run that status names.

mod annotation;
mod logged;

use std::time::Duration;

use agentcube_api::Sandbox;
use agentcube_api::conditions::sandbox as reasons;
use agentcube_api::labels;
use agentcube_api::sandbox::{FailurePolicy, SandboxPhase, SandboxStatus};
use agentcube_protos::agent::{Entry, State, Why};
use jiff::Timestamp;
use kube::ResourceExt;

use super::observe::{Allocated, Annotated, Claimed, Observed};
use super::status;
use crate::agents::{Contact, Seen};
use crate::core::is_deleted;
use crate::names::{AgentId, RunId};
use crate::options::Timing;
use crate::pending::allocated_run;

/// How soon to look again for what nothing tells of.
const SOON: Duration = Duration::from_millis(200);
/// How soon to look again at an annotation that has to stay for now.
const STANDING: Duration = Duration::from_secs(1);
/// The exit of a run whose agent ended it with itself.
const AGENT_RESTARTED: &str = "AgentRestarted";
const EXPIRED: &str = "Expired";

/// One effect.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Rest(Option<Duration>),
    /// Adds the finalizer.
    Hold,
    /// Removes the annotation of the allocation.
    Unannotate,
    /// Writes the status; with `tell`, what may change in the life of a run goes to the agent first.
    Write {
        status: Box<SandboxStatus>,
        tell: Option<Allocated>,
    },
    /// Chooses an agent and a new run, and writes that down.
    Assign,
    Start(Allocated),
    Stop {
        agent: AgentId,
        run: RunId,
        why: Why,
    },
    /// Has a run stand still or go on.
    Pause {
        agent: AgentId,
        run: RunId,
        paused: bool,
    },
    /// Lets a run go on that stands still because its agent was out of contact, if it is still the right one.
    Unfence {
        agent: AgentId,
        run: RunId,
    },
    /// Makes the object that an agent's record has.
    Adopt(Claimed),
    /// Stops a run if it is certain that it has no object.
    StopOrphan {
        agent: AgentId,
        run: RunId,
    },
    /// Makes the object that the log has promised.
    Recover,
    /// Nothing that the log says of a run matters any more; with `proved`, if the server says that it has no object.
    Forget {
        run: RunId,
        proved: bool,
    },
    /// Deletes the object: it was made late, after its deletion.
    Delete,
    /// Removes the finalizer.
    Release,
}

fn write(status: Box<SandboxStatus>) -> Step {
    Step::Write { status, tell: None }
}

pub(super) fn next(seen: &Observed, now: Timestamp, timing: &Timing) -> Step {
    let logged = logged::next(seen, timing);
    let Some(object) = seen.object.as_deref() else {
        return logged.unwrap_or_else(|| without_object(seen));
    };
    match logged {
        // The object goes its way; what the log waits for is looked at again.
        Some(Step::Rest(_)) => match with_object(seen, object, now, timing) {
            Step::Rest(after) => Step::Rest(Some(after.unwrap_or(STANDING).min(STANDING))),
            step => step,
        },
        Some(step) => step,
        None => with_object(seen, object, now, timing),
    }
}

fn with_object(seen: &Observed, object: &Sandbox, now: Timestamp, timing: &Timing) -> Step {
    let plan = Plan { seen, object, now, timing };
    if seen.pending.is_some() && seen.pending != allocated_run(object) {
        // Whoever has that run resolves it first, and has this looked at again.
        return Step::Rest(Some(SOON));
    }
    if is_deleted(object) {
        return plan.deleted();
    }
    if !object.finalizers().iter().any(|name| name == labels::SANDBOX_FINALIZER) {
        return Step::Hold;
    }
    if let Some(step) = plan.annotated() {
        return step;
    }
    let step = match &seen.assigned {
        Some(assigned) => plan.assigned(assigned),
        None => plan.unassigned(),
    };
    match step {
        // An annotation that has to stay for now is looked at again.
        Step::Rest(after) if seen.annotated != Annotated::None => {
            Step::Rest(Some(after.unwrap_or(STANDING).min(STANDING)))
        }
        step => step,
    }
}

/// Runs without an object: made by a controller that did not get to make the object, or left over.
fn without_object(seen: &Observed) -> Step {
    if seen.pending.is_some() {
        return Step::Rest(None);
    }
    let mut heard = seen.runs.iter().filter(|run| run.silent.is_none());
    match heard.find(|run| run.entry.state() != State::Stopping) {
        None => Step::Rest(None),
        Some(run) if run.condemned => {
            Step::Stop { agent: run.agent.clone(), run: run.run(), why: Why::Abandoned }
        }
        Some(run) if run.fits && !run.entry.object.is_empty() => Step::Adopt(run.clone()),
        Some(run) => Step::StopOrphan { agent: run.agent.clone(), run: run.run() },
    }
}

/// What is to be done about runs that should not be there. None if they are in nobody's way.
fn strays<'a>(runs: impl Iterator<Item = &'a Claimed>, why: Why, fence: Duration) -> Option<Step> {
    let mut wait = None;
    for run in runs {
        match run.silent {
            None => return Some(Step::Stop { agent: run.agent.clone(), run: run.run(), why }),
            // It stands still by then.
            Some(silent) if silent >= fence => {}
            Some(silent) => wait = Some(Step::Rest(Some(fence - silent))),
        }
    }
    wait
}

struct Plan<'a> {
    seen: &'a Observed,
    object: &'a Sandbox,
    now: Timestamp,
    timing: &'a Timing,
}

/// What is certain of a run that is to be over.
enum Over {
    Yes,
    /// It has to be stopped first.
    Stop,
    /// Its agent is silent; after this time it is certain to stand still.
    Wait(Duration),
}

impl Plan<'_> {
    fn phase(&self) -> SandboxPhase {
        self.object.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
    }

    fn fence(&self) -> Duration {
        self.timing.fenced_after(self.object.spec.recovery_timeout_seconds)
    }

    fn is_expired(&self) -> bool {
        self.object.spec.expire_time.as_ref().is_some_and(|at| at.0 <= self.now)
    }

    fn until_expiry(&self) -> Option<Duration> {
        let at = self.object.spec.expire_time.as_ref()?.0;
        Some(Duration::try_from(at.duration_since(self.now)).unwrap_or_default() + Duration::from_secs(1))
    }

    /// Somebody wants it started afresh.
    fn resets(&self) -> bool {
        let accepted = self.object.status.as_ref().and_then(|status| status.accepted_reset_revision);
        let asked = self.object.spec.reset_revision.unwrap_or(0);
        asked > accepted.unwrap_or(0) && !self.is_expired()
    }

    fn over(&self, contact: &Contact) -> Over {
        match contact {
            Contact::Dead | Contact::Heard(Seen::Stopped(_) | Seen::Foreign) => Over::Yes,
            Contact::Heard(Seen::Entry(_) | Seen::Absent) => Over::Stop,
            Contact::Silent { ago, .. } if *ago >= self.fence() => Over::Yes,
            Contact::Silent { ago, .. } => Over::Wait(self.fence() - *ago),
        }
    }

    fn stop(&self, at: &Allocated, why: Why) -> Step {
        Step::Stop { agent: at.agent.clone(), run: at.run.clone(), why }
    }

    fn expired(&self) -> Step {
        let message = "its expireTime is past";
        write(status::ended(
            self.object,
            SandboxPhase::Expired,
            reasons::REASON_EXPIRED,
            message,
            None,
            self.now,
        ))
    }

    fn deleted(&self) -> Step {
        if !self.object.finalizers().iter().any(|name| name == labels::SANDBOX_FINALIZER) {
            return Step::Rest(None);
        }
        match strays(self.seen.runs.iter(), Why::Deleted, self.fence()) {
            Some(Step::Rest(left)) => return self.terminating(left.unwrap_or(SOON)),
            Some(step) => return step,
            None => {}
        }
        // Whoever was not asked yet, or has a record that it does not know the object of, would have it adopted.
        if !self.seen.all_asked || self.seen.runs.iter().any(|run| !run.entry.object.is_empty()) {
            return self.terminating(STANDING);
        }
        let annotated = match &self.seen.annotated {
            Annotated::Fits(at) => Some(at),
            _ => None,
        };
        for at in self.seen.assigned.iter().chain(annotated) {
            match self.over(&at.contact) {
                Over::Yes => {}
                Over::Stop => return self.stop(at, Why::Deleted),
                Over::Wait(left) => return self.terminating(left),
            }
        }
        // Its agent may have a record to adopt from: it has to be heard of, or dead.
        if annotated.is_some_and(|at| matches!(at.contact, Contact::Silent { .. })) || !self.seen.born {
            return self.terminating(Duration::from_secs(1));
        }
        let unreadable = matches!(self.seen.annotated, Annotated::Corrupt(_) | Annotated::Strange { .. });
        if unreadable && self.seen.assigned.is_none() && !self.all_asked(true) {
            return self.terminating(SOON);
        }
        match self.seen.kept_for {
            Some(left) => self.terminating(left),
            None => Step::Release,
        }
    }

    fn terminating(&self, left: Duration) -> Step {
        if self.phase() == SandboxPhase::Terminating {
            return Step::Rest(Some(left));
        }
        write(status::terminating(self.object, self.now))
    }

    fn unassigned(&self) -> Step {
        if matches!(self.phase(), SandboxPhase::Expired | SandboxPhase::Failed) {
            // What has ended is noted by now; what runs for it all the same is a leftover.
            if let Some(step) = strays(self.seen.runs.iter(), Why::Noted, self.fence()) {
                return step;
            }
            return if self.resets() { self.assign() } else { Step::Rest(None) };
        }
        if self.is_expired() {
            return self.expired();
        }
        if let Some(step) = self.claims() {
            return step;
        }
        // What is left is at silent agents.
        strays(self.seen.runs.iter(), Why::Replaced, self.fence()).unwrap_or_else(|| self.assign())
    }

    fn assign(&self) -> Step {
        if !self.seen.pool {
            let message = format!("there is no SandboxPool {}", self.object.spec.pool_ref);
            return self.waits(reasons::REASON_POOL_MISSING, &message);
        }
        if self.seen.open { Step::Assign } else { Step::Rest(Some(SOON)) }
    }

    /// Says what it waits for, once; something will tell when that has changed.
    fn waits(&self, reason: &str, message: &str) -> Step {
        let pending = status::pending(self.object, reason, message, self.now);
        if self.object.status.as_ref() == Some(&*pending) { Step::Rest(None) } else { write(pending) }
    }

    fn assigned(&self, at: &Allocated) -> Step {
        let others = self.seen.runs.iter().filter(|run| run.run() != at.run);
        if let Some(step) = strays(others, Why::Replaced, self.fence()) {
            return step;
        }
        let silent = matches!(at.contact, Contact::Silent { .. });
        if self.resets() && (!silent || self.phase() == SandboxPhase::Lost) {
            match self.over(&at.contact) {
                Over::Yes => return self.assign(),
                Over::Stop => return self.stop(at, Why::Replaced),
                Over::Wait(_) => {}
            }
        }
        match &at.contact {
            Contact::Heard(Seen::Entry(entry)) => self.has(at, entry),
            // It never had a run of its own.
            Contact::Heard(Seen::Foreign) => self.assign(),
            Contact::Heard(Seen::Absent) if self.is_expired() => self.stop(at, Why::Noted),
            Contact::Heard(Seen::Absent) if self.phase() == SandboxPhase::Bound => self.start(at),
            Contact::Dead | Contact::Heard(Seen::Stopped(_)) if self.is_expired() => self.expired(),
            Contact::Heard(Seen::Stopped(_)) if self.phase() == SandboxPhase::Bound => self.assign(),
            Contact::Dead | Contact::Heard(Seen::Absent | Seen::Stopped(_)) => self.died(at),
            Contact::Silent { ago, at: heard } => self.silent(at, *ago, *heard),
        }
    }

    fn start(&self, at: &Allocated) -> Step {
        if self.seen.pool { Step::Start(at.clone()) } else { Step::Rest(Some(Duration::from_secs(1))) }
    }

    /// The agent has the run.
    fn has(&self, at: &Allocated, entry: &Entry) -> Step {
        match entry.state() {
            State::Ended => return self.ended(at, entry),
            State::Running => {}
            State::Starting | State::Stopping | State::Unset => {
                return Step::Rest(Some(Duration::from_secs(5)));
            }
        }
        let (agent, run) = (at.agent.clone(), at.run.clone());
        if self.is_expired() {
            return Step::Stop { agent, run, why: Why::Noted };
        }
        if entry.paused != self.object.spec.paused {
            return Step::Pause { agent, run, paused: self.object.spec.paused };
        }
        let running = status::running(self.object, at, entry, self.now);
        if self.object.status.as_ref() == Some(&*running) {
            // Only after the write that says that it runs: every write under way that gives it up fails by then.
            let rest = Step::Rest(self.until_expiry());
            return if entry.fenced { Step::Unfence { agent, run } } else { rest };
        }
        let observed = self.object.status.as_ref().and_then(|status| status.observed_generation);
        let changed = observed.is_some() && observed != self.object.metadata.generation;
        Step::Write { status: running, tell: changed.then(|| at.clone()) }
    }

    fn ended(&self, at: &Allocated, entry: &Entry) -> Step {
        let exit = entry.exit.clone().unwrap_or_default();
        match exit.reason.as_str() {
            EXPIRED => self.expired(),
            AGENT_RESTARTED => self.died(at),
            _ => {
                let message = format!("its program ended with {}", exit.code);
                let reason = if exit.reason == "OutOfMemory" { "OutOfMemory" } else { status::EXITED };
                let (phase, code) = (SandboxPhase::Failed, Some(exit.code));
                write(status::ended(self.object, phase, reason, &message, code, self.now))
            }
        }
    }

    /// Whether it is started again by itself. One that never ran has nothing that anybody would have to decide on.
    fn comes_back(&self, at: &Allocated) -> bool {
        self.object.spec.failure_policy == FailurePolicy::AutoRecreate || !at.started
    }

    /// It is certain that the run is over, and nobody wanted that.
    fn died(&self, at: &Allocated) -> Step {
        if self.comes_back(at) {
            // A start may still be on its way to the agent: only a tombstone is proof.
            return match self.over(&at.contact) {
                Over::Stop => self.stop(at, Why::Abandoned),
                Over::Yes | Over::Wait(_) => self.assign(),
            };
        }
        if self.phase() == SandboxPhase::Lost {
            return Step::Rest(self.object.spec.expire_time.as_ref().and_then(|_| self.until_expiry()));
        }
        let message = "its agent has ended, and it with it; reset or delete it";
        write(status::lost(self.object, self.now, status::AGENT_RESTARTED, message, self.now))
    }

    fn silent(&self, at: &Allocated, ago: Duration, heard: Timestamp) -> Step {
        if ago < self.timing.dropped {
            return Step::Rest(Some(self.timing.dropped - ago));
        }
        let fence = self.fence();
        let certain = ago >= fence;
        if certain && self.is_expired() {
            return self.expired();
        }
        // Given up only after a write that says that it is lost, so that a run is let go on or given up, never both.
        if self.phase() != SandboxPhase::Lost {
            let message = "its agent is silent";
            return write(status::lost(self.object, heard, reasons::REASON_AGENT_LOST, message, self.now));
        }
        if certain && self.comes_back(at) {
            return self.assign();
        }
        if certain { Step::Rest(self.until_expiry()) } else { Step::Rest(Some(fence - ago)) }
    }
}
