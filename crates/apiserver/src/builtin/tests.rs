//! What the real server did with the same objects: `testdata` was captured from kube-apiserver v1.36.

use proptest::prelude::{Just, ProptestConfig, Strategy as _, any, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Value, json};

use super::access::{Peek, Poke};
use super::{Errors, KINDS, Kind, by_kind, by_resource, service, shape};

const NAMESPACE: &str = "builtin";

fn load(text: &str) -> (Vec<Value>, Vec<(String, String)>) {
    let file: Value = serde_json::from_str(text).expect("test data is JSON");
    let texts = file.map("texts").into_iter().flatten();
    let texts = texts.map(|(short, long)| (short.clone(), long.as_str().expect("text").to_owned()));
    (file.list("cases").to_vec(), texts.collect())
}

/// Undoes the compression of the test data: long strings of one character.
fn expand(value: &mut Value) {
    if let [Value::String(text), count] = value.list("$repeat") {
        *value = text.repeat(count.as_u64().expect("count") as usize).into();
        return;
    }
    match value {
        Value::Array(list) => list.iter_mut().for_each(expand),
        Value::Object(map) => map.values_mut().for_each(expand),
        _ => {}
    }
}

fn kind_of(object: &Value) -> &'static Kind {
    by_kind(object.str_of("apiVersion"), object.str_of("kind")).expect("a built-in kind")
}

/// All that happens to a new object before it is validated.
fn create(mut object: Value) -> (&'static Kind, Value) {
    expand(&mut object);
    let kind = kind_of(&object);
    let meta = object.make("metadata").expect("metadata");
    if kind.namespaced {
        meta.set("namespace", NAMESPACE);
    }
    kind.decode(&mut object);
    object.make("metadata").expect("metadata").set("uid", "UID");
    kind.admit_create(&mut object);
    kind.prepare_create(&mut object, "NOW");
    (kind, object)
}

fn said(errors: &Errors, texts: &[(String, String)]) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for error in errors {
        let text = texts.iter().fold(error.to_string(), |text, (short, long)| text.replace(long, short));
        said.push(text);
    }
    said
}

fn expected(case: &Value) -> Vec<String> {
    case.list("errors").iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Collects mismatches, so that one run shows them all.
fn report(mut failures: Vec<String>, cases: usize, least: usize) {
    assert!(cases >= least, "{cases} cases");
    let count = failures.len();
    failures.truncate(40);
    assert!(failures.is_empty(), "{count} of {cases} differ:\n{}", failures.join("\n"));
}

/// The captures were made with the ServiceAccount admission plugin, which is not served yet; what it adds to Pods was
/// taken out of them.
#[test]
fn new_objects_are_completed_as_by_the_real_server() {
    let (cases, _) = load(include_str!("testdata/defaults.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (kind, mut object) = create(case["in"].clone());
        if kind.plural == "services" && service::needs_cluster_ip(&object) {
            service::set_cluster_ip(&mut object, "10.96.0.9");
        }
        let errors = kind.validate(&object);
        let meta = object.make("metadata").expect("metadata");
        meta.unset("namespace");
        meta.unset("uid");
        if object != case["out"] || !errors.is_empty() {
            let errors = said(&errors, &[]);
            failures.push(format!("in   {}\nours {object}\nreal {}\n{errors:?}", case["in"], case["out"]));
        }
    }
    report(failures, cases.len(), 90);
}

#[test]
fn bad_objects_are_refused_in_the_real_servers_words() {
    let (cases, texts) = load(include_str!("testdata/invalid.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (kind, object) = create(case["in"].clone());
        let (ours, mut real) = (said(&kind.validate(&object), &texts), expected(case));
        // The order of two errors about a map is random in Go.
        let mut sorted = ours.clone();
        sorted.sort();
        real.sort();
        if sorted != real {
            failures.push(format!("in   {}\nours {ours:#?}\nreal {real:#?}", case["in"]));
        }
    }
    report(failures, cases.len(), 340);
}

#[test]
fn good_objects_are_accepted() {
    let (cases, _) = load(include_str!("testdata/accepted.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (kind, object) = create(case.clone());
        let errors = kind.validate(&object);
        if !errors.is_empty() {
            failures.push(format!("{case}\n{:?}", said(&errors, &[])));
        }
    }
    report(failures, cases.len(), 20);
}

#[test]
fn bad_changes_are_refused_in_the_real_servers_words() {
    let (cases, texts) = load(include_str!("testdata/updates.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (mut new, mut old) = (case["in"].clone(), case["old"].clone());
        let kind = kind_of(&new);
        for object in [&mut new, &mut old] {
            let meta = object.make("metadata").expect("metadata");
            meta.set("resourceVersion", "1");
            if kind.namespaced {
                meta.set("namespace", NAMESPACE);
            }
        }
        kind.decode(&mut new);
        kind.admit_update(&mut new, &old);
        kind.prepare_update(&mut new, &old);
        let (ours, real) = (said(&kind.validate_update(&new, &old), &texts), expected(case));
        if ours != real {
            failures.push(format!("in   {new}\nold  {old}\nours {ours:#?}\nreal {real:#?}"));
        }
    }
    report(failures, cases.len(), 60);
}

#[test]
fn changes_result_in_the_real_servers_objects() {
    let (cases, _) = load(include_str!("testdata/changes.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (mut new, mut old) = (case["in"].clone(), case["old"].clone());
        let kind = kind_of(&new);
        for object in [&mut new, &mut old] {
            let meta = object.make("metadata").expect("metadata");
            meta.set("resourceVersion", "1");
            if kind.namespaced {
                meta.set("namespace", NAMESPACE);
            }
        }
        kind.decode(&mut new);
        let errors = if case.flag("status") {
            kind.prepare_status_update(&mut new, &old, "NOW");
            kind.validate_status_update(&new, &old)
        } else {
            kind.admit_update(&mut new, &old);
            kind.prepare_update(&mut new, &old);
            kind.validate_update(&new, &old)
        };
        let meta = new.make("metadata").expect("metadata");
        meta.unset("namespace");
        meta.unset("resourceVersion");
        if new != case["out"] || !errors.is_empty() {
            let errors = said(&errors, &[]);
            failures.push(format!("in   {}\nours {new}\nreal {}\n{errors:?}", case["in"], case["out"]));
        }
    }
    report(failures, cases.len(), 40);
}

#[test]
fn an_object_that_does_not_change_can_be_updated() {
    let (cases, _) = load(include_str!("testdata/defaults.json"));
    let mut failures = Vec::new();
    for case in &cases {
        let (kind, mut old) = create(case["in"].clone());
        if kind.plural == "services" && service::needs_cluster_ip(&old) {
            service::set_cluster_ip(&mut old, "10.96.0.9");
        }
        old.make("metadata").expect("metadata").set("resourceVersion", "1");
        let mut new = old.clone();
        kind.decode(&mut new);
        kind.admit_update(&mut new, &old);
        kind.prepare_update(&mut new, &old);
        let errors = kind.validate_update(&new, &old);
        if new != old || !errors.is_empty() {
            failures.push(format!("old {old}\nnew {new}\n{:?}", said(&errors, &[])));
        }
    }
    report(failures, cases.len(), 90);
}

#[test]
fn generation_follows_the_spec_and_status_stays() {
    let (kind, old) = create(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    }));
    let mut new = old.clone();
    new["spec"]["replicas"] = 3.into();
    new["status"] = json!({"replicas": 7});
    new["metadata"]["generation"] = 9.into();
    kind.prepare_update(&mut new, &old);
    assert_eq!(new["metadata"]["generation"], 2);
    assert_eq!(new["status"], old["status"]);

    let mut status = old.clone();
    status["spec"]["replicas"] = 3.into();
    status["status"] = json!({"replicas": 7});
    kind.prepare_status_update(&mut status, &old, "NOW");
    assert_eq!(status["spec"], old["spec"]);
    assert_eq!(status["status"], json!({"replicas": 7}));
    assert_eq!(status["metadata"]["generation"], 1);

    let mut annotated = old.clone();
    annotated["metadata"]["annotations"] = json!({"a": "b"});
    kind.prepare_update(&mut annotated, &old);
    assert_eq!(annotated["metadata"]["generation"], 2, "annotations of a Deployment count");
}

#[test]
fn kinds_are_told_apart() {
    for kind in KINDS {
        assert!(std::ptr::eq(by_kind(&kind.api_version(), kind.kind).expect("itself"), kind));
        assert!(std::ptr::eq(by_resource(kind.group, kind.version, kind.plural).expect("itself"), kind));
        assert!(shape::zero(kind.shape).is_object(), "{}", kind.shape);
        assert!(kind.status.is_none_or(|status| shape::zero(status).is_object()), "{}", kind.kind);
    }
    assert_eq!(KINDS.len(), 34);
}

#[test]
fn fields_are_selected() {
    let pod = by_kind("v1", "Pod").expect("pods");
    let object = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n"},
        "status": {"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}});
    for (field, value) in [
        ("metadata.name", "p"),
        ("spec.nodeName", "n"),
        ("spec.host", "n"),
        ("spec.hostNetwork", "false"),
        ("status.phase", ""),
        ("status.podIPs", "1.1.1.1,::1"),
    ] {
        assert!(pod.is_selectable(field));
        assert_eq!(pod.field(&object, field), value, "{field}");
    }
    assert!(!pod.is_selectable("spec.foo"));
}

/// Values that look a little like objects: the keys are those that the code reads.
fn any_value() -> impl proptest::strategy::Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zA-Z0-9/%. =*@-]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(proptest::sample::select(KEYS), inner, 0..6).prop_map(|map| {
                Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

const KEYS: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "name",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "containers",
    "template",
    "selector",
    "matchLabels",
    "matchExpressions",
    "ports",
    "port",
    "type",
    "data",
    "rules",
    "volumes",
    "resources",
    "limits",
    "requests",
    "cpu",
    "env",
    "valueFrom",
    "fieldRef",
    "schedule",
    "replicas",
    "strategy",
    "rollingUpdate",
    "jobTemplate",
    "capacity",
    "subsets",
    "endpoints",
    "addresses",
    "taints",
    "tolerations",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_panics(object in any_value(), other in any_value()) {
        for kind in KINDS {
            let mut new = object.clone();
            kind.decode(&mut new);
            kind.admit_create(&mut new);
            kind.prepare_create(&mut new, "NOW");
            kind.validate(&new);
            kind.admit_update(&mut new, &other);
            kind.prepare_update(&mut new, &other);
            kind.validate_update(&new, &other);
            kind.prepare_status_update(&mut new, &other, "NOW");
            kind.validate_status_update(&new, &other);
        }
    }

    #[test]
    fn defaults_are_idempotent(object in any_value()) {
        for kind in KINDS {
            let mut once = json!({"metadata": {"name": "x"}, "spec": object.clone()});
            kind.decode(&mut once);
            let mut twice = once.clone();
            kind.decode(&mut twice);
            prop_assert_eq!(&once, &twice, "{}", kind.kind);
        }
    }
}
