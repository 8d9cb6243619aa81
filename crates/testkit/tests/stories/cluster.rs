//! On a real cluster, through Envoy Gateway: what runs it. The cases are those of `agentcube up`; what only a cluster has
//! is in the modules below.

mod bulk;
mod faults;
mod guards;
mod helm;
mod load;
mod plain;
mod pools;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::cluster::whole::{IMAGE, SYSTEM, Whole};
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{Request, inventory};
use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::Value;

use crate::world::{LIMIT, World, annotation};
use crate::{end_to_end, examples, sign_on};

const LOOK: Duration = Duration::from_secs(1);
/// Where parts are asked for what they count.
const ADMIN_PORT: u16 = 9003;

pub(crate) async fn run(options: &Options, report: &mut Report) {
    let found = build_program().and_then(|program| Whole::find(&options.cache, &program));
    let mut cluster = match found {
        Ok(cluster) => cluster,
        Err(error) => return report.skip("a cluster", 1, &format!("{error:#}")),
    };
    match at_rest(&cluster).await {
        Ok(before) => cluster.before = before,
        Err(error) => return report.note("the cluster says what it has", Err(error)),
    }
    let installed = install(&cluster, &[]);
    let failed = installed.is_err();
    report.note("agentcube install puts everything into a fresh cluster", installed);
    if failed {
        return eprintln!("{}", cluster.told());
    }
    let world = match World::on_cluster(cluster).await {
        Ok(world) => world,
        Err(error) => return report.note("a TaskGateway gets its Envoy", Err(error)),
    };
    if std::env::args().any(|argument| argument == "--bulk") {
        return report.note("a thousand Tasks and two thousand sessions", bulk::measure(&world).await);
    }
    end_to_end(options, report, &world).await;
    trials! { options, report, &world;
        "WebSockets" => faults::web_socket,
        "story 2: an interpreter for each session, on gVisor" => guards::gvisor,
        "story 3: code without an image" => examples::code_bundle,
        "story 4: single sign-on in front of agents" => sign_on::single_sign_on,
        "a rate limit of a TaskGateway" => guards::rate_limit,
        "the fast path: agents as Pods on containerd, one killed, and the janitor" => pools::fast_path,
        "the fast path: agents as they come, with sessions of a Task" => pools::as_they_come,
        "each role may do what it needs, and nothing else" => guards::rights,
        "routers are rolled under load" => faults::routers_rolled,
        "the leader of the controllers is killed under load" => faults::leader_killed,
        "etcd is restarted under load" => faults::etcd_restarted,
        "the API server is away for a minute under load" => faults::api_server_away,
        "without patches" => plain::without_patches,
        "agentcube uninstall leaves the cluster as it was" => uninstall,
        "the chart by Helm: the same, installed and taken away" => helm::installs,
    }
}

/// What a cluster has that has just come up, once nothing more is added to it.
async fn at_rest(cluster: &Whole) -> Result<BTreeSet<String>> {
    let mut before = inventory::objects(&cluster.http).await?;
    let resting = async {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = inventory::objects(&cluster.http).await?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    };
    tokio::time::timeout(LIMIT, resting).await.context("it never comes to rest")?
}

/// Everything of ours goes, and what users have made of our kinds with it.
async fn uninstall(world: &World) -> Result<()> {
    let cluster = world.cluster().context("it is a cluster")?;
    cluster.run(&["uninstall", "--all"])?;
    as_it_was(cluster).await
}

/// Waits until the cluster has what it had before. Envoy Gateway takes its Envoys away by itself.
async fn as_it_was(cluster: &Whole) -> Result<()> {
    let leaving = async {
        loop {
            // While kinds go, a server may still list one that it does not know any more.
            if inventory::objects(&cluster.http).await.is_ok_and(|after| after == cluster.before) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(LIMIT, leaving).await.is_ok() {
        return Ok(());
    }
    let after = inventory::objects(&cluster.http).await?;
    let left: Vec<&String> = after.difference(&cluster.before).collect();
    let gone: Vec<&String> = cluster.before.difference(&after).collect();
    bail!("left: {left:#?}; gone: {gone:#?}")
}

/// Installs as users do, or changes what is installed.
fn install(cluster: &Whole, more: &[&str]) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let values = directory.path().join("values.yaml");
    std::fs::write(&values, "config: { defaultIsolation: gvisor }\n")?;
    let values = values.display().to_string();
    let options = ["--image", IMAGE, "--rate-limits", "proxy", "--values", &values, "--apply"];
    cluster.run(&[&["install"], &options[..], more].concat()).map(drop)
}

/// Waits until every router knows these Pods of a Task as they are, and of no request that is still on its way to one: Envoy
/// tells of ends a moment after the client has its answer.
pub(crate) async fn routers_at_rest(cluster: &Whole, task: &str, pods: &[Value]) -> Result<()> {
    let version = |pod: &Value| pod["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok();
    let newest = pods.iter().filter_map(version).max().context("there are Pods")?;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
    let seen = |leases: &Objects| {
        let of_router =
            |lease: &&Value| lease["metadata"]["labels"][labels::LEASE] == labels::LEASE_OF_ROUTER;
        let mut routers = leases.values().filter(of_router).peekable();
        routers.peek().is_some()
            && routers.all(|lease| {
                annotation(lease, labels::SEEN_PODS).parse().is_ok_and(|seen: u64| seen >= newest)
            })
    };
    watch::until(&cluster.http, &leases, "every router has seen the Pods", LIMIT, seen).await?;
    let under_way = format!("agentcube_requests_in_flight{{namespace=\"default\",task=\"{task}\"}}");
    let resting = async {
        while counted(cluster, "agentcube-router", &under_way).await? > 0 {
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, resting).await.context("requests never end")?
}

/// What all Pods of a part have counted together.
async fn counted(cluster: &Whole, part: &str, what: &str) -> Result<u64> {
    let secret = format!("/api/v1/namespaces/{SYSTEM}/secrets/agentcube-admin-token");
    let secret = cluster.http.send(Request::new(Method::GET, &*secret)).await?.value();
    let token = STANDARD.decode(secret["data"]["token"].as_str().context("the Secret has a token")?)?;
    let token = String::from_utf8(token)?;
    let pods = format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io%2Fname%3D{part}");
    let pods = cluster.http.send(Request::new(Method::GET, &*pods)).await?.value();
    let pods = pods["items"].as_array().filter(|pods| !pods.is_empty());
    let mut sum = 0;
    for pod in pods.with_context(|| format!("there is a Pod of {part}"))? {
        let address = pod["status"]["podIP"].as_str().with_context(|| format!("{part} has an address"))?;
        let address = SocketAddr::new(address.parse()?, ADMIN_PORT);
        let text = crate::world::get(address, "/metrics", &token).await?;
        let counted = text.lines().filter(|line| line.starts_with(what));
        sum += counted.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}
