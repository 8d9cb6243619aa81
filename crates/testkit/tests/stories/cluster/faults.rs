//! What may fail under those who talk: the API server, etcd, the leader of the controllers, routers.

use std::time::Duration;

use agentcube_testkit::Request;
use agentcube_testkit::cluster::whole::{SYSTEM, Whole};
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use http::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::load::Load;
use crate::world::{LIMIT, LOOK, World, expect, name, sessions};

const SESSIONS: usize = 8;
/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(60);
const LEADER: &str = "agentcube-controllers";

fn cluster(world: &World) -> Result<&Whole> {
    world.cluster().context("it is a cluster")
}

async fn talkers(world: &World, task: &str) -> Result<()> {
    world.task(task, sessions(json!({ "scalingMode": "OnDemand", "maxInstances": SESSIONS + 2 }))).await
}

pub(crate) async fn api_server_away(world: &World) -> Result<()> {
    without(world, "steady", "kube-apiserver", AWAY).await
}

pub(crate) async fn etcd_restarted(world: &World) -> Result<()> {
    without(world, "stored", "etcd", Duration::ZERO).await
}

/// A part of the cluster is away for at least so long.
async fn without(world: &World, task: &str, part: &str, away: Duration) -> Result<()> {
    talkers(world, task).await?;
    Load::during(world, task, SESSIONS, async |load| {
        cluster(world)?.part("stop", part)?;
        tokio::time::sleep(away).await;
        load.goes_on(SESSIONS).await?;
        cluster(world)?.part("start", part)?;
        answers(world).await
    })
    .await?;
    begins(world, task, "later").await?;
    world.remove(task).await
}

/// A new session gets an instance again. The cluster takes its time to come to itself; until then it is said when to ask again.
async fn begins(world: &World, task: &str, session: &str) -> Result<()> {
    let asking = async {
        loop {
            let answer = world.say(task, session, "hello").await?;
            if answer.status == 200 {
                return anyhow::Ok(());
            }
            let told = answer.status == 503 && answer.headers.contains_key("retry-after");
            expect(told, "a refusal says when to ask again", &answer)?;
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.context("a new session never gets an instance")?
}

/// Waits until the API server answers.
async fn answers(world: &World) -> Result<()> {
    let asking = async {
        loop {
            let ready = world.http.send(Request::new(Method::GET, "/readyz")).await;
            if ready.is_ok_and(|reply| reply.is_success()) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LIMIT, asking).await.context("the API server does not come back")
}

pub(crate) async fn leader_killed(world: &World) -> Result<()> {
    talkers(world, "led").await?;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
    let pods = format!("/api/v1/namespaces/{SYSTEM}/pods");
    Load::during(world, "led", SESSIONS, async |_| {
        let lease = world.http.send(Request::new(Method::GET, format!("{leases}/{LEADER}"))).await?.value();
        let before = lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let all = watch::until(&world.http, &pods, "Pods are listed", LIMIT, |_| true).await?;
        let leader = all.values().map(name).find(|pod| !pod.is_empty() && before.starts_with(pod));
        let leader = leader.with_context(|| format!("no Pod holds the Lease of {before:?}"))?;
        kill_in(leader)?;
        // It had no time to give its Lease up.
        let another = |leases: &Objects| {
            let holder = leases.get(LEADER).and_then(|lease| lease["spec"]["holderIdentity"].as_str());
            holder.is_some_and(|holder| !holder.is_empty() && holder != before)
        };
        watch::until(&world.http, &leases, "another leads", LIMIT, another).await?;
        world.task("led-anew", sessions(json!({ "scalingMode": "OnDemand" }))).await
    })
    .await?;
    world.remove("led-anew").await?;
    world.remove("led").await
}

/// Kills whatever runs in a Pod of this node, as suddenly as a machine fails. Its processes see its name as their host's.
fn kill_in(pod: &str) -> Result<()> {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let host = std::fs::read_to_string(entry.path().join("root/etc/hostname")).unwrap_or_default();
        if let Some(number) = number.filter(|_| host.trim() == pod) {
            rustix::process::kill_process(number, Signal::KILL)?;
            killed += 1;
        }
    }
    ensure!(killed > 0, "nothing runs in {pod}");
    Ok(())
}

/// An agent that shakes hands as WebSockets do, and says again whatever it is told.
const ECHO: &str = r#"
import base64, hashlib, os, socketserver

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        headers = {}
        self.rfile.readline()
        while (line := self.rfile.readline().strip()):
            name, value = line.split(b":", 1)
            headers[name.strip().lower()] = value.strip()
        key = headers.get(b"sec-websocket-key", b"") + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                         b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        while (said := self.request.recv(4096)):
            self.wfile.write(said)

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

Server(("", int(os.environ["PORT"])), Echo).serve_forever()
"#;

pub(crate) async fn echoes(world: &World, task: &str) -> Result<()> {
    let mut spec =
        sessions(json!({ "scalingMode": "OnDemand", "instanceLifecycle": { "idleTimeout": "20s" } }));
    spec["deployment"] = json!({ "type": "code-bundle", "codeBundle": {
        "inline": { "main.py": ECHO }, "entrypoint": "main.py",
        "codeRuntime": { "name": "python3.11", "image": agentcube_testkit::cluster::whole::PYTHON },
    } });
    world.task(task, spec).await
}

/// A WebSocket through the gateway; frames are whatever bytes there are.
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Waits until one opens: without patches Envoy hears of an instance after its router.
    pub(crate) async fn open(world: &World, task: &str, session: &str) -> Result<Socket> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Self::try_open(world, task, session).await {
                Err(_) if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
                other => return other,
            }
        }
    }

    async fn try_open(world: &World, task: &str, session: &str) -> Result<Socket> {
        let mut stream = TcpStream::connect(world.gateway).await?;
        let head = format!(
            "GET /default/{task}/ HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nx-session-id: {session}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let byte = tokio::time::timeout(LIMIT, stream.read_u8()).await.context("no answer")??;
            answer.push(byte);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        ensure!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        ensure!(
            answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "the hand of the instance was shaken: {answer}"
        );
        Ok(Socket(stream))
    }

    pub(crate) async fn echo(&mut self, words: &str) -> Result<()> {
        self.0.write_all(words.as_bytes()).await?;
        let mut heard = vec![0; words.len()];
        let hearing = self.0.read_exact(&mut heard);
        tokio::time::timeout(LIMIT, hearing).await.context("nothing is heard")?.context("it was closed")?;
        ensure!(heard == words.as_bytes(), "{words} became {}", String::from_utf8_lossy(&heard));
        Ok(())
    }
}

pub(crate) async fn web_socket(world: &World) -> Result<()> {
    echoes(world, "echo").await?;
    let mut ada = Socket::open(world, "echo", "ada").await?;
    let mut bob = Socket::open(world, "echo", "bob").await?;
    for turn in 0..5 {
        ada.echo(&format!("ada {turn}")).await?;
        bob.echo(&format!("bob {turn}")).await?;
    }
    let pods = world.pods("echo").await?;
    let serving = pods.iter().filter(|pod| !name(pod).ends_with("-prepare")).count();
    expect(serving == 2, "each has an instance of its own", &serving)?;
    world.remove("echo").await
}

/// As `kubectl rollout restart` does it.
pub(crate) async fn routers_rolled(world: &World) -> Result<()> {
    talkers(world, "rolled").await?;
    echoes(world, "rolled-echo").await?;
    let mut socket = Socket::open(world, "rolled-echo", "ada").await?;
    socket.echo("before").await?;
    Load::during(world, "rolled", SESSIONS, async |load| {
        let path = format!("/apis/apps/v1/namespaces/{SYSTEM}/deployments/agentcube-router");
        let now = format!("{:?}", std::time::SystemTime::now());
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": {
            "kubectl.kubernetes.io/restartedAt": now } } } } });
        let request = Request::new(Method::PATCH, &*path)
            .body("application/strategic-merge-patch+json", patch.to_string());
        let patched = world.http.send(request).await?;
        ensure!(patched.is_success(), "{}", patched.value());
        let generation = patched.value()["metadata"]["generation"].as_i64();
        let deployments = format!("/apis/apps/v1/namespaces/{SYSTEM}/deployments");
        let rolled = |objects: &Objects| {
            objects.get("agentcube-router").is_some_and(|it| {
                let (spec, status) = (&it["spec"]["replicas"], &it["status"]);
                status["observedGeneration"].as_i64() >= generation
                    && [&status["replicas"], &status["updatedReplicas"], &status["availableReplicas"]]
                        .iter()
                        .all(|count| *count == spec)
            })
        };
        watch::until(&world.http, &deployments, "the routers are rolled", LIMIT * 2, rolled).await?;
        socket.echo("during").await.context("the WebSocket")?;
        // The old ones are gone, too.
        let pods = format!("/api/v1/namespaces/{SYSTEM}/pods");
        let gone = |objects: &Objects| {
            let leaving = |pod: &&Value| {
                name(pod).starts_with("agentcube-router") && !pod["metadata"]["deletionTimestamp"].is_null()
            };
            objects.values().find(leaving).is_none()
        };
        watch::until(&world.http, &pods, "the old routers have ended", LIMIT * 2, gone).await?;
        load.goes_on(SESSIONS * 5).await
    })
    .await?;
    socket.echo("after").await.context("the WebSocket")?;
    world.remove("rolled-echo").await?;
    world.remove("rolled").await
}
