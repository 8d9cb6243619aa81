//! The fast path on a cluster: agents are Pods, sandboxes are containers of the node's containerd, a janitor looks after it.

use std::time::Duration;

use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use agentcube_protos::fastpath::{
    ConsistencyMode, CreateRequest, CreateResponse, DeleteRequest, FailurePolicy,
};
use agentcube_testkit::Request;
use agentcube_testkit::cluster::whole::{IMAGE, SYSTEM, Whole};
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use super::counted;
use crate::pools;
use crate::world::{LIMIT, PODS, World, expect, name};

const POOLS: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxpools";
const SANDBOXES: &str = "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxes";
const POOL: &str = "boxes";
/// That of agents which isolate themselves.
const NATIVE: &str = "native";
const LOOK: Duration = Duration::from_millis(100);
/// The same on the node and in the agents.
const DATA: &str = "/var/lib/agentcube-agents";

fn pool() -> Value {
    let agent = json!({
        "name": "agent", "image": IMAGE, "imagePullPolicy": "Never",
        "env": [{ "name": "AGENTCUBE_AGENT_DATA_DIR", "value": DATA }],
        "securityContext": { "privileged": true, "runAsUser": 0 },
        "volumeMounts": [
            { "name": "containerd", "mountPath": "/run/containerd" },
            { "name": "data", "mountPath": DATA, "mountPropagation": "Bidirectional" },
        ],
    });
    json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": POOL },
        "spec": {
            "capacity": { "poolMin": 1, "poolMax": 1 }, "maxSandboxesPerPod": 10, "runtimeType": "containerd",
            "agentTemplate": { "spec": {
                "hostPID": true, "terminationGracePeriodSeconds": 5, "containers": [agent],
                "volumes": [
                    { "name": "containerd", "hostPath": { "path": "/run/containerd" } },
                    { "name": "data", "hostPath": { "path": DATA, "type": "DirectoryOrCreate" } },
                ],
            } },
        },
    })
}

/// A client of the fast path, as somebody whom the API server knows.
struct Client<'a> {
    fast_path: FastPathClient<Channel>,
    cluster: &'a Whole,
}

impl Client<'_> {
    async fn new(cluster: &Whole) -> Result<Client<'_>> {
        let path = format!("/api/v1/namespaces/{SYSTEM}/services/agentcube-fastpath");
        let service = cluster.http.send(Request::new(Method::GET, &*path)).await?.value();
        let address = service["spec"]["clusterIP"].as_str().context("the fast path has a Service")?;
        let channel = Endpoint::from_shared(format!("http://{address}:9100"))?.connect_lazy();
        Ok(Client { fast_path: FastPathClient::new(channel), cluster })
    }

    fn signed<T>(&self, message: T, token: &str) -> Result<tonic::Request<T>> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
        request.set_timeout(Duration::from_secs(60));
        Ok(request)
    }

    async fn create(&mut self, name: &str, mode: ConsistencyMode) -> Result<CreateResponse> {
        let order = CreateRequest {
            image: IMAGE.into(),
            pool_ref: POOL.into(),
            command: vec!["/usr/local/bin/agentcube".into(), "sample-agent".into()],
            ports: vec![8080],
            namespace: "default".into(),
            name: name.into(),
            request_id: name.into(),
            consistency_mode: mode.into(),
            failure_policy: FailurePolicy::AutoRecreate.into(),
            wait_ready: true,
            ..CreateRequest::default()
        };
        let order = self.signed(order, self.cluster.token())?;
        Ok(self.fast_path.create_sandbox(order).await?.into_inner())
    }

    async fn delete(&mut self, name: &str) -> Result<()> {
        let order = DeleteRequest { sandbox_id: name.into(), namespace: "default".into() };
        let order = self.signed(order, self.cluster.token())?;
        self.fast_path.delete_sandbox(order).await?;
        Ok(())
    }
}

fn runs(sandbox: &Value) -> bool {
    sandbox["status"]["phase"] == "Running"
}

/// What a sandbox says at its endpoint.
async fn said(world: &World, endpoint: &str) -> Result<Value> {
    let answer = world.ask_at(endpoint.parse()?, Method::POST, "/", &[], "hello").await?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(answer.json())
}

/// The same of one that runs, and may not listen yet.
async fn says_soon(world: &World, endpoint: &str) -> Result<Value> {
    let asking = async {
        loop {
            match said(world, endpoint).await {
                Ok(said) => return said,
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::time::timeout(LIMIT, asking).await.context("the sandbox never answers")
}

async fn sandbox_until(
    world: &World,
    name: &str,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let found = |objects: &Objects| objects.get(name).is_some_and(&wanted);
    let objects = watch::until(&world.http, SANDBOXES, what, LIMIT, found).await?;
    objects.get(name).cloned().context("it is there")
}

pub(crate) async fn fast_path(world: &World) -> Result<()> {
    let cluster = world.cluster().context("it is a cluster")?;
    let reply = world.http.send(Request::new(Method::POST, POOLS).json(&pool())).await?;
    ensure!(reply.status == 201, "cannot make the pool: {}", reply.value());
    let ready = |pools: &Objects| pools.get(POOL).is_some_and(|pool| crate::world::condition(pool, "Ready"));
    watch::until(&world.http, POOLS, "the pool is ready", LIMIT, ready).await?;
    let mut client = Client::new(cluster).await?;
    let mut runs_by_name = Vec::new();
    for (name, mode) in [("fast", ConsistencyMode::Fast), ("strong", ConsistencyMode::Strong)] {
        let made = client.create(name, mode).await.with_context(|| format!("create {name}"))?;
        let endpoint = made.endpoints.first().context("it has an endpoint")?;
        let turn = said(world, endpoint).await?["turn"].clone();
        expect(turn == 1, "the sandbox answers", &made)?;
        let moved = |sandbox: &Value| {
            runs(sandbox) && sandbox["metadata"]["annotations"]["sandbox.fast.io/allocation"].is_null()
        };
        let object = sandbox_until(world, name, "the allocation has moved into status", moved).await?;
        expect(object["status"]["sandboxID"] == made.run_id.as_str(), "the object names the run", &object)?;
        runs_by_name.push((name, made.run_id));
    }
    refused(&mut client).await?;
    by_hand(world).await?;
    agent_killed(world, &runs_by_name).await?;
    for (name, _) in &runs_by_name {
        client.delete(name).await?;
    }
    let none = |objects: &Objects| objects.is_empty();
    watch::until(&world.http, SANDBOXES, "the sandboxes are gone", LIMIT, none).await?;
    janitor(world, cluster).await
}

/// The command line finds the fast path by itself.
async fn by_hand(world: &World) -> Result<()> {
    let command = ["sandbox", "create", IMAGE, "--pool", POOL, "--name", "by-hand", "-p", "8080"];
    world.run(&[&command[..], &["--", "/usr/local/bin/agentcube", "sample-agent"]].concat()).await?;
    let listed = world.run(&["sandbox", "ls"]).await?;
    expect(listed.contains("by-hand") && listed.contains("Running"), "it is listed", &listed)?;
    world.run(&["sandbox", "rm", "by-hand"]).await.map(drop)
}

/// Who shows no token, or a wrong one, is told so.
async fn refused(client: &mut Client<'_>) -> Result<()> {
    let order = DeleteRequest { sandbox_id: "fast".into(), namespace: "default".into() };
    let wrong = client.signed(order.clone(), "wrong")?;
    for request in [tonic::Request::new(order), wrong] {
        let status = client.fast_path.delete_sandbox(request).await.err().context("it is refused")?;
        expect(status.code() == tonic::Code::Unauthenticated, "strangers are refused", &status)?;
    }
    Ok(())
}

/// A pool without a template: its agents isolate natively. Sessions of a Task are there, and whoever uses the command line.
pub(crate) async fn as_they_come(world: &World) -> Result<()> {
    pools::as_they_come(world, NATIVE).await?;
    let agent = ["/.agentcube/agentcube", "sample-agent"];
    world
        .run(&[&["sandbox", "create", "host", "--pool", NATIVE, "--name", "mine", "--"], &agent[..]].concat())
        .await?;
    let inside = world.run(&["sandbox", "exec", "mine", "--", agent[0], "--version"]).await?;
    expect(inside.starts_with("agentcube "), "a command runs in it", &inside)?;
    for (command, paused) in [("pause", true), ("resume", false)] {
        world.run(&["sandbox", command, "mine"]).await?;
        let is = |sandbox: &Value| runs(sandbox) && stands_still(sandbox) == paused;
        sandbox_until(world, "mine", command, is).await?;
    }
    world.run(&["sandbox", "rm", "mine"]).await?;
    let pool = world.http.send(Request::new(Method::DELETE, format!("{POOLS}/{NATIVE}"))).await?;
    ensure!(pool.is_success(), "{}", pool.value());
    let left =
        |pods: &Objects| pods.values().all(|pod| pod["metadata"]["labels"]["sandbox.fast.io/pool"] != NATIVE);
    watch::until(&world.http, PODS, "its agents have gone", LIMIT, left).await.map(drop)
}

fn stands_still(sandbox: &Value) -> bool {
    let mut conditions = sandbox["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Paused" && condition["status"] == "True")
}

/// An agent's Pod is killed: what it ran is lost, and starts again elsewhere, as its policy says.
async fn agent_killed(world: &World, before: &[(&str, String)]) -> Result<()> {
    let agent = |pod: &&Value| pod["metadata"]["labels"]["sandbox.fast.io/pool"] == POOL;
    let pods = watch::until(&world.http, PODS, "Pods are listed", LIMIT, |_| true).await?;
    let agents: Vec<&str> = pods.values().filter(agent).map(name).collect();
    expect(agents.len() == 1, "the pool has one agent", &agents)?;
    let now = json!({ "gracePeriodSeconds": 0 });
    let killed =
        world.http.send(Request::new(Method::DELETE, format!("{PODS}/{}", agents[0])).json(&now)).await?;
    ensure!(killed.is_success(), "{}", killed.value());
    for (name, run) in before {
        let again = |sandbox: &Value| runs(sandbox) && sandbox["status"]["sandboxID"] != run.as_str();
        let sandbox = sandbox_until(world, name, "another run of it", again).await?;
        let endpoint = sandbox["status"]["endpoints"][0].as_str().context("it has an endpoint")?;
        expect(says_soon(world, endpoint).await?["turn"] == 1, "it begins anew", &sandbox)?;
        world.event(name, "silent").await?;
    }
    Ok(())
}

/// The janitor of the node looks, and finds nothing to remove: agents that are killed in order leave nothing. What it does
/// with what others leave is in the suite `containerd`.
async fn janitor(world: &World, cluster: &Whole) -> Result<()> {
    let pool = world.http.send(Request::new(Method::DELETE, format!("{POOLS}/{POOL}"))).await?;
    ensure!(pool.is_success(), "{}", pool.value());
    let none = |objects: &Objects| objects.is_empty();
    watch::until(&world.http, POOLS, "the pool is gone", LIMIT, none).await?;
    let looked =
        counted(cluster, "agentcube-janitor", "agentcube_janitor_scans_total{outcome=\"done\"}").await?;
    let removed = counted(cluster, "agentcube-janitor", "agentcube_janitor_removed_total").await?;
    expect(looked > 0 && removed == 0, "the janitor looks, and has nothing to do", &(looked, removed))
}
