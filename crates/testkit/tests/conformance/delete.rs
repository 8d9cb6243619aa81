//! Deleting objects: preconditions, finalizers, grace, whole collections.

use agentcube_testkit::Tape;
use agentcube_testkit::tape::MERGE_PATCH;
use serde_json::json;

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, PODS, SECRETS, config_map, deployment, labelled, pod};

cases!("delete":
    answers_with_status, missing, uid_precondition, version_precondition, finalizer_holds, second_delete_while_held,
    pod_unscheduled_goes_at_once, pod_scheduled_has_grace, pod_grace_zero, pod_grace_shortened, collection,
    collection_by_label, collection_by_field, bad_propagation, orphan_and_policy_together, foreground_mark,
    orphan_mark, query_options, bad_options_body, deployment_answer, dry_run, empty_collection,
    negative_grace, pod_version_precondition,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

async fn answers_with_status(t: &mut Tape) -> Result {
    t.post(CM, config_map("a")).await?;
    t.delete(&at(CM, "a")).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn deployment_answer(t: &mut Tape) -> Result {
    t.post(DEPLOYMENTS, deployment("a")).await?;
    t.delete(&at(DEPLOYMENTS, "a")).await?;
    Ok(())
}

async fn missing(t: &mut Tape) -> Result {
    t.delete(&at(CM, "none")).await?;
    Ok(())
}

async fn uid_precondition(t: &mut Tape) -> Result {
    let uid = t.post(CM, config_map("a")).await?.text("/metadata/uid")?;
    let other = json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}});
    t.delete_with(&at(CM, "a"), other).await?;
    t.delete_with(&at(CM, "a"), json!({"preconditions": {"uid": uid}})).await?;
    Ok(())
}

async fn version_precondition(t: &mut Tape) -> Result {
    let version = t.post(CM, config_map("a")).await?.text("/metadata/resourceVersion")?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"data": {"k": "w"}})).await?;
    t.delete_with(&at(CM, "a"), json!({"preconditions": {"resourceVersion": version}})).await?;
    Ok(())
}

/// The mark that a Pod gets before it goes is the server's own: it does not break the caller's precondition.
async fn pod_version_precondition(t: &mut Tape) -> Result {
    let version = t.post(PODS, pod("a")).await?.text("/metadata/resourceVersion")?;
    let outdated = json!({"preconditions": {"resourceVersion": version}});
    let version = t
        .patch(MERGE_PATCH, &at(PODS, "a"), json!({"metadata": {"labels": {"k": "v"}}}))
        .await?
        .text("/metadata/resourceVersion")?;
    t.delete_with(&at(PODS, "a"), outdated).await?;
    t.delete_with(&at(PODS, "a"), json!({"preconditions": {"resourceVersion": version}})).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn hold(t: &mut Tape) -> Result {
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    t.post(CM, body).await?;
    Ok(())
}

async fn finalizer_holds(t: &mut Tape) -> Result {
    hold(t).await?;
    t.delete(&at(CM, "a")).await?;
    t.get(&at(CM, "a")).await?;
    t.patch(MERGE_PATCH, &at(CM, "a"), json!({"metadata": {"finalizers": null}})).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn second_delete_while_held(t: &mut Tape) -> Result {
    hold(t).await?;
    t.delete(&at(CM, "a")).await?;
    t.delete(&at(CM, "a")).await?;
    t.post(CM, config_map("a")).await?;
    t.aside(
        agentcube_testkit::Request::new(http::Method::PATCH, at(CM, "a"))
            .body(MERGE_PATCH, r#"{"metadata":{"finalizers":null}}"#),
    )
    .await?;
    Ok(())
}

async fn pod_unscheduled_goes_at_once(t: &mut Tape) -> Result {
    t.post(PODS, pod("a")).await?;
    t.delete(&at(PODS, "a")).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn scheduled(t: &mut Tape) -> Result {
    let mut body = pod("a");
    body["spec"]["nodeName"] = json!("node-1");
    t.setup(PODS, body).await?;
    Ok(())
}

async fn pod_scheduled_has_grace(t: &mut Tape) -> Result {
    scheduled(t).await?;
    t.delete(&at(PODS, "a")).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 0})).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn pod_grace_zero(t: &mut Tape) -> Result {
    scheduled(t).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 0})).await?;
    t.get(&at(PODS, "a")).await?;
    Ok(())
}

async fn pod_grace_shortened(t: &mut Tape) -> Result {
    scheduled(t).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 60})).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 10})).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 40})).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": 0})).await?;
    Ok(())
}

async fn negative_grace(t: &mut Tape) -> Result {
    scheduled(t).await?;
    t.delete_with(&at(PODS, "a"), json!({"gracePeriodSeconds": -1})).await?;
    Ok(())
}

async fn labelled_three(t: &mut Tape) -> Result {
    t.setup(CM, labelled("a", json!({"app": "x"}))).await?;
    t.setup(CM, labelled("b", json!({"app": "y"}))).await?;
    t.setup(CM, labelled("c", json!({"app": "x"}))).await?;
    Ok(())
}

async fn collection(t: &mut Tape) -> Result {
    labelled_three(t).await?;
    t.delete(CM).await?;
    t.get(CM).await?;
    Ok(())
}

async fn collection_by_label(t: &mut Tape) -> Result {
    labelled_three(t).await?;
    t.delete(&format!("{CM}?labelSelector=app%3Dx")).await?;
    t.get(CM).await?;
    Ok(())
}

async fn collection_by_field(t: &mut Tape) -> Result {
    labelled_three(t).await?;
    t.delete(&format!("{CM}?fieldSelector=metadata.name%3Db")).await?;
    t.get(CM).await?;
    Ok(())
}

async fn empty_collection(t: &mut Tape) -> Result {
    t.delete(SECRETS).await?;
    t.delete("/api/v1/secrets?labelSelector=case%3D{ns}").await?;
    Ok(())
}

async fn bad_propagation(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.delete_with(&at(CM, "a"), json!({"propagationPolicy": "Sometimes"})).await?;
    Ok(())
}

async fn orphan_and_policy_together(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.delete_with(&at(CM, "a"), json!({"propagationPolicy": "Background", "orphanDependents": true})).await?;
    Ok(())
}

/// A finalizer of the test's own keeps the object, so that the mark can be seen before the collector acts.
async fn foreground_mark(t: &mut Tape) -> Result {
    hold(t).await?;
    t.delete_with(&at(CM, "a"), json!({"propagationPolicy": "Foreground"})).await?;
    t.aside(
        agentcube_testkit::Request::new(http::Method::PATCH, at(CM, "a"))
            .body(MERGE_PATCH, r#"{"metadata":{"finalizers":null}}"#),
    )
    .await?;
    Ok(())
}

async fn orphan_mark(t: &mut Tape) -> Result {
    hold(t).await?;
    t.delete_with(&at(CM, "a"), json!({"propagationPolicy": "Orphan"})).await?;
    t.aside(
        agentcube_testkit::Request::new(http::Method::PATCH, at(CM, "a"))
            .body(MERGE_PATCH, r#"{"metadata":{"finalizers":null}}"#),
    )
    .await?;
    Ok(())
}

async fn query_options(t: &mut Tape) -> Result {
    scheduled(t).await?;
    t.delete(&format!("{PODS}/a?gracePeriodSeconds=5&propagationPolicy=Background")).await?;
    t.delete(&format!("{PODS}/a?gracePeriodSeconds=0")).await?;
    Ok(())
}

async fn bad_options_body(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let delete = || agentcube_testkit::Request::new(http::Method::DELETE, at(CM, "a"));
    t.send(delete().body("application/json", "{not json")).await?;
    t.send(delete().json(&json!({"apiVersion": "v1", "kind": "ConfigMap"}))).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}

async fn dry_run(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.delete_with(&at(CM, "a"), json!({"dryRun": ["All"]})).await?;
    t.delete(&format!("{CM}/a?dryRun=All")).await?;
    t.delete(&format!("{CM}?dryRun=All")).await?;
    t.get(&at(CM, "a")).await?;
    Ok(())
}
