//! A running platform, its API, and its gateway as any client meets it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// A debug build on a busy machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
pub(crate) const TASKS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/tasks";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// The platform.
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) http: HttpClient,
    pub(crate) gateway: SocketAddr,
    up: Up,
}

/// An answer of the gateway.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The instance that answered, as the sample agent says it.
    pub(crate) fn instance(&self) -> Result<String> {
        ensure!(self.status == 200, "{self:?}");
        let value = self.json();
        Ok(value["instance"].as_str().with_context(|| format!("no instance in {value}"))?.to_owned())
    }

    /// Code of the refusal.
    pub(crate) fn refusal(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl World {
    pub(crate) async fn start(program: &Path) -> Result<World> {
        let place = Place::new(program)?;
        let up = place.start().await?;
        let gateway = std::fs::read_to_string(place.data().join("gateway"))?.trim().parse()?;
        Ok(World { http: up.http.clone(), place, gateway, up })
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.up.down(&self.place)
    }

    pub(crate) fn log(&self) -> String {
        self.up.log()
    }

    /// Runs the program as its user does.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.place.program());
        command.args(args).env("KUBECONFIG", self.place.kubeconfig()).env("HOME", self.place.home());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "agentcube {}: {said}", args.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Applies an example, and waits until its Task is ready.
    pub(crate) async fn deploy(&self, file: &str) -> Result<()> {
        let path = example(file);
        ensure!(path.is_file(), "there is no example {}", path.display());
        self.run(&["apply", "-f", &path.display().to_string(), "--wait", "--timeout", "120"]).await?;
        Ok(())
    }

    /// Makes a Task of the sample agent, and waits until it is ready.
    pub(crate) async fn task(&self, name: &str, spec: Value) -> Result<()> {
        let mut object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": { "deployment": { "type": "pod", "podTemplate": { "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "agent", "image": "host",
                    "command": ["/.agentcube/agentcube", "sample-agent", "--word-delay", "300"],
                    "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8080 }, "periodSeconds": 1 },
                }],
            } } } },
        });
        for (key, value) in spec.as_object().context("a spec is an object")? {
            object["spec"][key] = value.clone();
        }
        let reply = self.http.send(Request::new(Method::POST, TASKS).json(&object)).await?;
        ensure!(reply.status == 201, "cannot make the Task {name}: {}", reply.value());
        let ready = |tasks: &Objects| tasks.get(name).is_some_and(|task| condition(task, "Ready"));
        watch::until(&self.http, TASKS, &format!("the Task {name} is ready"), LIMIT, ready).await?;
        Ok(())
    }

    /// Deletes a Task, and waits until nothing is left of it.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        let reply = self.http.send(Request::new(Method::DELETE, format!("{TASKS}/{name}"))).await?;
        ensure!(reply.is_success(), "cannot delete {name}: {}", reply.value());
        let gone = |objects: &Objects| !objects.contains_key(name);
        watch::until(&self.http, TASKS, &format!("the Task {name} is gone"), LIMIT, gone).await?;
        for path in [PODS, LEASES] {
            let none = |objects: &Objects| of(objects, name).next().is_none();
            watch::until(&self.http, path, &format!("nothing of {name} is left"), LIMIT, none).await?;
        }
        Ok(())
    }

    /// The Pods of a Task, when they are as wanted.
    pub(crate) async fn pods_until(
        &self,
        task: &str,
        what: &str,
        wanted: impl Fn(&[&Value]) -> bool,
    ) -> Result<Vec<Value>> {
        let of_task = |objects: &Objects| wanted(&of(objects, task).collect::<Vec<_>>());
        let objects = watch::until(&self.http, PODS, &format!("{task}: {what}"), LIMIT, of_task).await?;
        Ok(of(&objects, task).cloned().collect())
    }

    pub(crate) async fn pods(&self, task: &str) -> Result<Vec<Value>> {
        self.pods_until(task, "Pods are listed", |_| true).await
    }

    /// Waits for an Event about the Task whose message has these words.
    pub(crate) async fn event(&self, task: &str, words: &str) -> Result<()> {
        let told = |events: &Objects| {
            events.values().any(|event| {
                event["involvedObject"]["name"] == task
                    && event["message"].as_str().is_some_and(|message| message.contains(words))
            })
        };
        watch::until(&self.http, EVENTS, &format!("{task}: an Event with {words:?}"), LIMIT, told).await?;
        Ok(())
    }

    /// Sends a request through the gateway, and gives the answer as it begins.
    pub(crate) async fn begin(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<http::Response<Incoming>> {
        let stream = TcpStream::connect(self.gateway).await.context("the gateway does not listen")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        tokio::time::timeout(LIMIT, sender.send_request(request))
            .await
            .with_context(|| format!("no answer for {path}"))?
            .with_context(|| format!("no answer for {path}"))
    }

    /// Sends a request through the gateway, and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let response = self.begin(method, path, headers, body).await?;
        let (parts, incoming) = response.into_parts();
        let body =
            tokio::time::timeout(LIMIT, incoming.collect()).await.context("the answer has no end")??;
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes() })
    }

    /// Says something to a Task of the sample agent in a session.
    pub(crate) async fn say(&self, task: &str, session: &str, words: &str) -> Result<Answer> {
        let path = format!("/default/{task}/");
        self.ask(Method::POST, &path, &[("x-session-id", session)], words).await
    }

    /// One request in each session, all at once; the instances that answered.
    pub(crate) async fn at_once(&self, task: &str, sessions: &[String]) -> Result<Vec<String>> {
        let asking = sessions.iter().map(|session| self.say(task, session, "hello"));
        let answers = futures_util::future::try_join_all(asking).await?;
        answers.iter().map(Answer::instance).collect()
    }
}

pub(crate) fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file)
}

/// The objects that belong to a Task.
pub(crate) fn of<'a>(objects: &'a Objects, task: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.values().filter(move |object| object["metadata"]["labels"]["agentcube.io/task"] == task)
}

pub(crate) fn condition(object: &Value, name: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == name && it["status"] == "True")
}

pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

pub(crate) fn distinct(instances: &[String]) -> usize {
    instances.iter().collect::<BTreeSet<_>>().len()
}

/// BySession over the header X-Session-ID, with these numbers.
pub(crate) fn sessions(scaling: Value) -> Value {
    json!({
        "routing": { "routePolicy": "BySession", "sessionIdentifier": { "extractors": [
            { "type": "httpHeader", "name": "X-Session-ID" },
            { "type": "query", "name": "session" },
        ] } },
        "scaling": scaling,
    })
}

/// Fails with what was seen, unless it holds.
pub(crate) fn expect(holds: bool, what: &str, seen: &impl std::fmt::Debug) -> Result<()> {
    match holds {
        true => Ok(()),
        false => bail!("{what}: {seen:?}"),
    }
}
