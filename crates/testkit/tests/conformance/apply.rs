//! Server-side apply: ownership, conflicts, removal, lists by key.

use agentcube_testkit::tape::{APPLY_PATCH, MERGE_PATCH};
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{
    CM, DEPLOYMENTS, PODS, SERVICES, WIDGETS, config_map, deployment, widget, widget_crd, widget_crd_with,
};

cases!("apply":
    creates, updates_its_own, removes_what_it_drops, conflicts, force_takes_over, shared_ownership, no_op,
    needs_a_manager, force_only_with_apply, bad_body, name_mismatch, missing_kind, list_map_by_key, list_set,
    atomic_list, status_subresource, after_update_conflict, managed_fields_in_body, generation, custom_resource,
    custom_resource_list_map, duplicate_keys_in_list, unknown_field, yaml_body, version_precondition,
    give_up_ownership, clears_managed_fields, dry_run, service_ports_by_two_keys, empty_apply_removes,
    same_manager_update_and_apply, create_uid_refused, conflict_of_several_fields, annotation_of_two,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

fn data(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

async fn apply(t: &mut Tape, manager: &str, query: &str, body: Value) -> Result {
    t.apply(&at(CM, "a"), manager, query, body).await?;
    Ok(())
}

async fn creates(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await
}

async fn updates_its_own(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    apply(t, "one", "", data(json!({"k": "w", "more": "x"}))).await
}

async fn removes_what_it_drops(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v", "gone": "x"}))).await?;
    apply(t, "one", "", data(json!({"k": "v"}))).await
}

async fn conflicts(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    apply(t, "two", "", data(json!({"k": "w"}))).await
}

async fn conflict_of_several_fields(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v", "l": "v"}))).await?;
    apply(t, "two", "", data(json!({"k": "w", "l": "w"}))).await
}

async fn force_takes_over(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v", "other": "x"}))).await?;
    apply(t, "two", "&force=true", data(json!({"k": "w"}))).await?;
    apply(t, "one", "", data(json!({"other": "x"}))).await
}

async fn shared_ownership(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    apply(t, "two", "", data(json!({"k": "v"}))).await?;
    apply(t, "one", "", data(json!({}))).await?;
    apply(t, "two", "", data(json!({}))).await
}

async fn no_op(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    apply(t, "one", "", data(json!({"k": "v"}))).await
}

async fn needs_a_manager(t: &mut Tape) -> Result {
    t.patch(APPLY_PATCH, &at(CM, "a"), data(json!({"k": "v"}))).await?;
    Ok(())
}

async fn force_only_with_apply(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.patch(MERGE_PATCH, &format!("{CM}/a?force=true"), json!({"data": {"k": "w"}})).await?;
    Ok(())
}

async fn bad_body(t: &mut Tape) -> Result {
    let path = format!("{CM}/a?fieldManager=one");
    for body in ["", "{", "- 1\n- 2\n", "text", "a: b: c"] {
        t.send(Request::new(Method::PATCH, path.as_str()).body(APPLY_PATCH, body)).await?;
    }
    Ok(())
}

async fn name_mismatch(t: &mut Tape) -> Result {
    let mut body = data(json!({"k": "v"}));
    body["metadata"]["name"] = json!("b");
    apply(t, "one", "", body).await?;
    let mut body = data(json!({"k": "v"}));
    body["metadata"]["namespace"] = json!("default");
    apply(t, "one", "", body).await
}

async fn missing_kind(t: &mut Tape) -> Result {
    apply(t, "one", "", json!({"metadata": {"name": "a"}})).await?;
    apply(t, "one", "", json!({"apiVersion": "v1", "metadata": {"name": "a"}})).await?;
    apply(t, "one", "", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})).await?;
    apply(t, "one", "", json!({"apiVersion": "v1", "kind": "ConfigMap"})).await
}

fn with_container(name: &str, image: &str) -> Value {
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["containers"] = json!([{"name": name, "image": image}]);
    body
}

async fn list_map_by_key(t: &mut Tape) -> Result {
    let path = at(DEPLOYMENTS, "a");
    t.apply(&path, "one", "", with_container("main", "i:1")).await?;
    t.apply(&path, "two", "", with_container("side", "i:2")).await?;
    t.apply(&path, "two", "", with_container("main", "i:3")).await?;
    t.apply(&path, "one", "", with_container("main", "i:4")).await?;
    Ok(())
}

async fn list_set(t: &mut Tape) -> Result {
    let body = |finalizers: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    apply(t, "one", "", body(json!(["example.com/one"]))).await?;
    apply(t, "two", "", body(json!(["example.com/two"]))).await?;
    apply(t, "one", "", body(json!([]))).await?;
    apply(t, "two", "", body(json!([]))).await
}

async fn atomic_list(t: &mut Tape) -> Result {
    let body = |args: Value| {
        let mut body = with_container("main", "i:1");
        body["spec"]["template"]["spec"]["containers"][0]["args"] = args;
        body
    };
    t.apply(&at(DEPLOYMENTS, "a"), "one", "", body(json!(["a", "b"]))).await?;
    t.apply(&at(DEPLOYMENTS, "a"), "two", "", body(json!(["a", "c"]))).await?;
    Ok(())
}

async fn status_subresource(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "status": {"replicas": 2}});
    t.apply(&at(DEPLOYMENTS, "a/status"), "one", "", body).await?;
    Ok(())
}

async fn after_update_conflict(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldManager=creator"), config_map("a")).await?;
    apply(t, "one", "", data(json!({"k": "w"}))).await?;
    apply(t, "one", "&force=true", data(json!({"k": "w"}))).await
}

async fn managed_fields_in_body(t: &mut Tape) -> Result {
    let mut body = data(json!({"k": "v"}));
    body["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1"}]);
    apply(t, "one", "", body).await
}

async fn generation(t: &mut Tape) -> Result {
    let path = at(DEPLOYMENTS, "a");
    t.apply(&path, "one", "", with_container("main", "i:1")).await?;
    let mut body = with_container("main", "i:1");
    body["metadata"]["labels"] = json!({"x": "y"});
    t.apply(&path, "one", "", body.clone()).await?;
    body["spec"]["replicas"] = json!(4);
    t.apply(&path, "one", "", body).await?;
    Ok(())
}

async fn custom_resource(t: &mut Tape) -> Result {
    t.define(
        widget_crd(
            json!({"size": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}),
        ),
        WIDGETS,
    )
    .await?;
    let path = at(WIDGETS, "a");
    t.apply(&path, "one", "", widget("a", json!({"size": 1, "tags": ["x"]}))).await?;
    t.apply(&path, "two", "", widget("a", json!({"size": 2}))).await?;
    t.apply(&path, "two", "&force=true", widget("a", json!({"size": 2}))).await?;
    t.apply(&path, "one", "", widget("a", json!({}))).await?;
    Ok(())
}

async fn custom_resource_list_map(t: &mut Tape) -> Result {
    let list = json!({
        "ports": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}},
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    });
    t.define(widget_crd(list), WIDGETS).await?;
    let path = at(WIDGETS, "a");
    t.apply(&path, "one", "", widget("a", json!({"ports": [{"name": "a", "port": 1}], "tags": ["x"]})))
        .await?;
    t.apply(&path, "two", "", widget("a", json!({"ports": [{"name": "b", "port": 2}], "tags": ["y"]})))
        .await?;
    t.apply(&path, "two", "", widget("a", json!({"ports": [{"name": "a", "port": 3}]}))).await?;
    t.apply(&path, "one", "", widget("a", json!({"ports": []}))).await?;
    t.apply(&path, "one", "", widget("a", json!({"ports": [{"name": "a"}, {"name": "a"}]}))).await?;
    Ok(())
}

async fn duplicate_keys_in_list(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "x", "image": "i:1"}, {"name": "x", "image": "i:2"}]);
    t.apply(&at(DEPLOYMENTS, "a"), "one", "", body).await?;
    Ok(())
}

async fn unknown_field(t: &mut Tape) -> Result {
    let mut body = data(json!({"k": "v"}));
    body["nonsense"] = json!(1);
    apply(t, "one", "", body).await
}

async fn yaml_body(t: &mut Tape) -> Result {
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n";
    t.send(Request::new(Method::PATCH, format!("{CM}/a?fieldManager=one")).body(APPLY_PATCH, body)).await?;
    Ok(())
}

async fn version_precondition(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    let mut body = data(json!({"k": "w"}));
    body["metadata"]["resourceVersion"] = json!("1");
    apply(t, "one", "", body).await?;
    let mut body = data(json!({"k": "w"}));
    body["metadata"]["name"] = json!("none");
    body["metadata"]["resourceVersion"] = json!("1");
    t.apply(&at(CM, "none"), "one", "", body).await?;
    Ok(())
}

async fn create_uid_refused(t: &mut Tape) -> Result {
    let mut body = data(json!({"k": "w"}));
    body["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    apply(t, "one", "", body).await
}

async fn give_up_ownership(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    t.patch(MERGE_PATCH, &format!("{CM}/a?fieldManager=two"), json!({"data": {"k": "w"}})).await?;
    apply(t, "one", "", data(json!({}))).await
}

async fn clears_managed_fields(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"metadata": {"managedFields": [{}]}})).await?;
    apply(t, "two", "", data(json!({"k": "w"}))).await
}

async fn dry_run(t: &mut Tape) -> Result {
    apply(t, "one", "&dryRun=All", data(json!({"k": "v"}))).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn service_ports_by_two_keys(t: &mut Tape) -> Result {
    let body = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "None", "ports": ports}});
    let path = at(SERVICES, "a");
    t.apply(&path, "one", "", body(json!([{"name": "t", "port": 53, "protocol": "TCP"}]))).await?;
    t.apply(&path, "two", "", body(json!([{"name": "u", "port": 53, "protocol": "UDP"}]))).await?;
    t.apply(&path, "one", "", body(json!([{"name": "tt", "port": 53}]))).await?;
    Ok(())
}

async fn empty_apply_removes(t: &mut Tape) -> Result {
    let mut body = data(json!({"k": "v"}));
    body["metadata"]["labels"] = json!({"a": "b"});
    apply(t, "one", "", body).await?;
    apply(t, "one", "", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).await
}

async fn same_manager_update_and_apply(t: &mut Tape) -> Result {
    apply(t, "one", "", data(json!({"k": "v"}))).await?;
    t.patch(MERGE_PATCH, &format!("{CM}/a?fieldManager=one"), json!({"data": {"k": "w"}})).await?;
    apply(t, "one", "", data(json!({"k": "v"}))).await
}

async fn annotation_of_two(t: &mut Tape) -> Result {
    let body = |key: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": {key: "x"}},
        "spec": {"containers": [{"name": "main", "image": "i"}]}})
    };
    t.apply(&at(PODS, "a"), "one", "", body("one")).await?;
    t.apply(&at(PODS, "a"), "two", "", body("two")).await?;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    t.define(widget_crd_with(schema), WIDGETS).await?;
    t.apply(&at(WIDGETS, "a"), "one", "", widget("a", json!({"free": {"form": [1, 2]}}))).await?;
    t.apply(&at(WIDGETS, "a"), "two", "", widget("a", json!({"free": {"form": [1, 3]}}))).await?;
    Ok(())
}
