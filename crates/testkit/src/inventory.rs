//! What a server has: its resources, and the names of all objects, to see that nothing is left.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http_client::{HttpClient, Reply, Request};

/// Longer than a server takes to open the storage of a resource, unless it is broken.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// Path and resource of everything that the server serves, each in one version.
pub async fn resources(http: &HttpClient) -> Result<Vec<(String, Value)>> {
    let get = async |path: &str| -> Result<Value> {
        let reply = http.send(Request::new(Method::GET, path)).await?;
        ensure!(reply.is_success(), "{path}: {}", reply.value());
        Ok(reply.value())
    };
    let mut groups = vec!["/api/v1".to_owned()];
    for group in get("/apis").await?["groups"].as_array().into_iter().flatten() {
        let version = group["preferredVersion"]["groupVersion"].as_str().context("a version")?;
        groups.push(format!("/apis/{version}"));
    }
    let mut found = Vec::new();
    for path in groups {
        for resource in get(&path).await?["resources"].as_array().into_iter().flatten() {
            found.push((path.clone(), resource.clone()));
        }
    }
    Ok(found)
}

/// The names of all objects, but for those that come and go by themselves.
pub async fn objects(http: &HttpClient) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (path, resource) in resources(http).await? {
        let name = resource["name"].as_str().unwrap_or_default();
        let lists = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
        if !lists || name.contains('/') || matches!(name, "events" | "componentstatuses") {
            continue;
        }
        let path = format!("{path}/{name}");
        let reply = list(http, &path).await?;
        // What is defined, and not served yet or any more, has no objects.
        ensure!(reply.is_success() || reply.status == 404, "{path}: {}", reply.value());
        for object in reply.value()["items"].as_array().into_iter().flatten() {
            let of = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
            // By which parts of the cluster say that they are there: a kubelet makes its own a while after its start.
            let heartbeat = name == "leases" && ["kube-system", "kube-node-lease"].contains(&of("namespace"));
            if !heartbeat {
                found.insert(format!("{path} {}/{}", of("namespace"), of("name")));
            }
        }
    }
    Ok(found)
}

/// The answer to a list. A server that has just started, or just learned of a resource, says 429 until its storage is open.
pub(crate) async fn list(http: &HttpClient, path: &str) -> Result<Reply> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let reply = http.send(Request::new(Method::GET, path)).await?;
        if reply.status != 429 || Instant::now() > deadline {
            return Ok(reply);
        }
        tokio::time::sleep(LOOK).await;
    }
}
