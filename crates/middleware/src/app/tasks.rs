//! Compares what is wanted with what was carried out, and makes tasks of the difference. Pure.

use std::collections::BTreeSet;

use agentcube_api::middleware::PluginSpec;
use agentcube_api::middleware::change::{ChangeStatus, ChangeTask, ChangeType};
use agentcube_api::middleware::parts::Scenario;
use agentcube_api::middleware::plugin::Orders;

use super::Limits;
use super::words;
use crate::parts::{Components, Wanted, as_desired, removes};

/// Tasks that failed or were cancelled and were left as they stood.
pub fn held(tasks: &[ChangeTask]) -> impl Iterator<Item = &ChangeTask> {
    tasks.iter().filter(|task| task.in_force && task.status.is_final())
}

/// One change of one component, before it has a place.
struct Change {
    component: String,
    type_: ChangeType,
    scenario: Scenario,
    part: Option<Wanted>,
    words: String,
}

/// Everything to be done, in no order yet. What was left as it stood is done again, whatever it is to be now.
fn changes(
    wanted: &Components,
    completed: &Components,
    told: &Components,
    held: &[&ChangeTask],
) -> Vec<Change> {
    let names: BTreeSet<&String> = wanted.keys().chain(completed.keys()).chain(told.keys()).collect();
    let mut changes = Vec::new();
    for name in names {
        let (new, old) = (wanted.get(name), completed.get(name));
        let held_here = || held.iter().filter(|task| task.target_component == *name);
        let removing = held_here().any(|task| removes(task));
        match (new, old) {
            (Some(new), Some(old)) if !removing => {
                let mut types = new.differs(old);
                types.extend(held_here().map(|task| task.type_));
                let mut seen = BTreeSet::new();
                types.retain(|type_| seen.insert(rank(&[], *type_)));
                if types.contains(&ChangeType::Provision) {
                    types = vec![ChangeType::Provision];
                }
                changes.extend(types.into_iter().map(|type_| Change {
                    component: name.clone(),
                    type_,
                    scenario: scenario(type_),
                    part: Some(new.part(type_, Some(old))),
                    words: words::change(name, type_, old, new),
                }));
            }
            (Some(new), _) => changes.push(Change {
                component: name.clone(),
                type_: ChangeType::Provision,
                scenario: Scenario::Provision,
                part: Some(new.clone()),
                words: words::provision(name, new),
            }),
            (None, old) if old.is_some() || told.contains_key(name) || removing => changes.push(Change {
                component: name.clone(),
                type_: ChangeType::K8sResources,
                scenario: Scenario::Stop,
                part: None,
                words: format!("remove {name}"),
            }),
            (None, _) => {}
        }
    }
    changes
}

fn scenario(type_: ChangeType) -> Scenario {
    match type_ {
        ChangeType::Provision => Scenario::Provision,
        ChangeType::VersionUpgrade => Scenario::Upgrade,
        ChangeType::K8sResources | ChangeType::MiddlewareConfig | ChangeType::StorageVolume => {
            Scenario::Update
        }
    }
}

const USUAL: [ChangeType; 5] = [
    ChangeType::Provision,
    ChangeType::K8sResources,
    ChangeType::MiddlewareConfig,
    ChangeType::StorageVolume,
    ChangeType::VersionUpgrade,
];

/// The place of a type: as the plugin has it, then as usual.
fn rank(order: &[ChangeType], type_: ChangeType) -> usize {
    let others = USUAL.iter().filter(|usual| !order.contains(usual));
    let mut all: Vec<ChangeType> = order.iter().chain(others).copied().collect();
    if !order.contains(&ChangeType::Provision) {
        // What is new comes before what changes.
        all.sort_by_key(|type_| *type_ != ChangeType::Provision);
    }
    all.iter().position(|one| *one == type_).unwrap_or(all.len())
}

/// The tasks of a generation: types one after another, removals last. Within a type components are treated in the
/// plugin's order, one after another, with those that it leaves out after the others; without an order all at once.
pub fn tasks(
    generation: i64,
    wanted: &Components,
    completed: &Components,
    told: &Components,
    existing: &[ChangeTask],
    plugin: &PluginSpec,
    limits: &Limits,
) -> Vec<ChangeTask> {
    let held: Vec<&ChangeTask> = held(existing).collect();
    let mut changes = changes(wanted, completed, told, &held);
    let none = Orders::default();
    let orders = plugin.orders.as_ref().unwrap_or(&none);
    let stage = |change: &Change| match change.scenario {
        Scenario::Stop => USUAL.len(),
        _ => rank(&plugin.task_order, change.type_),
    };
    let place = |change: &Change| {
        let order = orders.of(change.scenario).unwrap_or_default();
        order.iter().position(|name| *name == change.component).unwrap_or(order.len())
    };
    changes.sort_by_key(|change| (stage(change), place(change)));

    let mut tasks: Vec<ChangeTask> = Vec::new();
    let (mut before, mut current): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut reached = None;
    for change in changes {
        if reached.is_some_and(|reached| reached != stage(&change)) {
            before = std::mem::take(&mut current);
        }
        reached = Some(stage(&change));
        let mut dependencies = before.clone();
        if orders.of(change.scenario).is_some() {
            dependencies.extend(current.last().cloned());
        }
        let id =
            format!("{generation}-{}-{}", change.component, words::short(&change.type_, change.scenario));
        current.push(id.clone());
        let priority = i32::try_from(USUAL.len().saturating_sub(stage(&change))).unwrap_or(0) * 10;
        tasks.push(ChangeTask {
            task_id: id,
            type_: change.type_,
            scenario: Some(change.scenario),
            description: words::cut(&change.words, 1000),
            priority,
            target_component: change.component,
            desired_spec: change.part.as_ref().map(as_desired),
            dependencies,
            status: ChangeStatus::Pending,
            generation: Some(generation),
            retry_count: 0,
            max_retries: limits.max_retries,
            timeout: Some(limits.task_timeout.into()),
            started_at: None,
            undone_since: None,
            completed_at: None,
            retry_at: None,
            error: None,
            last_error: None,
            timed_out: false,
            cancel_requested: false,
            in_force: false,
        });
    }
    tasks
}

/// Puts new tasks behind the old ones, of which the oldest go, but never one that is in force.
pub fn append(existing: &mut Vec<ChangeTask>, new: Vec<ChangeTask>, keep: usize) {
    for task in existing.iter_mut().filter(|task| !task.in_force) {
        task.desired_spec = None;
    }
    // A status that was lost may come to the same ids again.
    existing.retain(|old| old.in_force || new.iter().all(|task| task.task_id != old.task_id));
    let mut surplus = (existing.len() + new.len()).saturating_sub(keep);
    existing.retain(|task| {
        let goes = surplus > 0 && !task.in_force;
        surplus -= usize::from(goes);
        !goes
    });
    existing.extend(new);
}
