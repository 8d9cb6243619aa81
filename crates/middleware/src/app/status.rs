//! What is said of an App in its status. Pure.

use std::collections::BTreeMap;

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE, Update};
use agentcube_api::middleware::app::{AppComponentStatus, AppPhase};
use agentcube_api::middleware::change::{ChangeStatus, ChangeTask, ChangeType};
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::middleware::{App, AppStatus, Component};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::validate::Refusal;
use super::words::cut;
use crate::parts::Components;

/// What the report is made of.
pub(super) struct Told<'a> {
    pub(super) generation: i64,
    /// What Components are told to be.
    pub(super) wanted: &'a Components,
    pub(super) components: &'a BTreeMap<String, Component>,
    pub(super) refusal: Option<&'a Refusal>,
    pub(super) pending: bool,
    pub(super) now: Timestamp,
}

/// Whether a failure for this reason stays until something else is wanted.
pub(super) fn lasts(reason: &str) -> bool {
    [
        reasons::REASON_CONFIGURATION,
        reasons::REASON_FORBIDDEN,
        reasons::REASON_RESOURCES,
        reasons::REASON_PLUGIN_MISSING,
        reasons::REASON_RUNTIME_UNSUPPORTED,
        reasons::REASON_MIGRATION_NEEDED,
        reasons::REASON_TEMPLATE_ERROR,
    ]
    .contains(&reason)
}

/// Writes the report, and returns the notice for a change that waits.
pub(super) fn report(app: &App, status: &mut AppStatus, told: &Told<'_>) -> String {
    status.observed_generation = Some(told.generation);
    status.components = components(told);
    let all_ready = status.components.iter().all(|component| component.ready);
    let notice = notice(app, status, told.generation);
    let time = Time(told.now);
    let generation = Some(told.generation);
    let set = |conditions: &mut Vec<_>, type_, holds: bool, reason, message: String| {
        let said = if holds { TRUE } else { FALSE };
        let message = cut(&message, 4000);
        conditions::set(
            conditions,
            Update { type_, status: said, reason, message, observed_generation: generation },
            &time,
        );
    };
    let plugin = told.refusal.filter(|refusal| {
        [reasons::REASON_PLUGIN_MISSING, reasons::REASON_RUNTIME_UNSUPPORTED].contains(&refusal.reason)
    });
    match plugin {
        Some(refusal) => {
            set(
                &mut status.conditions,
                reasons::PLUGIN_VALID,
                false,
                refusal.reason,
                refusal.message.clone(),
            );
        }
        None => {
            set(&mut status.conditions, reasons::PLUGIN_VALID, true, reasons::REASON_AS_WANTED, String::new())
        }
    }
    let (holds, reason, message) = tasks(status, told);
    set(&mut status.conditions, reasons::TASKS_READY, holds, reason, message.clone());
    match told.pending {
        true => {
            set(
                &mut status.conditions,
                reasons::PENDING_CHANGE,
                true,
                reasons::REASON_PROGRESSING,
                notice.clone(),
            );
        }
        false => set(
            &mut status.conditions,
            reasons::PENDING_CHANGE,
            false,
            reasons::REASON_AS_WANTED,
            String::new(),
        ),
    }
    status.phase = Some(phase(status, told, all_ready));
    let serves = all_ready && !status.components.is_empty();
    let ready = match (serves, holds) {
        (true, true) => (true, reasons::REASON_AS_WANTED, String::new()),
        (true, false) => (!is_failure(reason), reason, message),
        (false, false) => (false, reason, message),
        (false, true) => (false, reasons::REASON_PROGRESSING, unready(status)),
    };
    set(&mut status.conditions, READY, ready.0, ready.1, ready.2);
    notice
}

fn is_failure(reason: &str) -> bool {
    [reasons::REASON_TASK_FAILED, reasons::REASON_TASK_TIMED_OUT].contains(&reason)
}

fn unready(status: &AppStatus) -> String {
    let unready = status.components.iter().filter(|component| !component.ready);
    let names: Vec<&str> = unready.map(|component| component.name.as_str()).collect();
    format!("not ready: {}", names.join(", "))
}

fn components(told: &Told<'_>) -> Vec<AppComponentStatus> {
    let of = |(name, wanted): (&String, &crate::parts::Wanted)| {
        let component = told.components.get(name);
        let status = component.and_then(|component| component.status.clone()).unwrap_or_default();
        let current = component.is_some_and(|one| status.observed_generation == one.metadata.generation);
        let ready = status.groups.iter().filter(|group| group.phase == Some(PartPhase::Ready)).count();
        AppComponentStatus {
            name: name.clone(),
            phase: Some(if current { status.phase.unwrap_or_default() } else { PartPhase::Pending }),
            ready: current && status.phase == Some(PartPhase::Ready),
            ready_groups: i32::try_from(ready).unwrap_or(i32::MAX),
            total_groups: i32::try_from(wanted.groups.len()).unwrap_or(i32::MAX),
        }
    };
    told.wanted.iter().map(of).collect()
}

/// Whether the spec is carried out, and if not, why.
fn tasks(status: &AppStatus, told: &Told<'_>) -> (bool, &'static str, String) {
    let current = |task: &&ChangeTask| told.pending || task.generation == Some(told.generation);
    let active: Vec<&ChangeTask> = status.tasks.iter().filter(|task| !task.status.is_final()).collect();
    if !active.is_empty() {
        let running = active.iter().filter(|task| task.status == ChangeStatus::InProgress);
        let running: Vec<String> = running.map(|task| running_words(task)).collect();
        let message = format!("{} tasks to go; {}", active.len(), running.join("; "));
        return (false, reasons::REASON_PROGRESSING, message);
    }
    if let Some(refusal) = told.refusal {
        return (false, refusal.reason, refusal.message.clone());
    }
    let find = |wanted: ChangeStatus| status.tasks.iter().filter(current).find(|task| task.status == wanted);
    let words = |task: &ChangeTask| {
        format!("{}: {}", task.task_id, task.error.as_deref().unwrap_or("no reason given"))
    };
    if let Some(task) = find(ChangeStatus::Failed) {
        let reason =
            if task.timed_out { reasons::REASON_TASK_TIMED_OUT } else { reasons::REASON_TASK_FAILED };
        return (false, reason, words(task));
    }
    if let Some(task) = find(ChangeStatus::Cancelled).or_else(|| find(ChangeStatus::Skipped)) {
        return (false, reasons::REASON_CANCELLED, words(task));
    }
    (true, reasons::REASON_AS_WANTED, String::new())
}

fn running_words(task: &ChangeTask) -> String {
    if task.in_force { task.description.clone() } else { format!("going back from: {}", task.description) }
}

fn phase(status: &AppStatus, told: &Told<'_>, all_ready: bool) -> AppPhase {
    let active = || status.tasks.iter().filter(|task| !task.status.is_final());
    if active().next().is_some() {
        let any = |type_: ChangeType| active().any(|task| task.type_ == type_);
        return match () {
            () if any(ChangeType::Provision) => AppPhase::Provisioning,
            () if active().all(|task| task.type_ == ChangeType::VersionUpgrade) => AppPhase::Upgrading,
            () => AppPhase::Updating,
        };
    }
    let (holds, reason, _) = tasks(status, told);
    match () {
        () if !holds && reason == reasons::REASON_CANCELLED && all_ready => AppPhase::Running,
        () if !holds && told.wanted.is_empty() && told.refusal.is_some() => AppPhase::Pending,
        () if !holds => AppPhase::Failed,
        () if all_ready => AppPhase::Running,
        () => AppPhase::Degraded,
    }
}

fn notice(app: &App, status: &AppStatus, generation: i64) -> String {
    let active = status.tasks.iter().filter(|task| !task.status.is_final());
    let ids: Vec<String> = active.map(|task| format!("\"{}\"", task.task_id)).collect();
    format!(
        "generation {generation} waits until the running tasks are over. To have it sooner, cancel them: kubectl annotate \
         app {} -n {} middleware.io/cancel-control='{{\"cancelTaskIds\": [{}]}}'",
        app.name_any(),
        app.namespace().unwrap_or_default(),
        ids.join(", ")
    )
}

/// The report of an App that is being removed.
pub(super) fn terminating(
    app: &App,
    status: &mut AppStatus,
    components: &BTreeMap<String, Component>,
    now: Timestamp,
) {
    status.phase = Some(AppPhase::Terminating);
    status.observed_generation = app.metadata.generation;
    let left: Vec<&str> = components.keys().map(String::as_str).collect();
    let message = match left.is_empty() {
        true => "being removed".into(),
        false => format!("being removed; still there: {}", left.join(", ")),
    };
    let observed_generation = app.metadata.generation;
    let update = Update { type_: READY, status: FALSE, reason: "Terminating", message, observed_generation };
    conditions::set(&mut status.conditions, update, &Time(now));
}
