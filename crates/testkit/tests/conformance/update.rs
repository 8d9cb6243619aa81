//! Replacing objects: conflicts, no-ops, what cannot change.

use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Reply, Tape};
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, PODS, SECRETS, config_map, deployment, pod};

cases!("update":
    replaces, conflicts_on_an_old_version, unconditional, no_op_keeps_the_version, uid_mismatch, missing_object,
    name_mismatch, namespace_mismatch, server_owned_fields_stay, generation_follows_spec, immutable_config_map,
    immutable_secret, pod_spec_is_immutable, selector_is_immutable, clears_omitted_fields, deletion_mark_stays,
    finalizers_while_deleting, bad_version_text, kind_mismatch,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

async fn make(t: &mut Tape, path: &str, body: Value) -> anyhow::Result<Value> {
    Ok(t.post(path, body).await?.value())
}

async fn replaces(t: &mut Tape) -> Result {
    let mut object = make(t, CM, config_map("a")).await?;
    object["data"] = json!({"k": "w", "more": "x"});
    t.put(&at(CM, "a"), object).await?;
    Ok(())
}

async fn conflicts_on_an_old_version(t: &mut Tape) -> Result {
    let old = make(t, CM, config_map("a")).await?;
    let mut new = old.clone();
    new["data"]["k"] = json!("w");
    t.put(&at(CM, "a"), new).await?;
    t.put(&at(CM, "a"), old).await?;
    Ok(())
}

async fn unconditional(t: &mut Tape) -> Result {
    make(t, CM, config_map("a")).await?;
    let mut body = config_map("a");
    body["data"]["k"] = json!("w");
    t.put(&at(CM, "a"), body).await?;
    Ok(())
}

async fn no_op_keeps_the_version(t: &mut Tape) -> Result {
    let object = make(t, CM, config_map("a")).await?;
    t.put(&at(CM, "a"), object).await?;
    t.put(&at(CM, "a"), config_map("a")).await?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"data": {"k": "v"}})).await?;
    Ok(())
}

async fn uid_mismatch(t: &mut Tape) -> Result {
    let mut object = make(t, CM, config_map("a")).await?;
    object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    t.put(&at(CM, "a"), object).await?;
    Ok(())
}

async fn missing_object(t: &mut Tape) -> Result {
    t.put(&at(CM, "none"), config_map("none")).await?;
    let mut body = config_map("none");
    body["metadata"]["resourceVersion"] = json!("5");
    t.put(&at(CM, "none"), body).await?;
    t.put(&at(DEPLOYMENTS, "none"), deployment("none")).await?;
    Ok(())
}

async fn name_mismatch(t: &mut Tape) -> Result {
    make(t, CM, config_map("a")).await?;
    t.put(&at(CM, "a"), config_map("b")).await?;
    Ok(())
}

async fn namespace_mismatch(t: &mut Tape) -> Result {
    make(t, CM, config_map("a")).await?;
    let mut body = config_map("a");
    body["metadata"]["namespace"] = json!("default");
    t.put(&at(CM, "a"), body).await?;
    Ok(())
}

async fn kind_mismatch(t: &mut Tape) -> Result {
    make(t, CM, config_map("a")).await?;
    t.put(&at(CM, "a"), pod("a")).await?;
    Ok(())
}

async fn server_owned_fields_stay(t: &mut Tape) -> Result {
    let mut object = make(t, DEPLOYMENTS, deployment("a")).await?;
    object["metadata"]["creationTimestamp"] = json!("2001-02-03T04:05:06Z");
    object["metadata"]["generation"] = json!(99);
    object["status"] = json!({"replicas": 7});
    t.put(&at(DEPLOYMENTS, "a"), object).await?;
    Ok(())
}

async fn generation_follows_spec(t: &mut Tape) -> Result {
    let mut object = make(t, DEPLOYMENTS, deployment("a")).await?;
    object["metadata"]["labels"] = json!({"x": "y"});
    let mut object = t.put(&at(DEPLOYMENTS, "a"), object).await?.value();
    object["spec"]["replicas"] = json!(3);
    t.put(&at(DEPLOYMENTS, "a"), object).await?;
    Ok(())
}

async fn immutable_config_map(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["immutable"] = json!(true);
    let mut object = make(t, CM, body).await?;
    object["data"]["k"] = json!("w");
    t.put(&at(CM, "a"), object.clone()).await?;
    object["data"]["k"] = json!("v");
    object["immutable"] = json!(false);
    t.put(&at(CM, "a"), object).await?;
    Ok(())
}

async fn immutable_secret(t: &mut Tape) -> Result {
    let body = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"k": "v"}, "immutable": true,
    });
    let mut object = make(t, SECRETS, body).await?;
    object["data"]["k"] = json!("dw==");
    t.put(&at(SECRETS, "a"), object.clone()).await?;
    object["data"]["k"] = json!("dg==");
    object["type"] = json!("other");
    t.put(&at(SECRETS, "a"), object).await?;
    Ok(())
}

async fn pod_spec_is_immutable(t: &mut Tape) -> Result {
    let mut object = make(t, PODS, pod("a")).await?;
    object["spec"]["containers"][0]["image"] = json!("busybox:2");
    let mut object = t.put(&at(PODS, "a"), object).await?.value();
    object["spec"]["containers"][0]["command"] = json!(["true"]);
    t.send_viewed(
        agentcube_testkit::Request::new(http::Method::PUT, at(PODS, "a")).json(&object),
        first_line,
    )
    .await?;
    object["spec"]["containers"][0].as_object_mut().map(|container| container.remove("command"));
    object["spec"]["hostname"] = json!("h");
    t.send_viewed(
        agentcube_testkit::Request::new(http::Method::PUT, at(PODS, "a")).json(&object),
        first_line,
    )
    .await?;
    Ok(())
}

/// The real server appends a Go-syntax diff to this message, which nobody parses.
fn first_line(mut value: Value) -> Value {
    for pointer in ["/message", "/details/causes/0/message"] {
        if let Some(Value::String(text)) = value.pointer_mut(pointer) {
            let end = text.find('\n').unwrap_or(text.len());
            text.truncate(end);
        }
    }
    value
}

async fn selector_is_immutable(t: &mut Tape) -> Result {
    let mut object = make(t, DEPLOYMENTS, deployment("a")).await?;
    object["spec"]["selector"]["matchLabels"] = json!({"app": "b"});
    object["spec"]["template"]["metadata"]["labels"] = json!({"app": "b"});
    t.put(&at(DEPLOYMENTS, "a"), object).await?;
    Ok(())
}

async fn clears_omitted_fields(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({"x": "y"});
    body["metadata"]["annotations"] = json!({"x": "y"});
    make(t, CM, body).await?;
    t.put(&at(CM, "a"), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).await?;
    Ok(())
}

async fn held(t: &mut Tape) -> anyhow::Result<Reply> {
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.setup(CM, body).await?;
    t.delete(&at(CM, "a")).await
}

async fn deletion_mark_stays(t: &mut Tape) -> Result {
    held(t).await?;
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    body["data"]["k"] = json!("w");
    t.put(&at(CM, "a"), body).await?;
    t.put(&at(CM, "a"), config_map("a")).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn finalizers_while_deleting(t: &mut Tape) -> Result {
    held(t).await?;
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    t.patch(MERGE_PATCH, &at(CM, "a"), more).await?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"metadata": {"finalizers": []}})).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn bad_version_text(t: &mut Tape) -> Result {
    let mut object = make(t, CM, config_map("a")).await?;
    object["metadata"]["resourceVersion"] = json!("nonsense");
    t.put(&at(CM, "a"), object).await?;
    Ok(())
}
