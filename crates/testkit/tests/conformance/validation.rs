//! Strictness about unknown and duplicate fields, and dry runs.

use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, WIDGETS, config_map, deployment, widget, widget_crd};

cases!("validation":
    unknown_field_strict, unknown_field_warn, unknown_field_ignore, duplicate_field_strict, duplicate_field_warn,
    nested_unknown_fields, custom_unknown_strict, custom_unknown_warn, custom_duplicate, bad_directive,
    patch_unknown_strict, update_unknown_warn, yaml_duplicates, dry_run_create, dry_run_update, dry_run_patch,
    dry_run_duplicate, dry_run_generate_name, bad_dry_run, wrong_field_type, wrong_case_of_field,
    json_patch_unknown, dry_run_custom_resource, custom_nested_unknown, several_unknown,
);

fn unknown(name: &str) -> Value {
    let mut body = config_map(name);
    body["nonsense"] = json!(1);
    body
}

const DUPLICATE: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"1","k":"2"},"data":{"k":"3"}}"#;

async fn unknown_field_strict(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldValidation=Strict"), unknown("a")).await?;
    Ok(())
}

async fn unknown_field_warn(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldValidation=Warn"), unknown("a")).await?;
    t.post(CM, unknown("b")).await?;
    Ok(())
}

async fn unknown_field_ignore(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldValidation=Ignore"), unknown("a")).await?;
    Ok(())
}

async fn several_unknown(t: &mut Tape) -> Result {
    let mut body = unknown("a");
    body["metadata"]["odd"] = json!(1);
    body["another"] = json!({"x": 1});
    t.post(&format!("{CM}?fieldValidation=Strict"), body).await?;
    Ok(())
}

async fn duplicate_field_strict(t: &mut Tape) -> Result {
    let path = format!("{CM}?fieldValidation=Strict");
    t.send(Request::new(Method::POST, path).body("application/json", DUPLICATE)).await?;
    Ok(())
}

async fn duplicate_field_warn(t: &mut Tape) -> Result {
    let path = format!("{CM}?fieldValidation=Warn");
    t.send(Request::new(Method::POST, path).body("application/json", DUPLICATE)).await?;
    Ok(())
}

async fn yaml_duplicates(t: &mut Tape) -> Result {
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: one\n  k: two\n";
    for mode in ["Strict", "Warn", "Ignore"] {
        let path = format!("{CM}?fieldValidation={mode}");
        t.send(Request::new(Method::POST, path).body("application/yaml", body)).await?;
    }
    Ok(())
}

async fn nested_unknown_fields(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["odd"] = json!(1);
    body["spec"]["template"]["spec"]["containers"][0]["imagee"] = json!("x");
    t.post(&format!("{DEPLOYMENTS}?fieldValidation=Strict"), body.clone()).await?;
    t.post(&format!("{DEPLOYMENTS}?fieldValidation=Warn"), body).await?;
    Ok(())
}

async fn wrong_field_type(t: &mut Tape) -> Result {
    let mut body = deployment("a");
    body["spec"]["replicas"] = json!("three");
    t.post(DEPLOYMENTS, body).await?;
    let mut body = config_map("a");
    body["data"]["k"] = json!(1);
    t.post(CM, body).await?;
    let mut body = config_map("a");
    body["metadata"]["labels"] = json!(["x"]);
    t.post(CM, body).await?;
    let mut body = deployment("a");
    body["spec"]["template"]["spec"]["containers"] = json!({});
    t.post(DEPLOYMENTS, body).await?;
    Ok(())
}

async fn wrong_case_of_field(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["Data"] = json!({"x": "y"});
    t.post(&format!("{CM}?fieldValidation=Strict"), body).await?;
    Ok(())
}

async fn bad_directive(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?fieldValidation=Perhaps"), config_map("a")).await?;
    Ok(())
}

async fn update_unknown_warn(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.put(&format!("{CM}/a?fieldValidation=Warn"), unknown("a")).await?;
    t.put(&format!("{CM}/a?fieldValidation=Strict"), unknown("a")).await?;
    Ok(())
}

async fn patch_unknown_strict(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.patch(MERGE_PATCH, &format!("{CM}/a?fieldValidation=Strict"), json!({"nonsense": 1})).await?;
    t.patch(MERGE_PATCH, &format!("{CM}/a?fieldValidation=Warn"), json!({"nonsense": 1})).await?;
    let strategic = agentcube_testkit::tape::STRATEGIC_PATCH;
    t.patch(strategic, &format!("{CM}/a?fieldValidation=Strict"), json!({"nonsense": 1})).await?;
    let body = r#"{"data":{"k":"1","k":"2"}}"#;
    t.send(Request::new(Method::PATCH, format!("{CM}/a?fieldValidation=Strict")).body(MERGE_PATCH, body))
        .await?;
    Ok(())
}

async fn json_patch_unknown(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let patch = json!([{"op": "add", "path": "/nonsense", "value": 1}]);
    t.patch(agentcube_testkit::tape::JSON_PATCH, &format!("{CM}/a?fieldValidation=Strict"), patch).await?;
    let body = r#"[{"op":"add","path":"/data/x","value":"1","odd":2}]"#;
    let path = format!("{CM}/a?fieldValidation=Strict");
    t.send(Request::new(Method::PATCH, path).body(agentcube_testkit::tape::JSON_PATCH, body)).await?;
    Ok(())
}

async fn defined(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({"size": {"type": "integer"}, "in": {"type": "object", "properties": {"x": {"type": "integer"}}}})), WIDGETS)
        .await
}

async fn custom_unknown_strict(t: &mut Tape) -> Result {
    defined(t).await?;
    t.post(&format!("{WIDGETS}?fieldValidation=Strict"), widget("a", json!({"size": 1, "odd": 1}))).await?;
    Ok(())
}

async fn custom_nested_unknown(t: &mut Tape) -> Result {
    defined(t).await?;
    let mut body = widget("a", json!({"size": 1, "odd": 1, "in": {"y": 1}}));
    body["top"] = json!(1);
    body["metadata"]["odd"] = json!(1);
    t.post(&format!("{WIDGETS}?fieldValidation=Strict"), body).await?;
    Ok(())
}

async fn custom_unknown_warn(t: &mut Tape) -> Result {
    defined(t).await?;
    t.post(&format!("{WIDGETS}?fieldValidation=Warn"), widget("a", json!({"size": 1, "odd": 1}))).await?;
    t.patch(MERGE_PATCH, &format!("{WIDGETS}/a?fieldValidation=Warn"), json!({"spec": {"odd": 2}})).await?;
    t.patch(MERGE_PATCH, &format!("{WIDGETS}/a?fieldValidation=Strict"), json!({"spec": {"odd": 2}})).await?;
    Ok(())
}

async fn custom_duplicate(t: &mut Tape) -> Result {
    defined(t).await?;
    let body = r#"{"apiVersion":"{ns}.example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"size":1,"size":2}}"#;
    for mode in ["Strict", "Warn"] {
        let path = format!("{WIDGETS}?fieldValidation={mode}");
        t.send(Request::new(Method::POST, path).body("application/json", body)).await?;
    }
    Ok(())
}

async fn dry_run_create(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?dryRun=All"), config_map("a")).await?;
    t.get(&format!("{CM}/a")).await?;
    t.post(&format!("{CM}?dryRun=All"), config_map("Bad_Name")).await?;
    Ok(())
}

async fn dry_run_duplicate(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.post(&format!("{CM}?dryRun=All"), config_map("a")).await?;
    Ok(())
}

async fn dry_run_generate_name(t: &mut Tape) -> Result {
    let mut body = config_map("");
    body["metadata"] = json!({"generateName": "made-"});
    t.post(&format!("{CM}?dryRun=All"), body).await?;
    Ok(())
}

async fn dry_run_update(t: &mut Tape) -> Result {
    let mut object = t.post(CM, config_map("a")).await?.value();
    object["data"]["k"] = json!("w");
    t.put(&format!("{CM}/a?dryRun=All"), object.clone()).await?;
    t.get(&format!("{CM}/a")).await?;
    object["metadata"]["resourceVersion"] = json!("1");
    t.send_viewed(Request::new(Method::PUT, format!("{CM}/a?dryRun=All")).json(&object), |value| value)
        .await?;
    Ok(())
}

async fn dry_run_patch(t: &mut Tape) -> Result {
    t.setup(DEPLOYMENTS, deployment("a")).await?;
    t.patch(MERGE_PATCH, &format!("{DEPLOYMENTS}/a?dryRun=All"), json!({"spec": {"replicas": 3}})).await?;
    t.get(&format!("{DEPLOYMENTS}/a")).await?;
    Ok(())
}

async fn dry_run_custom_resource(t: &mut Tape) -> Result {
    defined(t).await?;
    t.post(&format!("{WIDGETS}?dryRun=All"), widget("a", json!({"size": 1}))).await?;
    t.post(&format!("{WIDGETS}?dryRun=All"), widget("a", json!({"size": "x"}))).await?;
    t.get(&format!("{WIDGETS}/a")).await?;
    Ok(())
}

async fn bad_dry_run(t: &mut Tape) -> Result {
    t.post(&format!("{CM}?dryRun=Some"), config_map("a")).await?;
    t.get(&format!("{CM}/a")).await?;
    Ok(())
}
