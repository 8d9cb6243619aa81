//! A running platform with two pools, and its program as users run it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

/// A debug build on a busy machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const SANDBOXES: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxes";
pub(crate) const POOLS: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxpools";
/// A program that serves at port 8080, in the image `host`.
pub(crate) const AGENT: [&str; 2] = ["/.agentcube/agentcube", "sample-agent"];

pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) http: HttpClient,
    up: Up,
}

/// What a command did.
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl World {
    pub(crate) async fn start(program: &Path) -> Result<World> {
        let place = Place::new(program)?;
        let world = World::again(place).await?;
        world.pool("fast", json!({ "poolMin": 1, "poolMax": 2 }), 20).await?;
        world.pool("small", json!({ "poolMax": 1 }), 2).await?;
        Ok(world)
    }

    /// Starts it where it was.
    pub(crate) async fn again(place: Place) -> Result<World> {
        let up = place.start().await?;
        Ok(World { http: up.http.clone(), place, up })
    }

    async fn pool(&self, name: &str, capacity: Value, each: u32) -> Result<()> {
        let pool = json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": name },
            "spec": { "capacity": capacity, "maxSandboxesPerPod": each },
        });
        let reply = self.http.send(Request::new(Method::POST, POOLS).json(&pool)).await?;
        ensure!(reply.status == 201, "cannot make the pool {name}: {}", reply.value());
        Ok(())
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.up.down(&self.place)
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(self) -> Place {
        self.up.kill();
        self.place
    }

    pub(crate) fn log(&self) -> String {
        self.up.log()
    }

    /// Runs `agentcube sandbox` with this input.
    pub(crate) async fn sandbox(&self, args: &[&str], input: &str) -> Result<Done> {
        let mut command = self.for_users(Command::new(self.place.program()));
        command.arg("sandbox").args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let ran = tokio::task::spawn_blocking(move || -> Result<Output> {
            let mut child = command.spawn()?;
            // A command that does not read its input may be gone before it was written.
            let _unread = child.stdin.take().context("a pipe")?.write_all(input.as_bytes());
            Ok(child.wait_with_output()?)
        });
        let output = tokio::time::timeout(LIMIT, ran).await.context("the command does not end")???;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Done {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        })
    }

    /// As its users run a command.
    pub(crate) fn for_users(&self, mut command: Command) -> Command {
        command.env("KUBECONFIG", self.place.kubeconfig()).env("HOME", self.place.home());
        command
    }

    /// Runs `agentcube sandbox` where nothing may go wrong; what it printed.
    pub(crate) async fn well(&self, args: &[&str]) -> Result<String> {
        let done = self.sandbox(args, "").await?;
        ensure!(done.code == 0, "agentcube sandbox {}: {}", args.join(" "), done.err);
        Ok(done.out)
    }

    /// Creates a sandbox; what was answered.
    pub(crate) async fn create(&self, options: &[&str], command: &[&str]) -> Result<Value> {
        let mut args = vec!["create", "host", "-o", "json"];
        args.extend(options);
        args.push("--");
        args.extend(command);
        Ok(serde_json::from_str(&self.well(&args).await?)?)
    }

    /// The object of a sandbox, when it is as wanted.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let seen = |objects: &Objects| objects.get(name).is_some_and(&wanted);
        let what = format!("{name}: {what}");
        let mut objects = watch::until(&self.http, SANDBOXES, &what, LIMIT, seen).await?;
        objects.remove(name).context("it was there")
    }

    /// Waits until there is no object of this name.
    pub(crate) async fn gone(&self, name: &str) -> Result<()> {
        let seen = |objects: &Objects| !objects.contains_key(name);
        watch::until(&self.http, SANDBOXES, &format!("{name} is gone"), LIMIT, seen).await?;
        Ok(())
    }

    /// Removes what a trial that failed has left, so that the next begins with nothing.
    pub(crate) async fn clean(&self) -> Result<()> {
        let reply = self.http.send(Request::new(Method::DELETE, SANDBOXES)).await?;
        ensure!(reply.is_success(), "{}", reply.value());
        watch::until(&self.http, SANDBOXES, "nothing is left", LIMIT, |objects: &Objects| objects.is_empty())
            .await?;
        Ok(())
    }

    /// Waits until so many sandboxes of a pool hold a slot.
    pub(crate) async fn active(&self, pool: &str, count: u64) -> Result<()> {
        let seen = |objects: &Objects| {
            objects.get(pool).is_some_and(|pool| pool["status"]["sandboxes"]["active"] == count)
        };
        watch::until(&self.http, POOLS, &format!("{pool} has {count} sandboxes"), LIMIT, seen).await?;
        Ok(())
    }
}

pub(crate) fn name(created: &Value) -> Result<String> {
    Ok(created["name"].as_str().with_context(|| format!("no name in {created}"))?.to_owned())
}

pub(crate) fn phase(object: &Value) -> &str {
    object["status"]["phase"].as_str().unwrap_or_default()
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub(crate) const ALLOCATION: &str = "/metadata/annotations/sandbox.fast.io~1allocation";
