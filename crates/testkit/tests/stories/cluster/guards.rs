//! What a TaskGateway keeps from instances, by Envoy.

use std::collections::BTreeSet;

use agentcube_testkit::cluster::whole::SYSTEM;
use agentcube_testkit::{Request, rights};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::world::{LIMIT, LOOK, World, expect, name, sessions};

/// By the names of their Deployments.
const ROLES: [&str; 4] =
    ["agentcube-controllers", "agentcube-router", "agentcube-fastpath", "agentcube-janitor"];

pub(crate) async fn rate_limit(world: &World) -> Result<()> {
    let cluster = world.cluster().context("it is a cluster")?;
    let limit = json!({ "rateLimiting": { "perRoute": { "requestsPerUnit": 3, "unit": "Hour" } } });
    let address = cluster.gateway("limited", limit).await?;
    let mut spec = sessions(json!({ "scalingMode": "OnDemand" }));
    spec["routing"]["gatewayRefs"] = json!(["limited"]);
    world.task("limited", spec).await?;
    let headers = [("x-session-id", "ada")];
    let ask = async || world.ask_at(address, Method::GET, "/default/limited/", &headers, "").await;
    let mut statuses = Vec::new();
    let asking = async {
        while statuses.len() < 5 {
            match ask().await?.status {
                // Each thread of Envoy hears of the route by itself; where there is none yet, nothing is counted.
                404 => tokio::time::sleep(LOOK).await,
                status => statuses.push(status),
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, asking).await.context("Envoy never hears of the route")??;
    expect(statuses == [200, 200, 200, 429, 429], "three an hour, and no more", &statuses)?;
    world.remove("limited").await?;
    world.run(&["delete", "taskgateway", "limited"]).await?;
    Ok(())
}

/// Asked of the server; and none of the parts was refused anything while everything above went on.
pub(crate) async fn rights(world: &World) -> Result<()> {
    rights::check(&world.http, false).await?;
    let pods = format!("/api/v1/namespaces/{SYSTEM}/pods");
    let all = world.http.send(Request::new(Method::GET, &*pods)).await?.value();
    let mut looked = BTreeSet::new();
    let running =
        |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    for pod in all["items"].as_array().into_iter().flatten().filter(running) {
        let log = format!("{pods}/{}/log", name(pod));
        let log = world.http.send(Request::new(Method::GET, &*log)).await?;
        ensure!(log.is_success(), "{}", log.value());
        let told = String::from_utf8_lossy(&log.bytes).to_lowercase();
        let line = told.lines().find(|line| line.contains("forbidden") || line.contains("panicked"));
        ensure!(line.is_none(), "{}: {}", name(pod), line.unwrap_or_default());
        looked.extend(pod["metadata"]["labels"]["app.kubernetes.io/name"].as_str());
    }
    expect(looked.is_superset(&ROLES.into()), "every role has a Pod", &looked)
}

/// Code of strangers runs on gVisor.
pub(crate) async fn gvisor(world: &World) -> Result<()> {
    crate::examples::interpreter_on(world, async || {
        let pods = world.pods("code-interpreter").await?;
        let class = pods.iter().all(|pod| pod["spec"]["runtimeClassName"] == "gvisor");
        expect(class && !pods.is_empty(), "its Pods are of gVisor's class", &pods)?;
        let headers = [("x-user-id", "ada")];
        let code = "print(open('/proc/version').read())";
        let answer = world.ask(Method::POST, "/default/code-interpreter/", &headers, code).await?;
        let kernel = std::fs::read_to_string("/proc/version")?;
        expect(
            answer.status == 200 && answer.text().trim() != kernel.trim(),
            "it has another kernel",
            &answer,
        )
    })
    .await
}
