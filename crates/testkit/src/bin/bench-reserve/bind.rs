//! Binding an idle instance on a real API server: what a new session waits for, over the two plain writes that it cannot
//! do without. They take turns, over the same client.

use std::time::{Duration, Instant};

use agentcube_instance::SpecId;
use agentcube_instance::provider::{InstanceProvider, Path, Request};
use agentcube_testkit::cluster::Binaries;
use agentcube_testkit::cluster::real::Real;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Fixture};
use crate::{connect, router};

/// Sessions that are bound, after some that warm up.
const BOUND: usize = 150;
const WARM_UP: usize = 20;
const KNOWN_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What was measured.
pub(crate) struct Measured {
    pub(crate) bind: Vec<Duration>,
    /// A Lease made and a Pod annotated.
    pub(crate) two_writes: Vec<Duration>,
}

pub(crate) async fn measure(binaries: &Binaries) -> Result<Measured> {
    let server = Real::start_api(binaries).await?;
    let http = server.client()?;
    fixture::install(&http).await?;
    let fixture = Fixture::new(http.clone(), "agent").await?;
    // Of another Task, which no router binds.
    let other = Fixture::new(http, "other").await?;
    let all = WARM_UP + BOUND;
    fixture.idle(0..all).await?;
    other.idle(0..all).await?;
    let kubeconfig = tempfile::NamedTempFile::new()?;
    std::fs::write(kubeconfig.path(), server.kubeconfig())?;
    let client = connect(kubeconfig.path()).await?;
    let (reserver, shutdown) = (router(client.clone()).await?, CancellationToken::new());
    let running = tokio::spawn(reserver.clone().run(shutdown.clone()));
    reserver.ready().await;
    let spec = SpecId("agent-1".into());
    let known = async {
        while usize::try_from(reserver.instance_statistics(&fixture.task, &spec).idle).unwrap_or(0) < all {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(KNOWN_LIMIT, known).await.context("the router does not hear of the instances")?;
    let mut measured = Measured { bind: Vec::new(), two_writes: Vec::new() };
    let mut in_use = Vec::new();
    for number in 0..all {
        let request = Request {
            task: fixture.task.clone(),
            key: Some(fixture::key(number)?),
            tenant: None,
            which: Default::default(),
        };
        let begun = Instant::now();
        let reserved = reserver.reserve_instance(request).await?;
        let bind = begun.elapsed();
        ensure!(reserved.path == Path::Bound, "session {number} came by {:?}", reserved.path);
        in_use.push(reserved);
        let two_writes = two_writes(&client, &other, number).await?;
        if number >= WARM_UP {
            measured.bind.push(bind);
            measured.two_writes.push(two_writes);
        }
    }
    drop(in_use);
    shutdown.cancel();
    running.await?;
    Ok(measured)
}

/// Of the same size as those of a binding, one after the other.
async fn two_writes(client: &Client, other: &Fixture, number: usize) -> Result<Duration> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), &other.task.namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &other.task.namespace);
    let pod = format!("{}-{number}", other.task.name);
    let lease: Lease = serde_json::from_value(other.lease(&fixture::key(number)?, &format!("{pod}/x")))?;
    let held = json!({"metadata": {"annotations": {
        agentcube_api::labels::RESERVE_KEY: fixture::key(number)?.as_str(),
        agentcube_api::labels::RESERVATION: "00000000-0000-0000-0000-000000000000.1",
    }}});
    let begun = Instant::now();
    leases.create(&PostParams::default(), &lease).await?;
    pods.patch(&pod, &PatchParams::default(), &Patch::Merge(&held)).await?;
    Ok(begun.elapsed())
}
