//! A thousand Tasks and two thousand sessions on a real cluster, through Envoy Gateway: what the controllers and the routers
//! use of memory and time. The instances are Pods of a node that nobody runs: they are said to be ready, and all of them are
//! one server on this machine. Everything else is real.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use agentcube_testkit::cluster::pretended_node;
use agentcube_testkit::cluster::whole::{MACHINE, SYSTEM};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::world::{PODS, TASKS, World, condition, name, sessions};

const TASKS_MADE: usize = 1000;
const SESSIONS_OF_EACH: usize = 2;
const AT_ONCE: usize = 16;
const NODE: &str = "bulk";
const NODES: &str = "/api/v1/nodes";
const MERGE: &str = "application/merge-patch+json";
const LONG: Duration = Duration::from_secs(1200);
/// How long the platform is looked at when nothing happens.
const REST: Duration = Duration::from_secs(60);

pub(crate) async fn measure(world: &World) -> Result<()> {
    serve().await?;
    let node = async {
        tokio::try_join!(pretended_node::keep(&world.http, NODE), tend(&world.http))?;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = node => ended.context("the node that nobody runs")?,
        measured = load(world) => measured?,
    }
    Ok(())
}

async fn load(world: &World) -> Result<()> {
    let before = Usage::read(&world.http).await?;
    let begun = Instant::now();
    let names: Vec<String> = (0..TASKS_MADE).map(|number| format!("bulk-{number}")).collect();
    let make = |name: &String| {
        let request = Request::new(Method::POST, TASKS).json(&task(name));
        async move {
            let reply = world.http.send(request).await?;
            ensure!(reply.status == 201, "{}", reply.value());
            anyhow::Ok(())
        }
    };
    stream::iter(&names).map(make).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let ready =
        |tasks: &Objects| tasks.values().filter(|task| condition(task, "Ready")).count() == TASKS_MADE;
    watch::until(&world.http, TASKS, "all Tasks are ready", LONG, ready).await?;
    println!("{TASKS_MADE} Tasks were ready after {:.0} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    for name in &names {
        world.routed(name, 1).await?;
    }
    println!("Envoy had heard of all after another {:.0} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let talks =
        names.iter().flat_map(|name| (0..SESSIONS_OF_EACH).map(move |session| (name.clone(), session)));
    let talk = |(name, session): (String, usize)| {
        let session = format!("user-{session}");
        async move {
            let answer = world.say(&name, &session, "hello").await?;
            ensure!(answer.status == 200, "{name}: {answer:?}");
            anyhow::Ok(())
        }
    };
    stream::iter(talks).map(talk).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let sessions = TASKS_MADE * SESSIONS_OF_EACH;
    println!("{sessions} sessions had their instances after {:.0} s", begun.elapsed().as_secs_f64());
    let busy = Usage::read(&world.http).await?;
    tokio::time::sleep(REST).await;
    let after = Usage::read(&world.http).await?;
    println!(
        "{:<12}{:>14}{:>14}{:>16}{:>16}",
        "role", "memory before", "memory with", "CPU for all", "CPU at rest"
    );
    for (role, rest) in &after.0 {
        let (Some(start), Some(end)) = (before.of(role), busy.of(role)) else { continue };
        println!(
            "{role:<12}{:>11.0} MB{:>11.0} MB{:>14.1} s{:>13.2} %",
            start.memory / 1e6,
            rest.memory / 1e6,
            end.cpu - start.cpu,
            (rest.cpu - end.cpu) / REST.as_secs_f64() * 100.0
        );
    }
    Ok(())
}

fn task(name: &str) -> Value {
    let container =
        json!({ "name": "agent", "image": "nobody/runs-this:1", "ports": [{ "containerPort": 8080 }] });
    let mut spec = sessions(json!({ "scalingMode": "OnDemand", "maxInstances": SESSIONS_OF_EACH }));
    spec["routing"]["reserveTimeout"] = json!("120s");
    spec["deployment"] = json!({ "type": "pod", "podTemplate": { "spec": {
        "nodeSelector": { pretended_node::LABEL: NODE },
        "tolerations": [{ "operator": "Exists" }],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    } } });
    json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name }, "spec": spec })
}

/// What every instance is: a server that says yes.
async fn serve() -> Result<()> {
    let listener = tokio::net::TcpListener::bind(SocketAddr::new(MACHINE.into(), 8080)).await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = hyper::service::service_fn(|_| async {
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"{}"))))
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer),
            );
        }
    });
    Ok(())
}

/// Says of each Pod of the node that it is ready, and lets those go that are to go.
async fn tend(http: &HttpClient) -> Result<()> {
    let mut tended = std::collections::BTreeSet::new();
    loop {
        let path = format!("{PODS}?fieldSelector=spec.nodeName%3D{NODE}&resourceVersion=0");
        let pods = http.send(Request::new(Method::GET, path)).await?.value();
        let due: Vec<Request> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pod| {
                let path = format!("{PODS}/{}", name(pod));
                let uid = pod["metadata"]["uid"].as_str()?.to_owned();
                if !pod["metadata"]["deletionTimestamp"].is_null() {
                    return Some(
                        Request::new(Method::DELETE, path).json(&json!({ "gracePeriodSeconds": 0 })),
                    );
                }
                let status = json!({ "status": { "phase": "Running", "podIP": MACHINE.to_string(),
                "podIPs": [{ "ip": MACHINE.to_string() }],
                "conditions": [{ "type": "Ready", "status": "True" }] } });
                let patch =
                    Request::new(Method::PATCH, format!("{path}/status")).body(MERGE, status.to_string());
                tended.insert(uid).then_some(patch)
            })
            .collect();
        stream::iter(due)
            .map(|request| http.send(request))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What the containers of each role use, as their kubelet counts it.
struct Usage(Vec<(String, Used)>);

#[derive(Clone, Copy, Default)]
struct Used {
    /// Bytes; the most of one Pod.
    memory: f64,
    /// Seconds; of all Pods together.
    cpu: f64,
}

impl Usage {
    async fn read(http: &HttpClient) -> Result<Usage> {
        let nodes = http.send(Request::new(Method::GET, NODES)).await?.value();
        let node = nodes["items"].as_array().into_iter().flatten().map(name).find(|node| *node != NODE);
        let node = node.context("there is a real node")?.to_owned();
        let path = format!("{NODES}/{node}/proxy/stats/summary");
        let summary = http.send(Request::new(Method::GET, path)).await?.value();
        let mut roles: Vec<(String, Used)> = Vec::new();
        for pod in summary["pods"].as_array().context("the kubelet counts")? {
            let (reference, container) = (&pod["podRef"], &pod["containers"][0]);
            if reference["namespace"] != SYSTEM {
                continue;
            }
            let role = container["name"].as_str().unwrap_or_default().to_owned();
            let memory = container["memory"]["workingSetBytes"].as_f64().unwrap_or_default();
            let cpu = container["cpu"]["usageCoreNanoSeconds"].as_f64().unwrap_or_default() / 1e9;
            match roles.iter_mut().find(|(known, _)| *known == role) {
                Some((_, used)) => *used = Used { memory: used.memory.max(memory), cpu: used.cpu + cpu },
                None => roles.push((role, Used { memory, cpu })),
            }
        }
        roles.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(Usage(roles))
    }

    fn of(&self, role: &str) -> Option<Used> {
        self.0.iter().find(|(known, _)| known == role).map(|(_, used)| *used)
    }
}
