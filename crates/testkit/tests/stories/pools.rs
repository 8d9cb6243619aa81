//! Tasks whose instances are Sandboxes on a pool.

use std::time::Instant;

use agentcube_testkit::Request;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::world::{LEASES, LIMIT, TASKS, World, annotation, condition, expect, name, of, sessions};

const SANDBOXES: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxes";
const POOLS: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxpools";
const AGENT: [&str; 2] = ["/.agentcube/agentcube", "sample-agent"];

/// A Task of the sample agent on a pool.
fn on_pool(pool: &str, scaling: Value) -> Value {
    let mut spec = sessions(scaling);
    spec["deployment"] = json!({ "type": "sandbox", "sandboxTemplate": {
        "poolRef": pool, "rootfs": { "image": "host" }, "command": AGENT } });
    spec
}

async fn pool(world: &World, name: &str) -> Result<()> {
    pool_with(world, name, json!({})).await
}

/// A pool with more in its spec.
pub(crate) async fn pool_with(world: &World, name: &str, more: Value) -> Result<()> {
    let mut pool = json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": name },
        "spec": { "capacity": { "poolMin": 1, "poolMax": 3 }, "maxSandboxesPerPod": 20 },
    });
    for (key, value) in more.as_object().context("a spec is an object")? {
        pool["spec"][key] = value.clone();
    }
    let reply = world.http.send(Request::new(Method::POST, POOLS).json(&pool)).await?;
    ensure!(reply.status == 201, "{}", reply.value());
    Ok(())
}

/// The Sandboxes of a Task, when they are as wanted.
pub(crate) async fn sandboxes(
    world: &World,
    task: &str,
    what: &str,
    wanted: impl Fn(&[&Value]) -> bool,
) -> Result<Vec<Value>> {
    let of_task = |objects: &Objects| wanted(&of(objects, task).collect::<Vec<_>>());
    let objects = watch::until(&world.http, SANDBOXES, &format!("{task}: {what}"), LIMIT, of_task).await?;
    Ok(of(&objects, task).cloned().collect())
}

pub(crate) async fn remove(world: &World, task: &str) -> Result<()> {
    world.remove(task).await?;
    sandboxes(world, task, "no Sandbox is left", |all| all.is_empty()).await?;
    Ok(())
}

/// Two sessions have two sandboxes, and keep them.
pub(crate) async fn chat(world: &World) -> Result<()> {
    world.deploy("stories/6-chat-on-a-pool.yaml").await?;
    talk(world, "pool-chat").await
}

/// The same on a pool of agents as they come.
pub(crate) async fn as_they_come(world: &World, named: &str) -> Result<()> {
    pool_with(world, named, json!({ "prepared": [{ "image": "host", "count": 2 }] })).await?;
    let scaling = json!({ "scalingMode": "OnDemand", "maxInstances": 5 });
    world.task("pool-comes", on_pool(named, scaling)).await?;
    talk(world, "pool-comes").await
}

async fn talk(world: &World, task: &str) -> Result<()> {
    let mut instances = Vec::new();
    for (session, turn) in [("ada", 1), ("bob", 1), ("ada", 2), ("bob", 2), ("ada", 3)] {
        let begun = Instant::now();
        let answer = world.say(task, session, &format!("turn {turn}")).await?;
        println!("    session {session}, turn {turn}: {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0);
        expect(answer.json()["turn"] == turn, "the instance remembers", &answer)?;
        instances.push(answer.instance()?);
    }
    let (ada, bob) = (&instances[0], &instances[1]);
    expect(ada != bob, "each session has an instance of its own", &instances)?;
    expect([&instances[2], &instances[4]] == [ada, ada] && &instances[3] == bob, "and keeps it", &instances)?;
    let made = sandboxes(world, task, "are listed", |_| true).await?;
    let mut held: Vec<(&str, &str)> =
        made.iter().map(|it| (annotation(it, "agentcube.io/reserve-key"), name(it))).collect();
    held.sort_unstable();
    expect(held == [("ada", ada.as_str()), ("bob", bob.as_str())], "each Sandbox names its session", &made)?;
    expect(world.pods(task).await?.is_empty(), "and there is no Pod", &())?;
    let counted = |tasks: &Objects| {
        let counts = tasks.get(task).map(|task| &task["status"]["instances"]);
        counts.is_some_and(|counts| counts["total"] == 2 && counts["reserved"] == 2)
    };
    watch::until(&world.http, TASKS, "the Task counts them", LIMIT, counted).await?;
    remove(world, task).await
}

/// An idle session goes, and its Sandbox with it; there are never more than the maximum.
pub(crate) async fn endings(world: &World) -> Result<()> {
    pool(world, "endings").await?;
    // A third waits for less than it takes the first two to be idle.
    let lifecycle = json!({ "idleTimeout": "20s" });
    let scaling = json!({ "scalingMode": "OnDemand", "maxInstances": 2, "instanceLifecycle": lifecycle });
    let mut spec = on_pool("endings", scaling);
    spec["routing"]["reserveTimeout"] = json!("5s");
    world.task("pool-ends", spec).await?;
    let ada = world.say("pool-ends", "ada", "hello").await?.instance()?;
    let bob = world.say("pool-ends", "bob", "hello").await?.instance()?;
    expect(ada != bob, "two sessions, two sandboxes", &(&ada, &bob))?;
    let third = world.say("pool-ends", "eve", "hello").await?;
    expect(third.status == 503 || third.status == 429, "a third has to wait in vain", &third)?;
    sandboxes(world, "pool-ends", "all sessions were idle", |all| all.is_empty()).await?;
    let none = |leases: &Objects| of(leases, "pool-ends").next().is_none();
    watch::until(&world.http, LEASES, "no session is left", LIMIT, none).await?;
    let again = world.say("pool-ends", "ada", "hello").await?;
    expect(again.json()["turn"] == 1, "whoever comes again begins anew", &again)?;
    remove(world, "pool-ends").await
}

/// What is lost is replaced at the next request, and a changed template is another revision.
pub(crate) async fn replaced(world: &World) -> Result<()> {
    pool(world, "losses").await?;
    let scaling = json!({ "scalingMode": "OnDemand", "maxInstances": 5 });
    world.task("pool-loses", on_pool("losses", scaling)).await?;
    let first = world.say("pool-loses", "ada", "hello").await?;
    expect(first.json()["turn"] == 1, "it begins", &first)?;
    world.run(&["sandbox", "rm", &first.instance()?]).await?;
    sandboxes(world, "pool-loses", "it is gone", |all| all.is_empty()).await?;
    let again = world.say("pool-loses", "ada", "hello").await?;
    expect(again.json()["turn"] == 1, "the session has another instance", &again)?;
    let patch = json!({ "spec": { "deployment": { "sandboxTemplate": {
        "env": [{ "name": "COLOUR", "value": "green" }] } } } });
    let path = format!("{TASKS}/pool-loses");
    let request = Request::new(Method::PATCH, &path).body("application/merge-patch+json", patch.to_string());
    let reply = world.http.send(request).await?;
    ensure!(reply.is_success(), "{}", reply.value());
    let changed = |tasks: &Objects| {
        tasks.get("pool-loses").is_some_and(|task| {
            task["status"]["specID"] == "pool-loses-2"
                && task["status"]["observedGeneration"] == 2
                && condition(task, "Ready")
        })
    };
    watch::until(&world.http, TASKS, "the new revision is ready", LIMIT, changed).await?;
    let old = world.say("pool-loses", "ada", "hello").await?;
    expect(old.json()["turn"] == 2, "a session stays with its instance", &old)?;
    world.say("pool-loses", "bob", "hello").await?.instance()?;
    let made = sandboxes(world, "pool-loses", "are listed", |_| true).await?;
    let mut of_session: Vec<(&str, &Value)> = made
        .iter()
        .map(|it| {
            let key = annotation(it, "agentcube.io/reserve-key");
            (key, &it["metadata"]["labels"]["agentcube.io/spec-id"])
        })
        .collect();
    of_session.sort_by_key(|(key, _)| *key);
    let wanted = [("ada", &json!("pool-loses-1")), ("bob", &json!("pool-loses-2"))];
    expect(of_session == wanted, "new sessions have the new revision", &of_session)?;
    remove(world, "pool-loses").await
}

/// A session that was idle is paused, and goes on where it was.
pub(crate) async fn pause(world: &World) -> Result<()> {
    pool(world, "pauses").await?;
    let lifecycle = json!({ "idleTimeout": "1s", "idleAction": "Pause" });
    let scaling = json!({ "scalingMode": "OnDemand", "maxInstances": 1, "instanceLifecycle": lifecycle });
    let mut spec = on_pool("pauses", scaling);
    spec["routing"]["reserveTimeout"] = json!("10s");
    world.task("pool-rests", spec).await?;
    let mut instances = Vec::new();
    for turn in 1..=3 {
        let begun = Instant::now();
        let answer = world.say("pool-rests", "ada", "hello").await?;
        println!("    turn {turn}: {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0);
        expect(answer.json()["turn"] == turn, "what it knew is still there", &answer)?;
        instances.push(answer.instance()?);
        let stands = |all: &[&Value]| {
            all.len() == 1 && all[0]["spec"]["paused"] == true && condition(all[0], "Paused")
        };
        sandboxes(world, "pool-rests", "is paused", stands).await?;
    }
    instances.dedup();
    expect(instances.len() == 1, "it is the same instance", &instances)?;
    world.event("pool-rests", "idleAction is Pause").await?;
    let shown: Value = serde_json::from_str(&world.run(&["sessions", "pool-rests", "-o", "json"]).await?)?;
    expect(shown[0]["state"] == "paused", "the command line shows it", &shown)?;
    let other = world.say("pool-rests", "bob", "hello").await?;
    expect(other.status != 200, "what is paused counts for the maximum", &other)?;
    remove(world, "pool-rests").await
}

/// A stream is never idle: nothing is paused under it.
pub(crate) async fn stream(world: &World) -> Result<()> {
    pool(world, "streams").await?;
    let lifecycle = json!({ "idleTimeout": "1s", "idleAction": "Pause" });
    let scaling = json!({ "scalingMode": "OnDemand", "instanceLifecycle": lifecycle });
    let mut spec = on_pool("streams", scaling);
    spec["deployment"]["sandboxTemplate"]["args"] = json!(["--word-delay", "1500"]);
    world.task("pool-streams", spec).await?;
    let words = "one two three";
    let headers = [("x-session-id", "ada")];
    let answer = world.ask(Method::POST, "/default/pool-streams/stream", &headers, words).await?;
    expect(answer.status == 200 && answer.text().contains("three"), "all of it came", &answer)?;
    let stands = |all: &[&Value]| all.len() == 1 && condition(all[0], "Paused");
    sandboxes(world, "pool-streams", "is paused after that", stands).await?;
    remove(world, "pool-streams").await
}

/// Without its pool a Task says so, and goes on when the pool is there; with a pool of another runtime too.
pub(crate) async fn missing(world: &World) -> Result<()> {
    let mut object = json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "pool-waits" },
        "spec": on_pool("late", json!({ "scalingMode": "OnDemand" })),
    });
    object["spec"]["deployment"]["sandboxTemplate"]["runtime"] = json!("native");
    let reply = world.http.send(Request::new(Method::POST, TASKS).json(&object)).await?;
    ensure!(reply.status == 201, "{}", reply.value());
    let says = |reason: &'static str, words: &'static str| {
        move |tasks: &Objects| {
            let conditions = tasks.get("pool-waits").map(|task| &task["status"]["conditions"]);
            let all = conditions.and_then(Value::as_array).into_iter().flatten();
            let mut spec = all.filter(|it| it["type"] == "SpecReady" && it["status"] == "False");
            spec.any(|it| {
                it["reason"] == reason && it["message"].as_str().is_some_and(|text| text.contains(words))
            })
        }
    };
    let told = says("SandboxPoolMissing", "late");
    watch::until(&world.http, TASKS, "it says that the pool is missing", LIMIT, told).await?;
    world.event("pool-waits", "SandboxPool \"late\"").await?;
    let other = json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": "late" },
        "spec": { "capacity": { "poolMax": 1 }, "runtimeType": "runsc" },
    });
    let reply = world.http.send(Request::new(Method::POST, POOLS).json(&other)).await?;
    ensure!(reply.status == 201, "{}", reply.value());
    let told = says("SandboxPoolRuntime", "runsc");
    watch::until(&world.http, TASKS, "it says that the pool has another runtime", LIMIT, told).await?;
    let reply = world.http.send(Request::new(Method::DELETE, format!("{POOLS}/late"))).await?;
    ensure!(reply.is_success(), "{}", reply.value());
    let gone = |pools: &Objects| !pools.contains_key("late");
    watch::until(&world.http, POOLS, "the pool is gone", LIMIT, gone).await?;
    pool(world, "late").await?;
    let ready = |tasks: &Objects| tasks.get("pool-waits").is_some_and(|task| condition(task, "Ready"));
    watch::until(&world.http, TASKS, "it goes on", LIMIT, ready).await?;
    world.say("pool-waits", "ada", "hello").await?.instance()?;
    remove(world, "pool-waits").await
}

/// Code without an image, in a Sandbox.
pub(crate) async fn code(world: &World) -> Result<()> {
    pool(world, "codes").await?;
    let mut spec = sessions(json!({ "scalingMode": "OnDemand" }));
    let program = "\
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
import words

class Say(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(words.GREETING.encode())

HTTPServer((\"\", int(os.environ[\"PORT\"])), Say).serve_forever()
";
    spec["deployment"] = json!({ "type": "code-bundle", "codeBundle": {
        "poolRef": "codes", "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" },
        "inline": { "main.py": program, "words.py": "GREETING = 'hello from a file'\n" } } });
    world.task("pool-code", spec).await?;
    let answer = world.say("pool-code", "ada", "").await?;
    expect(answer.text() == "hello from a file", "the code runs", &answer)?;
    remove(world, "pool-code").await
}

/// Each request has a Sandbox of its own, where nothing is said of sessions.
pub(crate) async fn oneshot(world: &World) -> Result<()> {
    pool(world, "shots").await?;
    let mut spec = on_pool("shots", json!({ "scalingMode": "OnDemand", "maxInstances": 5 }));
    spec["routing"] = json!({ "routePolicy": "Oneshot" });
    world.task("pool-once", spec).await?;
    let mut instances = Vec::new();
    for _ in 0..3 {
        let answer = world.ask(Method::POST, "/default/pool-once/", &[], "hello").await?;
        expect(answer.json()["turn"] == 1, "it is new", &answer)?;
        instances.push(answer.instance()?);
    }
    expect(crate::world::distinct(&instances) == 3, "each has its own", &instances)?;
    sandboxes(world, "pool-once", "those that had their request are gone", |all| all.is_empty()).await?;
    remove(world, "pool-once").await
}
