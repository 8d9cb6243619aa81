//! A Job's status: its conditions in the words of Kubernetes, and the times that depend on them.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};

use super::facts::spec;
use super::plan::{Note, Verdict};
use crate::controllers::time;
use agentcube_operator::events::Severity;

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const SUSPENDED: &str = "Suspended";
const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const FAILURE_TARGET: &str = "FailureTarget";

pub(super) fn is_suspended(job: &Job) -> bool {
    spec(job).suspend == Some(true)
}

/// When the Job ended; `None` while it has not.
pub(super) fn ended_at(job: &Job) -> Option<Timestamp> {
    let ended = holding(job, COMPLETE).or_else(|| holding(job, FAILED))?;
    Some(ended.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0))
}

/// The end that was decided on earlier and is under way.
pub(super) fn decided(job: &Job) -> Option<Verdict> {
    let (success, condition) = match holding(job, SUCCESS_CRITERIA_MET) {
        Some(met) => (true, met),
        None => (false, holding(job, FAILURE_TARGET)?),
    };
    Some(Verdict {
        success,
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
        recorded: true,
    })
}

fn holding<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// The status as it was, begun if the Job may begin.
pub(super) fn begin(job: &Job, now: Timestamp) -> JobStatus {
    let mut report = job.status.clone().unwrap_or_default();
    if report.start_time.is_none() && !is_suspended(job) {
        report.start_time = Some(time(now));
    }
    report
}

/// Writes down that the end is near.
pub(super) fn decide(report: &mut JobStatus, verdict: &Verdict, now: Timestamp) {
    let kind = if verdict.success { SUCCESS_CRITERIA_MET } else { FAILURE_TARGET };
    set(report, kind, "True", &verdict.reason, &verdict.message, now);
}

/// Writes down the end, and says what to tell.
pub(super) fn end(job: &Job, report: &mut JobStatus, verdict: &Verdict, now: Timestamp) -> Vec<Note> {
    let kind = if verdict.success { COMPLETE } else { FAILED };
    set(report, kind, "True", &verdict.reason, &verdict.message, now);
    if !verdict.success {
        return vec![note(Severity::Warning, &verdict.reason, &verdict.message)];
    }
    report.completion_time = Some(time(now));
    let mut notes = Vec::new();
    if spec(job).completions.is_some_and(|wanted| report.succeeded.unwrap_or(0) > wanted) {
        let message = "Too many succeeded pods running after completion count reached";
        notes.push(note(Severity::Warning, "TooManySucceededPods", message));
    }
    notes.push(note(Severity::Normal, "Completed", "Job completed"));
    notes
}

/// Brings the condition in line with whether the Job is suspended. Time counts only while it is not.
pub(super) fn suspend_or_resume(job: &Job, report: &mut JobStatus, now: Timestamp) -> Option<Note> {
    if is_suspended(job) {
        set(report, SUSPENDED, "True", "JobSuspended", "Job suspended", now).then(|| {
            report.start_time = None;
            note(Severity::Normal, "Suspended", "Job suspended")
        })
    } else {
        let was = report.conditions.iter().flatten().any(|condition| condition.type_ == SUSPENDED);
        (was && set(report, SUSPENDED, "False", "JobResumed", "Job resumed", now)).then(|| {
            report.start_time = Some(time(now));
            note(Severity::Normal, "Resumed", "Job resumed")
        })
    }
}

/// Whether a report says anything but what is held already; a count of zero may be left out.
pub(super) fn differs(held: Option<&JobStatus>, report: &JobStatus) -> bool {
    let mut held = held.cloned().unwrap_or_default();
    for count in [&mut held.active, &mut held.succeeded, &mut held.failed] {
        *count = count.filter(|count| *count != 0);
    }
    held != *report
}

/// Sets a condition; says whether that changed anything.
fn set(
    report: &mut JobStatus,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let conditions = report.conditions.get_or_insert_default();
    let at = conditions.iter().position(|condition| condition.type_ == kind);
    let new = JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(time(now)),
        last_transition_time: Some(time(now)),
    };
    match at.map(|at| &mut conditions[at]) {
        None => conditions.push(new),
        Some(held)
            if (&held.status, &held.reason, &held.message) == (&new.status, &new.reason, &new.message) =>
        {
            return false;
        }
        Some(held) => *held = new,
    }
    true
}

fn note(severity: Severity, reason: &str, message: &str) -> Note {
    Note { severity, reason: reason.to_owned(), message: message.to_owned() }
}
