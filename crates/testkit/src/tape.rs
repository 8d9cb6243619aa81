//! Records what a server answers to the requests of one case. Paths and bodies may say `{ns}`: it becomes the
//! case's own namespace on the way out and is masked again on the way back.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http_client::{HttpClient, Line, Lines, Reply, Request};
use crate::mask::Masker;

/// How long a case waits for something that the server does by itself.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer sent bodies are recorded by their length only.
const LONGEST_RECORDED_BODY: usize = 4096;

/// The kinds of patch that the API knows, by content type.
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// The recorder of one case.
pub struct Tape {
    http: HttpClient,
    namespace: String,
    masker: Masker,
    steps: Vec<Value>,
    /// Cluster-scoped objects to remove when the case is over.
    leftovers: Vec<String>,
    patience: Duration,
}

impl Tape {
    /// A recorder with a namespace of its own, which it creates.
    pub async fn new(http: HttpClient, namespace: &str) -> Result<Tape> {
        let masker = Masker::new(namespace, &http.addr().to_string());
        let mut tape = Tape {
            http,
            namespace: namespace.to_owned(),
            masker,
            steps: Vec::new(),
            leftovers: Vec::new(),
            patience: PATIENCE,
        };
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        tape.setup("/api/v1/namespaces", body).await?;
        Ok(tape)
    }

    /// The transcript so far. Cluster-scoped objects of the case are removed, without waiting for the end of
    /// it; its namespace stays until the cluster goes, so that the deletions of hundreds do not hold up the
    /// cases that are about deletion.
    pub async fn finish(self) -> Value {
        for path in self.leftovers.iter().rev() {
            let _ = self.http.send(Request::new(Method::DELETE, path.as_str())).await;
        }
        Value::Array(self.steps)
    }

    /// The case's own namespace, for what cannot be written as `{ns}`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Waits longer than usual for what the server does by itself.
    pub fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Has a cluster-scoped object removed when the case is over.
    pub fn remove_later(&mut self, path: &str) {
        self.leftovers.push(self.fill(path));
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{ns}", &self.namespace)
    }

    /// Sends a request and records it with its answer.
    pub async fn send(&mut self, request: Request) -> Result<Reply> {
        self.send_viewed(request, |value| value).await
    }

    /// Like [`Tape::send`], but records only what `view` leaves of the answer.
    pub async fn send_viewed(
        &mut self,
        request: Request,
        view: impl FnOnce(Value) -> Value,
    ) -> Result<Reply> {
        let request = self.filled(request);
        let reply = self.http.send(request.clone()).await?;
        self.record(&request, &reply, view);
        Ok(reply)
    }

    fn filled(&self, mut request: Request) -> Request {
        request.path = self.fill(&request.path);
        if let Ok(text) = std::str::from_utf8(&request.body) {
            request.body = Bytes::from(self.fill(text));
        }
        request
    }

    fn record(&mut self, request: &Request, reply: &Reply, view: impl FnOnce(Value) -> Value) {
        let mut step = self.step_of(request);
        step["status"] = json!(reply.status);
        self.note_headers(&mut step, reply.headers.iter());
        if !reply.bytes.is_empty() {
            step["reply"] = self.masker.value(&view(reply.value()));
        }
        self.steps.push(step);
    }

    fn step_of(&mut self, request: &Request) -> Value {
        let mut step = json!({"request": format!("{} {}", request.method, self.masker.path(&request.path))});
        for (name, value) in &request.headers {
            let value = value.to_str().unwrap_or_default();
            if !(name == "content-type" && value == "application/json") {
                step["headers"][name.as_str()] = value.into();
            }
        }
        if request.body.len() > LONGEST_RECORDED_BODY {
            step["send"] = format!("{{{} bytes}}", request.body.len() / 1000 * 1000).into();
        } else if !request.body.is_empty() {
            let sent = serde_json::from_slice(&request.body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&request.body).into_owned()));
            step["send"] = self.masker.value(&sent);
        }
        step
    }

    fn note_headers<'a>(
        &mut self,
        step: &mut Value,
        headers: impl Iterator<Item = (&'a http::HeaderName, &'a http::HeaderValue)>,
    ) {
        for (name, value) in headers {
            let value = value.to_str().unwrap_or_default();
            let plain_json = name == "content-type" && value == "application/json";
            if matches!(name.as_str(), "warning" | "content-type" | "allow" | "retry-after") && !plain_json {
                let value = self.masker.text(value);
                match &mut step["answered"][name.as_str()] {
                    Value::Array(values) => values.push(value.into()),
                    missing => *missing = json!([value]),
                }
            }
        }
    }

    /// Creates something that the case is not about: not recorded, and must succeed.
    pub async fn setup(&mut self, path: &str, body: Value) -> Result<Reply> {
        let request = self.filled(Request::new(Method::POST, path).json(&body));
        let reply = self.http.send(request).await?;
        ensure!(reply.is_success(), "set-up of {path} was refused: {}", reply.value());
        Ok(reply)
    }

    /// Sends a request that the case is not about: not recorded, and may fail.
    pub async fn aside(&mut self, request: Request) -> Result<Reply> {
        let reply = self.http.send(self.filled(request)).await?;
        self.masker.learn_list_version(&reply.value());
        Ok(reply)
    }

    pub async fn get(&mut self, path: &str) -> Result<Reply> {
        self.send(Request::new(Method::GET, path)).await
    }

    /// GET with an `Accept` header.
    pub async fn get_as(&mut self, path: &str, accept: &str) -> Result<Reply> {
        self.send(Request::new(Method::GET, path).header("accept", accept)).await
    }

    pub async fn post(&mut self, path: &str, body: Value) -> Result<Reply> {
        self.send(Request::new(Method::POST, path).json(&body)).await
    }

    pub async fn put(&mut self, path: &str, body: Value) -> Result<Reply> {
        self.send(Request::new(Method::PUT, path).json(&body)).await
    }

    pub async fn delete(&mut self, path: &str) -> Result<Reply> {
        self.send(Request::new(Method::DELETE, path)).await
    }

    /// DELETE with DeleteOptions.
    pub async fn delete_with(&mut self, path: &str, mut options: Value) -> Result<Reply> {
        options["apiVersion"] = "v1".into();
        options["kind"] = "DeleteOptions".into();
        self.send(Request::new(Method::DELETE, path).json(&options)).await
    }

    /// A patch of the given content type.
    pub async fn patch(&mut self, kind: &str, path: &str, body: Value) -> Result<Reply> {
        self.send(Request::new(Method::PATCH, path).body(kind, body.to_string())).await
    }

    /// Server-side apply; `query` is what follows the field manager, such as `&force=true`.
    pub async fn apply(&mut self, path: &str, manager: &str, query: &str, body: Value) -> Result<Reply> {
        let path = format!("{path}?fieldManager={manager}{query}");
        self.patch(APPLY_PATCH, &path, body).await
    }

    /// Asks until `until` holds for the answer, and records only that last one.
    pub async fn eventually(&mut self, path: &str, until: impl Fn(&Reply) -> bool) -> Result<Reply> {
        let request = self.filled(Request::new(Method::GET, path));
        let reply = self.poll(&request, until).await?;
        self.record(&request, &reply, |value| value);
        Ok(reply)
    }

    async fn poll(&self, request: &Request, until: impl Fn(&Reply) -> bool) -> Result<Reply> {
        let deadline = Instant::now() + self.patience;
        let mut pause = Duration::from_millis(2);
        loop {
            let reply = self.http.send(request.clone()).await?;
            if until(&reply) {
                return Ok(reply);
            }
            if Instant::now() > deadline {
                bail!("{} never came to what was awaited; last: {}", request.path, reply.value());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Waits, unrecorded, until the path answers as `until` says.
    pub async fn wait(&mut self, path: &str, until: impl Fn(&Reply) -> bool) -> Result<Reply> {
        let request = self.filled(Request::new(Method::GET, path));
        self.poll(&request, until).await
    }

    /// Creates a CustomResourceDefinition, unrecorded, and waits until `list` (the path of its
    /// objects) is served.
    pub async fn define(&mut self, crd: Value, list: &str) -> Result<()> {
        const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let name = crd["metadata"]["name"].as_str().context("a definition has a name")?.to_owned();
        self.remove_later(&format!("{CRDS}/{name}"));
        self.setup(CRDS, crd).await?;
        self.wait(list, Reply::is_success).await?;
        Ok(())
    }

    /// Opens a watch; what it brings is recorded where it is read.
    pub async fn watch(&mut self, path: &str) -> Result<Watch> {
        self.watch_as(path, "application/json").await
    }

    /// Opens a watch with an `Accept` header.
    pub async fn watch_as(&mut self, path: &str, accept: &str) -> Result<Watch> {
        let mut request = self.filled(Request::new(Method::GET, path));
        if accept != "application/json" {
            request = request.header("accept", accept);
        }
        let lines = self.http.stream(request.clone()).await?;
        Ok(Watch { lines, request })
    }

    /// Reads `count` events and records them. Periodic bookmarks do not count and are not recorded.
    pub async fn events(&mut self, watch: &mut Watch, count: usize) -> Result<Vec<Value>> {
        self.read_watch(watch, Some(count)).await
    }

    /// Reads until the server ends the watch, and records what came.
    pub async fn events_to_end(&mut self, watch: &mut Watch) -> Result<Vec<Value>> {
        self.read_watch(watch, None).await
    }

    async fn read_watch(&mut self, watch: &mut Watch, count: Option<usize>) -> Result<Vec<Value>> {
        let deadline = Instant::now() + self.patience;
        let mut events = Vec::new();
        let mut ended = "read";
        while count.is_none_or(|count| events.len() < count) {
            match watch.lines.next(deadline).await? {
                Line::Text(line) => {
                    let event: Value = serde_json::from_slice(&line)
                        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&line).into_owned()));
                    if !is_periodic_bookmark(&event) {
                        events.push(event);
                    }
                }
                Line::End => ended = "the server ended it",
                Line::Deadline => ended = "nothing more came",
            }
            if ended != "read" {
                break;
            }
        }
        let mut step = self.step_of(&watch.request);
        step["status"] = json!(watch.lines.status);
        self.note_headers(&mut step, watch.lines.headers.iter());
        step["events"] = events.iter().map(|event| self.masker.value(event)).collect();
        step["end"] = ended.into();
        self.steps.push(step);
        Ok(events)
    }
}

/// A bookmark that does not mark the end of the initial events comes whenever the server likes.
fn is_periodic_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK"
        && event.pointer("/object/metadata/annotations/k8s.io~1initial-events-end").is_none()
}

/// An open watch.
pub struct Watch {
    lines: Lines,
    request: Request,
}
