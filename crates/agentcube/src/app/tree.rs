//! An App as a tree: components, groups, Pods, each with where it stands and what it waits for. Pure.

use agentcube_api::conditions::{self, READY, TRUE};
use agentcube_api::middleware::app::AppPhase;
use agentcube_api::middleware::group::{GroupPodStatus, UpgradePhase};
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::{App, Component, Group};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use super::world::World;
use super::{latest, state_word, type_word};
use crate::output::{Paint, Table, age};

/// One line of the tree, and those below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    kind: &'static str,
    name: String,
    phase: String,
    ready: bool,
    /// How many of those below are ready, or of Pods updated.
    #[serde(skip_serializing_if = "String::is_empty")]
    progress: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    role: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    leader: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    /// Why it is not as wanted.
    #[serde(skip_serializing_if = "String::is_empty")]
    waits: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Node>,
}

fn phase_word<T: Serialize>(phase: Option<T>) -> String {
    let word = phase.and_then(|phase| serde_json::to_value(phase).ok());
    word.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_else(|| "Unknown".into())
}

/// What a condition Ready has against it, in the first place where something is said.
fn complaint(found: &[Condition]) -> String {
    match conditions::find(found, READY) {
        Some(ready) if ready.status == TRUE => String::new(),
        Some(ready) if ready.message.is_empty() => ready.reason.clone(),
        Some(ready) => ready.message.clone(),
        None => "nobody has looked at it yet: do the controllers run?".into(),
    }
}

/// The tree of an App.
pub(super) fn tree(world: &World) -> Node {
    let app = &world.app;
    let status = app.status.clone().unwrap_or_default();
    let current = status.observed_generation == app.metadata.generation;
    let parts: Vec<Node> = app_components(world).map(|component| of_component(world, component)).collect();
    let ready = parts.iter().filter(|part| part.ready).count();
    Node {
        kind: "App",
        name: app.name_any(),
        phase: phase_word(status.phase.or(Some(AppPhase::Pending))),
        ready: current && is_true(&status.conditions),
        progress: format!("{ready}/{}", parts.len().max(app.spec.components.len())),
        role: String::new(),
        leader: false,
        version: app.spec.runtime.version.clone(),
        waits: match current {
            true => complaint(&status.conditions),
            false => "the latest spec was not seen yet: do the controllers run?".into(),
        },
        parts,
    }
}

/// What the App itself waits for.
pub(super) fn waits(world: &World) -> String {
    tree(world).waits
}

fn is_true(found: &[Condition]) -> bool {
    conditions::find(found, READY).is_some_and(|ready| ready.status == TRUE)
}

/// In the order of the spec; then those that are being removed.
fn app_components(world: &World) -> impl Iterator<Item = &Component> {
    let app = world.app.name_any();
    let place = move |component: &Component| {
        let name = component.name_any();
        let own = name.strip_prefix(&format!("{app}-")).map(str::to_owned);
        let place = world.app.spec.components.iter().position(|one| Some(&one.name) == own.as_ref());
        (place.unwrap_or(usize::MAX), name)
    };
    let mut sorted: Vec<&Component> = world.components.iter().collect();
    sorted.sort_by_key(|component| place(component));
    sorted.into_iter()
}

fn of_component(world: &World, component: &Component) -> Node {
    let status = component.status.clone().unwrap_or_default();
    let name = component.name_any();
    let mut groups: Vec<&Group> =
        world.groups.iter().filter(|group| group.spec.component_ref.name == name).collect();
    groups.sort_by_key(|group| group.name_any());
    let parts: Vec<Node> = groups.into_iter().map(|group| of_group(world, group)).collect();
    let ready = parts.iter().filter(|part| part.ready).count();
    Node {
        kind: "Component",
        phase: phase_word(status.phase.or(Some(PartPhase::Pending))),
        ready: is_true(&status.conditions),
        progress: format!("{ready}/{}", parts.len().max(component.spec.groups.len())),
        role: String::new(),
        leader: false,
        version: component.spec.runtime.version.clone(),
        waits: complaint(&status.conditions),
        name,
        parts,
    }
}

fn of_group(world: &World, group: &Group) -> Node {
    let status = group.status.clone().unwrap_or_default();
    let version = match (&status.current_version, &status.target_version) {
        (Some(now), Some(then)) if now != then => format!("{now} to {then}"),
        (Some(now), _) => now.clone(),
        (None, _) => group.spec.runtime.version.clone(),
    };
    let mut progress = format!("{}/{}", status.ready_replicas, group.spec.replicas);
    let upgrading = |phase| !matches!(phase, UpgradePhase::Completed | UpgradePhase::Failed);
    if let Some(upgrade) = status.upgrade_status.as_ref().filter(|one| one.phase.is_some_and(upgrading)) {
        progress = format!("{progress}, {} of {} updated", upgrade.updated_replicas, upgrade.total_replicas);
    }
    let parts = status.pods.iter().map(|pod| of_pod(world.pods.get(&pod.name), pod)).collect();
    Node {
        kind: "Group",
        name: group.name_any(),
        phase: phase_word(status.phase.or(Some(PartPhase::Pending))),
        ready: is_true(&status.conditions),
        progress,
        role: String::new(),
        leader: false,
        version,
        waits: complaint(&status.conditions),
        parts,
    }
}

fn of_pod(found: Option<&Pod>, pod: &GroupPodStatus) -> Node {
    let ending = found.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    let phase = found.and_then(|pod| pod.status.as_ref()?.phase.clone());
    let phase = if ending { "Terminating".into() } else { phase.unwrap_or_else(|| "Unknown".into()) };
    Node {
        kind: "Pod",
        name: pod.name.clone(),
        phase,
        ready: pod.ready,
        progress: String::new(),
        role: pod.role.clone().unwrap_or_default(),
        leader: pod.leader,
        version: pod.version.clone().unwrap_or_default(),
        waits: if pod.ready { String::new() } else { found.map(pod_complaint).unwrap_or_default() },
        parts: Vec::new(),
    }
}

/// Why a Pod is not ready: what a container waits for or ended with, or what a condition says.
fn pod_complaint(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return String::new() };
    let said = |reason: Option<&String>, message: Option<&String>| match (reason, message) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (one, other) => one.or(other).cloned().unwrap_or_default(),
    };
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    for container in containers {
        let Some(state) = &container.state else { continue };
        if let Some(waiting) = &state.waiting {
            let words = said(waiting.reason.as_ref(), waiting.message.as_ref());
            return format!("{}: {words}", container.name);
        }
        if let Some(ended) = state.terminated.as_ref().filter(|ended| ended.exit_code != 0) {
            return format!("{}: ended with {}", container.name, ended.exit_code);
        }
    }
    let unmet = status.conditions.iter().flatten().find(|one| one.status != "True");
    unmet.map(|one| said(one.reason.as_ref(), one.message.as_ref())).unwrap_or_default()
}

/// The tree for people.
pub(super) fn render(node: &Node, paint: Paint) -> String {
    let mut table = Table::with_header(["NAME", "STATE", "READY", "ROLE", "VERSION", "WAITS FOR"]);
    rows(node, "", "", paint, &mut table);
    table.render()
}

fn rows(node: &Node, before: &str, below: &str, paint: Paint, table: &mut Table) {
    let ready = match (node.progress.is_empty(), node.ready) {
        (false, _) => node.progress.clone(),
        (true, true) => "yes".into(),
        (true, false) => "no".into(),
    };
    let state = match node.phase.as_str() {
        word @ ("Running" | "Ready") if node.ready => paint.good(word),
        word @ ("Failed" | "Degraded") => paint.bad(word),
        word => paint.warning(word),
    };
    let role = match (node.leader, node.role.as_str()) {
        (true, role) => paint.strong(&format!("{role} (leads)")),
        (false, role) => role.to_owned(),
    };
    let waits = node.waits.lines().next().unwrap_or_default();
    table.row([format!("{before}{}", node.name), state, ready, role, node.version.clone(), cut(waits, 160)]);
    for (index, part) in node.parts.iter().enumerate() {
        let last = index + 1 == node.parts.len();
        let (branch, room) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        rows(part, &format!("{below}{branch}"), &format!("{below}{room}"), paint, table);
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What an App is and is asked to be, above its tree.
pub(super) fn summary(app: &App) -> String {
    let status = app.status.clone().unwrap_or_default();
    let mut table = Table::plain();
    let place = app.namespace().unwrap_or_default();
    table.row(["App:".to_owned(), format!("{} in namespace {place}", app.name_any())]);
    table.row(["Plugin:".to_owned(), format!("{} {}", app.spec.plugin.name, app.spec.plugin.version)]);
    table.row(["Runs:".to_owned(), format!("{} {}", app.spec.runtime.name, app.spec.runtime.version)]);
    table.row([
        "Age:".to_owned(),
        app.creation_timestamp().map_or_else(String::new, |time| age::since(time.0)),
    ]);
    let condition = |type_: &str| conditions::find(&status.conditions, type_);
    if let Some(pending) = condition(conditions::middleware::PENDING_CHANGE).filter(|one| one.status == TRUE)
    {
        let text = pending.message.split(". To have").next().unwrap_or_default();
        table.row([
            "Pending:".to_owned(),
            format!("{text}; `agentcube app cancel {}` has it sooner", app.name_any()),
        ]);
    }
    table.render()
}

/// Tasks for people. Those of the latest change only, unless all are wanted.
pub(super) fn tasks(app: &App, all: bool, paint: Paint) -> String {
    let tasks = app.status.as_ref().map(|status| status.tasks.as_slice()).unwrap_or_default();
    let mut table = Table::with_header(["TASK", "STATE", "TYPE", "COMPONENT", "ATTEMPTS", "SINCE", "WHAT"]);
    let shown: Vec<_> = if all { tasks.iter().collect() } else { latest(tasks).collect() };
    if shown.is_empty() {
        return "no tasks\n".into();
    }
    for task in shown {
        let word = state_word(task);
        let state = match word {
            "done" => paint.good(word),
            "failed" => paint.bad(word),
            "running" => paint.strong(word),
            _ => paint.warning(word),
        };
        let since = task.completed_at.as_ref().or(task.started_at.as_ref());
        let why = task.error.as_ref().or(task.last_error.as_ref().filter(|_| word != "done"));
        let left = if task.in_force && task.status.is_final() && word != "done" {
            " (left as it stands)"
        } else {
            ""
        };
        let what = match why {
            Some(why) => {
                format!("{}{left}: {}", task.description, cut(why.lines().next().unwrap_or_default(), 200))
            }
            None => format!("{}{left}", task.description),
        };
        table.row([
            task.task_id.clone(),
            state,
            type_word(task.type_).to_owned(),
            task.target_component.clone(),
            format!("{}/{}", task.retry_count, task.max_retries),
            since.map_or_else(|| "-".into(), |time| age::since(time.0)),
            what,
        ]);
    }
    table.render()
}

/// Everything for machines.
pub(super) fn machine_form(world: &World) -> Value {
    let status = world.app.status.clone().unwrap_or_default();
    json!({
        "namespace": world.app.namespace(),
        "plugin": world.app.spec.plugin,
        "runtime": world.app.spec.runtime,
        "settled": world.is_settled(),
        "tree": tree(world),
        "tasks": status.tasks,
        "conditions": status.conditions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: &str, message: &str) -> Value {
        json!([{ "type": "Ready", "status": status, "reason": "R", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z" }])
    }

    fn world() -> World {
        let read = |value: Value| value;
        let app = read(json!({ "metadata": { "name": "cache", "namespace": "team", "generation": 2 },
            "spec": { "plugin": { "name": "redis", "version": "1" }, "runtime": { "name": "redis", "version": "7.2" },
                "components": [{ "name": "nodes", "groups": [] }, { "name": "sentinel", "groups": [] }] },
            "status": { "phase": "Upgrading", "observedGeneration": 2,
                "conditions": ready("True", "1 tasks to go; nodes: upgrade from 7.0 to 7.2"),
                "tasks": [
                    { "taskId": "1-nodes-provision", "type": "provision", "status": "done", "generation": 1,
                        "maxRetries": 3, "targetComponent": "nodes", "description": "install nodes" },
                    { "taskId": "2-nodes-upgrade", "type": "version_upgrade", "status": "in_progress", "generation": 2,
                        "retryCount": 1, "maxRetries": 3, "targetComponent": "nodes", "inForce": true,
                        "description": "nodes: upgrade from 7.0 to 7.2", "lastError": "too\nslow" }] } }));
        let component = |name: &str, phase: &str, told: Value| {
            json!({ "metadata": { "name": format!("cache-{name}") }, "spec": { "appRef": { "name": "cache" },
                "pluginRef": { "name": "redis-v1" }, "runtime": { "name": "redis", "version": "7.2" },
                "groups": [{ "name": "main" }] }, "status": { "phase": phase, "conditions": told } })
        };
        let group = |component: &str, status: Value| {
            json!({ "metadata": { "name": format!("cache-{component}-main") }, "spec": { "replicas": 3,
                "componentRef": { "name": format!("cache-{component}") }, "pluginRef": { "name": "redis-v1" },
                "runtime": { "name": "redis", "version": "7.2" } }, "status": status })
        };
        let nodes = group(
            "nodes",
            json!({ "phase": "Progressing", "readyReplicas": 2,
            "conditions": ready("False", "cache-nodes-main-1 not ready"), "currentVersion": "7.0",
            "targetVersion": "7.2", "upgradeStatus": { "phase": "Upgrading", "updatedReplicas": 1, "totalReplicas": 3 },
            "pods": [{ "name": "cache-nodes-main-0", "ready": true, "role": "master", "leader": true, "version": "7.0" },
                { "name": "cache-nodes-main-1", "ready": false, "role": "slave", "version": "7.2" }] }),
        );
        let pods = [
            json!({ "metadata": { "name": "cache-nodes-main-0" }, "status": { "phase": "Running" } }),
            json!({ "metadata": { "name": "cache-nodes-main-1" }, "status": { "phase": "Pending",
                "containerStatuses": [{ "name": "redis", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no \u{1b}[2J such image" } } }] } }),
        ];
        let pods = pods.map(|pod| serde_json::from_value::<Pod>(pod).unwrap());
        let of = |value: Value| serde_json::from_value(value).unwrap();
        World {
            app: serde_json::from_value(app).unwrap(),
            components: [
                component("sentinel", "Ready", ready("True", "")),
                component("nodes", "Progressing", ready("False", "group main: cache-nodes-main-1 not ready")),
            ]
            .map(of)
            .into(),
            groups: vec![
                serde_json::from_value(nodes).unwrap(),
                serde_json::from_value(group(
                    "sentinel",
                    json!({ "phase": "Ready", "readyReplicas": 3,
                    "conditions": ready("True", ""), "currentVersion": "7.2", "targetVersion": "7.2" }),
                ))
                .unwrap(),
            ],
            pods: pods.into_iter().map(|pod| (pod.name_any(), pod)).collect(),
            versions: Default::default(),
        }
    }

    #[test]
    fn the_tree_shows_what_each_part_waits_for() {
        let shown = render(&tree(&world()), Paint::off());
        let expected = "\
NAME                          STATE         READY                 ROLE             VERSION      WAITS FOR
cache                         Upgrading     1/2                                    7.2
├─ cache-nodes                Progressing   0/1                                    7.2          group main: cache-nodes-main-1 not ready
│  └─ cache-nodes-main        Progressing   2/3, 1 of 3 updated                    7.0 to 7.2   cache-nodes-main-1 not ready
│     ├─ cache-nodes-main-0   Running       yes                   master (leads)   7.0
│     └─ cache-nodes-main-1   Pending       no                    slave            7.2          redis: ImagePullBackOff: no \\u{1b}[2J such image
└─ cache-sentinel             Ready         1/1                                    7.2
   └─ cache-sentinel-main     Ready         3/3                                    7.2
";
        assert_eq!(shown, expected, "{shown}");
        assert!(!world().is_settled());
    }

    #[test]
    fn tasks_are_those_of_the_latest_change() {
        let world = world();
        let shown = tasks(&world.app, false, Paint::off());
        assert!(!shown.contains("1-nodes-provision"), "{shown}");
        let line = "2-nodes-upgrade   running   upgrade   nodes       1/3        -       nodes: upgrade from 7.0 to 7.2: too";
        assert!(shown.ends_with(&format!("{line}\n")), "{shown}");
        assert!(tasks(&world.app, true, Paint::off()).contains("1-nodes-provision"));
    }

    #[test]
    fn an_app_that_nobody_looks_after_says_so() {
        let mut world = world();
        world.app.metadata.generation = Some(3);
        assert!(tree(&world).waits.contains("do the controllers run"));
        world.app.status = None;
        assert_eq!(tree(&world).phase, "Pending");
    }
}
