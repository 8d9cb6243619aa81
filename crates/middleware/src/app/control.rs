//! What users ask for by annotations: each is taken once (moved, in one write, to an annotation of ours with a number of
//! its own), obeyed once (the number is recorded with what it has changed, in one write), and removed.

use std::collections::BTreeMap;

use agentcube_api::labels::{MIDDLEWARE_CANCEL_CONTROL, MIDDLEWARE_CONTROL_TAKEN, MIDDLEWARE_RETRY_CONTROL};
use agentcube_api::middleware::change::{CancelControl, ChangeStatus, ChangeTask, RetryControl};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::machine::dependencies;
use super::{Limits, Note};

/// Control annotations that were taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// The version of the App at which it was taken: no other has the same.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<String>,
}

/// What is to be done about an App's annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Nothing,
    Take(Taken),
    Obey(Taken),
    /// It was obeyed.
    Remove,
}

/// Reads the annotations. What is taken is finished before more is taken.
pub fn read(annotations: &BTreeMap<String, String>, version: &str, obeyed: Option<&str>) -> Control {
    if let Some(taken) = annotations.get(MIDDLEWARE_CONTROL_TAKEN) {
        return match serde_json::from_str::<Taken>(taken) {
            Ok(taken) if Some(taken.id.as_str()) != obeyed => Control::Obey(taken),
            // Obeyed already, or edited by hand so that it means nothing.
            _ => Control::Remove,
        };
    }
    let (retry, cancel) =
        (annotations.get(MIDDLEWARE_RETRY_CONTROL), annotations.get(MIDDLEWARE_CANCEL_CONTROL));
    match (retry, cancel) {
        (None, None) => Control::Nothing,
        (retry, cancel) => {
            Control::Take(Taken { id: version.into(), retry: retry.cloned(), cancel: cancel.cloned() })
        }
    }
}

/// Does what was asked for. What cannot be done is said, and changes nothing.
pub fn obey(taken: &Taken, tasks: &mut [ChangeTask], limits: &Limits, now: Timestamp) -> Vec<Note> {
    let mut notes = Vec::new();
    match taken.cancel.as_deref().map(serde_json::from_str::<CancelControl>) {
        Some(Ok(_)) if !limits.manual_cancel => notes.push(off("cancel")),
        Some(Ok(control)) => cancel(&control, tasks, now, &mut notes),
        Some(Err(error)) => notes.push(unread(MIDDLEWARE_CANCEL_CONTROL, &error)),
        None => {}
    }
    match taken.retry.as_deref().map(serde_json::from_str::<RetryControl>) {
        Some(Ok(_)) if !limits.manual_retry => notes.push(off("retry")),
        Some(Ok(control)) => retry(&control, tasks, &mut notes),
        Some(Err(error)) => notes.push(unread(MIDDLEWARE_RETRY_CONTROL, &error)),
        None => {}
    }
    notes
}

fn off(what: &str) -> Note {
    Note::warning("ControlRefused", format!("{what} is switched off in the controller's configuration"))
}

fn unread(annotation: &str, error: &serde_json::Error) -> Note {
    Note::warning("ControlRefused", format!("{annotation} cannot be read: {error}"))
}

fn refused(id: &str, why: &str) -> Note {
    Note::warning("ControlRefused", format!("task {id} {why}"))
}

fn cancel(control: &CancelControl, tasks: &mut [ChangeTask], now: Timestamp, notes: &mut Vec<Note>) {
    for id in &control.cancel_task_ids {
        let Some(task) = tasks.iter_mut().find(|task| task.task_id == *id) else {
            notes.push(refused(id, "does not exist"));
            continue;
        };
        match task.status {
            ChangeStatus::InProgress => task.cancel_requested = true,
            ChangeStatus::Pending | ChangeStatus::RetryPending => {
                task.status = ChangeStatus::Cancelled;
                task.error = Some("cancelled".into());
                task.cancel_requested = true;
                (task.completed_at, task.retry_at) = (Some(Time(now)), None);
                notes.push(Note::normal("TaskCancelled", format!("{id}: cancelled before it began")));
            }
            _ => notes.push(refused(id, "is over, and cannot be cancelled")),
        }
    }
}

/// Retried tasks wait again, and with them what was skipped because of them.
fn retry(control: &RetryControl, tasks: &mut [ChangeTask], notes: &mut Vec<Note>) {
    let latest = tasks.iter().filter_map(|task| task.generation).max();
    let mut again: Vec<String> = Vec::new();
    for id in &control.retry_task_ids {
        let Some(task) = tasks.iter().find(|task| task.task_id == *id) else {
            notes.push(refused(id, "does not exist"));
            continue;
        };
        if task.generation != latest {
            notes.push(refused(id, "belongs to an older spec, which a newer one has replaced"));
        } else if !may_return(task) {
            notes.push(refused(id, "has neither failed nor been skipped or cancelled"));
        } else {
            again.push(id.clone());
        }
    }
    let mut index = 0;
    while control.reset_dependencies && index < again.len() {
        if let Some(task) = tasks.iter().find(|task| task.task_id == again[index]) {
            let more =
                dependencies(task, tasks).filter(|one| may_return(one) && !again.contains(&one.task_id));
            let more: Vec<String> = more.map(|one| one.task_id.clone()).collect();
            again.extend(more);
        }
        index += 1;
    }
    let mut index = 0;
    while index < again.len() {
        let waits = |task: &&ChangeTask| {
            task.status == ChangeStatus::Skipped
                && task.dependencies.contains(&again[index])
                && !again.contains(&task.task_id)
        };
        let more: Vec<String> = tasks.iter().filter(waits).map(|task| task.task_id.clone()).collect();
        again.extend(more);
        index += 1;
    }
    for task in tasks.iter_mut().filter(|task| again.contains(&task.task_id)) {
        task.status = ChangeStatus::Pending;
        task.retry_count = 0;
        (task.cancel_requested, task.timed_out) = (false, false);
        (task.started_at, task.completed_at, task.retry_at, task.error) = (None, None, None, None);
        // Left as it stood, it is known to have failed: only that it mends itself, or the time, ends the next attempt.
        if !task.in_force {
            task.last_error = None;
        }
        notes.push(Note::normal("TaskRetried", format!("{}: again, by request", task.task_id)));
    }
}

fn may_return(task: &ChangeTask) -> bool {
    matches!(task.status, ChangeStatus::Failed | ChangeStatus::Skipped | ChangeStatus::Cancelled)
}
