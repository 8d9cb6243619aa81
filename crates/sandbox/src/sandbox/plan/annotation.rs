//! What the annotation of an allocation asks for: to be moved into status, to be removed, or not to be trusted.

use agentcube_api::conditions::{self, FALSE, sandbox as reasons};
use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::agent::{State, Why};

use super::{Plan, SOON, Step, strays, write};
use crate::agents::{Contact, Seen};
use crate::sandbox::observe::{Allocated, Annotated, Claimed};
use crate::sandbox::status;

impl Plan<'_> {
    /// Whether no agent can have a run for this name that is not known. One that nobody knows stands still by then.
    pub(super) fn all_asked(&self, unknown: bool) -> bool {
        self.seen.all_heard && (!unknown || self.seen.listening >= self.fence())
    }

    /// What an annotation asks for. None if there is none.
    pub(super) fn annotated(&self) -> Option<Step> {
        let over = matches!(self.phase(), SandboxPhase::Expired | SandboxPhase::Failed);
        if self.seen.assigned.is_some() || over {
            return self.settled_annotation();
        }
        Some(match &self.seen.annotated {
            Annotated::None => return None,
            Annotated::Fits(at) => self.move_allocation(at),
            Annotated::Corrupt(message) => self
                .distrust(reasons::REASON_ALLOCATION_CORRUPT, message)
                .unwrap_or_else(|| self.ask_around(false)),
            Annotated::Strange { message, unknown } => self
                .distrust(reasons::REASON_ALLOCATION_MISMATCH, message)
                .unwrap_or_else(|| self.ask_around(*unknown)),
        })
    }

    /// Status never follows an annotation once it has an assignment. The annotation stays until no create of its object
    /// can come any more, and its agent does not keep the record that it would be adopted from.
    fn settled_annotation(&self) -> Option<Step> {
        let Annotated::Fits(at) = &self.seen.annotated else {
            if self.seen.annotated == Annotated::None {
                return None;
            }
            let why = "status names another run";
            return Some(self.distrust(reasons::REASON_ALLOCATION_MISMATCH, why).unwrap_or(Step::Unannotate));
        };
        let assigned = self.seen.assigned.as_ref().map(|assigned| &assigned.run);
        let same = assigned == Some(&at.run) || assigned.is_none();
        let step = match &at.contact {
            Contact::Heard(Seen::Absent) if !same => self
                .distrust(reasons::REASON_ALLOCATION_MISMATCH, "status names another run")
                .unwrap_or(Step::Unannotate),
            Contact::Heard(Seen::Entry(_)) if !same => return None,
            Contact::Heard(Seen::Entry(entry)) if !entry.object.is_empty() => return None,
            Contact::Silent { .. } => return None,
            Contact::Dead | Contact::Heard(_) => Step::Unannotate,
        };
        (self.seen.born || !same).then_some(step)
    }

    /// Says that the annotation is not to be trusted, unless that is said.
    fn distrust(&self, reason: &str, message: &str) -> Option<Step> {
        let conditions = self.object.status.as_ref().map(|status| status.conditions.as_slice());
        let said = conditions::find(conditions.unwrap_or_default(), reasons::ALLOCATION_VALID);
        if said.is_some_and(|said| said.status == FALSE && said.reason == reason) {
            return None;
        }
        Some(write(status::untrusted(self.object, reason, message, self.now)))
    }

    fn move_allocation(&self, at: &Allocated) -> Step {
        match &at.contact {
            // A create that came after the delete that was acknowledged.
            Contact::Heard(Seen::Stopped(Why::Deleted)) => Step::Delete,
            Contact::Heard(Seen::Stopped(_)) => Step::Unannotate,
            Contact::Heard(Seen::Entry(entry)) if entry.state() == State::Running => {
                write(status::running(self.object, at, entry, self.now))
            }
            // It ran: it is not started for the first time.
            Contact::Dead | Contact::Heard(Seen::Absent) if at.started => {
                let message = "its agent has ended, and it with it; reset or delete it";
                let reason = status::AGENT_RESTARTED;
                write(status::lost_unseen(self.object, at, reason, message, self.now))
            }
            Contact::Silent { ago, .. } if at.started && *ago < self.timing.dropped => {
                Step::Rest(Some(self.timing.dropped - *ago))
            }
            Contact::Silent { .. } if at.started => {
                let (reason, message) = (reasons::REASON_AGENT_LOST, "its agent is silent");
                write(status::lost_unseen(self.object, at, reason, message, self.now))
            }
            _ => write(status::bound(self.object, at, self.now)),
        }
    }

    /// An annotation that cannot be trusted: who claims the name has it.
    fn ask_around(&self, unknown: bool) -> Step {
        match self.claims() {
            Some(step) => step,
            None if self.all_asked(unknown) => Step::Unannotate,
            None => Step::Rest(Some(SOON)),
        }
    }

    /// Of the runs for this name, the first that was started stays, and status names it.
    pub(super) fn claims(&self) -> Option<Step> {
        let condemned = self.seen.runs.iter().filter(|run| run.condemned);
        if let Some(step) = strays(condemned, Why::Replaced, self.fence()) {
            return Some(step);
        }
        let fits = |run: &&Claimed| run.fits && !run.condemned && run.silent.is_none();
        let mut runs: Vec<&Claimed> = self.seen.runs.iter().filter(fits).collect();
        runs.sort_by_key(|run| (run.entry.started_unix_ms, run.entry.run_id.clone()));
        let (first, others) = runs.split_first()?;
        if let Some(other) = others.first() {
            return Some(Step::Stop { agent: other.agent.clone(), run: other.run(), why: Why::Replaced });
        }
        let contact = Contact::Heard(Seen::Entry(Box::new(first.entry.clone())));
        let (agent, node) = (first.agent.clone(), first.node.clone());
        let at = Allocated { agent, node, run: first.run(), contact, started: true };
        Some(if first.entry.state() == State::Running {
            write(status::running(self.object, &at, &first.entry, self.now))
        } else {
            write(status::bound(self.object, &at, self.now))
        })
    }
}
