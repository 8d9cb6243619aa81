//! Decides what happens to an App next. Pure: the same observation gives the same plan, and a plan that was carried out
//! gives an empty one.

use std::collections::BTreeMap;

use agentcube_api::conditions;
use agentcube_api::labels::{MIDDLEWARE_FINALIZER, MIDDLEWARE_PENDING_CHANGE};
use agentcube_api::middleware::change::{ChangeStatus, ChangeTask};
use agentcube_api::middleware::group::Policies;
use agentcube_api::middleware::parts::{ParentRef, PartPhase, PluginRef, RuntimeRef, Scenario};
use agentcube_api::middleware::{App, AppStatus, Component, ComponentSpec, Plugin};
use jiff::Timestamp;
use kube::ResourceExt;

use super::control::{self, Control, Taken};
use super::machine::{Machine, Standing, Undo};
use super::status::{self, Told};
use super::validate::{Refusal, validate};
use super::{Limits, Note, tasks};
use crate::group::observe::Fault;
use crate::parts::{self, Components, Wanted};
use crate::refusals::Refused;

/// Everything that matters for an App.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub app: &'a App,
    /// The plugin that the spec names, if it exists.
    pub plugin: Option<&'a Plugin>,
    /// Its Components, by their names in the App.
    pub components: &'a BTreeMap<String, Component>,
    /// What the server does not let Components be, by the same names.
    pub refused: &'a BTreeMap<String, Refused>,
    /// What the server has against the Secrets and other objects that an App leaves for its Pods and clients.
    pub outputs: Option<&'a Fault>,
    pub now: Timestamp,
    /// Since when somebody looks.
    pub since: Timestamp,
    pub limits: &'a Limits,
}

/// What is written, in this order. Nothing after a write that fails.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// The finalizer is added.
    Hold,
    /// Control annotations become ours.
    Take(Taken),
    /// Control annotations that were obeyed go.
    DropControl,
    WriteStatus(Box<AppStatus>),
    /// A Component is made or changed.
    Tell {
        component: String,
        spec: Box<ComponentSpec>,
    },
    /// A Component is deleted.
    Remove {
        component: String,
    },
    /// The annotation that a newer spec waits.
    MarkPending(bool),
    /// The finalizer is removed.
    Release,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub operations: Vec<Operation>,
    pub notes: Vec<Note>,
    /// When to look again, if nothing happens before.
    pub again: Option<Timestamp>,
}

/// Name of a Component object.
pub fn component_name(app: &str, component: &str) -> String {
    format!("{app}-{component}")
}

/// What a Component is told.
pub fn component_spec(app: &App, wanted: &Wanted) -> ComponentSpec {
    ComponentSpec {
        app_ref: ParentRef { name: app.name_any(), namespace: None },
        plugin_ref: PluginRef {
            name: plugin_name(&app.spec.plugin.name, &wanted.plugin_version),
            namespace: None,
        },
        runtime: RuntimeRef { name: app.spec.runtime.name.clone(), version: wanted.runtime_version.clone() },
        groups: wanted.groups.clone(),
        values: wanted.config.clone(),
    }
}

/// Name of a Plugin object.
pub fn plugin_name(name: &str, version: &str) -> String {
    format!("{name}-v{version}")
}

pub fn plan(observed: &Observed<'_>) -> Plan {
    let app = observed.app;
    if app.metadata.deletion_timestamp.is_some() {
        return ending(observed);
    }
    if !app.finalizers().iter().any(|finalizer| finalizer == MIDDLEWARE_FINALIZER) {
        return Plan { operations: vec![Operation::Hold], ..Plan::default() };
    }
    let before = app.status.clone().unwrap_or_default();
    let version = app.resource_version().unwrap_or_default();
    let control = control::read(app.annotations(), &version, before.last_control.as_deref());
    match &control {
        Control::Take(taken) => {
            return Plan { operations: vec![Operation::Take(taken.clone())], ..Plan::default() };
        }
        Control::Remove => return Plan { operations: vec![Operation::DropControl], ..Plan::default() },
        Control::Obey(_) | Control::Nothing => {}
    }
    let mut course = Course::new(observed, before);
    if let Control::Obey(taken) = control {
        let notes = control::obey(&taken, &mut course.status.tasks, observed.limits, observed.now);
        course.notes.extend(notes);
        course.status.last_control = Some(taken.id);
    }
    course.step();
    course.finish()
}

/// A plan in the making.
struct Course<'a> {
    observed: &'a Observed<'a>,
    generation: i64,
    status: AppStatus,
    completed: Components,
    refusal: Option<Refusal>,
    pending: bool,
    notes: Vec<Note>,
    again: Option<Timestamp>,
}

impl<'a> Course<'a> {
    fn new(observed: &'a Observed<'a>, status: AppStatus) -> Course<'a> {
        Course {
            observed,
            generation: observed.app.metadata.generation.unwrap_or(1),
            completed: parts::completed(status.last_completed_spec.as_ref()),
            status,
            // Without them no Pod could begin: nothing new is taken up.
            refusal: observed.outputs.map(Refusal::from),
            pending: false,
            notes: Vec::new(),
            again: None,
        }
    }

    fn active(&self) -> bool {
        self.status.tasks.iter().any(|task| !task.status.is_final())
    }

    fn step(&mut self) {
        self.bring_on();
        self.take_up();
        // What was just taken up begins at once.
        self.bring_on();
        let last = self.status.tasks.iter().filter(|task| task.generation == Some(self.generation));
        let done = last.into_iter().all(|task| task.status == ChangeStatus::Done);
        let reached = self.completed == parts::wanted(&self.observed.app.spec);
        if done && reached && !self.active() && self.refusal.is_none() {
            self.status.last_completed_generation = Some(self.generation);
        }
        self.status.last_completed_spec =
            match self.completed.is_empty() && self.status.last_completed_spec.is_none() {
                true => None,
                false => Some(parts::to_values(&self.completed)),
            };
    }

    /// Brings the tasks on.
    fn bring_on(&mut self) {
        let told = parts::in_force(&self.completed, &self.status.tasks);
        let observed = self.observed;
        let standing = |component: &str| standing(observed, component, told.get(component));
        let defaults = observed.plugin.map(|plugin| plugin.spec.policies.clone()).unwrap_or_default();
        let undo = |component: &str| undo(told.get(component), &defaults);
        let mut machine = Machine {
            now: observed.now,
            since: observed.since,
            limits: observed.limits,
            standing: &standing,
            undo: &undo,
            notes: Vec::new(),
        };
        machine.step(&mut self.status.tasks, &mut self.completed);
        self.again = machine.next(&self.status.tasks);
        self.notes.extend(machine.notes);
    }

    /// Makes tasks of a spec that has none yet, or says why not.
    fn take_up(&mut self) {
        let (app, wanted) = (self.observed.app, parts::wanted(&self.observed.app.spec));
        if self.status.tasks.iter().any(|task| task.generation == Some(self.generation)) {
            return;
        }
        let told = parts::in_force(&self.completed, &self.status.tasks);
        let Some(plugin) = self.observed.plugin else {
            self.refusal = Some(missing(app));
            return;
        };
        let refusal = validate(&app.name_any(), &app.spec, &plugin.spec, &told, &self.completed).err();
        self.refusal = refusal.or(self.refusal.take());
        if self.active() {
            self.pending = wanted != goal(&self.completed, &self.status.tasks);
            return;
        }
        if self.refusal.is_some() {
            return;
        }
        let existing = &self.status.tasks;
        let new = tasks::tasks(
            self.generation,
            &wanted,
            &self.completed,
            &told,
            existing,
            &plugin.spec,
            self.observed.limits,
        );
        if !new.is_empty() {
            tasks::append(&mut self.status.tasks, new, self.observed.limits.kept_tasks);
        }
    }

    fn finish(mut self) -> Plan {
        let observed = self.observed;
        let told = parts::in_force(&self.completed, &self.status.tasks);
        let was_pending = conditions::find(&self.status.conditions, conditions::middleware::PENDING_CHANGE)
            .is_some_and(|condition| condition.status == conditions::TRUE);
        let say = Told {
            generation: self.generation,
            wanted: &told,
            components: observed.components,
            refusal: self.refusal.as_ref(),
            pending: self.pending,
            now: observed.now,
        };
        let notice = status::report(observed.app, &mut self.status, &say);
        if self.pending && !was_pending {
            self.notes.push(Note::warning("PendingChange", notice));
        }
        let mut operations = Vec::new();
        if observed.app.status.as_ref() != Some(&self.status) {
            operations.push(Operation::WriteStatus(Box::new(self.status)));
        }
        operations.extend(tell(observed, &told));
        let marked =
            observed.app.annotations().get(MIDDLEWARE_PENDING_CHANGE).is_some_and(|mark| mark == "true");
        if marked != self.pending {
            operations.push(Operation::MarkPending(self.pending));
        }
        if observed.app.annotations().contains_key(agentcube_api::labels::MIDDLEWARE_CONTROL_TAKEN) {
            operations.push(Operation::DropControl);
        }
        Plan { operations, notes: self.notes, again: self.again }
    }
}

/// Writes that make Components what they are told to be.
fn tell(observed: &Observed<'_>, told: &Components) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (name, wanted) in told {
        let spec = component_spec(observed.app, wanted);
        let current = observed.components.get(name);
        if refusal(observed, name, &spec).is_some() {
            continue;
        }
        // One that is being deleted comes back when it is gone.
        if current.is_none_or(|current| current.metadata.deletion_timestamp.is_none() && current.spec != spec)
        {
            operations.push(Operation::Tell { component: name.clone(), spec: Box::new(spec) });
        }
    }
    for (name, component) in observed.components {
        if !told.contains_key(name) && component.metadata.deletion_timestamp.is_none() {
            operations.push(Operation::Remove { component: name.clone() });
        }
    }
    operations
}

/// What the server has against a Component like this.
fn refusal<'a>(observed: &Observed<'a>, name: &str, spec: &ComponentSpec) -> Option<&'a Fault> {
    observed.refused.get(name).and_then(|refused| refused.of(spec))
}

/// How a Component stands to what it is told.
fn standing(observed: &Observed<'_>, name: &str, told: Option<&Wanted>) -> Standing {
    if let Some(fault) = told.and_then(|told| refusal(observed, name, &component_spec(observed.app, told))) {
        return Standing::Failed { message: fault.message.clone(), lasting: status::lasts(fault.reason) };
    }
    let (component, told) = match (observed.components.get(name), told) {
        (None, None) => return Standing::Reached,
        (Some(component), Some(told)) => (component, told),
        _ => return Standing::Working,
    };
    let status = component.status.clone().unwrap_or_default();
    let current = component.metadata.deletion_timestamp.is_none()
        && component.spec == component_spec(observed.app, told)
        && status.observed_generation == component.metadata.generation
        && component.metadata.generation.is_some();
    match status.phase.unwrap_or_default() {
        PartPhase::Ready if current => Standing::Reached,
        PartPhase::Failed if current => {
            let ready = conditions::find(&status.conditions, conditions::READY);
            let message = ready.map_or_else(|| "the Component failed".into(), |ready| ready.message.clone());
            Standing::Failed { message, lasting: ready.is_some_and(|ready| status::lasts(&ready.reason)) }
        }
        _ => Standing::Working,
    }
}

fn undo(told: Option<&Wanted>, defaults: &Policies) -> Undo {
    let policies: Vec<Policies> =
        told.iter().flat_map(|told| &told.groups).map(|group| group.policies.over(defaults)).collect();
    Undo {
        on_cancel: policies.iter().all(Policies::can_undo),
        on_failure: policies.iter().all(Policies::undoes_failures),
    }
}

/// What there will be when all tasks are done.
fn goal(completed: &Components, tasks: &[ChangeTask]) -> Components {
    let mut tasks = tasks.to_vec();
    for task in tasks.iter_mut().filter(|task| !task.status.is_final()) {
        task.in_force = true;
    }
    parts::in_force(completed, &tasks)
}

fn missing(app: &App) -> Refusal {
    let name = plugin_name(&app.spec.plugin.name, &app.spec.plugin.version);
    let message = format!("there is no Plugin {name} in this namespace or the system's");
    Refusal { reason: conditions::middleware::REASON_PLUGIN_MISSING, message }
}

/// The end: Components go in the plugin's order, then the App.
fn ending(observed: &Observed<'_>) -> Plan {
    let app = observed.app;
    let mut operations = Vec::new();
    let mut status = app.status.clone().unwrap_or_default();
    status::terminating(app, &mut status, observed.components, observed.now);
    if app.status.as_ref() != Some(&status) {
        operations.push(Operation::WriteStatus(Box::new(status)));
    }
    if !app.finalizers().iter().any(|finalizer| finalizer == MIDDLEWARE_FINALIZER) {
        return Plan::default();
    }
    if observed.components.is_empty() {
        return Plan { operations: vec![Operation::Release], ..Plan::default() };
    }
    let order = match observed.plugin {
        Some(plugin) => {
            plugin.spec.orders.as_ref().and_then(|orders| orders.of(Scenario::Stop)).map(<[_]>::to_vec)
        }
        // Without its plugin nobody knows the order: one after another, the last first.
        None => Some(app.spec.components.iter().rev().map(|component| component.name.clone()).collect()),
    };
    let mut names: Vec<&String> = observed.components.keys().collect();
    if let Some(order) = order {
        names.sort_by_key(|name| order.iter().position(|one| one == *name).unwrap_or(order.len()));
        names.truncate(1);
    }
    let staying =
        names.into_iter().filter(|name| observed.components[*name].metadata.deletion_timestamp.is_none());
    operations.extend(staying.map(|name| Operation::Remove { component: name.clone() }));
    Plan { operations, ..Plan::default() }
}
