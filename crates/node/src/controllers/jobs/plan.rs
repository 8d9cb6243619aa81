//! Decides what a Job needs next. Pure: what is observed and the time go in, operations come out.
//!
//! The order of the operations is what makes a crash between any two of them harmless: the end of a Pod is recorded
//! in the status before its finalizer goes, and counted only after. So none is counted twice, and none is lost.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::backoff::Backoff;
use super::facts::{Facts, spec};
use super::manage::{self, Managed};
use super::{policy, status, track, worker};
use agentcube_operator::events::Severity;

/// The controller that keeps Jobs which name no other.
const CONTROLLER: &str = "kubernetes.io/job-controller";

/// Everything that bears on one Job.
#[derive(Debug, Clone, Default)]
pub(super) struct Observed {
    pub(super) job: Job,
    /// The Job's own Pods that it selects.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Pods that it selects and nobody controls.
    pub(super) orphans: Vec<Arc<Pod>>,
    /// Its own Pods that it no longer selects.
    pub(super) strays: Vec<Arc<Pod>>,
    /// What this process remembers of failures; unknown after a start.
    pub(super) backoff: Option<Backoff>,
}

/// One write. They are done in order, and none before all earlier ones have succeeded; only a Pod that cannot be
/// created holds up nothing but further creations.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operation {
    /// Takes a Pod in, and has it tracked.
    AdoptPod {
        name: String,
        uid: String,
    },
    ReleasePod {
        name: String,
        uid: String,
    },
    CreatePod(Box<Pod>),
    DeletePod {
        name: String,
        uid: String,
    },
    RemoveFinalizer {
        name: String,
        uid: String,
    },
    WriteStatus {
        status: Box<JobStatus>,
        notes: Vec<Note>,
    },
    DeleteJob {
        uid: String,
    },
}

/// An Event to record once the status that it tells of is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) severity: Severity,
    pub(super) reason: String,
    pub(super) message: String,
}

/// What to do, when to look again although nothing happened, and what to remember.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) operations: Vec<Operation>,
    pub(super) requeue: Option<Duration>,
    pub(super) backoff: Backoff,
}

/// How a Job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) success: bool,
    pub(super) reason: String,
    pub(super) message: String,
    /// Whether the status says so already.
    pub(super) recorded: bool,
}

impl Verdict {
    fn failure(reason: &str, message: &str) -> Option<Self> {
        Some(Self { success: false, reason: reason.into(), message: message.into(), recorded: false })
    }

    fn success(reason: &str, message: &str) -> Option<Self> {
        Some(Self { success: true, reason: reason.into(), message: message.into(), recorded: false })
    }
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let job = &observed.job;
    if spec(job).managed_by.as_ref().is_some_and(|manager| manager != CONTROLLER) {
        return Plan { operations: Vec::new(), requeue: None, backoff: Backoff::default() };
    }
    if let Some(ended) = status::ended_at(job) {
        return after_the_end(observed, ended, now);
    }
    let leaving = job.metadata.deletion_timestamp.is_some();
    let adopted: Vec<Pod> =
        if leaving { Vec::new() } else { observed.orphans.iter().map(|pod| tracked(pod)).collect() };
    let pods: Vec<&Pod> = observed.pods.iter().map(AsRef::as_ref).chain(&adopted).collect();
    let facts = Facts::gather(job, &pods);
    let backoff = facts.backoff(observed.backoff);
    let mut operations = if leaving { Vec::new() } else { claims(observed) };

    let mut report = status::begin(job, now);
    let mut verdict = judge(&facts, &report, now);
    let mut requeue = if verdict.is_none() { deadline(job, &report, now) } else { None };
    let mut notes = Vec::new();
    let managed = if verdict.is_some() {
        manage::end(&facts)
    } else if leaving {
        Managed::as_is(&facts)
    } else {
        manage::manage(&facts, backoff, now)
    };
    if verdict.is_none() {
        requeue = [requeue, managed.requeue].into_iter().flatten().min();
        if is_complete(&facts, &managed) {
            verdict = Verdict::success("CompletionsReached", "Reached expected number of succeeded pods");
        } else if !leaving {
            notes.extend(status::suspend_or_resume(job, &mut report, now));
        }
    }
    let released = managed.released();
    report.active = (managed.active > 0).then_some(managed.active);
    report.ready = Some(managed.ready);
    report.terminating = Some(managed.terminating);
    operations.extend(managed.operations);
    operations.extend(track::track(&facts, report, verdict.as_ref(), &released, notes, now));
    Plan { operations, requeue, backoff }
}

/// An orphan as it will be once it is taken in.
fn tracked(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if !worker::is_tracked(&pod) {
        pod.metadata.finalizers.get_or_insert_default().push(worker::FINALIZER.to_owned());
    }
    pod
}

fn claims(observed: &Observed) -> Vec<Operation> {
    let named = |pod: &Arc<Pod>| (pod.name_any(), pod.uid().unwrap_or_default());
    let adopt = observed.orphans.iter().map(named).map(|(name, uid)| Operation::AdoptPod { name, uid });
    let release = observed.strays.iter().map(named).map(|(name, uid)| Operation::ReleasePod { name, uid });
    adopt.chain(release).collect()
}

/// A Job that has ended holds no Pod back, and goes itself when its time has come.
fn after_the_end(observed: &Observed, ended: Timestamp, now: Timestamp) -> Plan {
    let job = &observed.job;
    let held = observed.pods.iter().filter(|pod| worker::is_tracked(pod));
    let mut operations: Vec<Operation> = held.map(|pod| track::remove_finalizer(pod)).collect();
    let mut requeue = None;
    if let (Some(seconds), None) = (spec(job).ttl_seconds_after_finished, &job.metadata.deletion_timestamp) {
        let due = ended.saturating_add(SignedDuration::from_secs(seconds.into()));
        match due
            .map_or(Duration::ZERO, |due| Duration::try_from(due.duration_since(now)).unwrap_or_default())
        {
            Duration::ZERO => operations.push(Operation::DeleteJob { uid: job.uid().unwrap_or_default() }),
            left => requeue = Some(left),
        }
    }
    Plan { operations, requeue, backoff: Backoff::default() }
}

/// Whether and how the Job ends. What was decided before stands.
fn judge(facts: &Facts<'_>, report: &JobStatus, now: Timestamp) -> Option<Verdict> {
    let job = facts.job;
    status::decided(job)
        .or_else(|| fails_by_policy(facts))
        .or_else(|| fails_by_limits(facts, report, now))
        .or_else(|| fails_by_indexes(facts))
        .or_else(|| {
            let message = policy::success(job, &facts.indexes.as_ref()?.succeeded)?;
            Verdict::success("SuccessPolicy", &message)
        })
}

fn fails_by_policy(facts: &Facts<'_>) -> Option<Verdict> {
    let failed = facts.pods.iter().filter(|pod| worker::is_failed(facts.job, pod));
    let message = failed.map(|pod| policy::action(facts.job, pod)).find_map(|action| match action {
        policy::Action::FailJob(message) => Some(message),
        _ => None,
    })?;
    Verdict::failure("PodFailurePolicy", &message)
}

fn fails_by_limits(facts: &Facts<'_>, report: &JobStatus, now: Timestamp) -> Option<Verdict> {
    let limit = spec(facts.job).backoff_limit.unwrap_or(6);
    if facts.failed > limit || facts.restarts_exceed(limit) {
        return Verdict::failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    match deadline(facts.job, report, now) {
        Some(Duration::ZERO) => {
            Verdict::failure("DeadlineExceeded", "Job was active longer than specified deadline")
        }
        _ => None,
    }
}

fn fails_by_indexes(facts: &Facts<'_>) -> Option<Verdict> {
    let indexes = facts.indexes.as_ref()?;
    let failed = indexes.failed.as_ref()?.len();
    let spec = spec(facts.job);
    if spec.max_failed_indexes.is_some_and(|most| failed > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return Verdict::failure("MaxFailedIndexesExceeded", message);
    }
    let all = failed.saturating_add(indexes.succeeded.len()) >= spec.completions.unwrap_or(0);
    if failed > 0 && all { Verdict::failure("FailedIndexes", "Job has failed indexes") } else { None }
}

/// What is left of the time that a Job may be active; none is left at zero.
fn deadline(job: &Job, report: &JobStatus, now: Timestamp) -> Option<Duration> {
    let seconds = spec(job).active_deadline_seconds?;
    let started = report.start_time.as_ref().filter(|_| !status::is_suspended(job))?.0;
    let Ok(due) = started.checked_add(SignedDuration::from_secs(seconds)) else { return None };
    Some(Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO))
}

fn is_complete(facts: &Facts<'_>, managed: &Managed<'_>) -> bool {
    // Without a number of completions any success will do, once the others have ended too.
    let enough = spec(facts.job).completions.unwrap_or(1);
    facts.succeeded >= enough && managed.active == 0
}
