//! Controllers that die after each of their writes: the next ones find everything, and no build is made twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agentcube_api::frontend::integration::IntegrationPhase::Succeeded;
use agentcube_api::labels::FORGE_REBUILD;
use http::Method;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Tools;
use crate::stage::{Place, Stage, spec};

/// A client whose owner is dead after so many writes: the last one happens, and nobody hears the answer.
fn doomed(client: &Client, writes: u64, dead: &CancellationToken) -> Client {
    let (client, dead, left) = (client.clone(), dead.clone(), Arc::new(AtomicU64::new(writes)));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, dead, left) = (client.clone(), dead.clone(), left.clone());
        async move {
            if dead.is_cancelled() {
                std::future::pending::<()>().await;
            }
            // Events say what happened, and are no part of it.
            let counts = request.method() != Method::GET && !request.uri().path().contains("/events");
            let answer = client.send(request).await;
            if counts && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                dead.cancel();
            }
            if dead.is_cancelled() {
                std::future::pending::<()>().await;
            }
            answer
        }
    });
    Client::new(service, "default")
}

/// A first build, a change and a rebuild, until somebody dies. Whether nobody did.
async fn dies_after(tools: &Tools, writes: u64) -> bool {
    let stage = Stage::open(tools, Place::Embedded).await;
    let dead = CancellationToken::new();
    let first = stage.start_by(doomed(&stage.client, writes, &dead));
    let story = async {
        stage.create("tasks", spec("A")).await;
        stage.until_phase("tasks", Succeeded).await;
        stage.rename("tasks", "B").await;
        stage.until_phase("tasks", Succeeded).await;
        stage.patch("tasks", json!({ "metadata": { "annotations": { FORGE_REBUILD: "now" } } })).await;
        stage
            .until("tasks", "rebuilt", |now| {
                let status = now.status.clone().unwrap_or_default();
                status.observed_rebuild.as_deref() == Some("now") && status.phase == Some(Succeeded)
            })
            .await;
    };
    // Somebody looks after them, and starts others when they are dead.
    let keeper = async {
        dead.cancelled().await;
        first.crash().await;
        let second = stage.start();
        std::future::pending::<()>().await;
        drop(second);
    };
    tokio::select! {
        () = story => {}
        () = keeper => {}
    }
    let status = stage.status("tasks").await;
    assert_eq!((status.builds, stage.script.runs()), (Some(3), 3), "dead after {writes}");
    !dead.is_cancelled()
}

pub(crate) async fn after_every_write(tools: Tools) {
    for writes in 1.. {
        if dies_after(&tools, writes).await {
            assert!(writes > 12, "there is more to do than {writes} writes");
            return;
        }
    }
}
