//! `agentcube plugin`: recipes are judged, rendered and held against what runs.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::apps::{SET, Stage, app, plugin};
use crate::cluster::Home;

fn write(home: &Home, name: &str, text: &str) -> String {
    let file: PathBuf = home.path().join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

const WRONG: &str = r#"apiVersion: middleware.io/v1alpha1
kind: Plugin
metadata:
  name: wrong
spec:
  name: redis
  version: 1.0.0
  nonsense: 1
  runtimes:
  - name: redis
    versions: ["7.0", "7.2"]
  images:
    "7.0": redis:7.0
    "6.0": redis:6.0
  compatibility:
    migrateFrom:
      "7.4": ["7.0", "7.4"]
  capabilities:
    backup: true
    failover: true
  orders:
    provision: [a, b]
    stop: [b]
  defaultValues:
    name: x
  templates:
  - name: t
    type: role
    template: |
      a: {{ .Values.x
  - name: u
    type: service
    template: |
      a: 1
      b: {{ nonsense }}
  - name: v
    type: service
    configMapRef: {name: m}
  highAvailability:
    active:
      failoverCommand: "redis-cli 'x"
"#;

#[test]
fn all_mistakes_are_told_at_once_with_their_lines() {
    let home = Home::new();
    let file = write(&home, "wrong.yaml", WRONG);
    let said = home.run(&["plugin", "lint", &file]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), "12 mistakes\n"), "{}", said.stdout);
    for (line, expected) in [
        (4, "metadata.name: Apps of plugin redis 1.0.0 look for redis-v1.0.0"),
        (8, "spec.nonsense: there is no such field"),
        (11, "spec.runtimes[0].versions[1]: redis 7.2 has no image"),
        (12, "note: spec.images.6.0: no runtime has this version"),
        (16, "no runtime has version 7.4; there are 7.0, 7.2"),
        (16, "7.4 is no upgrade to itself"),
        (19, "note: spec.capabilities.backup: "),
        (20, "spec.capabilities.failover: "),
        (23, "spec.orders.stop: a is not in it"),
        (25, "spec.defaultValues.name: templates never see it"),
        (28, "spec.templates[0].type: role is none of statefulset, "),
        (29, "template t, line 1, column 4: "),
        (33, "template u, line 2, column 7: {{ nonsense }}: function \"nonsense\" not defined"),
        (38, "note: spec.templates[2].configMapRef: its ConfigMap is not among the files"),
        (41, "spec.highAvailability.active.failoverCommand: a quote is not closed"),
    ] {
        let place = format!("{file}, document 1, line {line}: ");
        let found = said.stdout.lines().any(|one| one.starts_with(&place) && one.contains(expected));
        assert!(found, "{line}: {expected}\n{}", said.stdout);
    }
    assert_eq!(said.stdout.lines().count(), 15, "{}", said.stdout);
    let said: Value =
        serde_json::from_str(&home.run(&["plugin", "lint", &file, "-o", "json"]).stdout).unwrap();
    assert_eq!(said.as_array().unwrap().len(), 15);

    // What the schema and its rules refuse.
    let none = WRONG.replace("    configMapRef: {name: m}\n", "").replace("version: 1.0.0", "version: 3");
    let said = home.run(&["plugin", "lint", &write(&home, "none.yaml", &none)]);
    assert!(said.stdout.contains("spec.version in body must be of type string"), "{}", said.stdout);
    let said = home.run(&[
        "plugin",
        "lint",
        &write(&home, "none.yaml", &none.replace("version: 3", "version: '3'")),
    ]);
    assert!(said.stdout.contains("exactly one of template and configMapRef"), "{}", said.stdout);
    assert_eq!(home.run(&["plugin", "lint", &write(&home, "empty.yaml", "")]).code, Some(2));
    assert_eq!(home.run(&["plugin", "lint", "/no/such.yaml"]).code, Some(1));
}

#[test]
fn every_example_is_clean() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/middleware");
    let home = Home::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let directory = entry.unwrap().path();
        let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        if !directory.join("plugin.yaml").exists() {
            continue;
        }
        let (plugin, templates, app) = (file("plugin.yaml"), file("templates.yaml"), file("app.yaml"));
        let mut words = vec!["plugin", "lint", &plugin];
        if directory.join("templates.yaml").exists() {
            words.push(&templates);
        }
        if directory.join("app.yaml").exists() {
            words.extend(["--app", &app]);
        }
        home.run(&words).well();
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn it_renders_what_the_controllers_would_apply() {
    let home = Home::new();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Values.name }}}\ndata:\n  size: {{ .Values.size | quote }}\n  \
               deep: {{ .Values.a.b | quote }}\n";
    let mut recipe = plugin("store", "statefulset", SET);
    recipe["spec"]["templates"].as_array_mut().unwrap().push(
        json!({ "name": "config", "type": "configmap", "configMapRef": { "name": "texts", "key": "map" } }),
    );
    recipe["spec"]["defaultValues"] = json!({ "size": "small", "a": { "b": 1 } });
    let file = write(&home, "plugin.json", &recipe.to_string());
    let told = home.run(&["plugin", "render", &file]).fails(1);
    assert!(told.contains("template config is in a ConfigMap that is not among the files"), "{told}");
    let texts = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "texts" }, "data": { "map": map } });
    let texts = write(&home, "texts.json", &texts.to_string());
    let given = write(&home, "app.json", &app("cache", "store", json!(null)).to_string());

    let shown = home.run(&["plugin", "render", &file, &texts]).well();
    assert!(shown.contains("name: sample-main-main\n") && shown.contains("size: small\n"), "{shown}");
    assert!(shown.contains("type: OnDelete") && shown.contains("middleware.io/app: sample"), "{shown}");
    let values = write(&home, "values.yaml", "size: large\na: {b: 7}\n");
    let words = [
        "plugin", "render", &file, &texts, "--app", &given, "--values", &values, "--set", "a.b=9", "-o",
        "json",
    ];
    let shown: Value = serde_json::from_str(&home.run(&words).well()).unwrap();
    let set = &shown["items"][0];
    assert_eq!((&set["metadata"]["name"], &set["spec"]["replicas"]), (&json!("cache-nodes-all"), &json!(2)));
    assert_eq!(shown["items"][1]["data"], json!({ "size": "large", "deep": "9" }));
    let told = home.run(&["plugin", "render", &file, &texts, "--runtime", "9"]).fails(1);
    assert!(told.contains("RuntimeUnsupported"), "{told}");
    home.run(&["plugin", "render", &file, &texts, "--set", "nonsense"]).fails(2);
    home.run(&["plugin", "render", &file, &texts, "--group", "nonsense"]).fails(3);
    home.run(&["plugin", "lint", &file, &texts, "--app", &given]).well();
}

#[test]
fn it_shows_what_would_change_of_what_runs() {
    let stage = Stage::open();
    let home = &stage.cluster.home;
    let _controllers = stage.controllers();
    stage.apply(&app("memory", "store", json!(null)));
    stage.apply(&app("paint", "plain", json!("red")));
    stage.cluster.run(&["app", "describe", "paint", "--watch", "--timeout", "120"]).well();
    let same = write(home, "same.json", &crate::apps::paints(crate::apps::CONFIG).to_string());
    let said = stage.cluster.run(&["plugin", "test", &same]);
    assert_eq!(said.well(), "group default/paint-nodes-all: stays as it is\n");

    let other = crate::apps::CONFIG.replace("quote", "upper | quote");
    let other = write(home, "other.json", &crate::apps::paints(&other).to_string());
    let said = stage.cluster.run(&["plugin", "test", &other, "-A"]).fails_with_output(4);
    for expected in [
        "group default/paint-nodes-all: changes, and its Pods stay",
        "--- ConfigMap/paint-nodes-all (runs)",
        "+++ ConfigMap/paint-nodes-all (rendered)",
        "-  colour: red",
        "+  colour: RED",
    ] {
        assert!(said.lines().any(|line| line == expected), "{expected}\n{said}");
    }
    let broken = crate::apps::CONFIG.replace("| quote", "| nindent");
    let broken = write(home, "broken.json", &crate::apps::paints(&broken).to_string());
    let said = stage.cluster.run(&["plugin", "test", &broken, "-o", "json"]).fails_with_output(1);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said[0]["error"].as_str().unwrap().contains("main:4:"), "{said}");
    stage.cluster.run(&["plugin", "test", &other, "--app", "nobody"]).fails(3);

    // A revision that was begun and is not complete counts, where there is no other; its Pods would be made anew.
    let mut recipe = plugin("store", "statefulset", SET);
    recipe["spec"]["images"]["1"] = json!("store:2");
    let file = write(home, "store.json", &recipe.to_string());
    let begun = |said: &str| said.contains("-      - image: \"store:1\"");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        // The Group may not be there yet.
        let said = stage.cluster.run(&["plugin", "test", &file]);
        if said.code == Some(4) && begun(&said.stdout) {
            assert!(said.stdout.contains("changes, and its Pods are made anew"), "{}", said.stdout);
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{:?} {}{}", said.code, said.stdout, said.stderr);
    }
}
