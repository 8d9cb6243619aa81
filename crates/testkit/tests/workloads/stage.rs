//! Where a case plays: a namespace of its own, a user who speaks kubectl, a kubelet that does what it is told,
//! and watches that tell when the controllers have come to rest. Nothing here sleeps.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agentcube_testkit::http_client::{HttpClient, Line, Request};
use agentcube_testkit::tape::MERGE_PATCH;
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::view;
use crate::world::{KINDS, World, is_active, is_ready, is_terminating, text};

/// How long the controllers may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    http: HttpClient,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    world: World,
    events: mpsc::Receiver<(&'static str, Value)>,
    recorded: Vec<Value>,
    _watches: JoinSet<()>,
}

impl Stage {
    pub(crate) async fn open(
        http: HttpClient,
        kubectl: &Path,
        kubeconfig: &Path,
        namespace: &str,
    ) -> Result<Stage> {
        let body = json!({ "metadata": { "name": namespace } });
        let reply = http.send(Request::new(Method::POST, "/api/v1/namespaces").json(&body)).await?;
        ensure!(reply.is_success(), "no namespace: {}", reply.value());
        let (sender, events) = mpsc::channel(64);
        let mut watches = JoinSet::new();
        for (kind, path) in KINDS {
            let path = format!("/{}?watch=1", path.replace("{ns}", namespace));
            let mut lines = http.stream(Request::new(Method::GET, path)).await?;
            let sender = sender.clone();
            watches.spawn(async move {
                let deadline = Instant::now() + 10 * PATIENCE;
                while let Ok(Line::Text(line)) = lines.next(deadline).await {
                    let event = serde_json::from_slice(&line).unwrap_or_default();
                    if sender.send((kind, event)).await.is_err() {
                        return;
                    }
                }
            });
        }
        let (kubectl, kubeconfig) = (kubectl.to_owned(), kubeconfig.to_owned());
        let (namespace, world, recorded) = (namespace.to_owned(), World::default(), Vec::new());
        Ok(Stage { http, kubectl, kubeconfig, namespace, world, events, recorded, _watches: watches })
    }

    /// All that was recorded.
    pub(crate) fn close(self) -> Value {
        Value::Array(self.recorded)
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    // The user.

    /// Applies a manifest.
    pub(crate) async fn apply(&mut self, manifest: &str) -> Result<()> {
        self.run("apply -f -", manifest).await
    }

    /// Runs a kubectl command, which must succeed; words are parted by single spaces.
    pub(crate) async fn kubectl(&mut self, command: &str) -> Result<()> {
        self.run(command, "").await
    }

    async fn run(&mut self, command: &str, input: &str) -> Result<()> {
        let mut child = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--namespace", &self.namespace, "--request-timeout=30s"])
            .args(command.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().context("kubectl has a standard input")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let output = child.wait_with_output().await?;
        ensure!(output.status.success(), "kubectl {command}: {}", String::from_utf8_lossy(&output.stderr));
        self.catch_up().await
    }

    /// Deletes a Pod behind the back of its controller.
    pub(crate) async fn delete_pod(&mut self, pod: &str) -> Result<()> {
        self.world.deleted_by_hand(pod);
        self.kubectl(&format!("delete pod {pod} --wait=false")).await
    }

    // Coming to rest.

    /// Waits until the watches have brought all that there is now: what follows is judged by a state that is
    /// no older than what was just done.
    async fn catch_up(&mut self) -> Result<()> {
        for (kind, path) in KINDS.into_iter().filter(|(kind, _)| *kind != "Event") {
            let path = format!("/{}", path.replace("{ns}", &self.namespace));
            let list = self.http.send(Request::new(Method::GET, path)).await?.value();
            self.until("the watches have caught up", |world| world.has_seen(kind, &list)).await?;
        }
        Ok(())
    }

    /// Waits until something holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&World) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        // All that is known already must be seen before the state is judged.
        while let Ok((kind, event)) = self.events.try_recv() {
            self.world.take(kind, &event);
        }
        while !holds(&self.world) {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some((kind, event))) => self.world.take(kind, &event),
                Ok(None) => bail!("the watches ended while waiting until {what}"),
                Err(_) => bail!(
                    "never came to: {what}; there is {:#}",
                    view::snapshot(&self.world, &self.namespace)
                ),
            }
        }
        Ok(())
    }

    /// Waits until the controllers are at rest and something holds, and records what there is.
    pub(crate) async fn record(&mut self, what: &str, holds: impl Fn(&World) -> bool) -> Result<()> {
        self.until(what, |world| world.is_at_rest() && holds(world)).await?;
        let mut shown = view::snapshot(&self.world, &self.namespace);
        shown["when"] = what.into();
        self.recorded.push(shown);
        Ok(())
    }

    /// Records something of what there is, as it is.
    pub(crate) fn note(&mut self, what: &str, of: impl FnOnce(&World) -> Value) {
        let shown = of(&self.world);
        self.recorded
            .push(json!({ "when": what, "noted": view::masked(&self.world, &self.namespace, &shown) }));
    }

    // The kubelet.

    /// Assigns a Pod to a node.
    pub(crate) async fn assign(&mut self, pod: &str) -> Result<()> {
        let target = json!({ "apiVersion": "v1", "kind": "Node", "name": "node" });
        let body = json!({ "metadata": { "name": pod }, "target": target });
        self.send(Method::POST, &format!("{pod}/binding"), "application/json", &body).await
    }

    /// Writes the status of a Pod.
    pub(crate) async fn report(&mut self, pod: &str, status: Value) -> Result<()> {
        self.send(Method::PATCH, &format!("{pod}/status"), MERGE_PATCH, &json!({ "status": status })).await
    }

    /// Has a Pod run, ready or not.
    pub(crate) async fn start(&mut self, pod: &str, ready: bool) -> Result<()> {
        if self.world.get("Pod", pod).is_some_and(|pod| text(pod, "/spec/nodeName").is_empty()) {
            self.assign(pod).await?;
        }
        let ready = if ready { "True" } else { "False" };
        let now = jiff::Timestamp::now();
        let condition = json!({ "type": "Ready", "status": ready, "lastTransitionTime": now.to_string() });
        self.report(pod, json!({ "phase": "Running", "conditions": [condition] })).await
    }

    /// Has a Pod end.
    pub(crate) async fn end(&mut self, pod: &str, phase: &str) -> Result<()> {
        let conditions = json!([{ "type": "Ready", "status": "False" }]);
        self.report(pod, json!({ "phase": phase, "conditions": conditions })).await
    }

    /// Has all Pods run ready that do not yet.
    pub(crate) async fn start_all(&mut self) -> Result<()> {
        for pod in self.world.pods_where(|pod| is_active(pod) && !is_ready(pod)) {
            self.start(&pod, true).await?;
        }
        Ok(())
    }

    /// Has all Pods be gone that were told to end.
    pub(crate) async fn finish_all(&mut self) -> Result<()> {
        for pod in self.world.pods_where(is_terminating) {
            let options = json!({ "gracePeriodSeconds": 0 });
            self.send(Method::DELETE, &pod, "application/json", &options).await?;
        }
        Ok(())
    }

    async fn send(&mut self, method: Method, path: &str, content: &str, body: &Value) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{path}", self.namespace);
        let reply = self.http.send(Request::new(method, &path).body(content, body.to_string())).await?;
        ensure!(reply.is_success(), "{path}: {}", reply.value());
        self.catch_up().await
    }
}
