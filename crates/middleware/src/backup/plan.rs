//! What to do about a Backup. Pure: no I/O, no clock.

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE};
use agentcube_api::middleware::taken::{ArchiveRef, BackupPhase};
use agentcube_api::middleware::{App, Backup, BackupStatus};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use crate::app::{Note, cut};
use crate::group::observe::Fault;

/// The longest name of a Backup: its Job and its archive are called after it, and a bit longer.
const LONGEST_NAME: usize = 54;
/// Longest message in a status.
const LONGEST_MESSAGE: usize = 4000;

/// What is known of a Backup.
#[derive(Debug)]
pub struct Observed<'a> {
    pub backup: &'a Backup,
    pub app: Option<&'a App>,
    pub job: Option<&'a Job>,
    /// What its Pod has said at its end.
    pub said: Option<&'a str>,
    pub now: Timestamp,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Rest,
    /// Render the Job and create it.
    Begin,
    /// Write this.
    Say(Box<BackupStatus>, Option<Note>),
}

/// What the Job and the archive of a Backup are called: never like those of another Backup of the same name.
pub fn taken_as(backup: &Backup) -> String {
    let uid: String = backup.uid().unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{}-{}", backup.name_any(), uid.chars().take(8).collect::<String>())
}

/// The claim that archives of an App are kept on.
pub fn claim_of(app: &App) -> String {
    let storage = app.spec.backup.as_ref().and_then(|backup| backup.storage.as_ref());
    storage.map_or_else(|| format!("{}-backups", app.name_any()), |storage| storage.bucket.clone())
}

pub fn plan(observed: &Observed<'_>) -> Step {
    let backup = observed.backup;
    let status = backup.status.clone().unwrap_or_default();
    if matches!(status.phase, Some(BackupPhase::Succeeded | BackupPhase::Failed)) {
        return Step::Rest;
    }
    let Some(job) = observed.job else { return before(observed) };
    let ended = |type_: &str| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref());
        conditions.unwrap_or_default().iter().find(|one| one.type_ == type_ && one.status == TRUE)
    };
    if ended("Complete").is_some() {
        return match observed.said.map(serde_json::from_str::<Made>) {
            Some(Ok(made)) => succeeded(observed, &made),
            _ => failed(observed, &fault("the Job is complete, and its Pod has not said what it made")),
        };
    }
    if let Some(condition) = ended("Failed") {
        let said = observed.said.map(str::trim).filter(|said| !said.is_empty()).map(str::to_owned);
        let message = said.or_else(|| condition.message.clone()).unwrap_or_else(|| "its Job failed".into());
        return failed(observed, &fault(&message));
    }
    say(
        observed,
        BackupPhase::Running,
        reasons::REASON_PROGRESSING,
        &format!("Job {} takes it", job.name_any()),
        None,
    )
}

fn fault(message: &str) -> Fault {
    Fault { reason: reasons::REASON_BACKUP_FAILED, message: message.into() }
}

/// Nothing has been begun.
fn before(observed: &Observed<'_>) -> Step {
    let backup = observed.backup;
    let name = &backup.spec.app_ref.name;
    if backup.name_any().len() > LONGEST_NAME || backup.name_any().contains('.') {
        let message =
            format!("the name of a Backup has up to {LONGEST_NAME} of a-z, 0-9 and -: create another one");
        return failed(observed, &fault(&message));
    }
    let ready = |app: &App| {
        let conditions = app.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|one| one.type_ == READY && one.status == TRUE)
    };
    let waits = match observed.app {
        None => format!("there is no App {name}"),
        Some(app) if app.metadata.deletion_timestamp.is_some() => format!("App {name} is being deleted"),
        Some(app) if !ready(app) => format!("App {name} is not ready"),
        Some(_) => return Step::Begin,
    };
    say(observed, BackupPhase::Pending, reasons::REASON_APP_NOT_READY, &waits, None)
}

/// What the Pod of a Backup says when it has made an archive.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    file: String,
    sha256: String,
    size: i64,
}

fn succeeded(observed: &Observed<'_>, made: &Made) -> Step {
    let hexadecimal = made.sha256.len() == 64 && made.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hexadecimal || made.file != format!("{}.tar.gz", taken_as(observed.backup)) {
        return failed(observed, &fault("its Pod has said something else than what it made"));
    }
    let message = format!("{} has {} bytes", made.file, made.size);
    let note = Note::normal(reasons::REASON_ARCHIVED, message.clone());
    match say(observed, BackupPhase::Succeeded, reasons::REASON_ARCHIVED, &message, Some(note)) {
        Step::Say(mut status, note) => {
            let claim = observed.job.and_then(claim_of_job).unwrap_or_default();
            let (file, sha256) = (made.file.clone(), made.sha256.to_ascii_lowercase());
            status.archive = Some(ArchiveRef { claim, file, sha256 });
            status.size = Some(made.size);
            Step::Say(status, note)
        }
        other => other,
    }
}

/// The claim that was told to a Job when it was made; the App may say another by now.
fn claim_of_job(job: &Job) -> Option<String> {
    job.annotations().get(CLAIM).cloned()
}

/// Annotation of the Job of a Backup: the claim that the archive is on.
pub const CLAIM: &str = "middleware.io/backup-claim";
/// Annotation of the Job of a Backup: plugin, engine and their versions, and the App's spec.
pub const ORIGIN: &str = "middleware.io/backup-origin";

/// It cannot be taken.
pub fn failed(observed: &Observed<'_>, fault: &Fault) -> Step {
    let message = cut(&fault.message, LONGEST_MESSAGE);
    let note = Note::warning(reasons::REASON_BACKUP_FAILED, message.clone());
    say(observed, BackupPhase::Failed, fault.reason, &message, Some(note))
}

fn say(
    observed: &Observed<'_>,
    phase: BackupPhase,
    reason: &'static str,
    message: &str,
    note: Option<Note>,
) -> Step {
    let backup = observed.backup;
    let old = backup.status.clone().unwrap_or_default();
    let mut status = BackupStatus {
        phase: Some(phase),
        message: Some(message.to_owned()),
        observed_generation: backup.metadata.generation,
        ..old.clone()
    };
    if let Some(origin) = observed.job.and_then(|job| job.annotations().get(ORIGIN)) {
        let origin: Value = serde_json::from_str(origin).unwrap_or_default();
        status.plugin = serde_json::from_value(origin["plugin"].clone()).ok();
        status.runtime = serde_json::from_value(origin["runtime"].clone()).ok();
        status.app_spec = serde_json::from_value(origin["spec"].clone()).unwrap_or_default();
    }
    if phase != BackupPhase::Pending && status.started_at.is_none() {
        status.started_at = Some(Time(observed.now));
    }
    if matches!(phase, BackupPhase::Succeeded | BackupPhase::Failed) {
        status.completed_at = Some(Time(observed.now));
    }
    let update = conditions::Update {
        type_: READY,
        status: if phase == BackupPhase::Succeeded { TRUE } else { FALSE },
        reason,
        message: message.to_owned(),
        observed_generation: backup.metadata.generation,
    };
    conditions::set(&mut status.conditions, update, &Time(observed.now));
    if status == old { Step::Rest } else { Step::Say(Box::new(status), note) }
}
