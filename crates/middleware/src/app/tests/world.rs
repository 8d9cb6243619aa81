//! What is around the planner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentcube_api::conditions::{self, Update};
use agentcube_api::labels::{MIDDLEWARE_CONTROL_TAKEN, MIDDLEWARE_PENDING_CHANGE};
use agentcube_api::middleware::change::{ChangeStatus, ChangeTask};
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::middleware::{App, AppStatus, Component, ComponentStatus, Plugin};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::app::Limits;
use crate::app::plan::{Observed, Operation, Plan, plan};
use crate::group::observe::Fault;
use crate::parts::{self, Components};
use crate::refusals::Refused;

pub(super) struct World {
    pub(super) app: App,
    pub(super) plugin: Option<Plugin>,
    pub(super) components: BTreeMap<String, Component>,
    pub(super) refused: BTreeMap<String, Refused>,
    pub(super) outputs: Option<Fault>,
    pub(super) now: Timestamp,
    pub(super) since: Timestamp,
    pub(super) limits: Limits,
    pub(super) version: u64,
    /// Every write of tasks so far, for what has to hold between two of them.
    pub(super) starts: BTreeMap<String, u32>,
    pub(super) retried: BTreeMap<String, u32>,
    pub(super) gone: bool,
    pub(super) notes: Vec<String>,
}

pub(super) fn plugin(more: Value) -> Plugin {
    let mut spec = json!({ "name": "redis", "version": "1",
        "runtimes": [{ "name": "redis", "versions": ["7.0", "7.2", "7.4"] }],
        "compatibility": { "migrateFrom": { "7.2": ["7.0"], "7.4": ["7.0", "7.2"] } } });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(json!({ "metadata": { "name": "redis-v1" }, "spec": spec })).unwrap()
}

pub(super) fn app(spec: Value) -> App {
    let mut object = json!({
        "metadata": { "name": "cache", "namespace": "here", "uid": "u", "generation": 1, "resourceVersion": "1",
            "finalizers": ["middleware.io/stop-order"] },
        "spec": { "plugin": { "name": "redis", "version": "1" }, "runtime": { "name": "redis", "version": "7.0" },
            "components": [{ "name": "nodes", "groups": [{ "name": "main", "replicas": 3 }] }] } });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

impl World {
    pub(super) fn new(app: App, plugin: Plugin) -> World {
        World {
            app,
            plugin: Some(plugin),
            components: BTreeMap::new(),
            refused: BTreeMap::new(),
            outputs: None,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            since: Timestamp::MIN,
            limits: Limits::default(),
            version: 1,
            starts: BTreeMap::new(),
            retried: BTreeMap::new(),
            gone: false,
            notes: Vec::new(),
        }
    }

    pub(super) fn plan(&self) -> Plan {
        let (app, plugin, components) = (&self.app, self.plugin.as_ref(), &self.components);
        let (refused, limits, outputs) = (&self.refused, &self.limits, self.outputs.as_ref());
        let (now, since) = (self.now, self.since);
        plan(&Observed { app, plugin, components, refused, outputs, now, since, limits })
    }

    /// Plans and writes; not more than so many writes, as if it died then. Whether anything was written.
    pub(super) fn pass(&mut self, writes: usize) -> bool {
        let plan = self.plan();
        let any = !plan.operations.is_empty();
        for operation in plan.operations.into_iter().take(writes) {
            self.write(operation);
        }
        if writes > 0 {
            self.notes
                .extend(plan.notes.into_iter().map(|note| format!("{}: {}", note.reason, note.message)));
        }
        any
    }

    /// Plans and writes until there is nothing to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..100 {
            if self.gone || !self.pass(usize::MAX) {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", self.plan());
    }

    fn touch(&mut self) {
        self.version += 1;
        self.app.metadata.resource_version = Some(self.version.to_string());
    }

    fn annotate(&mut self, name: &str, value: Option<String>) {
        let annotations = self.app.metadata.annotations.get_or_insert_default();
        match value {
            Some(value) => annotations.insert(name.into(), value),
            None => annotations.remove(name),
        };
        self.touch();
    }

    fn write(&mut self, operation: Operation) {
        match operation {
            Operation::Hold => {
                self.app.metadata.finalizers = Some(vec!["middleware.io/stop-order".into()]);
                self.touch();
            }
            Operation::Take(taken) => {
                assert_eq!(Some(&taken.id), self.app.metadata.resource_version.as_ref());
                self.annotate("middleware.io/retry-control", None);
                self.annotate("middleware.io/cancel-control", None);
                self.annotate(MIDDLEWARE_CONTROL_TAKEN, Some(serde_json::to_string(&taken).unwrap()));
            }
            Operation::DropControl => self.annotate(MIDDLEWARE_CONTROL_TAKEN, None),
            Operation::MarkPending(pending) => {
                self.annotate(MIDDLEWARE_PENDING_CHANGE, pending.then(|| "true".into()));
            }
            Operation::WriteStatus(status) => self.write_status(*status),
            Operation::Tell { component, spec } => {
                // Whatever a Component is told, the status said so before.
                let status = self.app.status.clone().unwrap_or_default();
                let told = parts::in_force(&completed(&status), &status.tasks);
                assert_eq!(
                    *spec,
                    crate::app::plan::component_spec(&self.app, &told[&component]),
                    "told in secret"
                );
                let object = self.components.entry(component.clone()).or_insert_with(|| {
                    let metadata = json!({ "name": format!("cache-{component}"), "generation": 0 });
                    serde_json::from_value(json!({ "metadata": metadata, "spec": &*spec })).unwrap()
                });
                object.spec = *spec;
                object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
            }
            Operation::Remove { component } => {
                let object = self.components.get_mut(&component).unwrap();
                object.metadata.deletion_timestamp = Some(Time(self.now));
            }
            Operation::Release => {
                assert!(self.components.is_empty());
                self.gone = true;
            }
        }
    }

    fn write_status(&mut self, status: AppStatus) {
        let before = self.app.status.take().unwrap_or_default();
        check(&before, &status, &mut self.starts, &mut self.retried);
        // As the server gives it back.
        let status = serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap();
        self.app.status = Some(status);
        self.touch();
    }

    /// The user changes the spec.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let mut spec = serde_json::to_value(&self.app.spec).unwrap();
        change(&mut spec);
        let spec = serde_json::from_value(spec).unwrap();
        if spec != self.app.spec {
            self.app.spec = spec;
            self.app.metadata.generation = self.app.metadata.generation.map(|generation| generation + 1);
        }
        self.touch();
    }

    pub(super) fn cancel(&mut self, ids: &[&str]) {
        let control = json!({ "cancelTaskIds": ids }).to_string();
        self.annotate("middleware.io/cancel-control", Some(control));
    }

    pub(super) fn retry(&mut self, ids: &[&str], reset: bool) {
        let control = json!({ "retryTaskIds": ids, "resetDependencies": reset }).to_string();
        self.annotate("middleware.io/retry-control", Some(control));
    }

    pub(super) fn pass_time(&mut self, by: Duration) {
        self.now = crate::app::machine::later(self.now, by);
    }

    /// A Component says how it stands to what it was told last.
    pub(super) fn report(&mut self, component: &str, phase: PartPhase, reason: &str, message: &str) {
        let now = Time(self.now);
        let Some(object) = self.components.get_mut(component) else { return };
        if object.metadata.deletion_timestamp.is_some() {
            return;
        }
        let mut status = ComponentStatus {
            phase: Some(phase),
            observed_generation: object.metadata.generation,
            ..ComponentStatus::default()
        };
        let update = Update {
            type_: conditions::READY,
            status: if phase == PartPhase::Ready { conditions::TRUE } else { conditions::FALSE },
            reason,
            message: message.into(),
            observed_generation: object.metadata.generation,
        };
        conditions::set(&mut status.conditions, update, &now);
        object.status = Some(status);
    }

    /// All Components are what they were told to be, or gone.
    pub(super) fn obey(&mut self) {
        self.components.retain(|_, component| component.metadata.deletion_timestamp.is_none());
        for name in self.components.keys().cloned().collect::<Vec<_>>() {
            self.report(&name, PartPhase::Ready, "AsWanted", "");
        }
    }

    pub(super) fn status(&self) -> AppStatus {
        self.app.status.clone().unwrap_or_default()
    }

    pub(super) fn task(&self, id: &str) -> ChangeTask {
        let status = self.status();
        let ids: Vec<&String> = status.tasks.iter().map(|task| &task.task_id).collect();
        status
            .tasks
            .iter()
            .find(|task| task.task_id == id)
            .unwrap_or_else(|| panic!("{id} in {ids:?}"))
            .clone()
    }

    pub(super) fn is(&self, id: &str) -> ChangeStatus {
        self.task(id).status
    }

    pub(super) fn running(&self) -> BTreeSet<String> {
        let status = self.status();
        let running = status.tasks.iter().filter(|task| task.status == ChangeStatus::InProgress);
        running.map(|task| task.task_id.clone()).collect()
    }

    /// Everything that was begun is done, one after the other.
    pub(super) fn finish(&mut self) {
        for _ in 0..100 {
            self.settle();
            self.obey();
            if self.gone || self.plan().operations.is_empty() {
                return;
            }
        }
        panic!("no end: {:#?}", self.status());
    }

    /// Provisioned, and at rest.
    pub(super) fn provisioned(app: App, plugin: Plugin) -> World {
        let mut world = World::new(app, plugin);
        world.finish();
        assert_eq!(world.completed(), parts::wanted(&world.app.spec), "{:#?}", world.status());
        world
    }

    pub(super) fn completed(&self) -> Components {
        completed(&self.status())
    }
}

pub(super) fn completed(status: &AppStatus) -> Components {
    parts::completed(status.last_completed_spec.as_ref())
}

/// What has to hold from one status to the next.
fn check(
    before: &AppStatus,
    after: &AppStatus,
    starts: &mut BTreeMap<String, u32>,
    retried: &mut BTreeMap<String, u32>,
) {
    let mut busy = BTreeSet::new();
    for task in &after.tasks {
        let old = before.tasks.iter().find(|old| old.task_id == task.task_id);
        let was = old.map_or(ChangeStatus::Pending, |old| old.status);
        let (ended, completed_at) = (task.status.is_final(), task.completed_at.is_some());
        assert_eq!(ended, completed_at, "{} is {:?}", task.task_id, task.status);
        if was == ChangeStatus::Done {
            assert_eq!(task.status, ChangeStatus::Done, "{} runs twice", task.task_id);
        }
        if was.is_final() && !task.status.is_final() {
            *retried.entry(task.task_id.clone()).or_default() += 1;
        }
        let since = old.and_then(|old| old.started_at.clone());
        let began = task.status == ChangeStatus::InProgress && was != ChangeStatus::InProgress;
        if began || (task.started_at != since && task.started_at.is_some()) {
            *starts.entry(task.task_id.clone()).or_default() += 1;
            for dependency in &task.dependencies {
                let dependency = after.tasks.iter().find(|one| one.task_id == *dependency).unwrap();
                assert_eq!(dependency.status, ChangeStatus::Done, "{} is too early", task.task_id);
            }
        }
        if task.status == ChangeStatus::InProgress {
            assert!(busy.insert(&task.target_component), "two tasks at {}", task.target_component);
        }
        let most = u32::try_from(task.max_retries).unwrap() * (1 + retried.get(&task.task_id).unwrap_or(&0));
        let times = *starts.get(&task.task_id).unwrap_or(&0);
        assert!(times <= most, "{} was tried {times} times", task.task_id);
    }
}
