//! Sandboxes of one pool of `agentcube up`, made in one way.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest, DeleteRequest};
use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::containers::bundle::PROGRAM;
use agentcube_testkit::containers::words::PORT;
use agentcube_testkit::fastpath::{self, FastPath};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use crate::{AT_ONCE, Sample};

pub(crate) const IMAGE: &str = "bench:1";
/// What tells the program to go on after the first who asks.
pub(crate) const STAY: &str = "stay";
pub(crate) const GROUP: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default";
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How sandboxes are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Fast,
    Strong,
    /// By an object, whose status is watched.
    Object,
}

pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) object: String,
    way: Way,
    pub(crate) prepared: usize,
    http: HttpClient,
    fast_path: FastPath,
}

/// Puts the image of the measured program where `up` has its images.
pub(crate) fn import(place: &Place, archive: &Path) -> Result<()> {
    let mut command = Command::new(place.program());
    command.args(["image", "import", "--data-dir"]).arg(place.data()).arg(archive);
    let output = command.env("HOME", place.home()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Waits until nothing is left of the last run in a pool, and as many are prepared as shall be.
pub(crate) async fn rested(http: &HttpClient, pool: &str, prepared: usize) -> Result<()> {
    let rested = |objects: &Objects| {
        let sandboxes = objects.get(pool).map(|pool| &pool["status"]["sandboxes"]);
        let count = |of: &str| sandboxes.and_then(|it| it[of].as_u64()).unwrap_or(0);
        count("active") == 0 && count("prepared") >= prepared as u64
    };
    let pools = format!("{GROUP}/sandboxpools");
    watch::until(http, &pools, "its slots are free", LIMIT, rested).await.context(pool.to_owned()).map(drop)
}

impl Pool {
    pub(crate) async fn make(
        http: &HttpClient,
        name: &str,
        runtime: &str,
        prepared: usize,
        way: Way,
    ) -> Result<Pool> {
        let object = name.to_lowercase().replace(", ", "-").replace(' ', "-");
        let mut pool = json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": object },
            "spec": {
                "capacity": { "poolMin": 1, "poolMax": 1 }, "maxSandboxesPerPod": 2 * AT_ONCE,
                "runtimeType": runtime, "images": [IMAGE],
            },
        });
        if prepared > 0 {
            pool["spec"]["prepared"] = json!([{ "image": IMAGE, "count": prepared }]);
        }
        let reply =
            http.send(Request::new(Method::POST, format!("{GROUP}/sandboxpools")).json(&pool)).await?;
        ensure!(reply.status == 201, "the pool {object} is refused: {}", reply.value());
        let fast_path = fastpath::connect(http).await?;
        let pool = Pool { name: name.to_owned(), object, way, prepared, http: http.clone(), fast_path };
        pool.until("it has an agent", |status| status["agents"]["ready"].as_u64() >= Some(1)).await?;
        Ok(pool)
    }

    /// Makes so many at once, and removes them when all answer.
    pub(crate) async fn run(&self, count: usize) -> Result<Vec<Sample>> {
        let made = try_join_all((0..count).map(|_| self.create())).await?;
        let (names, samples): (Vec<String>, Vec<Sample>) = made.into_iter().unzip();
        try_join_all(names.into_iter().map(|name| self.delete(name))).await?;
        Ok(samples)
    }

    /// Takes away what is left of a try that failed, before there is anybody else.
    pub(crate) async fn give_up(&self) -> Result<()> {
        let reply = self.http.send(Request::new(Method::DELETE, format!("{GROUP}/sandboxes"))).await?;
        ensure!(reply.status == 200, "what is left of {} cannot be deleted: {}", self.name, reply.value());
        Ok(())
    }

    async fn create(&self) -> Result<(String, Sample)> {
        match self.way {
            Way::Fast => self.call(ConsistencyMode::Fast).await,
            Way::Strong => self.call(ConsistencyMode::Strong).await,
            Way::Object => self.object().await,
        }
    }

    async fn call(&self, mode: ConsistencyMode) -> Result<(String, Sample)> {
        let request = CreateRequest {
            image: IMAGE.into(),
            pool_ref: self.object.clone(),
            ports: vec![i32::from(PORT)],
            command: vec![PROGRAM.into(), STAY.into()],
            namespace: "default".into(),
            consistency_mode: mode.into(),
            wait_ready: true,
            ..CreateRequest::default()
        };
        let mut fast_path = self.fast_path.clone();
        let begun = Instant::now();
        let created = fast_path.create_sandbox(request).await?.into_inner();
        let answering = begun.elapsed();
        Ok((created.sandbox_id, Sample { answering, stages: created.timings }))
    }

    /// As `kubectl create` and a watch of it would.
    async fn object(&self) -> Result<(String, Sample)> {
        let object = json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox", "metadata": { "generateName": "object-" },
            "spec": {
                "image": IMAGE, "poolRef": self.object, "command": [PROGRAM, STAY], "exposedPorts": [PORT],
            },
        });
        let begun = Instant::now();
        let path = format!("{GROUP}/sandboxes");
        let reply = self.http.send(Request::new(Method::POST, &path).json(&object)).await?;
        ensure!(reply.status == 201, "the object is refused: {}", reply.value());
        let name = reply.text("/metadata/name")?;
        let one = format!("{path}?fieldSelector=metadata.name%3D{name}");
        let is_ready = |objects: &Objects| objects.get(&name).is_some_and(answers);
        watch::until(&self.http, &one, "it answers", LIMIT, is_ready).await?;
        Ok((name, Sample { answering: begun.elapsed(), stages: None }))
    }

    async fn delete(&self, sandbox_id: String) -> Result<()> {
        let mut fast_path = self.fast_path.clone();
        fast_path.delete_sandbox(DeleteRequest { sandbox_id, namespace: "default".into() }).await?;
        Ok(())
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let seen = |objects: &Objects| objects.get(&self.object).is_some_and(|pool| wanted(&pool["status"]));
        let path = format!("{GROUP}/sandboxpools");
        watch::until(&self.http, &path, what, LIMIT, seen).await.context(self.name.clone())?;
        Ok(())
    }
}

fn answers(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}
