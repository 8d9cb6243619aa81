//! How sessions, instances and Tasks end.

use agentcube_testkit::Request;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result};
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::world::{LEASES, LIMIT, LOOK, World, annotation, condition, expect, name, of, sessions};

fn none(pods: &[&Value]) -> bool {
    pods.is_empty()
}

pub(crate) async fn idle(world: &World) -> Result<()> {
    let lifecycle = json!({ "reusePolicy": "Never", "idleTimeout": "2s" });
    let scaling = json!({ "scalingMode": "OnDemand", "instanceLifecycle": lifecycle });
    world.task("idle", sessions(scaling)).await?;
    let first = world.say("idle", "ada", "hello").await?;
    expect(first.json()["turn"] == 1, "it begins", &first)?;
    world.pods_until("idle", "the instance is deleted", none).await?;
    let over = |leases: &Objects| of(leases, "idle").next().is_none();
    watch::until(&world.http, LEASES, "the session is over", LIMIT, over).await?;
    world.event("idle", "idle").await?;
    if world.cluster().is_none() {
        seen(world).await?;
    }
    world.remove("idle").await
}

/// What operators see of it.
async fn seen(world: &World) -> Result<()> {
    let metrics = world.http.send(Request::new(Method::GET, "/metrics")).await?;
    let counted = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for name in [
        r#"agentcube_reclaimed_total{reason="SessionIdle"} "#,
        r#"agentcube_reserve_seconds_count{namespace="default",task="idle",path="waited"} 1"#,
        r#"agentcube_requests_total{namespace="default",task="idle",outcome="passed",reason="",status="2xx"} 1"#,
    ] {
        expect(counted.contains(name), name, &counted)?;
    }
    let again = world.say("idle", "ada", "hello").await?;
    expect(again.json()["turn"] == 1, "the key begins anew", &again)?;
    let known = world.http.send(Request::new(Method::GET, "/debug/sessions?task=idle")).await?;
    let known = String::from_utf8_lossy(&known.bytes).into_owned();
    expect(
        known.contains(r#""lastReserve":"waited""#) && !known.contains("ada"),
        "its session is seen",
        &known,
    )
}

pub(crate) async fn ttl(world: &World) -> Result<()> {
    let scaling = json!({ "scalingMode": "OnDemand", "instanceLifecycle": { "ttl": "20s" } });
    world.task("mortal", sessions(scaling)).await?;
    world.say("mortal", "ada", "hello").await?.instance()?;
    world.pods_until("mortal", "the instance has lived long enough", none).await?;
    world.event("mortal", "ttl").await?;
    world.remove("mortal").await
}

pub(crate) async fn reuse(world: &World) -> Result<()> {
    let lifecycle = json!({ "reusePolicy": "Always", "idleTimeout": "5s" });
    let scaling = json!({ "scalingMode": "OnDemand", "minInstances": 1, "maxInstances": 1,
        "instanceLifecycle": lifecycle });
    let mut spec = sessions(scaling);
    spec["routing"]["reserveTimeout"] = json!("120s");
    world.task("shared", spec).await?;
    let first = world.say("shared", "ada", "hello").await?.instance()?;
    let uid = world.pods("shared").await?[0]["metadata"]["uid"].clone();
    let free = |pods: &[&Value]| {
        pods.iter().all(|pod| annotation(pod, "agentcube.io/reserve-key").is_empty()) && pods.len() == 1
    };
    let pods = world.pods_until("shared", "the instance is free again", free).await?;
    expect(pods[0]["metadata"]["uid"] == uid, "it is the same Pod", &name(&pods[0]))?;
    let second = world.say("shared", "bob", "hello").await?.instance()?;
    expect(second == first, "the next session has it", &second)?;
    let pods = world.pods("shared").await?;
    expect(annotation(&pods[0], "agentcube.io/reserve-key") == "bob", "and is named by it", &pods[0])?;
    world.remove("shared").await
}

pub(crate) async fn stream(world: &World) -> Result<()> {
    let scaling = json!({ "scalingMode": "OnDemand", "instanceLifecycle": { "idleTimeout": "4s" } });
    world.task("stream", sessions(scaling)).await?;
    let first = world.say("stream", "ada", "hello").await?.instance()?;
    // Some fifty words at 300 ms: several times as long as a session may be idle.
    let words = "one two three four five six seven eight nine ten ".repeat(4);
    let headers = [("x-session-id", "ada")];
    let answer = world.begin(Method::POST, "/default/stream/stream", &headers, &words).await?;
    let mut body = answer.into_body();
    let begun = tokio::time::timeout(LIMIT, body.frame()).await?.context("it says nothing")??;
    let begun = begun.into_data().map(|data| String::from_utf8_lossy(&data).into_owned());
    let begun = begun.unwrap_or_default();
    expect(!begun.contains("event: done"), "what is said is heard while the rest is to come", &begun)?;
    let rest = tokio::time::timeout(LIMIT, body.collect()).await.context("it has no end")??.to_bytes();
    let text = begun + &String::from_utf8_lossy(&rest);
    expect(text.contains("event: done") && text.contains(&first), "it was heard to its end", &text)?;
    let after = world.say("stream", "ada", "hello").await?;
    expect(after.json()["turn"] == 3, "and the session goes on", &after)?;
    world.pods_until("stream", "then it ends as any other", none).await?;
    world.remove("stream").await
}

pub(crate) async fn task(world: &World) -> Result<()> {
    world.task("leaving", sessions(json!({ "scalingMode": "OnDemand" }))).await?;
    world.say("leaving", "ada", "hello").await?.instance()?;
    let ready = |pods: &[&Value]| pods.iter().any(|pod| condition(pod, "Ready"));
    world.pods_until("leaving", "its instance runs", ready).await?;
    // Waits for Pods and Leases to be gone as well.
    world.remove("leaving").await?;
    for kind in ["httproutes", "podtemplates", "secrets"] {
        let group = if kind == "httproutes" { "/apis/gateway.networking.k8s.io/v1" } else { "/api/v1" };
        let path = format!("{group}/namespaces/default/{kind}");
        let none = |objects: &Objects| objects.keys().all(|name| !name.starts_with("leaving"));
        watch::until(&world.http, &path, "its children are gone", LIMIT, none).await?;
    }
    let mut refused = world.say("leaving", "ada", "hello").await?;
    // The gateway hears of it in its own time, and until then has nobody to ask.
    let hearing = async {
        while refused.status == 503 {
            tokio::time::sleep(LOOK).await;
            refused = world.say("leaving", "ada", "hello").await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, hearing).await.context("the gateway never hears that the Task is gone")??;
    // Envoy knows of no route either, and says less.
    let told = world.cluster().is_some() || refused.refusal() == "NoRoute";
    expect(refused.status == 404 && told, "nobody answers for it", &refused)?;
    let reply = world.http.send(Request::new(Method::GET, "/readyz")).await?;
    expect(reply.status == 200, "the platform is well", &reply)
}
