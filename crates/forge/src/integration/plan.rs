//! What to do about a FrontendIntegration. Pure: no I/O, no clock.
//!
//! The status is written before what it announces: a build has its number and its Job's name in the status before there is a Job,
//! so whoever comes after a crash finds which one was meant, and no request for a rebuild is obeyed twice.

use std::time::Duration;

use agentcube_api::frontend::FrontendIntegrationStatus;
use agentcube_api::frontend::integration::{ActiveBuild, IntegrationPhase, LocalRef};
use agentcube_api::labels::hash_label;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::status::{self, Failure};
use crate::core::Note;
use crate::names;
use crate::options::Limits;
use crate::raw::Integration;

/// What is known of an integration.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub integration: &'a Integration,
    /// Hash of its spec.
    pub hash: &'a str,
    pub bundle: Option<SeenBundle>,
    /// Those that it owns.
    pub jobs: Vec<SeenJob>,
    pub limits: &'a Limits,
    pub now: Timestamp,
}

/// A bundle of the expected name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenBundle {
    pub uid: String,
    /// Whether it belongs to this very integration.
    pub is_ours: bool,
    /// The label with the hash of the spec.
    pub spec_label: String,
    pub manifest_hash: String,
    /// The Job that wrote it.
    pub built_by: Option<String>,
    /// Whether its files are what they say.
    pub is_whole: bool,
}

/// A Job of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenJob {
    pub name: String,
    pub uid: String,
    pub is_ending: bool,
    pub state: JobState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    Complete,
    Failed { at: Option<Timestamp>, said: Failure },
}

/// What to do, in this order, after the status was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    CreateJob { name: String },
    DeleteJob { name: String, uid: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub status: FrontendIntegrationStatus,
    pub operations: Vec<Operation>,
    pub notes: Vec<Note>,
    pub requeue: Option<Duration>,
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let old = observed.integration.status.clone().unwrap_or_default();
    let mut draft = Draft {
        observed,
        plan: Plan { status: old, operations: Vec::new(), notes: Vec::new(), requeue: None },
    };
    if observed.integration.metadata.deletion_timestamp.is_some() {
        return draft.plan;
    }
    if observed.integration.is_enabled() {
        draft.enabled();
    } else {
        draft.disabled();
    }
    draft.clean_up();
    draft.plan
}

struct Draft<'a> {
    observed: &'a Observed<'a>,
    plan: Plan,
}

impl Draft<'_> {
    fn enabled(&mut self) {
        let integration = self.observed.integration;
        let asked = integration.asks_for();
        if asked.is_some() && asked != self.plan.status.observed_rebuild.as_deref() {
            self.plan.status.observed_rebuild = asked.map(str::to_owned);
            return self.begin(1, "a rebuild was asked for");
        }
        let same = integration.observed_hash() == Some(self.observed.hash);
        match self.plan.status.active_build.clone() {
            Some(active) if same => self.follow(&active),
            _ if self.fits() => self.succeed(None),
            _ if same && self.plan.status.phase == Some(IntegrationPhase::Failed) => {
                status::stay(self.observed, &mut self.plan.status);
            }
            _ => self.begin(1, "the spec has no bundle yet"),
        }
    }

    fn disabled(&mut self) {
        let was = self.plan.status.phase;
        self.plan.status.active_build = None;
        let current = self.fits();
        status::disabled(self.observed, &mut self.plan.status, current);
        if was.is_some() && was != Some(IntegrationPhase::Disabled) {
            self.note(false, "Disabled", "it is not served; its bundle is kept");
        }
    }

    /// Whether the bundle is that of the spec.
    fn fits(&self) -> bool {
        let label = hash_label(self.observed.hash);
        let bundle = self.observed.bundle.as_ref();
        bundle.is_some_and(|bundle| bundle.is_ours && bundle.is_whole && bundle.spec_label == label)
    }

    /// Looks after the build that the status names.
    fn follow(&mut self, active: &ActiveBuild) {
        let found = self.observed.jobs.iter().find(|job| job.name == active.job_ref.name);
        let known = active.job_ref.uid.as_ref();
        match found {
            // Another of the same name is none of ours to judge by.
            Some(job) if known.is_none_or(|uid| *uid == job.uid) => self.judge(active, &job.clone()),
            None if known.is_none() => {
                self.plan.operations.push(Operation::CreateJob { name: active.job_ref.name.clone() });
                self.building(active.clone(), None);
            }
            _ if self.has_written(&active.job_ref.name) => self.succeed(None),
            _ => self.fail(active, None, &Failure::text("its Job is gone")),
        }
    }

    fn judge(&mut self, active: &ActiveBuild, job: &SeenJob) {
        let job_ref = LocalRef { name: job.name.clone(), uid: Some(job.uid.clone()) };
        let active = ActiveBuild { job_ref, attempt: active.attempt };
        match &job.state {
            JobState::Running if job.is_ending => {
                self.fail(&active, None, &Failure::text("its Job is being deleted"))
            }
            JobState::Running => self.building(active, None),
            JobState::Complete if self.fits() => self.succeed(Some(&active)),
            JobState::Complete => {
                let said = Failure::text("its Job is complete, and the bundle is not that of the spec");
                self.fail(&active, None, &said);
            }
            // Whoever dies after the last write has done everything.
            JobState::Failed { .. } if self.has_written(&job.name) => self.succeed(Some(&active)),
            JobState::Failed { at, said } => self.fail(&active, *at, said),
        }
    }

    /// Whether a Job has written a bundle that fits.
    fn has_written(&self, job: &str) -> bool {
        let by = self.observed.bundle.as_ref().and_then(|bundle| bundle.built_by.as_deref());
        by == Some(job) && self.fits()
    }

    fn begin(&mut self, attempt: i32, why: &str) {
        let Observed { integration, hash, jobs, .. } = self.observed;
        let last = jobs.iter().filter_map(|job| names::number(&job.name)).max().unwrap_or_default();
        let number = self.plan.status.builds.unwrap_or_default().max(last) + 1;
        let name = names::job(&integration.name_any(), hash, number);
        self.plan.status.builds = Some(number);
        self.plan.operations.push(Operation::CreateJob { name: name.clone() });
        self.note(false, "BuildStarted", format!("Job {name}, attempt {attempt}: {why}"));
        self.building(ActiveBuild { job_ref: LocalRef { name, uid: None }, attempt }, None);
    }

    fn building(&mut self, active: ActiveBuild, failed: Option<&Failure>) {
        status::building(self.observed, &mut self.plan.status, &active, failed);
        self.plan.status.active_build = Some(active);
    }

    fn succeed(&mut self, by: Option<&ActiveBuild>) {
        let Some(bundle) = &self.observed.bundle else { return };
        let was = self.plan.status.phase;
        self.plan.status.active_build = None;
        status::succeeded(self.observed, &mut self.plan.status, bundle);
        if let Some(by) = by {
            self.note(
                false,
                "BuildSucceeded",
                format!("Job {} has built {}", by.job_ref.name, bundle.manifest_hash),
            );
        } else if was.is_some() && was != Some(IntegrationPhase::Succeeded) {
            self.note(false, "BundleKept", "the bundle is that of the spec: nothing is built");
        }
    }

    fn fail(&mut self, active: &ActiveBuild, at: Option<Timestamp>, said: &Failure) {
        let Limits { attempts, retry_delay, .. } = self.observed.limits;
        if said.is_final || active.attempt >= *attempts {
            let message = match active.attempt {
                1 => said.message.clone(),
                many => format!("{} (after {many} attempts)", said.message),
            };
            self.note(true, "BuildFailed", message.clone());
            self.plan.status.active_build = None;
            if self.fits() {
                // A rebuild that failed takes nothing away.
                let Some(bundle) = &self.observed.bundle else { return };
                status::succeeded(self.observed, &mut self.plan.status, bundle);
                self.plan.status.message =
                    Some(status::cut(&format!("the bundle of before is kept: {message}")));
                return;
            }
            return status::failed(self.observed, &mut self.plan.status, said, &message);
        }
        let delay = *retry_delay * 4_u32.pow(u32::try_from(active.attempt - 1).unwrap_or(0).min(8));
        let due = at.and_then(|at| at.checked_add(SignedDuration::try_from(delay).ok()?).ok());
        let left = due.map(|due| due.duration_since(self.observed.now)).filter(SignedDuration::is_positive);
        match left.and_then(|left| Duration::try_from(left).ok()) {
            Some(left) => {
                self.plan.requeue = Some(left);
                self.building(active.clone(), Some(said));
            }
            None => {
                self.note(
                    true,
                    "BuildRetried",
                    format!("attempt {} failed: {}", active.attempt, said.message),
                );
                self.begin(active.attempt + 1, "the one before failed");
            }
        }
    }

    /// What nobody waits for is stopped; of what has ended, the latest are kept.
    fn clean_up(&mut self) {
        let active = self.plan.status.active_build.as_ref().map(|active| active.job_ref.name.as_str());
        let mut ended: Vec<&SeenJob> = Vec::new();
        for job in self.observed.jobs.iter().filter(|job| !job.is_ending && active != Some(&job.name)) {
            match job.state {
                JobState::Running => {
                    let (name, uid) = (job.name.clone(), job.uid.clone());
                    self.plan.operations.push(Operation::DeleteJob { name, uid });
                }
                JobState::Complete | JobState::Failed { .. } => ended.push(job),
            }
        }
        ended.sort_by_key(|job| std::cmp::Reverse(names::number(&job.name)));
        for job in ended.into_iter().skip(self.observed.limits.kept_jobs) {
            let (name, uid) = (job.name.clone(), job.uid.clone());
            self.plan.operations.push(Operation::DeleteJob { name, uid });
        }
    }

    fn note(&mut self, warning: bool, reason: &'static str, message: impl Into<String>) {
        self.plan.notes.push(Note { warning, reason, message: status::cut(&message.into()) });
    }
}
