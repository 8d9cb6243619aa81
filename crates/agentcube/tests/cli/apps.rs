//! `agentcube app` against the real controllers of middleware. Nothing runs Pods here, so what needs some waits for them.

use std::path::{Path, PathBuf};

use agentcube_middleware::options::Settings;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Middleware};

/// An API server with the definitions, the plugin and two Apps: one that needs Pods, one that needs none.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
}

pub(crate) const SET: &str = "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: {{ .Values.name }}}
spec:
  replicas: {{ .Values.replicas }}
  serviceName: {{ .Values.name }}
  selector: {matchLabels: {{ toJson .Values.selectorLabels }}}
  template:
    spec: {containers: [{name: store, image: {{ .Values.image }}}]}
";
pub(crate) const CONFIG: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Values.name }}}
data: {colour: {{ required \"say a colour\" .Values.colour | quote }}}
";

pub(crate) fn plugin(name: &str, type_: &str, template: &str) -> Value {
    json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "Plugin", "metadata": { "name": format!("{name}-v1") },
        "spec": { "name": name, "version": "1", "runtimes": [{ "name": "store", "versions": ["1"] }],
            "images": { "1": "store:1" }, "templates": [{ "name": "main", "type": type_, "template": template }] } })
}

pub(crate) fn app(name: &str, plugin: &str, colour: Value) -> Value {
    json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "App", "metadata": { "name": name },
        "spec": { "plugin": { "name": plugin, "version": "1" }, "runtime": { "name": "store", "version": "1" },
            "config": { "colour": colour },
            "components": [{ "name": "nodes", "groups": [{ "name": "all", "replicas": 2 }] }] } })
}

/// The recipe of the App that needs no Pods.
pub(crate) fn paints(template: &str) -> Value {
    plugin("plain", "configmap", template)
}

impl Stage {
    pub(crate) fn open() -> Stage {
        let stage = Stage { cluster: Cluster::start() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
        for kind in ["apps", "backups", "components", "groups", "plugins"] {
            let file = root.join(format!("middleware.io_{kind}.yaml"));
            stage.cluster.run(&["apply", "--wait", "-f", file.to_str().unwrap()]).well();
        }
        stage.apply(&plugin("store", "statefulset", SET));
        stage.apply(&paints(CONFIG));
        stage
    }

    pub(crate) fn apply(&self, object: &Value) {
        let file: PathBuf = self.cluster.home.path().join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.cluster.run(&["apply", "-f", file.to_str().unwrap()]).well();
    }

    pub(crate) fn controllers(&self) -> Middleware {
        self.cluster.middleware(Settings::default())
    }
}

#[test]
fn an_app_is_followed_until_it_runs_or_has_failed() {
    let stage = Stage::open();
    let run = |words: &[&str]| stage.cluster.run(&[&["app"], words].concat());
    assert_eq!(run(&["ls"]).stderr, "no Apps\n");
    let told = run(&["describe", "paint"]).fails(3);
    assert_eq!(told, "error: there is no App paint in namespace default\n");

    let _controllers = stage.controllers();
    stage.apply(&app("paint", "plain", json!("red")));
    let shown = run(&["describe", "paint", "--watch", "--timeout", "120"]).well();
    let last = shown.rsplit("App:").next().unwrap();
    for expected in ["Plugin:   plain 1", "└─ paint-nodes", "   └─ paint-nodes-all", "done", "install nodes"]
    {
        assert!(last.contains(expected), "{expected}\n{shown}");
    }
    assert!(run(&["ls"]).well().contains("paint   Running   True    store 1   1/1"));
    let listed: Value = serde_json::from_str(&run(&["ls", "-A", "-o", "json"]).well()).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["ready"]), (&json!("paint"), &json!(true)));
    let seen: Value = serde_json::from_str(&run(&["describe", "paint", "-o", "json"]).well()).unwrap();
    assert_eq!(seen["settled"], true);
    assert_eq!(seen["tree"]["parts"][0]["parts"][0]["name"], "paint-nodes-all");
    assert_eq!(run(&["cancel", "paint"]).stderr, "nothing is under way\n");
    let done = seen["tasks"][0]["taskId"].as_str().unwrap().to_owned();
    let told = run(&["cancel", "paint", &done]).fails(2);
    assert_eq!(told, format!("error: task {done} is done: it cannot be cancelled\n"));
    let told = run(&["retry", "paint", "nonsense"]).fails(3);
    assert_eq!(told, format!("error: paint has no task nonsense; there are: {done}\n"));

    // A change that cannot be carried out.
    stage.apply(&app("paint", "plain", json!(null)));
    let shown = run(&["describe", "paint", "--watch", "--timeout", "120"]).fails_with_output(1);
    assert!(shown.contains("say a colour") && shown.contains("failed"), "{shown}");
    let tasks: Value = serde_json::from_str(&run(&["tasks", "paint", "-o", "json"]).well()).unwrap();
    assert_eq!((tasks.as_array().unwrap().len(), &tasks[0]["status"]), (1, &json!("failed")));
    let failed = tasks[0]["taskId"].as_str().unwrap().to_owned();
    let said = run(&["retry", "paint", "--wait", "--timeout", "120"]);
    assert_eq!(said.code, Some(1), "{}{}", said.stdout, said.stderr);
    let mut lines = said.stdout.lines();
    assert_eq!(lines.next(), Some(format!("{failed}: is carried out again").as_str()));
    assert!(lines.next().unwrap().starts_with(&format!("{failed}: failed: ")), "{}", said.stdout);

    stage.apply(&app("paint", "plain", json!("blue")));
    run(&["tasks", "paint", "--watch", "--timeout", "120"]).well();
}

#[test]
fn requests_are_taken_once_and_what_came_of_them_is_told() {
    let stage = Stage::open();
    let run = |words: &[&str]| stage.cluster.run(&[&["app"], words].concat());
    let controllers = stage.controllers();
    stage.apply(&app("memory", "store", json!(null)));
    let words = ["describe", "memory", "--watch", "--timeout", "30"];
    let said = run(&words);
    // Nobody runs its Pods: it goes on for ever.
    assert!(
        said.code == Some(1) && said.stderr.contains("still not settled"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    assert!(said.stdout.contains("0 of 2 Pods there"), "{}", said.stdout);

    let told = run(&["cancel", "memory", "--wait"]).well();
    let mut lines = told.lines();
    let task = lines.next().unwrap().strip_suffix(": is cancelled").unwrap().to_owned();
    assert!(lines.next().unwrap().starts_with(&format!("{task}: cancelled: ")), "{told}");
    assert_eq!(run(&["cancel", "memory"]).stderr, "nothing is under way\n");
    let again = run(&["retry", "memory", &task, "--reset-dependencies", "-o", "json"]);
    let again: Value = serde_json::from_str(&again.well()).unwrap();
    assert!(["pending", "in_progress"].contains(&again[0]["status"].as_str().unwrap()), "{again}");

    // Without controllers it stays, and is said to.
    controllers.stop();
    let told = run(&["cancel", "memory", "--timeout", "1"]).fails(1);
    assert!(told.contains("do the controllers run?") && told.lines().count() == 1, "{told}");
    let told = run(&["cancel", "memory", "--timeout", "1"]).fails(1);
    assert!(told.contains("another request"), "{told}");

    // Somebody takes it away, and does nothing: that is not success.
    let withdraw = || {
        let patch = json!({ "metadata": { "annotations": { "middleware.io/cancel-control": null } } });
        let path = "/apis/middleware.io/v1alpha1/namespaces/default/apps/memory";
        stage.cluster.send("PATCH", path, "application/merge-patch+json", &patch);
    };
    withdraw();
    let said = std::thread::scope(|scope| {
        let asking = scope.spawn(|| run(&["cancel", "memory", "--timeout", "20"]));
        while !asking.is_finished() {
            let app = stage.cluster.run(&["get", "app", "memory", "-o", "json"]).well();
            if app.contains("middleware.io/cancel-control") {
                withdraw();
                break;
            }
        }
        asking.join().unwrap()
    });
    assert_eq!(said.stdout, "");
    let told = said.fails(1);
    assert!(told.contains("nothing shows that it was obeyed") && told.lines().count() == 1, "{told}");
    run(&["cancel", "memory", "--timeout", "1"]).fails(1);
    let controllers = stage.controllers();
    run(&["tasks", "memory", "--watch", "--timeout", "120"]);
    let tasks: Value = serde_json::from_str(&run(&["tasks", "memory", "-o", "json"]).well()).unwrap();
    assert_eq!(tasks[0]["status"], "cancelled", "{tasks}");

    // Controllers that are told not to obey say so.
    controllers.stop();
    let _controllers =
        stage.cluster.middleware(Settings::default().with("app.enableManualRetry=false").unwrap());
    let told = run(&["retry", "memory"]).fails(1);
    assert!(told.contains("switched off") && told.lines().count() == 1, "{told}");
}

const BACKUPS: &str = "/apis/middleware.io/v1alpha1/namespaces/default/backups";

#[test]
fn backups_are_taken_and_made_into_apps() {
    let stage = Stage::open();
    let run = |words: &[&str]| stage.cluster.run(&[&["app"], words].concat());
    let told = run(&["backup", "memory"]).fails(3);
    assert_eq!(told, "error: there is no App memory in namespace default\n");
    let told = run(&["restore", "monday", "again"]).fails(3);
    assert_eq!(told, "error: there is no Backup monday in namespace default\n");

    // Nobody runs its Pods, so it is never ready.
    let controllers = stage.controllers();
    stage.apply(&app("memory", "store", json!(null)));
    let said = run(&["backup", "memory", "--name", "monday", "--wait", "--timeout", "30"]);
    assert!(said.stderr.contains("monday: App memory is not ready\n"), "{}", said.stderr);
    assert!(
        said.fails(1)
            .ends_with("error: backup monday is still not taken; it goes on without being waited for\n")
    );
    let told = run(&["backup", "memory", "--name", "monday"]).fails(1);
    assert_eq!(told, "error: there is a Backup monday already: give another --name\n");
    let told = run(&["restore", "monday", "again"]).fails(1);
    assert_eq!(told, "error: Backup monday is not taken yet: App memory is not ready\n");
    let begun: Value = serde_json::from_str(&run(&["backup", "memory", "-o", "json"]).well()).unwrap();
    assert!(begun["metadata"]["name"].as_str().unwrap().starts_with("memory-20"), "{begun}");

    // One that is ready, after a recipe without a Job for backups.
    stage.apply(&app("paint", "plain", json!("red")));
    let told = run(&["backup", "paint", "--name", "tuesday", "--wait", "--timeout", "120"]).fails(1);
    assert!(told.contains("error: backup tuesday has failed: the plugin says of no group"), "{told}");
    let told = run(&["restore", "tuesday", "again"]).fails(1);
    assert!(told.starts_with("error: Backup tuesday has failed: the plugin says of no group"), "{told}");

    // As the controllers leave one that was taken.
    controllers.stop();
    let archive = json!({ "claim": "paint-backups", "file": "wednesday.tar.gz", "sha256": "ab".repeat(32) });
    let spec = &app("paint", "plain", json!("green"))["spec"];
    let order = json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "Backup", "metadata": { "name": "wednesday" },
        "spec": { "appRef": { "name": "gone" } } });
    let status = json!({ "phase": "Succeeded", "archive": archive, "appSpec": spec });
    let status = json!({ "status": status });
    let merge = "application/merge-patch+json";
    stage.cluster.send("POST", BACKUPS, "application/json", &order);
    stage.cluster.send("PATCH", &format!("{BACKUPS}/wednesday/status"), merge, &status);
    let _controllers = stage.controllers();
    let told = run(&["restore", "wednesday", "again", "--wait", "--timeout", "120"]).well();
    assert_eq!(told, "app again is made from backup wednesday, and runs\n");
    let made: Value =
        serde_json::from_str(&stage.cluster.run(&["get", "app", "again", "-o", "json"]).well()).unwrap();
    assert_eq!((&made["spec"]["restore"], &made["spec"]["config"]["colour"]), (&archive, &json!("green")));
    let told = run(&["restore", "wednesday", "again"]).fails(1);
    assert_eq!(told, "error: there is an App again already: a Backup is restored into a new one\n");
    // Without the spec that of the App counts, if there is one.
    let none = json!({ "status": { "appSpec": null } });
    stage.cluster.send("PATCH", &format!("{BACKUPS}/wednesday/status"), merge, &none);
    let told = run(&["restore", "wednesday", "third"]).fails(1);
    assert!(
        told.contains("App gone is gone: write an App with `restore: {\"claim\":\"paint-backups\""),
        "{told}"
    );
}

#[test]
fn a_server_without_apps_says_what_brings_them() {
    let cluster = Cluster::start();
    let told = cluster.run(&["app", "ls"]).fails(3);
    assert!(told.contains("agentcube install") && told.lines().count() == 1, "{told}");
}
