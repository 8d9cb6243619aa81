//! The states of a task. Pure.
//!
//! `Pending` and `RetryPending` begin an attempt: `InProgress`, in force. An attempt ends well (`Done`), or it is undone
//! (`InProgress`, no longer in force: the Component is told the former state again) and then concluded: `RetryPending`,
//! `Failed` or `Cancelled`. What cannot be undone is concluded as it stands, in force. A first installation, a
//! removal and larger volumes are never undone: there is nothing to go back to.

use agentcube_api::middleware::change::{ChangeStatus, ChangeTask, ChangeType};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::words::cut;
use super::{Limits, Note};
use crate::parts::{Components, carried_out, removes};

/// How a Component stands to what it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not told yet, or at work.
    Working,
    /// It is what it was told to be.
    Reached,
    /// It cannot be what it was told to be. `lasting` until something else is wanted.
    Failed { message: String, lasting: bool },
}

/// What may be undone of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undo {
    pub on_cancel: bool,
    pub on_failure: bool,
}

fn undoable(task: &ChangeTask) -> bool {
    !matches!(task.type_, ChangeType::Provision | ChangeType::StorageVolume) && !removes(task)
}

/// All tasks brought one step on.
pub struct Machine<'a> {
    pub now: Timestamp,
    /// Since when somebody looks: nobody is late for what nobody looked at.
    pub since: Timestamp,
    pub limits: &'a Limits,
    pub standing: &'a dyn Fn(&str) -> Standing,
    pub undo: &'a dyn Fn(&str) -> Undo,
    pub notes: Vec<Note>,
}

impl Machine<'_> {
    /// Brings every task on, and what was carried out.
    pub fn step(&mut self, tasks: &mut [ChangeTask], completed: &mut Components) {
        for task in tasks.iter_mut().filter(|task| task.status == ChangeStatus::InProgress) {
            match task.in_force {
                true => self.attempt(task, completed),
                false => self.undoing(task),
            }
        }
        // A failure may skip what depends on what is skipped.
        for index in 0..tasks.len() {
            if tasks[index].status == ChangeStatus::Pending
                && let Some(why) = obstacle(&tasks[index], tasks)
            {
                self.end(&mut tasks[index], ChangeStatus::Skipped, Some(why));
            }
        }
        for index in 0..tasks.len() {
            if self.may_start(&tasks[index], tasks) {
                self.start(index, tasks);
            }
        }
    }

    fn may_start(&self, task: &ChangeTask, tasks: &[ChangeTask]) -> bool {
        let due = match task.status {
            ChangeStatus::Pending => true,
            ChangeStatus::RetryPending => task.retry_at.as_ref().is_none_or(|at| at.0 <= self.now),
            _ => return false,
        };
        let busy = |other: &ChangeTask| {
            other.status == ChangeStatus::InProgress && other.target_component == task.target_component
        };
        due && !tasks.iter().any(busy)
            && dependencies(task, tasks).all(|one| one.status == ChangeStatus::Done)
    }

    fn start(&mut self, index: usize, tasks: &mut [ChangeTask]) {
        let (component, type_) = (tasks[index].target_component.clone(), tasks[index].type_);
        let whole = type_ == ChangeType::Provision || removes(&tasks[index]);
        for (other, task) in tasks.iter_mut().enumerate() {
            let superseded = task.target_component == component
                && (whole || task.type_ == type_ || task.type_ == ChangeType::Provision);
            if other != index && task.status.is_final() && superseded {
                task.in_force = false;
                task.desired_spec = None;
            }
        }
        let task = &mut tasks[index];
        task.status = ChangeStatus::InProgress;
        task.in_force = true;
        task.started_at = Some(Time(self.now));
        (task.undone_since, task.completed_at, task.retry_at, task.error) = (None, None, None, None);
        task.timed_out = false;
        let attempt =
            if task.retry_count > 0 { format!(" (attempt {})", task.retry_count + 1) } else { String::new() };
        self.notes
            .push(Note::normal("TaskStarted", format!("{}: {}{attempt}", task.task_id, task.description)));
    }

    fn attempt(&mut self, task: &mut ChangeTask, completed: &mut Components) {
        let undo = (self.undo)(&task.target_component);
        if task.cancel_requested {
            if !undoable(task) {
                let why = "cancelled; what was made stays as it is until the App changes";
                return self.end(task, ChangeStatus::Cancelled, Some(why.into()));
            }
            if undo.on_cancel {
                return self.begin_undo(task);
            }
        }
        match (self.standing)(&task.target_component) {
            Standing::Reached => {
                match carried_out(completed.get(&task.target_component), task) {
                    Some(wanted) => completed.insert(task.target_component.clone(), wanted),
                    None => completed.remove(&task.target_component),
                };
                task.in_force = false;
                task.desired_spec = None;
                self.end(task, ChangeStatus::Done, None);
            }
            // Left as it stood, it stays failed until it has mended itself; then only time tells.
            Standing::Failed { message, lasting } if task.last_error.is_none() || undo_here(task, undo) => {
                self.failed(task, message, lasting, undo);
            }
            Standing::Failed { .. } | Standing::Working => {
                let timeout = self.timeout(task);
                if self.is_past(task.started_at.as_ref(), timeout) {
                    let message = format!("not done within {}", agentcube_api::GoDuration::from(timeout));
                    task.timed_out = true;
                    self.failed(task, message, true, undo);
                }
            }
        }
    }

    /// An attempt has failed. What lasts is not tried again by itself: all attempts count as used.
    fn failed(&mut self, task: &mut ChangeTask, message: String, lasting: bool, undo: Undo) {
        task.retry_count = if lasting { task.max_retries } else { task.retry_count + 1 };
        task.last_error = Some(cut(&message, 2000));
        self.notes.push(Note::warning("TaskAttemptFailed", format!("{}: {message}", task.task_id)));
        if undo_here(task, undo) { self.begin_undo(task) } else { self.conclude(task, None) }
    }

    fn begin_undo(&mut self, task: &mut ChangeTask) {
        task.in_force = false;
        task.undone_since = Some(Time(self.now));
        self.notes
            .push(Note::normal("TaskUndone", format!("{}: going back to what was before", task.task_id)));
    }

    fn undoing(&mut self, task: &mut ChangeTask) {
        match (self.standing)(&task.target_component) {
            Standing::Reached => self.conclude(task, None),
            Standing::Failed { message, .. } => self.conclude(task, Some(message)),
            Standing::Working => {
                let timeout = self.timeout(task);
                if self.is_past(undone_since(task), timeout) {
                    self.conclude(task, Some("it takes too long".into()));
                }
            }
        }
    }

    fn conclude(&mut self, task: &mut ChangeTask, not_undone: Option<String>) {
        let cause = task.last_error.clone();
        let not_undone = not_undone.map(|why| format!("could not be undone: {why}"));
        let error = [cause, not_undone.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let error = (!error.is_empty()).then_some(error);
        if task.cancel_requested {
            return self.end(task, ChangeStatus::Cancelled, error.or_else(|| Some("cancelled".into())));
        }
        // On ground that is not known nothing is tried again by itself.
        if task.retry_count >= task.max_retries || not_undone.is_some() {
            return self.end(task, ChangeStatus::Failed, error);
        }
        let exponent = u32::try_from(task.retry_count - 1).unwrap_or(0).min(16);
        let wait = self.limits.retry_backoff.saturating_mul(1 << exponent).min(self.limits.longest_backoff);
        task.status = ChangeStatus::RetryPending;
        task.undone_since = None;
        task.retry_at = Some(Time(later(self.now, wait)));
    }

    fn end(&mut self, task: &mut ChangeTask, status: ChangeStatus, error: Option<String>) {
        task.status = status;
        task.completed_at = Some(Time(self.now));
        (task.undone_since, task.retry_at) = (None, None);
        task.error = error.map(|error| cut(&error, 4000));
        let said = task.error.clone().unwrap_or_else(|| task.description.clone());
        let said = format!("{}: {said}", task.task_id);
        self.notes.push(match status {
            ChangeStatus::Done => Note::normal("TaskDone", said),
            ChangeStatus::Cancelled => Note::normal("TaskCancelled", said),
            ChangeStatus::Skipped => Note::warning("TaskSkipped", said),
            _ => Note::warning("TaskFailed", said),
        });
    }

    fn timeout(&self, task: &ChangeTask) -> std::time::Duration {
        task.timeout.map_or(self.limits.task_timeout, |timeout| timeout.to_std())
    }

    fn is_past(&self, from: Option<&Time>, timeout: std::time::Duration) -> bool {
        from.is_some_and(|from| later(from.0.max(self.since), timeout) <= self.now)
    }

    /// When something happens by itself, if nothing else does.
    pub fn next(&self, tasks: &[ChangeTask]) -> Option<Timestamp> {
        let of = |task: &ChangeTask| match (task.status, task.in_force) {
            (ChangeStatus::RetryPending, _) => task.retry_at.as_ref().map(|at| at.0),
            (ChangeStatus::InProgress, true) => {
                Some(later(task.started_at.as_ref()?.0.max(self.since), self.timeout(task)))
            }
            (ChangeStatus::InProgress, false) => {
                Some(later(undone_since(task)?.0.max(self.since), self.timeout(task)))
            }
            _ => None,
        };
        tasks.iter().filter_map(of).min()
    }
}

/// From when the time for undoing counts; statuses of older controllers know the attempt only.
fn undone_since(task: &ChangeTask) -> Option<&Time> {
    task.undone_since.as_ref().or(task.started_at.as_ref())
}

fn undo_here(task: &ChangeTask, undo: Undo) -> bool {
    undoable(task) && undo.on_failure
}

pub(super) fn dependencies<'a>(
    task: &'a ChangeTask,
    tasks: &'a [ChangeTask],
) -> impl Iterator<Item = &'a ChangeTask> {
    tasks.iter().filter(|other| task.dependencies.contains(&other.task_id))
}

/// Why a task cannot be carried out: one that it depends on was not.
fn obstacle(task: &ChangeTask, tasks: &[ChangeTask]) -> Option<String> {
    let given_up = |one: &&ChangeTask| one.status.is_final() && one.status != ChangeStatus::Done;
    let one = dependencies(task, tasks).find(given_up)?;
    let what = match one.status {
        ChangeStatus::Cancelled => "was cancelled",
        ChangeStatus::Skipped => "was skipped",
        _ => "failed",
    };
    Some(format!("skipped, since {} {what}", one.task_id))
}

pub(crate) fn later(from: Timestamp, by: std::time::Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| from.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}
