//! A hundred sessions at once that find no instance: each starts one and waits for it. A kubelet that answers at once
//! makes every Pod ready, so that what is measured is ours and the API server's. The floor is a hundred plain Pods.

use std::path::Path;
use std::time::{Duration, Instant};

use agentcube_instance::provider::{InstanceProvider, Request};
use agentcube_testkit::cluster::process::{ServerProcess, Storage};
use anyhow::{Context, Result};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Fixture};
use crate::kubelet::{self, is_ready};
use crate::{connect, router};

pub(crate) const AT_ONCE: usize = 100;
const ROUNDS: usize = 5;
const FLOOR_LABEL: &str = "bench-floor";
const LIMIT: Duration = Duration::from_secs(120);

/// What each of all rounds took, from being asked for to being there.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) cold: Vec<Duration>,
    pub(crate) plain: Vec<Duration>,
    /// Of each round, until the last was there.
    pub(crate) cold_all: Vec<Duration>,
    pub(crate) plain_all: Vec<Duration>,
}

pub(crate) async fn measure(agentcube: &Path) -> Result<Measured> {
    let server = ServerProcess::start(agentcube, Storage::Memory).await?;
    fixture::install(&server.http).await?;
    let fixture = Fixture::new(server.http.clone(), "agent").await?;
    let client = connect(&server.kubeconfig()).await?;
    let shutdown = CancellationToken::new();
    let kubelet = tokio::spawn(kubelet::run(connect(&server.kubeconfig()).await?, "default"));
    let reserver = router(client.clone()).await?;
    let running = tokio::spawn(reserver.clone().run(shutdown.clone()));
    reserver.ready().await;
    let mut measured = Measured::default();
    let mut in_use = Vec::new();
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
        let sessions = numbers.clone().map(async |number| {
            let request = Request {
                task: fixture.task.clone(),
                key: Some(fixture::key(number)?),
                tenant: None,
                which: Default::default(),
            };
            let reserved = reserver.reserve_instance(request).await?;
            anyhow::Ok((begun.elapsed(), reserved))
        });
        for (took, reserved) in try_join_all(sessions).await? {
            measured.cold.push(took);
            in_use.push(reserved);
        }
        measured.cold_all.push(begun.elapsed());
        let begun = Instant::now();
        measured.plain.extend(Box::pin(plain(&client, round)).await?);
        measured.plain_all.push(begun.elapsed());
    }
    drop(in_use);
    shutdown.cancel();
    running.await?;
    kubelet.abort();
    server.kill();
    Ok(measured)
}

/// Plain Pods at once, until a watch has shown each to be ready.
async fn plain(client: &Client, round: usize) -> Result<Vec<Duration>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let label = format!("{FLOOR_LABEL}={round}");
    let events =
        watcher(pods.clone(), watcher::Config::default().labels(&label)).default_backoff().applied_objects();
    let begun = Instant::now();
    let names = (0..AT_ONCE).map(|number| format!("plain-{round}-{number}"));
    let create = try_join_all(names.map(async |name| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {FLOOR_LABEL: round.to_string()}},
            "spec": {"containers": [{"name": "agent", "image": "agent:1"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        anyhow::Ok(())
    }));
    let ready = async {
        let ready = events.filter_map(|event| std::future::ready(event.ok().filter(is_ready)));
        anyhow::Ok(ready.map(|_| begun.elapsed()).take(AT_ONCE).collect::<Vec<_>>().await)
    };
    let (_, times) = tokio::time::timeout(LIMIT, async { tokio::try_join!(create, ready) })
        .await
        .context("plain Pods do not become ready")??;
    Ok(times)
}
