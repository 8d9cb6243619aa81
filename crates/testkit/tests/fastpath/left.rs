//! What a death leaves of sandboxes, and what the next start says of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentcube_testkit::Request;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::Value;

use crate::world::{LIMIT, World, name, phase};

const EVENTS: &str = "/api/v1/namespaces/default/events";
const LOOK: Duration = Duration::from_millis(20);
const GONE: &str = "AgentPodDisappeared";
const NO_OBJECT: &str = "SandboxCRDNotFound";
const ANOTHER: &str = "UIDMismatch";

pub(crate) async fn told(program: &Path) -> Result<()> {
    let world = World::start(program).await?;
    let mut runs = BTreeSet::new();
    let mut objects = Vec::new();
    for options in [&["--pool", "fast"][..], &["--pool", "fast", "--recreate"]] {
        let created = world.create(options, &["sleep", "1000"]).await?;
        let object = world.until(&name(&created)?, "runs", |object| phase(object) == "Running").await?;
        runs.insert(text(&created, "/run")?);
        objects.push((object, text(&created, "/run")?));
    }
    for reason in [GONE, NO_OBJECT, ANOTHER] {
        ensure!(count(&world, reason).await? == 0, "{reason} before anything was left");
    }
    let place = world.kill();
    let member = member(&place.data(), &runs)?;
    let own = text(&objects[0].0, "/metadata/name")?;
    for (run, name) in [("nobodys", "nobody"), ("anothers", own.as_str())] {
        let etc = member.join("runs").join(run).join("etc");
        std::fs::create_dir_all(&etc)?;
        std::fs::write(etc.join("hostname"), format!("{name}\n"))?;
    }
    let world = World::again(place).await?;
    for (object, run) in &objects {
        let told = |events: &Objects| events.values().any(|event| is_about(event, object, run));
        watch::until(&world.http, EVENTS, "an Event says that it was removed", LIMIT, told).await?;
    }
    for (reason, expected) in [(GONE, 2), (NO_OBJECT, 1), (ANOTHER, 1)] {
        let counted = async {
            while count(&world, reason).await? != expected {
                tokio::time::sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        let limited = tokio::time::timeout(LIMIT, counted).await;
        limited.with_context(|| format!("{reason} is never counted {expected} times"))??;
    }
    let removed = async {
        while member.exists() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LIMIT, removed).await.context("the directory of the old agent stays")?;
    world.stop()
}

/// The directory of the agent that had these runs.
fn member(data: &Path, runs: &BTreeSet<String>) -> Result<PathBuf> {
    for entry in std::fs::read_dir(data.join("sandboxes"))? {
        let path = entry?.path();
        if runs.iter().all(|run| path.join("runs").join(run).is_dir()) {
            return Ok(path);
        }
    }
    anyhow::bail!("nothing is left of {runs:?}")
}

fn is_about(event: &Value, object: &Value, run: &str) -> bool {
    event["reason"] == GONE
        && event["involvedObject"]["name"] == object["metadata"]["name"]
        && event["involvedObject"]["uid"] == object["metadata"]["uid"]
        && event["source"]["component"] == "agentcube-janitor"
        && event["message"].as_str().is_some_and(|said| said.contains(run) && said.contains("fast-agent-"))
}

async fn count(world: &World, reason: &str) -> Result<u64> {
    let reply = world.http.send(Request::new(Method::GET, "/metrics")).await?;
    let page = String::from_utf8(reply.bytes.to_vec())?;
    let line = format!("agentcube_janitor_removed_total{{reason=\"{reason}\"}} ");
    let found = page.lines().find_map(|text| text.strip_prefix(&line));
    Ok(found.with_context(|| format!("there is no {line}"))?.parse()?)
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    Ok(found.with_context(|| format!("no {pointer} in {value}"))?.to_owned())
}
