//! Reading: get and list, selectors, pages, resource versions.

use agentcube_testkit::{Reply, Tape};
use serde_json::json;

use crate::cases::{Result, cases};
use crate::fixtures::{CM, PODS, config_map, labelled, pod};

cases!("read":
    get_missing, list_empty, list_of_one, label_equality, label_sets, label_existence, label_bad_selectors,
    field_name_selectors, field_pod_selectors, field_bad_selectors, pages, page_with_selector, bad_continue,
    bad_limit, get_at_versions, list_at_versions, list_version_match, list_bad_version_match, too_large_version,
    list_all_namespaces, get_wrong_namespace, list_missing_namespace, list_items_have_no_kind, get_pretty_query,
    combined_selectors,
);

async fn three(t: &mut Tape) -> Result {
    t.setup(CM, labelled("a", json!({"case": "{ns}", "app": "web", "tier": "front"}))).await?;
    t.setup(CM, labelled("b", json!({"case": "{ns}", "app": "db", "tier": "back"}))).await?;
    t.setup(CM, labelled("c", json!({"case": "{ns}", "app": "web"}))).await?;
    Ok(())
}

/// Only the names: what a selector is about.
async fn names(t: &mut Tape, path: &str) -> Result {
    t.send_viewed(agentcube_testkit::Request::new(http::Method::GET, path), |value| {
        match value["items"].as_array() {
            Some(items) => items.iter().map(|item| item["metadata"]["name"].clone()).collect(),
            None => value,
        }
    })
    .await?;
    Ok(())
}

async fn get_missing(t: &mut Tape) -> Result {
    t.get(&format!("{CM}/none")).await?;
    t.get("/apis/apps/v1/namespaces/{ns}/deployments/none").await?;
    t.get("/api/v1/namespaces/{ns}-none").await?;
    Ok(())
}

async fn list_empty(t: &mut Tape) -> Result {
    t.get("/api/v1/namespaces/{ns}/secrets").await?;
    t.get("/apis/apps/v1/namespaces/{ns}/deployments").await?;
    Ok(())
}

async fn list_of_one(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get(CM).await?;
    Ok(())
}

async fn list_items_have_no_kind(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    t.get(PODS).await?;
    Ok(())
}

async fn label_equality(t: &mut Tape) -> Result {
    three(t).await?;
    for selector in
        ["app=web", "app==web", "app%3Dweb", "app!=web", "app=web,tier=front", "app=", "app%3D%20web"]
    {
        names(t, &format!("{CM}?labelSelector={selector}")).await?;
    }
    Ok(())
}

async fn label_sets(t: &mut Tape) -> Result {
    three(t).await?;
    for selector in [
        "app%20in%20(web,db)",
        "app%20notin%20(web)",
        "tier%20in%20(front),app",
        "tier%20in%20(,front)",
        "app%20in%20()",
        "tier%20notin%20(front,back)",
    ] {
        names(t, &format!("{CM}?labelSelector={selector}")).await?;
    }
    Ok(())
}

async fn label_existence(t: &mut Tape) -> Result {
    three(t).await?;
    for selector in ["tier", "!tier", "app,!tier", "none"] {
        names(t, &format!("{CM}?labelSelector={selector}")).await?;
    }
    Ok(())
}

async fn label_bad_selectors(t: &mut Tape) -> Result {
    for selector in [
        "a%20b",
        "%3D%3D",
        "app%20in%20web",
        "bad!key=x",
        "app=bad%20value!",
        "app%20in%20(web",
        ",",
        "x%3Ey",
    ] {
        t.get(&format!("{CM}?labelSelector={selector}")).await?;
    }
    Ok(())
}

async fn field_name_selectors(t: &mut Tape) -> Result {
    three(t).await?;
    for selector in [
        "metadata.name=a",
        "metadata.name!=a",
        "metadata.name==b",
        "metadata.namespace={ns}",
        "metadata.name=a,metadata.namespace={ns}",
        "metadata.namespace=other",
    ] {
        names(t, &format!("{CM}?fieldSelector={selector}")).await?;
    }
    Ok(())
}

async fn field_pod_selectors(t: &mut Tape) -> Result {
    t.setup(PODS, pod("a")).await?;
    let mut placed = pod("b");
    placed["spec"]["nodeName"] = json!("node-1");
    t.setup(PODS, placed).await?;
    for selector in [
        "spec.nodeName=node-1",
        "spec.nodeName=",
        "status.phase=Pending",
        "status.phase!=Pending",
        "spec.restartPolicy=Always",
    ] {
        names(t, &format!("{PODS}?fieldSelector={selector}")).await?;
    }
    Ok(())
}

async fn field_bad_selectors(t: &mut Tape) -> Result {
    for selector in ["spec.nonsense=x", "metadata.name", "data.k=v", "metadata.uid=1"] {
        t.get(&format!("{CM}?fieldSelector={selector}")).await?;
    }
    t.get(&format!("{PODS}?fieldSelector=spec.nonsense=x")).await?;
    Ok(())
}

async fn combined_selectors(t: &mut Tape) -> Result {
    three(t).await?;
    names(t, &format!("{CM}?labelSelector=app%3Dweb&fieldSelector=metadata.name%3Dc")).await?;
    Ok(())
}

fn next_page(reply: &Reply) -> anyhow::Result<String> {
    reply.text("/metadata/continue")
}

async fn pages(t: &mut Tape) -> Result {
    for name in ["a", "b", "c", "d", "e"] {
        t.setup(CM, config_map(name)).await?;
    }
    let first = t.get(&format!("{CM}?limit=2")).await?;
    t.setup(CM, config_map("bb")).await?;
    let second = t.get(&format!("{CM}?limit=2&continue={}", next_page(&first)?)).await?;
    t.get(&format!("{CM}?limit=2&continue={}", next_page(&second)?)).await?;
    t.get(&format!("{CM}?limit=2&resourceVersion=5&continue={}", next_page(&second)?)).await?;
    Ok(())
}

async fn page_with_selector(t: &mut Tape) -> Result {
    three(t).await?;
    let first = t.get(&format!("{CM}?limit=1&labelSelector=app%3Dweb")).await?;
    t.get(&format!("{CM}?limit=1&labelSelector=app%3Dweb&continue={}", next_page(&first)?)).await?;
    Ok(())
}

async fn bad_continue(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?limit=2&continue=nonsense")).await?;
    t.get(&format!("{CM}?limit=2&continue=e30")).await?;
    Ok(())
}

async fn bad_limit(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?limit=many")).await?;
    t.get(&format!("{CM}?limit=-1")).await?;
    Ok(())
}

async fn get_at_versions(t: &mut Tape) -> Result {
    let created = t.post(CM, config_map("a")).await?;
    let version = created.text("/metadata/resourceVersion")?;
    t.get(&format!("{CM}/a?resourceVersion={version}")).await?;
    t.get(&format!("{CM}/a?resourceVersion=0")).await?;
    t.get(&format!("{CM}/a?resourceVersion=nonsense")).await?;
    Ok(())
}

async fn list_at_versions(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    let version = t.post(CM, config_map("b")).await?.text("/metadata/resourceVersion")?;
    names(t, &format!("{CM}?resourceVersion={version}")).await?;
    t.get(&format!("{CM}?resourceVersion=nonsense")).await?;
    Ok(())
}

async fn list_version_match(t: &mut Tape) -> Result {
    let created = t.post(CM, config_map("a")).await?;
    let version = created.text("/metadata/resourceVersion")?;
    let newer = t.post(CM, config_map("b")).await?.text("/metadata/resourceVersion")?;
    names(t, &format!("{CM}?resourceVersion={newer}&resourceVersionMatch=NotOlderThan")).await?;
    names(t, &format!("{CM}?resourceVersion={version}&resourceVersionMatch=Exact")).await?;
    Ok(())
}

async fn list_bad_version_match(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?resourceVersionMatch=Exact")).await?;
    t.get(&format!("{CM}?resourceVersion=0&resourceVersionMatch=Exact")).await?;
    t.get(&format!("{CM}?resourceVersion=5&resourceVersionMatch=Sometimes")).await?;
    Ok(())
}

async fn too_large_version(t: &mut Tape) -> Result {
    t.get(&format!("{CM}?resourceVersion=999999999&resourceVersionMatch=Exact")).await?;
    t.get(&format!("{CM}?resourceVersion=999999999")).await?;
    Ok(())
}

async fn list_all_namespaces(t: &mut Tape) -> Result {
    three(t).await?;
    names(t, "/api/v1/configmaps?labelSelector=case%3D{ns}").await?;
    t.get("/api/v1/configmaps/a").await?;
    Ok(())
}

async fn get_wrong_namespace(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get("/api/v1/namespaces/default/configmaps/{ns}").await?;
    Ok(())
}

async fn list_missing_namespace(t: &mut Tape) -> Result {
    t.get("/api/v1/namespaces/{ns}-none/configmaps").await?;
    Ok(())
}

async fn get_pretty_query(t: &mut Tape) -> Result {
    t.setup(CM, config_map("a")).await?;
    t.get(&format!("{CM}/a?pretty=true")).await?;
    t.get(&format!("{CM}/a?nonsense=true")).await?;
    Ok(())
}
