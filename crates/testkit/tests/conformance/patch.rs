//! JSON, merge and strategic merge patches.

use agentcube_testkit::tape::{JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{
    CM, DEPLOYMENTS, PODS, SERVICES, WIDGETS, config_map, deployment, pod, widget, widget_crd,
};

cases!("patch":
    json_operations, json_test_fails, json_bad_pointer, json_bad_document, json_missing_target, json_append,
    merge_sets_and_removes, merge_not_an_object, merge_bad_json, merge_null_metadata, missing_object,
    wrong_content_type, strategic_containers_by_name, strategic_delete_directive, strategic_replace_directive,
    strategic_env_merge, strategic_ports_by_key, strategic_set_element_order, strategic_primitive_list,
    strategic_finalizers, strategic_bad_directive, strategic_not_on_custom_resources, strategic_labels,
    strategic_delete_from_primitive, strategic_retain_keys, version_in_patch, name_in_patch, json_immutable_field,
    merge_on_custom_resource, json_replace_root, strategic_volumes, strategic_conditions, invalid_result,
    json_too_many_operations, uid_in_patch,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

async fn json_patch(t: &mut Tape, operations: Value) -> Result {
    t.patch(JSON_PATCH, &at(CM, "a"), operations).await?;
    Ok(())
}

async fn json_operations(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(
        t,
        json!([
            {"op": "test", "path": "/data/k", "value": "v"},
            {"op": "add", "path": "/data/new", "value": "x"},
            {"op": "replace", "path": "/data/k", "value": "w"},
            {"op": "copy", "from": "/data/k", "path": "/data/copied"},
            {"op": "move", "from": "/data/new", "path": "/data/moved"},
        ]),
    )
    .await?;
    json_patch(
        t,
        json!([
            {"op": "add", "path": "/metadata/labels", "value": {"example.com/x": "y"}},
            {"op": "remove", "path": "/data/moved"},
        ]),
    )
    .await?;
    json_patch(t, json!([{"op": "remove", "path": "/metadata/labels/example.com~1x"}])).await
}

async fn json_append(t: &mut Tape) -> Result {
    t.setup(SERVICES, service()).await?;
    let append = json!([
        {"op": "add", "path": "/spec/ports/-", "value": {"name": "more", "port": 99}},
        {"op": "add", "path": "/spec/ports/0", "value": {"name": "first", "port": 98}},
    ]);
    t.patch(JSON_PATCH, &at(SERVICES, "a"), append).await?;
    Ok(())
}

async fn json_test_fails(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(t, json!([{"op": "test", "path": "/data/k", "value": "other"}])).await
}

async fn json_bad_pointer(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(t, json!([{"op": "remove", "path": "/data/none"}])).await?;
    json_patch(t, json!([{"op": "replace", "path": "/data/none", "value": "x"}])).await?;
    json_patch(t, json!([{"op": "add", "path": "/none/deeper", "value": "x"}])).await?;
    json_patch(t, json!([{"op": "test", "path": "/data/none", "value": "x"}])).await?;
    json_patch(t, json!([{"op": "copy", "from": "/data/none", "path": "/data/x"}])).await
}

async fn json_bad_document(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(t, json!({"op": "add"})).await?;
    json_patch(t, json!([{"op": "frobnicate", "path": "/data/k"}])).await?;
    json_patch(t, json!("text")).await?;
    let raw = |body: &'static str| Request::new(Method::PATCH, at(CM, "a")).body(JSON_PATCH, body);
    t.send(raw("[{")).await?;
    t.send(raw("")).await?;
    t.send(raw("[]")).await?;
    Ok(())
}

async fn json_missing_target(t: &mut Tape) -> Result {
    t.patch(JSON_PATCH, &at(CM, "none"), json!([{"op": "remove", "path": "/data"}])).await?;
    Ok(())
}

async fn json_replace_root(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(t, json!([{"op": "replace", "path": "", "value": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}}])).await
}

async fn json_immutable_field(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    json_patch(t, json!([{"op": "replace", "path": "/metadata/name", "value": "b"}])).await?;
    json_patch(t, json!([{"op": "replace", "path": "/kind", "value": "Secret"}])).await
}

async fn json_too_many_operations(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let operation = json!({"op": "add", "path": "/data/x", "value": "y"});
    json_patch(t, Value::Array(vec![operation; 10_001])).await
}

async fn merge(t: &mut Tape, patch: Value) -> Result {
    t.patch(MERGE_PATCH, &at(CM, "a"), patch).await?;
    Ok(())
}

async fn merge_sets_and_removes(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    merge(t, json!({"data": {"k": null, "new": "x"}, "metadata": {"labels": {"a": "b"}}})).await?;
    merge(t, json!({"data": null, "metadata": {"labels": {"a": null}}})).await?;
    merge(t, json!({})).await
}

async fn merge_not_an_object(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    merge(t, json!([1])).await?;
    merge(t, json!("text")).await?;
    merge(t, json!(null)).await?;
    merge(t, json!({"data": "text"})).await
}

async fn merge_bad_json(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    for body in ["{", "", "{\"data\":{\"k\":\"x\"}} trailing", "not json"] {
        t.send(Request::new(Method::PATCH, at(CM, "a")).body(MERGE_PATCH, body)).await?;
    }
    Ok(())
}

async fn merge_null_metadata(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    merge(t, json!({"metadata": null})).await
}

async fn missing_object(t: &mut Tape) -> Result {
    t.patch(MERGE_PATCH, &at(CM, "none"), json!({"data": {"k": "x"}})).await?;
    t.patch(STRATEGIC_PATCH, &at(CM, "none"), json!({"data": {"k": "x"}})).await?;
    Ok(())
}

async fn wrong_content_type(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    for kind in ["application/json", "text/plain", ""] {
        t.send(Request::new(Method::PATCH, at(CM, "a")).body(kind, "{}")).await?;
    }
    Ok(())
}

async fn strategic(t: &mut Tape, path: &str, patch: Value) -> Result {
    t.patch(STRATEGIC_PATCH, path, patch).await?;
    Ok(())
}

async fn strategic_containers_by_name(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let patch = |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch(json!([{"name": "main", "image": "busybox:2"}]))).await?;
    strategic(t, &at(DEPLOYMENTS, "a"), patch(json!([{"name": "side", "image": "busybox:3"}]))).await?;
    strategic(t, &at(DEPLOYMENTS, "a"), patch(json!([{"image": "nameless"}]))).await
}

async fn strategic_delete_directive(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "main", "image": "i:1"}, {"name": "side", "image": "i:2"}]);
    t.setup(DEPLOYMENTS, body).await?;
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

async fn strategic_replace_directive(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [
        {"$patch": "replace"}, {"name": "only", "image": "i:9"},
    ]}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await?;
    let patch = json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

async fn strategic_retain_keys(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

async fn strategic_env_merge(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    t.setup(DEPLOYMENTS, body).await?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [
        {"name": "B", "value": "3"}, {"name": "C", "value": "4"}, {"name": "A", "$patch": "delete"},
    ]}]}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

async fn strategic_volumes(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    t.setup(DEPLOYMENTS, body).await?;
    let patch = json!({"spec": {"template": {"spec": {"volumes": [
        {"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}},
    ]}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
        "spec": {"clusterIP": "None", "selector": {"app": "a"}, "ports": [
            {"name": "http", "port": 80}, {"name": "https", "port": 443},
        ]},
    })
}

async fn strategic_ports_by_key(t: &mut Tape) -> Result {
    t.setup(SERVICES, service()).await?;
    strategic(t, &at(SERVICES, "a"), json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}]}})).await?;
    strategic(t, &at(SERVICES, "a"), json!({"spec": {"ports": [{"port": 443, "$patch": "delete"}]}})).await
}

async fn strategic_set_element_order(t: &mut Tape) -> Result {
    t.setup(SERVICES, service()).await?;
    let patch = json!({"spec": {
        "$setElementOrder/ports": [{"port": 443}, {"port": 22}, {"port": 80}],
        "ports": [{"name": "ssh", "port": 22}],
    }});
    strategic(t, &at(SERVICES, "a"), patch).await
}

async fn strategic_primitive_list(t: &mut Tape) -> Result {
    let mut body = pod("a");
    body["spec"]["containers"][0]["args"] = json!(["a", "b"]);
    let mut wrapper = deployment("a");
    wrapper["spec"]["template"]["spec"] = body["spec"].clone();
    t.setup(DEPLOYMENTS, wrapper).await?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "args": ["c"]}]}}}});
    strategic(t, &at(DEPLOYMENTS, "a"), patch).await
}

async fn strategic_finalizers(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    strategic(t, &at(CM, "a"), json!({"metadata": {"finalizers": ["example.com/one"]}})).await?;
    strategic(t, &at(CM, "a"), json!({"metadata": {"finalizers": ["example.com/two"]}})).await?;
    strategic(t, &at(CM, "a"), json!({"metadata": {"finalizers": null}})).await
}

async fn strategic_delete_from_primitive(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    t.setup(CM, body).await?;
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/one"]}});
    strategic(t, &at(CM, "a"), patch).await?;
    strategic(t, &at(CM, "a"), json!({"metadata": {"finalizers": null}})).await
}

async fn strategic_bad_directive(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    strategic(t, &at(CM, "a"), json!({"data": {"$patch": "explode"}})).await?;
    strategic(t, &at(CM, "a"), json!({"data": {"$patch": 7}})).await?;
    strategic(t, &at(CM, "a"), json!([1])).await
}

async fn strategic_labels(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!({"a": "1", "b": "2"});
    t.setup(CM, body).await?;
    strategic(t, &at(CM, "a"), json!({"metadata": {"labels": {"a": null, "c": "3"}}})).await?;
    strategic(t, &at(CM, "a"), json!({"data": {"$patch": "delete"}})).await
}

async fn strategic_conditions(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    let status = at(PODS, "a/status");
    let condition =
        |kind: &str, value: &str| json!({"status": {"conditions": [{"type": kind, "status": value}]}});
    strategic(t, &status, condition("Ready", "False")).await?;
    strategic(t, &status, condition("Initialized", "True")).await?;
    strategic(t, &status, condition("Ready", "True")).await
}

async fn strategic_not_on_custom_resources(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 1}))).await?;
    strategic(t, &at(WIDGETS, "a"), json!({"spec": {"size": 2}})).await
}

async fn merge_on_custom_resource(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}})), WIDGETS).await?;
    t.setup(WIDGETS, widget("a", json!({"size": 1}))).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"size": 2}})).await?;
    t.patch(MERGE_PATCH, &at(WIDGETS, "a"), json!({"spec": {"size": "big"}})).await?;
    t.patch(JSON_PATCH, &at(WIDGETS, "a"), json!([{"op": "remove", "path": "/spec/size"}])).await?;
    Ok(())
}

async fn version_in_patch(t: &mut Tape) -> Result {
    let version = t.post(CM, config_map("a")).await?.text("/metadata/resourceVersion")?;
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {"k": "w"}});
    t.send_viewed(Request::new(Method::PATCH, at(CM, "a")).body(MERGE_PATCH, patch.to_string()), |value| {
        value["data"].clone()
    })
    .await?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "x"}}))
        .await?;
    Ok(())
}

async fn uid_in_patch(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    merge(t, json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})).await
}

async fn name_in_patch(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    merge(t, json!({"metadata": {"name": "b"}})).await?;
    merge(t, json!({"metadata": {"namespace": "default"}})).await?;
    merge(t, json!({"kind": "Secret"})).await?;
    merge(t, json!({"apiVersion": "v2"})).await
}

async fn invalid_result(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a"), json!({"spec": {"replicas": -1}})).await?;
    t.patch(MERGE_PATCH, &at(DEPLOYMENTS, "a"), json!({"spec": {"replicas": "three"}})).await?;
    t.patch(
        MERGE_PATCH,
        &at(DEPLOYMENTS, "a"),
        json!({"spec": {"template": {"spec": {"containers": null}}}}),
    )
    .await?;
    Ok(())
}
