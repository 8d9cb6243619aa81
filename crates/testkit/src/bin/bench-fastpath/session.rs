//! The first request of a new session of a Task whose instances are sandboxes of a pool, through the gateway of `up`: a
//! sandbox is started for it, and answers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::containers::bundle::PROGRAM;
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pool::{GROUP, IMAGE, LIMIT, STAY};
use crate::{AT_ONCE, Sample};

const TASKS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/tasks";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A Task on a pool of its own.
pub(crate) struct Sessions {
    pub(crate) name: String,
    task: String,
    pub(crate) pool: String,
    pub(crate) prepared: usize,
    gateway: SocketAddr,
    http: HttpClient,
    next: AtomicUsize,
}

impl Sessions {
    /// Serves the Task; `prepared` sandboxes wait for its sessions.
    pub(crate) async fn make(
        http: &HttpClient,
        place: &Place,
        name: &str,
        prepared: usize,
    ) -> Result<Sessions> {
        let gateway = std::fs::read_to_string(place.data().join("gateway"))?.trim().parse()?;
        let task = format!("bench-{prepared}");
        let pool = format!("sessions-{prepared}");
        post(http, &format!("{GROUP}/sandboxpools"), &self::pool(&pool, prepared)).await?;
        post(http, TASKS, &self::task(&task, &pool)).await?;
        let next = AtomicUsize::new(0);
        let sessions =
            Sessions { name: name.to_owned(), task, pool, prepared, gateway, http: http.clone(), next };
        let serves = |objects: &Objects| {
            objects.get(&sessions.task).is_some_and(|task| task["status"]["phase"] == "Serving")
        };
        watch::until(http, TASKS, "the Task is served", LIMIT, serves).await?;
        Ok(sessions)
    }

    /// So many new sessions at once, which end when all have been answered.
    pub(crate) async fn run(&self, count: usize) -> Result<Vec<Sample>> {
        let samples = try_join_all((0..count).map(|_| self.first_request())).await?;
        // A session whose Lease is gone is over, and its instance with it.
        let reply = self.http.send(Request::new(Method::DELETE, LEASES)).await?;
        ensure!(reply.is_success(), "the sessions do not end: {}", reply.value());
        Ok(samples)
    }

    async fn first_request(&self) -> Result<Sample> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answering = tokio::time::timeout(LIMIT, self.ask(number)).await;
        answering.context("no answer in time")??;
        Ok(Sample { answering: begun.elapsed(), stages: None })
    }

    async fn ask(&self, session: usize) -> Result<()> {
        let mut stream = TcpStream::connect(self.gateway).await?;
        let request = format!(
            "GET /default/{}/ HTTP/1.1\r\nhost: bench\r\nx-session-id: session-{session}\r\nconnection: close\r\n\r\n",
            self.task
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"), "{answer}");
        Ok(())
    }
}

fn pool(name: &str, prepared: usize) -> serde_json::Value {
    let shapes: Vec<_> =
        (prepared > 0).then(|| json!({ "image": IMAGE, "count": prepared })).into_iter().collect();
    json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool", "metadata": { "name": name },
        "spec": {
            "capacity": { "poolMin": 1, "poolMax": 1 }, "maxSandboxesPerPod": 2 * AT_ONCE,
            "images": [IMAGE], "prepared": shapes,
        },
    })
}

fn task(name: &str, pool: &str) -> serde_json::Value {
    json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
        "spec": {
            "deployment": { "type": "sandbox", "sandboxTemplate": {
                "poolRef": pool, "rootfs": { "image": IMAGE }, "command": [PROGRAM, STAY],
            } },
            "routing": {
                "routePolicy": "BySession",
                "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }] },
            },
            "scaling": { "scalingMode": "OnDemand", "maxInstances": 2 * AT_ONCE },
        },
    })
}

async fn post(http: &HttpClient, path: &str, object: &serde_json::Value) -> Result<()> {
    let reply = http.send(Request::new(Method::POST, path).json(object)).await?;
    ensure!(reply.status == 201, "{path}: {}", reply.value());
    Ok(())
}
