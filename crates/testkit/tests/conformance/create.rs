//! Creating objects: what the server fills in, and what it refuses.

use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, PODS, config_map, deployment, pod};

cases!("create":
    assigns_metadata, generates_a_name, ignores_server_owned_metadata, refuses_a_duplicate,
    refuses_a_missing_namespace, refuses_a_bad_name, refuses_another_kind, refuses_another_version,
    refuses_another_namespace, refuses_no_name, keeps_labels_and_annotations, refuses_bad_labels,
    refuses_bad_annotations, refuses_bad_finalizers, refuses_bad_owner_references, sets_generation,
    fills_kind_when_absent, yaml_body, named_path_refuses_post, refuses_a_resource_version,
    cluster_scoped_namespace, generates_a_name_only_if_none_given, field_manager_query, refuses_a_bad_generate_name,
    refused_before_a_name_is_made,
);

async fn assigns_metadata(t: &mut Tape) -> Result {
    t.post(CM, config_map("a")).await?;
    t.get(&format!("{CM}/a")).await?;
    Ok(())
}

async fn generates_a_name(t: &mut Tape) -> Result {
    let mut body = config_map("");
    body["metadata"] = json!({"generateName": "made-"});
    let reply = t.post(CM, body.clone()).await?;
    t.get(&format!("{CM}/{}", reply.text("/metadata/name")?)).await?;
    t.post(CM, body).await?;
    Ok(())
}

async fn generates_a_name_only_if_none_given(t: &mut Tape) -> Result {
    let mut body = config_map("given");
    body["metadata"]["generateName"] = json!("made-");
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_a_bad_generate_name(t: &mut Tape) -> Result {
    let mut body = config_map("");
    body["metadata"] = json!({"generateName": "Bad_Prefix"});
    // The name that was made occurs in the messages only.
    let without_name = |value: Value| {
        let name = value["details"]["name"].as_str().unwrap_or_default().to_owned();
        serde_json::from_str(&value.to_string().replace(&name, "Bad_Prefix{random}")).unwrap_or(value)
    };
    t.send_viewed(Request::new(Method::POST, CM).json(&body), without_name).await?;
    Ok(())
}

/// Admission comes before the name: what it refuses is called by what it was asked to be called.
async fn refused_before_a_name_is_made(t: &mut Tape) -> Result {
    let mut body = pod("a");
    body["spec"]["priorityClassName"] = json!("missing");
    t.post(PODS, body.clone()).await?;
    body["metadata"] = json!({"generateName": "made-"});
    t.post(PODS, body.clone()).await?;
    body["metadata"] = json!({});
    t.post(PODS, body).await?;
    Ok(())
}

async fn ignores_server_owned_metadata(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["uid"] = json!("mine");
    body["metadata"]["creationTimestamp"] = json!("2001-02-03T04:05:06Z");
    body["metadata"]["deletionTimestamp"] = json!("2001-02-03T04:05:06Z");
    body["metadata"]["deletionGracePeriodSeconds"] = json!(7);
    body["metadata"]["generation"] = json!(17);
    body["metadata"]["selfLink"] = json!("/x");
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_a_duplicate(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.post(CM, config_map("a")).await?;
    Ok(())
}

async fn refuses_a_missing_namespace(t: &mut Tape) -> Result {
    t.post("/api/v1/namespaces/{ns}-none/configmaps", config_map("a")).await?;
    t.post("/apis/apps/v1/namespaces/{ns}-none/deployments", deployment("a")).await?;
    Ok(())
}

async fn refuses_a_bad_name(t: &mut Tape) -> Result {
    t.post(CM, config_map("Not_A_Name")).await?;
    t.post(CM, config_map(&"x".repeat(254))).await?;
    t.post("/api/v1/namespaces/{ns}/services", json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "1.bad"}, "spec": {"ports": [{"port": 1}]},
    }))
    .await?;
    t.post(CM, config_map("a/b")).await?;
    Ok(())
}

async fn refuses_another_kind(t: &mut Tape) -> Result {
    t.post(CM, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})).await?;
    t.post(CM, json!({"apiVersion": "v1", "kind": "Nonsense", "metadata": {"name": "a"}})).await?;
    Ok(())
}

async fn refuses_another_version(t: &mut Tape) -> Result {
    t.post(CM, json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}})).await?;
    let mut body = deployment("a");
    body["apiVersion"] = json!("apps/v1beta1");
    t.post("/apis/apps/v1/namespaces/{ns}/deployments", body).await?;
    Ok(())
}

async fn refuses_another_namespace(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["namespace"] = json!("default");
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_no_name(t: &mut Tape) -> Result {
    t.post(CM, json!({"apiVersion": "v1", "kind": "ConfigMap"})).await?;
    t.post(CM, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ""}})).await?;
    Ok(())
}

async fn keeps_labels_and_annotations(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({"app.kubernetes.io/name": "x", "empty": ""});
    body["metadata"]["annotations"] = json!({"example.com/note": "any text, even\nlines"});
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(CM, body).await?;
    let release = json!({"metadata": {"finalizers": null}});
    t.patch(agentcube_testkit::tape::MERGE_PATCH, &format!("{CM}/a"), release).await?;
    Ok(())
}

async fn refuses_bad_labels(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({"bad key!": "x"});
    t.post(CM, body.clone()).await?;
    body["metadata"]["labels"] = json!({"ok": "bad value!"});
    t.post(CM, body.clone()).await?;
    body["metadata"]["labels"] = json!({"ok": "x".repeat(64)});
    t.post(CM, body.clone()).await?;
    body["metadata"]["labels"] = json!({"Bad_Domain/x": "x"});
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_bad_annotations(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["annotations"] = json!({"bad key!": "x"});
    t.post(CM, body).await?;
    let mut body = config_map("a");
    body["metadata"]["annotations"] = json!({"big": "x".repeat(300 * 1024)});
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_bad_finalizers(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["nodomain", "bad value!"]);
    t.post(CM, body).await?;
    Ok(())
}

async fn refuses_bad_owner_references(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": ""}]);
    t.post(CM, body).await?;
    let mut body = config_map("a");
    body["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u1", "controller": true},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "u2", "controller": true},
    ]);
    t.post(CM, body).await?;
    Ok(())
}

async fn sets_generation(t: &mut Tape) -> Result {
    t.post(PODS, pod("a")).await?;
    t.post("/apis/apps/v1/namespaces/{ns}/deployments", deployment("a")).await?;
    Ok(())
}

async fn fills_kind_when_absent(t: &mut Tape) -> Result {
    t.post(CM, json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await?;
    t.post(CM, json!({"kind": "ConfigMap", "metadata": {"name": "b"}})).await?;
    t.post(CM, json!({"apiVersion": "v1", "metadata": {"name": "c"}})).await?;
    Ok(())
}

async fn yaml_body(t: &mut Tape) -> Result {
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: |\n    two\n    lines\n";
    t.send(Request::new(Method::POST, CM).body("application/yaml", body)).await?;
    Ok(())
}

async fn named_path_refuses_post(t: &mut Tape) -> Result {
    t.post(&format!("{CM}/a"), config_map("a")).await?;
    Ok(())
}

async fn refuses_a_resource_version(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["resourceVersion"] = json!("5");
    t.post(CM, body).await?;
    Ok(())
}

async fn cluster_scoped_namespace(t: &mut Tape) -> Result {
    t.remove_later("/api/v1/namespaces/{ns}-x");
    t.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-x"}}),
    )
    .await?;
    t.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}}),
    )
    .await?;
    Ok(())
}

async fn field_manager_query(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldManager=me"), config_map("a")).await?;
    t.post(&format!("{CM}?fieldManager={}", "x".repeat(129)), config_map("b")).await?;
    Ok(())
}
