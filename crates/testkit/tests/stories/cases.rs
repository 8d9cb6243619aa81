//! The design's end-to-end cases about who gets which instance.

use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde_json::json;

use crate::cluster::routers_at_rest;
use crate::world::{World, annotation, condition, distinct, expect, name, sessions};

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("user-{n}")).collect()
}

pub(crate) async fn oneshot_spread(world: &World) -> Result<()> {
    let spec = json!({
        "routing": { "routePolicy": "Oneshot" },
        "scaling": { "minInstances": 3, "instanceLifecycle": { "reusePolicy": "Always" } },
    });
    world.task("spread", spec).await?;
    let ready = |pods: &[&serde_json::Value]| pods.iter().filter(|pod| condition(pod, "Ready")).count() == 3;
    let pods = world.pods_until("spread", "three Pods are ready", ready).await?;
    if let Some(cluster) = world.cluster() {
        routers_at_rest(cluster, "spread", &pods).await?;
    }
    // Each is busy with one for as long as it speaks.
    let asking = (0..3).map(|_| world.ask(Method::POST, "/default/spread/stream", &[], "a b c"));
    let answers = futures_util::future::try_join_all(asking).await?;
    let instances: Vec<String> = answers.iter().filter_map(|answer| last_instance(&answer.text())).collect();
    expect(distinct(&instances) == 3, "three at once went to three instances", &instances)?;
    for pod in world.pods("spread").await? {
        expect(annotation(&pod, "agentcube.io/reserve-key").is_empty(), "a Oneshot reserves nothing", &pod)?;
    }
    world.remove("spread").await
}

/// The instance that the last event of a stream names.
fn last_instance(events: &str) -> Option<String> {
    let data = events.lines().rev().find_map(|line| line.strip_prefix("data: "))?;
    let value: serde_json::Value = serde_json::from_str(data).ok()?;
    Some(value["instance"].as_str()?.to_owned())
}

pub(crate) async fn stickiness(world: &World) -> Result<()> {
    world.task("sticky", sessions(json!({ "scalingMode": "OnDemand", "maxInstances": 5 }))).await?;
    let first = world.say("sticky", "ada", "hello").await?.instance()?;
    let pods = world.pods("sticky").await?;
    let pod = pods.iter().find(|pod| name(pod) == first);
    let key = pod.map(|pod| annotation(pod, "agentcube.io/reserve-key"));
    expect(key == Some("ada"), "the Pod names the session", &pods)?;
    for n in 0..5 {
        let path = format!("/default/sticky/?session=ada&n={n}");
        let again = world.ask(Method::GET, &path, &[], "").await?.instance()?;
        expect(again == first, "the session stays, however its key comes", &(n, again))?;
    }
    let other = world.say("sticky", "bob", "hello").await?.instance()?;
    expect(other != first, "another session has another instance", &other)?;
    let pods = world.pods("sticky").await?;
    let mut held: Vec<&str> = pods.iter().map(|pod| annotation(pod, "agentcube.io/reserve-key")).collect();
    held.sort_unstable();
    expect(held == ["ada", "bob"], "each Pod names its session", &held)?;
    world.remove("sticky").await
}

pub(crate) async fn cold_start(world: &World) -> Result<()> {
    world.task("cold", sessions(json!({ "scalingMode": "OnDemand", "minInstances": 0 }))).await?;
    expect(world.pods("cold").await?.is_empty(), "nothing runs before the first request", &())?;
    let first = world.say("cold", "ada", "hello").await?.instance()?;
    let pods = world.pods("cold").await?;
    let one = pods.len() == 1 && name(&pods[0]) == first && condition(&pods[0], "Ready");
    expect(one, "the request started one instance", &pods)?;
    let again = world.say("cold", "ada", "hello").await?.instance()?;
    expect(again == first && world.pods("cold").await?.len() == 1, "the next uses it", &again)?;
    world.remove("cold").await
}

pub(crate) async fn concurrent_reservation(world: &World) -> Result<()> {
    let mut spec = sessions(json!({ "scalingMode": "OnDemand", "minInstances": 3, "maxInstances": 3 }));
    spec["routing"]["reserveTimeout"] = json!("10s");
    world.task("rivals", spec).await?;
    let ready = |pods: &[&serde_json::Value]| pods.iter().filter(|pod| condition(pod, "Ready")).count() == 3;
    world.pods_until("rivals", "three Pods are ready", ready).await?;
    let instances = world.at_once("rivals", &keys(3)).await?;
    expect(distinct(&instances) == 3, "three sessions at once have three instances", &instances)?;
    let same = world.at_once("rivals", &vec!["user-1".to_owned(); 10]).await?;
    expect(distinct(&same) == 1 && same[0] == instances[1], "one session ten times has one", &same)?;
    let refused = world.say("rivals", "user-4", "hello").await?;
    let told = refused.status == 503 && refused.headers.contains_key("retry-after");
    expect(told && refused.refusal() == "NoInstance", "one too many is told to come back", &refused)?;
    world.remove("rivals").await
}

pub(crate) async fn concurrent_scale_up(world: &World) -> Result<()> {
    let mut spec = sessions(json!({ "scalingMode": "OnDemand", "maxInstances": 5 }));
    spec["routing"]["reserveTimeout"] = json!("120s");
    world.task("crowd", spec).await?;
    // Each session asks twice at the same time.
    let twice: Vec<String> = keys(5).into_iter().chain(keys(5)).collect();
    let instances = world.at_once("crowd", &twice).await?;
    expect(distinct(&instances) == 5, "five sessions have five instances", &instances)?;
    expect(instances[..5] == instances[5..], "and no session has two", &instances)?;
    let pods = world.pods("crowd").await?;
    expect(pods.len() == 5, "no instance was started in vain", &pods.len())?;
    world.remove("crowd").await?;
    // At the maximum one waits for another to end.
    let mut spec = sessions(json!({ "scalingMode": "OnDemand", "maxInstances": 1,
        "instanceLifecycle": { "idleTimeout": "1s" } }));
    spec["routing"]["reserveTimeout"] = json!("120s");
    world.task("queue", spec).await?;
    world.say("queue", "ada", "hello").await?.instance()?;
    let second = tokio::time::timeout(Duration::from_secs(150), world.say("queue", "bob", "hello")).await??;
    expect(second.json()["turn"] == 1, "the second had its turn", &second)?;
    world.remove("queue").await
}
