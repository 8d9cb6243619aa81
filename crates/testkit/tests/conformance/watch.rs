//! Watches: the events, where they start, how they end.

use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, PODS, SECRETS, WIDGETS, config_map, labelled, pod, widget, widget_crd};

cases!("watch":
    sees_changes, starts_with_existing, from_a_version, label_transitions, field_by_name, send_initial_events,
    send_initial_events_empty, initial_events_bad_options, times_out, bad_version, table_events,
    metadata_events, custom_resources, deleted_by_finalizer, all_namespaces, one_object_path, deletion_in_place,
    bad_selector, from_zero, field_transition, bad_timeout, watch_path_prefix, future_version, unconvertible_accept,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

async fn quietly(t: &mut Tape, method: Method, path: &str, body: Value) -> Result {
    let kind = if method == Method::PATCH { MERGE_PATCH } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply =
        t.aside(Request::new(method, path).body(if body.is_empty() { "" } else { kind }, body)).await?;
    anyhow::ensure!(reply.is_success(), "{}", reply.value());
    Ok(())
}

/// The list's version: where a watch that misses nothing starts.
async fn version(t: &mut Tape, path: &str) -> anyhow::Result<String> {
    t.aside(Request::new(Method::GET, path)).await?.text("/metadata/resourceVersion")
}

async fn sees_changes(t: &mut Tape) -> Result {
    let start = version(t, CM).await?;
    let mut watch = t.watch(&format!("{CM}?watch=true&resourceVersion={start}")).await?;
    quietly(t, Method::POST, CM, config_map("a")).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"data": {"k": "w"}})).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"data": {"k": "w"}})).await?;
    quietly(t, Method::DELETE, &at(CM, "a"), Value::Null).await?;
    t.events(&mut watch, 3).await?;
    Ok(())
}

async fn starts_with_existing(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.setup(CM, config_map("b")).await?;
    let mut watch = t.watch(&format!("{CM}?watch=1")).await?;
    t.events(&mut watch, 2).await?;
    quietly(t, Method::DELETE, &at(CM, "a"), Value::Null).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn from_zero(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.wait(&format!("{CM}?resourceVersion=0"), |reply| reply.value()["items"][0].is_object()).await?;
    let mut watch = t.watch(&format!("{CM}?watch=1&resourceVersion=0&timeoutSeconds=30")).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn from_a_version(t: &mut Tape) -> Result {
    let created = t.post(CM, config_map("a")).await?;
    t.setup(CM, config_map("b")).await?;
    quietly(t, Method::DELETE, &at(CM, "b"), Value::Null).await?;
    let start = created.text("/metadata/resourceVersion")?;
    let mut watch = t.watch(&format!("{CM}?watch=true&resourceVersion={start}")).await?;
    t.events(&mut watch, 2).await?;
    Ok(())
}

async fn label_transitions(t: &mut Tape) -> Result {
    let start = version(t, CM).await?;
    let mut watch =
        t.watch(&format!("{CM}?watch=true&labelSelector=app%3Dx&resourceVersion={start}")).await?;
    quietly(t, Method::POST, CM, labelled("a", json!({"app": "y"}))).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"metadata": {"labels": {"app": "x"}}})).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"data": {"k": "v"}})).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"metadata": {"labels": {"app": "y"}}})).await?;
    quietly(t, Method::DELETE, &at(CM, "a"), Value::Null).await?;
    quietly(t, Method::POST, CM, labelled("b", json!({"app": "x"}))).await?;
    t.events(&mut watch, 4).await?;
    Ok(())
}

async fn field_by_name(t: &mut Tape) -> Result {
    let start = version(t, CM).await?;
    let path = format!("{CM}?watch=true&fieldSelector=metadata.name%3Db&resourceVersion={start}");
    let mut watch = t.watch(&path).await?;
    quietly(t, Method::POST, CM, config_map("a")).await?;
    quietly(t, Method::POST, CM, config_map("b")).await?;
    quietly(t, Method::DELETE, &at(CM, "b"), Value::Null).await?;
    t.events(&mut watch, 2).await?;
    Ok(())
}

async fn field_transition(t: &mut Tape) -> Result {
    let start = version(t, PODS).await?;
    let path = format!("{PODS}?watch=true&fieldSelector=status.phase%3DPending&resourceVersion={start}");
    let mut watch = t.watch(&path).await?;
    quietly(t, Method::POST, PODS, pod("a")).await?;
    quietly(t, Method::PATCH, &at(PODS, "a/status"), json!({"status": {"phase": "Running"}})).await?;
    t.events(&mut watch, 2).await?;
    Ok(())
}

const INITIAL: &str =
    "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";

async fn send_initial_events(t: &mut Tape) -> Result {
    t.setup(CM, config_map("b")).await?;
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch(&format!("{CM}?{INITIAL}")).await?;
    t.events(&mut watch, 3).await?;
    quietly(t, Method::DELETE, &at(CM, "a"), Value::Null).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn send_initial_events_empty(t: &mut Tape) -> Result {
    let mut watch = t.watch(&format!("{SECRETS}?{INITIAL}")).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn initial_events_bad_options(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?watch=true&sendInitialEvents=true")).await?;
    t.get(&format!("{CM}?sendInitialEvents=true&resourceVersionMatch=NotOlderThan")).await?;
    t.get(&format!("{CM}?watch=true&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1"))
        .await?;
    t.get(&format!("{CM}?watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1")).await?;
    Ok(())
}

async fn times_out(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch(&format!("{CM}?watch=true&timeoutSeconds=1")).await?;
    t.events_to_end(&mut watch).await?;
    Ok(())
}

async fn bad_version(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?watch=true&resourceVersion=nonsense")).await?;
    Ok(())
}

async fn future_version(t: &mut Tape) -> Result {
    let mut watch = t.watch(&format!("{CM}?watch=true&resourceVersion=999999999&timeoutSeconds=1")).await?;
    t.events_to_end(&mut watch).await?;
    Ok(())
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

async fn table_events(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch_as(&format!("{CM}?watch=true"), TABLE).await?;
    t.events(&mut watch, 1).await?;
    quietly(t, Method::POST, CM, config_map("b")).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn metadata_events(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch_as(&format!("{CM}?watch=true"), METADATA).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn unconvertible_accept(t: &mut Tape) -> Result {
    t.get_as(&format!("{CM}?watch=true"), "text/html").await?;
    Ok(())
}

async fn custom_resources(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer", "default": 3}})), WIDGETS).await?;
    let start = version(t, WIDGETS).await?;
    let mut watch = t.watch(&format!("{WIDGETS}?watch=true&resourceVersion={start}")).await?;
    quietly(t, Method::POST, WIDGETS, widget("a", json!({"nonsense": 1}))).await?;
    quietly(t, Method::PATCH, &at(WIDGETS, "a/status"), json!({"status": {"ok": true}})).await?;
    quietly(t, Method::DELETE, &at(WIDGETS, "a"), Value::Null).await?;
    t.events(&mut watch, 3).await?;
    Ok(())
}

async fn deleted_by_finalizer(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let created = t.post(CM, body).await?;
    let start = created.text("/metadata/resourceVersion")?;
    let mut watch = t.watch(&format!("{CM}?watch=true&resourceVersion={start}")).await?;
    quietly(t, Method::DELETE, &at(CM, "a"), Value::Null).await?;
    quietly(t, Method::PATCH, &at(CM, "a"), json!({"metadata": {"finalizers": null}})).await?;
    t.events(&mut watch, 2).await?;
    Ok(())
}

async fn deletion_in_place(t: &mut Tape) -> Result {
    let mut body = pod("a");
    body["spec"]["nodeName"] = json!("node-1");
    let start = t.post(PODS, body).await?.text("/metadata/resourceVersion")?;
    let mut watch = t.watch(&format!("{PODS}?watch=true&resourceVersion={start}")).await?;
    quietly(t, Method::DELETE, &at(PODS, "a"), Value::Null).await?;
    quietly(t, Method::DELETE, &format!("{PODS}/a?gracePeriodSeconds=0"), Value::Null).await?;
    t.events(&mut watch, 2).await?;
    Ok(())
}

async fn all_namespaces(t: &mut Tape) -> Result {
    let start = version(t, CM).await?;
    let path = format!("/api/v1/configmaps?watch=true&labelSelector=case%3D{{ns}}&resourceVersion={start}");
    let mut watch = t.watch(&path).await?;
    quietly(t, Method::POST, CM, labelled("a", json!({"case": "{ns}"}))).await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn one_object_path(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch(&format!("{CM}/a?watch=true&timeoutSeconds=1")).await?;
    t.events_to_end(&mut watch).await?;
    Ok(())
}

async fn watch_path_prefix(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let mut watch = t.watch("/api/v1/watch/namespaces/{ns}/configmaps?timeoutSeconds=1").await?;
    t.events(&mut watch, 1).await?;
    Ok(())
}

async fn bad_selector(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?watch=true&labelSelector=a%20b")).await?;
    t.get(&format!("{CM}?watch=true&fieldSelector=data.k%3Dv")).await?;
    Ok(())
}

async fn bad_timeout(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?watch=true&timeoutSeconds=soon")).await?;
    t.get(&format!("{CM}?watch=perhaps&timeoutSeconds=1")).await?;
    Ok(())
}
