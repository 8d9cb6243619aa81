//! Backups from their order to their end, whatever comes between.

use agentcube_api::middleware::taken::BackupPhase;
use agentcube_api::middleware::{App, Backup, BackupStatus};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::plan::{CLAIM, ORIGIN, Observed, Step, plan, taken_as};

fn backup(status: Option<BackupStatus>) -> Backup {
    let mut backup: Backup = serde_json::from_value(json!({
        "metadata": { "name": "monday", "namespace": "here", "uid": "0a1b2c3d-4e5f", "generation": 1 },
        "spec": { "appRef": { "name": "cache" } } }))
    .unwrap();
    backup.status = status;
    backup
}

fn app(ready: bool) -> App {
    let ready = if ready { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": { "name": "cache", "namespace": "here" },
        "spec": { "plugin": { "name": "redis", "version": "1.0.0" }, "runtime": { "name": "redis", "version": "7.0" },
            "components": [{ "name": "redis", "groups": [{ "name": "main" }] }] },
        "status": { "conditions": [{ "type": "Ready", "status": ready, "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
    .unwrap()
}

fn job(conditions: Value) -> Job {
    let origin = json!({ "plugin": { "name": "redis", "version": "1.0.0" },
        "runtime": { "name": "redis", "version": "7.0" } });
    serde_json::from_value(json!({
        "metadata": { "name": "monday-0a1b2c3d", "annotations": { CLAIM: "claim", ORIGIN: origin.to_string() } },
        "status": { "conditions": conditions } }))
    .unwrap()
}

fn step(status: Option<BackupStatus>, app: Option<&App>, job: Option<&Job>, said: Option<&str>) -> Step {
    let backup = backup(status);
    plan(&Observed { backup: &backup, app, job, said, now: Timestamp::UNIX_EPOCH })
}

fn said(step: Step) -> BackupStatus {
    match step {
        Step::Say(status, _) => *status,
        other => panic!("{other:?}"),
    }
}

fn made(file: &str) -> String {
    json!({ "file": file, "sha256": "ab".repeat(32), "size": 17 }).to_string()
}

#[test]
fn it_waits_for_its_app_and_begins() {
    let missing = said(step(None, None, None, None));
    assert_eq!(
        (missing.phase, missing.message.as_deref()),
        (Some(BackupPhase::Pending), Some("there is no App cache"))
    );
    let unready = said(step(Some(missing), Some(&app(false)), None, None));
    assert_eq!(unready.message.as_deref(), Some("App cache is not ready"));
    // What was said already is not said again.
    assert_eq!(step(Some(unready.clone()), Some(&app(false)), None, None), Step::Rest);
    assert_eq!(step(Some(unready), Some(&app(true)), None, None), Step::Begin);
}

#[test]
fn it_ends_with_the_archive_that_its_pod_made() {
    let running = said(step(None, Some(&app(true)), Some(&job(json!([]))), None));
    assert_eq!(running.phase, Some(BackupPhase::Running));
    assert_eq!(running.runtime.as_ref().unwrap().version, "7.0");
    let complete = job(json!([{ "type": "Complete", "status": "True" }]));
    // The App may be gone by then.
    let done = said(step(Some(running), None, Some(&complete), Some(&made("monday-0a1b2c3d.tar.gz"))));
    let archive = done.archive.clone().unwrap();
    assert_eq!((done.phase, done.size), (Some(BackupPhase::Succeeded), Some(17)));
    assert_eq!((&*archive.claim, &*archive.file), ("claim", "monday-0a1b2c3d.tar.gz"));
    assert!(done.started_at.is_some() && done.completed_at.is_some());
    let gone = job(json!([{ "type": "Failed", "status": "True" }]));
    for job in [None, Some(&complete), Some(&gone)] {
        assert_eq!(step(Some(done.clone()), Some(&app(true)), job, None), Step::Rest, "it stays");
    }
}

#[test]
fn it_fails_with_what_its_pod_said() {
    let complete = job(json!([{ "type": "Complete", "status": "True" }]));
    let broken = job(json!([{ "type": "Failed", "status": "True", "message": "too late" }]));
    let cases = [
        (&broken, Some("`redis-cli` failed: no such host"), "`redis-cli` failed: no such host"),
        (&broken, Some(" "), "too late"),
        (&broken, None, "too late"),
        (&complete, None, "has not said"),
        (&complete, Some("nonsense"), "has not said"),
        (&complete, Some(&*made("another.tar.gz")), "something else"),
        (&complete, Some(&*made("../monday-0a1b2c3d.tar.gz")), "something else"),
    ];
    for (job, text, wanted) in cases {
        let failed = said(step(None, Some(&app(true)), Some(job), text));
        assert_eq!(failed.phase, Some(BackupPhase::Failed));
        let message = failed.message.unwrap();
        assert!(message.contains(wanted), "{message}");
        assert!(failed.archive.is_none());
    }
}

#[test]
fn another_of_the_same_name_has_another_archive() {
    let mut other = backup(None);
    other.metadata.uid = Some("99999999-4e5f".into());
    assert_ne!(taken_as(&other), taken_as(&backup(None)));
    other.metadata.name = Some("m".repeat(60));
    let failed =
        plan(&Observed { backup: &other, app: None, job: None, said: None, now: Timestamp::UNIX_EPOCH });
    assert_eq!(said(failed).phase, Some(BackupPhase::Failed));
}
