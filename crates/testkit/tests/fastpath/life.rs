//! How sandboxes begin and end.

use agentcube_testkit::Request;
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::json;

use crate::world::{AGENT, ALLOCATION, SANDBOXES, World, condition, name, phase};

pub(crate) async fn fast(world: &World) -> Result<()> {
    let created = world.create(&["--pool", "fast", "-p", "8080"], &AGENT).await?;
    let name = name(&created)?;
    let endpoint = created["endpoints"][0].as_str().context("an endpoint")?;
    // It answers when the call does.
    let (address, port) = endpoint.split_once(':').context("address and port")?;
    let said = crate::isolation::ask(world, &name, address, port).await?;
    ensure!(said.starts_with("HTTP/1."), "it does not answer: {said:?}");
    let settled =
        |object: &serde_json::Value| phase(object) == "Running" && object.pointer(ALLOCATION).is_none();
    let object = world.until(&name, "runs, and its annotation has moved", settled).await?;
    ensure!(object["status"]["sandboxID"] == created["run"], "another run: {object}");
    ensure!(object["status"]["endpoints"][0] == created["endpoints"][0], "other endpoints: {object}");
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn strong(world: &World) -> Result<()> {
    let options = ["--pool", "fast", "--strong", "--request-id", "job-1"];
    let created = world.create(&options, &["sleep", "1000"]).await?;
    let name = name(&created)?;
    let again = world.create(&options, &["sleep", "1000"]).await?;
    ensure!(again["name"] == created["name"] && again["run"] == created["run"], "{created} and {again}");
    ensure!(created["existed"] == false && again["existed"] == true, "{created} and {again}");
    let mut other = vec!["create", "host"];
    other.extend(options);
    other.extend(["--", "sleep", "2000"]);
    let refused = world.sandbox(&other, "").await?;
    ensure!(refused.code == 1, "the same id for something else: {}{}", refused.out, refused.err);
    world.until(&name, "runs", |object| phase(object) == "Running").await?;
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn object(world: &World) -> Result<()> {
    let object = json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "name": "by-hand" },
        "spec": { "image": "host", "poolRef": "fast", "command": AGENT, "exposedPorts": [8080] },
    });
    let reply = world.http.send(Request::new(Method::POST, SANDBOXES).json(&object)).await?;
    ensure!(reply.status == 201, "{}", reply.value());
    let ready = |object: &serde_json::Value| {
        condition(object, "Ready").is_some_and(|condition| condition["status"] == "True")
    };
    world.until("by-hand", "is ready", ready).await?;
    let reply = world.http.send(Request::new(Method::DELETE, format!("{SANDBOXES}/by-hand"))).await?;
    ensure!(reply.is_success(), "{}", reply.value());
    world.gone("by-hand").await?;
    world.active("fast", 0).await
}

pub(crate) async fn full(world: &World) -> Result<()> {
    let mut names = Vec::new();
    for _ in 0..2 {
        names.push(name(&world.create(&["--pool", "small"], &["sleep", "1000"]).await?)?);
    }
    let third = ["create", "host", "--pool", "small", "--", "sleep", "1000"];
    let refused = world.sandbox(&third, "").await?;
    ensure!(refused.code == 1 && refused.err.contains("try again in"), "{}{}", refused.out, refused.err);
    world.well(&["rm", &names[0]]).await?;
    names[0] = name(&world.create(&["--pool", "small"], &["sleep", "1000"]).await?)?;
    world.well(&["rm", &names[0], &names[1]]).await?;
    world.active("small", 0).await
}

pub(crate) async fn ended(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast"], &["sh", "-c", "echo bye; exit 3"]).await?)?;
    let object = world.until(&name, "has failed", |object| phase(object) == "Failed").await?;
    ensure!(object["status"]["exitCode"] == 3, "{}", object["status"]);
    let reason = condition(&object, "Ready").map(|condition| condition["reason"].clone());
    ensure!(reason == Some(json!("Exited")), "{}", object["status"]);
    world.active("fast", 0).await?;
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn expired(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast", "--expire", "1s"], &["sleep", "1000"]).await?)?;
    let object = world.until(&name, "has expired", |object| phase(object) == "Expired").await?;
    ensure!(object["status"]["endpoints"].is_null(), "{}", object["status"]);
    world.active("fast", 0).await?;
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn reset(world: &World) -> Result<()> {
    let created = world.create(&["--pool", "fast"], &["sleep", "1000"]).await?;
    let name = name(&created)?;
    world.well(&["exec", &name, "--", "touch", "/tmp/was-here"]).await?;
    world.well(&["reset", &name]).await?;
    let again = |object: &serde_json::Value| {
        phase(object) == "Running" && object["status"]["sandboxID"] != created["run"]
    };
    let object = world.until(&name, "runs again", again).await?;
    ensure!(object["status"]["acceptedResetRevision"] == 1, "{}", object["status"]);
    let looked = world.sandbox(&["exec", &name, "--", "test", "-e", "/tmp/was-here"], "").await?;
    ensure!(looked.code == 1, "what it wrote before is still there");
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

/// Everything runs in processes of `up`, so nothing of it survives; objects do.
pub(crate) async fn killed(world: World) -> Result<()> {
    let manual = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    let again = world.create(&["--pool", "fast", "--recreate"], &["sleep", "1000"]).await?;
    let recreated = name(&again)?;
    for name in [&manual, &recreated] {
        world.until(name, "runs", |object| phase(object) == "Running").await?;
    }
    // Of the last ones there may be no object yet: the log has them.
    let mut answered = Vec::new();
    for _ in 0..4 {
        answered.push(name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?);
    }
    let world = World::again(world.kill()).await?;
    for name in answered.iter().chain([&manual]) {
        world.until(name, "is lost", |object| phase(object) == "Lost").await?;
    }
    let anew = |object: &serde_json::Value| {
        phase(object) == "Running" && object["status"]["sandboxID"] != again["run"]
    };
    world.until(&recreated, "runs again", anew).await?;
    world.active("fast", 1).await?;
    for name in answered.iter().chain([&manual, &recreated]) {
        world.well(&["rm", name]).await?;
        world.gone(name).await?;
    }
    world.stop()
}
