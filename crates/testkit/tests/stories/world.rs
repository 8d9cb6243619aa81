//! A running platform, its API, and its gateway as any client meets it: `agentcube up`, or a real cluster with Envoy Gateway.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::cluster::whole::{self, Whole};
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
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// So often in a row a Task has to be known through Envoy, until it is taken for known everywhere.
pub(crate) const KNOWN: usize = 16;
pub(crate) const TASKS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/tasks";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// The platform.
pub(crate) struct World {
    pub(crate) http: HttpClient,
    pub(crate) gateway: SocketAddr,
    site: Site,
}

/// Where it runs.
enum Site {
    Up(Place, Up),
    Cluster(Whole),
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
        Ok(World { http: up.http.clone(), gateway, site: Site::Up(place, up) })
    }

    /// The same on a cluster, into which it has been installed, with a gateway for Tasks that name none.
    pub(crate) async fn on_cluster(cluster: Whole) -> Result<World> {
        let gateway = cluster.gateway("default", json!({})).await?;
        Ok(World { http: cluster.http.clone(), gateway, site: Site::Cluster(cluster) })
    }

    pub(crate) fn stop(self) -> Result<()> {
        match self.site {
            Site::Up(place, up) => up.down(&place),
            Site::Cluster(_) => Ok(()),
        }
    }

    /// What there is to see when something went wrong.
    pub(crate) fn told(&self) -> String {
        match &self.site {
            Site::Up(_, up) => {
                let log = up.log();
                let lines: Vec<&str> = log.lines().collect();
                format!("the end of the log:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
            }
            Site::Cluster(cluster) => cluster.told(),
        }
    }

    /// The cluster, if it is one.
    pub(crate) fn cluster(&self) -> Option<&Whole> {
        match &self.site {
            Site::Up(..) => None,
            Site::Cluster(cluster) => Some(cluster),
        }
    }

    /// Runs the program as its user does.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = match &self.site {
            Site::Up(place, _) => {
                let mut command = Command::new(place.program());
                command.env("KUBECONFIG", place.kubeconfig()).env("HOME", place.home());
                command
            }
            Site::Cluster(cluster) => cluster.command(),
        };
        command.args(args);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "agentcube {}: {said}", args.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The container of the sample agent.
    pub(crate) fn agent(&self) -> Value {
        let arguments = ["sample-agent", "--word-delay", "300"];
        let mut container = match &self.site {
            Site::Up(..) => json!({ "image": "host", "command": ["/.agentcube/agentcube"] }),
            Site::Cluster(_) => {
                json!({ "image": whole::IMAGE, "imagePullPolicy": "Never", "command": ["agentcube"] })
            }
        };
        container["name"] = json!("agent");
        container["args"] = json!(arguments);
        container["readinessProbe"] = json!({ "httpGet": { "path": "/readyz", "port": 8080 }, "periodSeconds": 1,
                // A machine that is busy for seconds makes nothing unready.
                "timeoutSeconds": 10, "failureThreshold": 30 });
        container
    }

    /// The address of this machine for those who run on the platform.
    pub(crate) fn machine(&self) -> IpAddr {
        match &self.site {
            Site::Up(..) => Ipv4Addr::LOCALHOST.into(),
            Site::Cluster(_) => whole::MACHINE.into(),
        }
    }

    /// The text of an example. On a cluster no Pod has the programs of this machine, but images that have them.
    pub(crate) fn example(&self, file: &str) -> Result<String> {
        let text = std::fs::read_to_string(example(file)).with_context(|| format!("no example {file}"))?;
        Ok(match &self.site {
            Site::Up(..) => text,
            Site::Cluster(_) => text.replace("image: host", &format!("image: {}", whole::PYTHON)),
        })
    }

    /// Applies an example, and waits until its Task can be asked.
    pub(crate) async fn deploy(&self, file: &str) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("example.yaml");
        std::fs::write(&path, self.example(file)?)?;
        self.run(&["apply", "-f", &path.display().to_string(), "--wait", "--timeout", "120"]).await?;
        if self.cluster().is_none() {
            return Ok(());
        }
        let text = std::fs::read_to_string(&path)?;
        let objects = text.split("\n---").filter(|object| object.lines().any(|line| line == "kind: Task"));
        for object in objects {
            let name = object.lines().find_map(|line| line.strip_prefix("  name: "));
            self.routed(name.with_context(|| format!("a Task of {file} has no name"))?, KNOWN).await?;
        }
        Ok(())
    }

    /// Makes a Task of the sample agent, and waits until it is ready.
    pub(crate) async fn task(&self, name: &str, spec: Value) -> Result<()> {
        let mut object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": { "deployment": { "type": "pod", "podTemplate": { "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [self.agent()],
            } } } },
        });
        for (key, value) in spec.as_object().context("a spec is an object")? {
            object["spec"][key] = value.clone();
        }
        let reply = self.http.send(Request::new(Method::POST, TASKS).json(&object)).await?;
        ensure!(reply.status == 201, "cannot make the Task {name}: {}", reply.value());
        let ready = |tasks: &Objects| tasks.get(name).is_some_and(|task| condition(task, "Ready"));
        watch::until(&self.http, TASKS, &format!("the Task {name} is ready"), LIMIT, ready).await?;
        let routing = &object["spec"]["routing"];
        if self.cluster().is_some() && routing["gatewayRefs"].is_null() {
            // Without a session there is nothing to refuse: each request keeps an instance busy until its end was heard of.
            let times = if routing["routePolicy"] == "Oneshot" { 1 } else { KNOWN };
            self.routed(name, times).await?;
        }
        Ok(())
    }

    /// Waits until Envoy has heard of a Task: Envoy Gateway accepts routes before it has passed them on. Each thread of Envoy and
    /// each router hears of it by itself, and any of them may be asked next, so it has to be known several times in a row.
    pub(crate) async fn routed(&self, task: &str, times: usize) -> Result<()> {
        let path = format!("/default/{task}/");
        let asking = async {
            let mut known = 0;
            while known < times {
                if self.ask(Method::GET, &path, &[], "").await?.status == 404 {
                    known = 0;
                    tokio::time::sleep(LOOK).await;
                } else {
                    known += 1;
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, asking).await.context("Envoy never hears of the Task")?
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
        self.begin_at(self.gateway, method, path, headers, body).await
    }

    async fn begin_at(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<http::Response<Incoming>> {
        let mut request = http::Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
        send(address, request).await.with_context(|| format!("no answer for {path}"))
    }

    /// Sends a request through the gateway, and reads the whole answer.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        self.ask_at(self.gateway, method, path, headers, body).await
    }

    /// The same through another gateway.
    pub(crate) async fn ask_at(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let response = self.begin_at(address, method, path, headers, body).await?;
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

/// What is to be had at an address with a token.
pub(crate) async fn get(address: SocketAddr, path: &str, token: &str) -> Result<String> {
    let request = http::Request::get(path).header("host", "localhost");
    let request = request.header("authorization", format!("Bearer {token}")).body(Full::new(Bytes::new()))?;
    let response = send(address, request).await?;
    ensure!(response.status().is_success(), "{path}: {}", response.status());
    Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?)
}

/// Sends a request over a connection of its own, and gives the answer as it begins.
async fn send(address: SocketAddr, request: http::Request<Full<Bytes>>) -> Result<http::Response<Incoming>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("nobody listens at {address}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(tokio::time::timeout(LIMIT, sender.send_request(request)).await.context("it takes too long")??)
}

fn example(file: &str) -> PathBuf {
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
