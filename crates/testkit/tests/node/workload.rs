//! What the campaigns have running besides bare Pods, and the wait until all of it is as it was asked for.

use std::time::Duration;

use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Reply, Request};
use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::manifests;

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
pub(crate) const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
pub(crate) const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// A debug build on a busy machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// A Deployment, a StatefulSet with claims, and a Job.
pub(crate) async fn create(http: &HttpClient, place: &Place) -> Result<()> {
    post(http, DEPLOYMENTS, &manifests::deployment(place, "web", 3)).await?;
    post(http, STATEFUL_SETS, &manifests::stateful_set(place, "db", 2)).await?;
    post(http, JOBS, &manifests::job(place, "work")).await?;
    Ok(())
}

pub(crate) async fn post(http: &HttpClient, path: &str, object: &Value) -> Result<Reply> {
    let reply = http.send(Request::new(Method::POST, path).json(object)).await?;
    ensure!(reply.status == 201, "cannot create at {path}: {}", reply.value());
    Ok(reply)
}

/// Waits until every workload has what it wants, and every Pod of `bare` is ready.
pub(crate) async fn settled(http: &HttpClient, bare: &[String]) -> Result<()> {
    let all_ready = |objects: &Objects| objects.values().all(has_its_replicas);
    watch::until(http, DEPLOYMENTS, "Deployments are available", LIMIT, all_ready).await?;
    watch::until(http, STATEFUL_SETS, "StatefulSets are ready", LIMIT, all_ready).await?;
    let complete = |objects: &Objects| objects.values().all(|job| condition(job, "Complete"));
    watch::until(http, JOBS, "Jobs are complete", LIMIT, complete).await?;
    let ready =
        |pods: &Objects| bare.iter().all(|name| pods.get(name).is_some_and(|it| condition(it, "Ready")));
    let nobody_leaves = |pods: &Objects| pods.values().all(|pod| !leaves(pod));
    let rest = |pods: &Objects| ready(pods) && nobody_leaves(pods);
    watch::until(http, PODS, "Pods run again, and deleted ones are gone", LIMIT, rest).await?;
    Ok(())
}

fn has_its_replicas(object: &Value) -> bool {
    let status = &object["status"];
    let wanted = object["spec"]["replicas"].as_u64();
    let ready = status["readyReplicas"].as_u64().unwrap_or(0);
    let there = status["replicas"].as_u64().unwrap_or(0);
    object["metadata"]["generation"] == status["observedGeneration"]
        && wanted == Some(ready)
        && there == ready
}

pub(crate) fn condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == name && it["status"] == "True")
}

pub(crate) fn leaves(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Deletes everything, and waits until it is gone.
pub(crate) async fn delete_all(http: &HttpClient) -> Result<()> {
    let background = json!({"propagationPolicy": "Background"});
    for path in [DEPLOYMENTS, STATEFUL_SETS, JOBS, PODS, CLAIMS] {
        let reply = http.send(Request::new(Method::DELETE, path).json(&background)).await?;
        ensure!(reply.is_success(), "cannot delete {path}: {}", reply.value());
    }
    for path in [DEPLOYMENTS, STATEFUL_SETS, JOBS, PODS, CLAIMS, VOLUMES] {
        watch::until(http, path, "everything is gone", LIMIT, Objects::is_empty).await?;
    }
    Ok(())
}
