//! What is removed, and what never.

use std::collections::BTreeSet;
use std::time::Duration;

use agentcube_janitor::{Janitor, Options};
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::world::{Cluster, Labels, SPACE, World, until};

const GRACE: Duration = Duration::from_millis(300);

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

struct Scanner {
    janitor: Janitor,
    events: Recorder,
    metrics: Registry,
    _stop: tokio_util::sync::DropGuard,
}

impl Scanner {
    fn new(world: &World, cluster: &Cluster) -> Result<Self> {
        let (metrics, stop) = (Registry::new(), CancellationToken::new());
        let options = Options { interval: Duration::from_secs(3600), grace: GRACE };
        let janitor = Janitor::new(cluster.client.clone(), world.inventory()?, options, &metrics);
        let events = Recorder::start(cluster.client.clone(), "agentcube-janitor", None, stop.clone());
        Ok(Self { janitor, events, metrics, _stop: stop.drop_guard() })
    }

    /// Scans for several times the grace, and once when it is over, however long the others took.
    async fn long(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < GRACE * 4 {
            self.janitor.scan(&self.events).await?;
        }
        self.janitor.scan(&self.events).await?;
        Ok(())
    }
}

pub(crate) async fn removes_orphans_and_nothing_else(world: &World) -> Result<()> {
    let cluster = Cluster::start(true).await?;
    let (alive, again) = (cluster.agent("alive").await?, cluster.agent("again").await?);
    let (own, other) = (cluster.sandbox("own").await?, cluster.sandbox("other").await?);
    ensure!(own != other);
    let of = |agent, agent_uid, sandbox, sandbox_uid| Some(Labels { agent, agent_uid, sandbox, sandbox_uid });
    // Nobody's.
    world.container("pod-gone", of("gone", "a-gone", "own", &own), true).await?;
    world.container("pod-other", of("again", "a-before", "own", &own), true).await?;
    world.container("no-object", of("alive", &alive, "none", "s-1"), false).await?;
    world.container("uid-differs", of("alive", &alive, "other", "s-before"), false).await?;
    // Somebody's: an agent that lives runs it, whatever the objects say; its object is there; it is not ours.
    world.container("runs", of("alive", &alive, "none", "s-1"), true).await?;
    world.container("runs-too", of("again", &again, "other", "s-before"), true).await?;
    world.container("ended", of("alive", &alive, "own", &own), false).await?;
    world.container("nameless", of("alive", &alive, "other", ""), false).await?;
    world.container("foreign", None, false).await?;
    let all = world.names()?;
    ensure!(all.len() == 9, "{all:?}");

    let mut scanner = Scanner::new(world, &cluster)?;
    let next = scanner.janitor.scan(&scanner.events).await?;
    ensure!(world.names()? == all, "it did not wait");
    ensure!(next.is_some_and(|next| next <= GRACE), "{next:?}");
    scanner.long().await?;
    let left = world.names()?;
    ensure!(left == set(&["runs", "runs-too", "ended", "nameless", "foreign"]), "{left:?}");
    let metrics = scanner.metrics.encode();
    for (reason, count) in [("AgentPodDisappeared", 2), ("SandboxCRDNotFound", 1), ("UIDMismatch", 1)] {
        let line = format!("agentcube_janitor_removed_total{{reason=\"{reason}\"}} {count}\n");
        ensure!(metrics.contains(&line), "{line}: {metrics}");
    }
    ensure!(metrics.contains("agentcube_janitor_suspects 0\n"), "{metrics}");
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), SPACE);
    until("Events tell of it", async || {
        let told = events.list(&ListParams::default()).await?.items.into_iter();
        let told: BTreeSet<_> = told
            .map(|event| (event.reason.unwrap_or_default(), event.involved_object.name.unwrap_or_default()))
            .collect();
        let expected =
            [("AgentPodDisappeared", "own"), ("SandboxCRDNotFound", "none"), ("UIDMismatch", "other")];
        Ok(told == expected.map(|(reason, name)| (reason.to_owned(), name.to_owned())).into())
    })
    .await
}

pub(crate) async fn does_nothing_without_answers(world: &World) -> Result<()> {
    let cluster = Cluster::start(true).await?;
    let labels = Labels { agent: "gone", agent_uid: "a-1", sandbox: "box", sandbox_uid: "s-1" };
    world.container("orphan", Some(labels), true).await?;
    let mut scanner = Scanner::new(world, &cluster)?;
    scanner.janitor.scan(&scanner.events).await?;
    cluster.cut(true);
    scanner.long().await?;
    ensure!(world.names()? == set(&["orphan"]), "it was removed on a guess");
    ensure!(scanner.metrics.encode().contains("agentcube_janitor_scans_total{outcome=\"unanswered\"}"));
    // With the first answer it is proved, and was for all of the grace.
    cluster.cut(false);
    scanner.janitor.scan(&scanner.events).await?;
    ensure!(world.names()?.is_empty(), "{:?}", world.names()?);
    Ok(())
}

pub(crate) async fn proves_nothing_by_a_server_without_the_kind(world: &World) -> Result<()> {
    let cluster = Cluster::start(false).await?;
    let alive = cluster.agent("alive").await?;
    let labels = Labels { agent: "alive", agent_uid: &alive, sandbox: "box", sandbox_uid: "s-1" };
    world.container("ended", Some(labels), false).await?;
    let mut scanner = Scanner::new(world, &cluster)?;
    scanner.long().await?;
    ensure!(world.names()? == set(&["ended"]), "it was removed on a guess");
    Ok(())
}

pub(crate) async fn looks_when_a_pod_is_deleted(world: &World) -> Result<()> {
    let cluster = Cluster::start(true).await?;
    let alive = cluster.agent("alive").await?;
    let labels = Labels { agent: "alive", agent_uid: &alive, sandbox: "box", sandbox_uid: "s-1" };
    world.container("runs", Some(labels), true).await?;
    let options = Options { interval: Duration::from_secs(3600), grace: GRACE };
    let metrics = Registry::new();
    let janitor = Janitor::new(cluster.client.clone(), world.inventory()?, options, &metrics);
    let stop = CancellationToken::new();
    let running = tokio::spawn(janitor.run(Some("node".into()), stop.clone()));
    let done = "agentcube_janitor_scans_total{outcome=\"done\"} 1\n";
    until("it has looked", async || Ok(metrics.encode().contains(done))).await?;
    cluster.pods().delete("alive", &DeleteParams::default().grace_period(0)).await?;
    until("it is removed", async || Ok(world.names()?.is_empty())).await?;
    stop.cancel();
    Ok(running.await?)
}
