use serde_json::{Value, json};

use super::*;
use crate::kubelet::lookup::fixed::Fixed;

fn cluster() -> Fixed {
    Fixed::default()
        .with(json!({"kind": "ConfigMap", "metadata": {"name": "conf", "namespace": "ns"},
            "data": {"HOST": "db", "dotted.key-1": "d"}}))
        .with(json!({"kind": "Secret", "metadata": {"name": "cred", "namespace": "ns"},
            "data": {"PASS": "czNjcmV0", "RAW": "/w==", "NUL": "YQBi"}}))
        .with(json!({"kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}}))
        .with(json!({"kind": "Service", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}}))
        .with(json!({"kind": "Service", "metadata": {"name": "kubernetes", "namespace": "ns"},
            "spec": {"clusterIP": "10.96.6.6", "ports": [{"port": 666}]}}))
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "web"}}, "spec": spec,
        "status": {"podIP": "10.244.0.2"},
    }))
    .unwrap()
}

fn resolved(container: Value) -> Result<BTreeMap<String, String>, String> {
    let mut container = container;
    container["name"] = "c".into();
    let pod = pod(json!({"containers": [container.clone()], "enableServiceLinks": false}));
    let container = serde_json::from_value(container).unwrap();
    let mut all: BTreeMap<_, _> =
        resolve(&pod, &container, &cluster()).map_err(|error| error.to_string())?.into_iter().collect();
    all.retain(|name, _| !name.starts_with("KUBERNETES_"));
    Ok(all)
}

#[test]
fn variables_refer_to_earlier_ones_and_to_services() {
    let all = resolved(json!({"env": [
        {"name": "LATE", "value": "$(A)"},
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(KUBERNETES_SERVICE_HOST)-$$(A)"},
        {"name": "A", "value": "$(A)2"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "URL", "value": "http://$(IP)/$(APP)"},
        {"name": "EMPTY"},
    ]}))
    .unwrap();
    let expected = [
        ("A", "12"),
        ("APP", "web"),
        ("B", "1-10.96.0.1-$(A)"),
        ("EMPTY", ""),
        ("IP", "10.244.0.2"),
        ("LATE", "$(A)"),
        ("URL", "http://10.244.0.2/web"),
    ];
    assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[test]
fn whole_maps_come_first_and_can_be_replaced() {
    let all = resolved(json!({
        "env": [{"name": "HOST", "value": "own"}, {"name": "SEEN", "value": "$(X_dotted.key-1)"}],
        "envFrom": [
            {"configMapRef": {"name": "conf"}},
            {"prefix": "X_", "configMapRef": {"name": "conf"}},
            {"configMapRef": {"name": "absent", "optional": true}},
            {"secretRef": {"name": "absent", "optional": true}},
        ],
    }))
    .unwrap();
    assert_eq!(all["HOST"], "own");
    assert_eq!(all["X_HOST"], "db");
    assert_eq!(all["SEEN"], "d");
    assert_eq!(all.len(), 5, "{all:?}");
}

#[test]
fn keys_of_maps_and_secrets() {
    let key = |kind: &str, name: &str, key: &str, optional: bool| json!({"env": [{"name": "V", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}}]});
    for (container, expected) in [
        (key("configMapKeyRef", "conf", "HOST", false), Ok(Some("db"))),
        (key("secretKeyRef", "cred", "PASS", false), Ok(Some("s3cret"))),
        (key("configMapKeyRef", "conf", "absent", true), Ok(None)),
        (key("secretKeyRef", "absent", "PASS", true), Ok(None)),
        (key("configMapKeyRef", "absent", "HOST", false), Err("configmap \"absent\" not found")),
        (key("secretKeyRef", "absent", "PASS", false), Err("secret \"absent\" not found")),
        (key("configMapKeyRef", "conf", "k", false), Err("couldn't find key k in ConfigMap ns/conf")),
        (key("secretKeyRef", "cred", "k", false), Err("couldn't find key k in Secret ns/cred")),
        (
            key("secretKeyRef", "cred", "RAW", false),
            Err("environment variable V is not text without NUL bytes; mount it as a file instead"),
        ),
        (
            key("secretKeyRef", "cred", "NUL", false),
            Err("environment variable V is not text without NUL bytes; mount it as a file instead"),
        ),
        (json!({"envFrom": [{"configMapRef": {"name": "absent"}}]}), Err("configmap \"absent\" not found")),
    ] {
        let got = resolved(container).map(|all| all.get("V").cloned());
        assert_eq!(got.as_ref().map(Option::as_deref).map_err(String::as_str), expected);
    }
}

#[test]
fn service_links_can_be_declined_but_not_the_api_server() {
    let names = |links: Option<bool>| -> Vec<String> {
        let pod = pod(json!({"containers": [{"name": "c"}], "enableServiceLinks": links}));
        let container = Container { name: "c".into(), ..Container::default() };
        let all = resolve(&pod, &container, &cluster()).unwrap();
        let hosts = all.into_iter().filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
        hosts.map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert_eq!(names(Some(false)), ["KUBERNETES_SERVICE_HOST=10.96.0.1"]);
    for links in [None, Some(true)] {
        assert_eq!(names(links), ["KUBERNETES_SERVICE_HOST=10.96.0.1", "WEB_SERVICE_HOST=10.96.0.9"]);
    }
}

#[test]
fn variables_that_double_each_other_end() {
    let mut env = vec![json!({"name": "V0", "value": "0123456789"})];
    env.extend((1..64).map(|n| json!({"name": format!("V{n}"), "value": format!("$(V{0})$(V{0})", n - 1)})));
    let error = resolved(json!({"env": env})).unwrap_err();
    assert!(error.starts_with("environment variable V14 is longer than 131072 bytes"), "{error}");
    let many: Vec<Value> =
        (0..20).map(|n| json!({"name": format!("L{n}"), "value": "x".repeat(100_000)})).collect();
    assert!(resolved(json!({"env": many})).unwrap_err().starts_with("the environment takes more than"));
}
