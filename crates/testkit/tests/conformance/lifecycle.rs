//! What the control plane does by itself: namespace deletion and owner garbage collection.

use std::time::Duration;

use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Request, Tape};
use http::Method;
use serde_json::{Value, json};

use crate::cases::{Result, cases};
use crate::fixtures::{CM, DEPLOYMENTS, WIDGETS, config_map, deployment, widget, widget_crd};

cases!("lifecycle":
    namespace_empties, namespace_waits_for_finalizers, terminating_namespace_refuses, default_namespaces,
    namespace_finalize, owned_goes_with_owner, foreground_waits_for_dependents, orphan_keeps_dependents,
    missing_owner_collects, two_owners_keep, custom_owner, namespace_deletes_custom_resources, chain_of_owners,
    namespace_status, namespace_label, owner_of_other_namespace,
);

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

const OTHER: &str = "/api/v1/namespaces/{ns}-o";

async fn other_namespace(t: &mut Tape) -> Result {
    t.remove_later(OTHER);
    t.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-o"}}),
    )
    .await?;
    Ok(())
}

async fn namespace_empties(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    t.setup(&at(OTHER, "configmaps"), config_map("a")).await?;
    t.setup("/apis/apps/v1/namespaces/{ns}-o/deployments", deployment("a")).await?;
    t.delete(OTHER).await?;
    t.eventually(OTHER, |reply| reply.status == 404).await?;
    t.get(&at(OTHER, "configmaps/a")).await?;
    t.get("/apis/apps/v1/namespaces/{ns}-o/deployments/a").await?;
    Ok(())
}

fn held(name: &str) -> Value {
    let mut body = config_map(name);
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    body
}

async fn release(t: &mut Tape, path: &str) -> Result {
    let body = r#"{"metadata":{"finalizers":null}}"#;
    t.aside(Request::new(Method::PATCH, path).body(MERGE_PATCH, body)).await?;
    Ok(())
}

async fn namespace_waits_for_finalizers(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    t.setup(&at(OTHER, "configmaps"), held("a")).await?;
    t.setup(&at(OTHER, "configmaps"), config_map("b")).await?;
    t.aside(Request::new(Method::DELETE, OTHER)).await?;
    t.wait(&at(OTHER, "configmaps/b"), |reply| reply.status == 404).await?;
    t.eventually(&at(OTHER, "configmaps/a"), |reply| {
        reply.value()["metadata"].get("deletionTimestamp").is_some()
    })
    .await?;
    t.eventually(OTHER, |reply| {
        reply.value()["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions.iter().any(|condition| {
                condition["type"] == "NamespaceFinalizersRemaining" && condition["status"] == "True"
            })
        })
    })
    .await?;
    release(t, &at(OTHER, "configmaps/a")).await?;
    t.eventually(OTHER, |reply| reply.status == 404).await?;
    Ok(())
}

async fn terminating_namespace_refuses(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    t.setup(&at(OTHER, "configmaps"), held("a")).await?;
    t.delete(OTHER).await?;
    t.post(&at(OTHER, "configmaps"), config_map("late")).await?;
    release(t, &at(OTHER, "configmaps/a")).await
}

async fn default_namespaces(t: &mut Tape) -> Result {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        t.get(&format!("/api/v1/namespaces/{name}")).await?;
    }
    t.delete("/api/v1/namespaces/default").await?;
    t.delete("/api/v1/namespaces/kube-system").await?;
    Ok(())
}

async fn namespace_finalize(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    let mut namespace = t.aside(Request::new(Method::GET, OTHER)).await?.value();
    namespace["spec"]["finalizers"] = json!(["kubernetes", "example.com/more"]);
    t.put(&at(OTHER, "finalize"), namespace.clone()).await?;
    namespace["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
    namespace["spec"]["finalizers"] = json!(["kubernetes"]);
    t.put(&at(OTHER, "finalize"), namespace).await?;
    Ok(())
}

async fn namespace_status(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    t.patch(MERGE_PATCH, &at(OTHER, "status"), json!({"metadata": {"annotations": {"a": "b"}}})).await?;
    Ok(())
}

async fn namespace_label(t: &mut Tape) -> Result {
    other_namespace(t).await?;
    t.patch(MERGE_PATCH, OTHER, json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "lie"}}}))
        .await?;
    t.patch(MERGE_PATCH, OTHER, json!({"metadata": {"labels": null}})).await?;
    t.patch(MERGE_PATCH, OTHER, json!({"spec": {"finalizers": ["example.com/more"]}})).await?;
    Ok(())
}

/// Creates `name`, owned by the object at `owner`.
async fn owned(t: &mut Tape, name: &str, owners: &[(&str, Option<bool>)]) -> Result {
    let mut references = Vec::new();
    for (owner, block) in owners {
        let owner = t.aside(Request::new(Method::GET, *owner)).await?.value();
        let mut reference = json!({
            "apiVersion": owner["apiVersion"], "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        });
        if let Some(block) = block {
            reference["blockOwnerDeletion"] = json!(block);
        }
        references.push(reference);
    }
    let mut body = config_map(name);
    body["metadata"]["ownerReferences"] = Value::Array(references);
    t.setup(CM, body).await?;
    Ok(())
}

async fn owned_goes_with_owner(t: &mut Tape) -> Result {
    t.setup(CM, config_map("owner")).await?;
    owned(t, "child", &[(&at(CM, "owner"), None)]).await?;
    t.get(&at(CM, "child")).await?;
    t.delete(&at(CM, "owner")).await?;
    t.eventually(&at(CM, "child"), |reply| reply.status == 404).await?;
    Ok(())
}

async fn chain_of_owners(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    owned(t, "b", &[(&at(CM, "a"), None)]).await?;
    owned(t, "c", &[(&at(CM, "b"), None)]).await?;
    t.delete_with(&at(CM, "a"), json!({"propagationPolicy": "Background"})).await?;
    t.eventually(&at(CM, "c"), |reply| reply.status == 404).await?;
    Ok(())
}

async fn foreground_waits_for_dependents(t: &mut Tape) -> Result {
    t.setup(CM, config_map("owner")).await?;
    owned(t, "child", &[(&at(CM, "owner"), Some(true))]).await?;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}}).to_string();
    t.aside(Request::new(Method::PATCH, at(CM, "child")).body(MERGE_PATCH, hold)).await?;
    t.delete_with(&at(CM, "owner"), json!({"propagationPolicy": "Foreground"})).await?;
    t.eventually(&at(CM, "child"), |reply| reply.value()["metadata"].get("deletionTimestamp").is_some())
        .await?;
    t.get(&at(CM, "owner")).await?;
    release(t, &at(CM, "child")).await?;
    t.eventually(&at(CM, "owner"), |reply| reply.status == 404).await?;
    Ok(())
}

async fn orphan_keeps_dependents(t: &mut Tape) -> Result {
    t.setup(CM, config_map("owner")).await?;
    owned(t, "child", &[(&at(CM, "owner"), None)]).await?;
    // The collector must have seen the child: it only orphans what it knows.
    t.wait(&at(CM, "child"), agentcube_testkit::Reply::is_success).await?;
    t.delete_with(&at(CM, "owner"), json!({"propagationPolicy": "Orphan"})).await?;
    t.eventually(&at(CM, "owner"), |reply| reply.status == 404).await?;
    t.send_viewed(Request::new(Method::GET, at(CM, "child")), |value| {
        value["metadata"]["ownerReferences"].clone()
    })
    .await?;
    Ok(())
}

async fn missing_owner_collects(t: &mut Tape) -> Result {
    let mut body = config_map("child");
    body["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "00000000-0000-0000-0000-000000000000"},
    ]);
    t.setup(CM, body).await?;
    t.eventually(&at(CM, "child"), |reply| reply.status == 404).await?;
    Ok(())
}

async fn owner_of_other_namespace(t: &mut Tape) -> Result {
    let deployment_owner = t.post(DEPLOYMENTS, deployment("owner")).await?;
    let mut body = config_map("child");
    // The name exists, but under another identity: that owner is gone.
    body["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "owner", "uid": "00000000-0000-0000-0000-000000000000"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "owner", "uid": deployment_owner.text("/metadata/uid")?},
    ]);
    t.setup(CM, body).await?;
    t.eventually(&at(CM, "child"), |reply| {
        reply.value()["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|references| references.len() == 1)
    })
    .await?;
    Ok(())
}

async fn two_owners_keep(t: &mut Tape) -> Result {
    t.setup(CM, config_map("one")).await?;
    t.setup(CM, config_map("two")).await?;
    owned(t, "child", &[(&at(CM, "one"), None), (&at(CM, "two"), None)]).await?;
    t.delete(&at(CM, "one")).await?;
    t.eventually(&at(CM, "child"), |reply| {
        reply.value()["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|references| references.len() == 1)
    })
    .await?;
    Ok(())
}

async fn custom_owner(t: &mut Tape) -> Result {
    // The real collector looks for new kinds every half minute.
    t.be_patient(Duration::from_secs(100));
    t.define(widget_crd(json!({})), WIDGETS).await?;
    t.setup(WIDGETS, widget("owner", json!({}))).await?;
    owned(t, "child", &[(&at(WIDGETS, "owner"), None)]).await?;
    t.delete(&at(WIDGETS, "owner")).await?;
    t.eventually(&at(CM, "child"), |reply| reply.status == 404).await?;
    Ok(())
}

async fn namespace_deletes_custom_resources(t: &mut Tape) -> Result {
    t.define(widget_crd(json!({})), WIDGETS).await?;
    other_namespace(t).await?;
    let widgets = "/apis/{ns}.example.com/v1/namespaces/{ns}-o/widgets";
    let mut body = widget("a", json!({}));
    body["metadata"]["namespace"] = json!("{ns}-o");
    t.setup(widgets, body).await?;
    t.aside(Request::new(Method::DELETE, OTHER)).await?;
    t.eventually(&at(widgets, "a"), |reply| reply.status == 404).await?;
    t.eventually(OTHER, |reply| reply.status == 404).await?;
    Ok(())
}
