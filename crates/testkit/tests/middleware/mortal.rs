//! The controllers of middleware in this process, beside an `agentcube up` that has none, so that they can die after any of their
//! effects while Pods live on: the effect happens, nobody hears the answer, and nothing that they do afterwards reaches anybody.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection,
};
use agentcube_api::middleware::parts::Scenario;
use agentcube_middleware::agents::{Agents, Answer, Place};
use agentcube_middleware::group::observe::Role;
use agentcube_middleware::order::Order;
use agentcube_middleware::remote::{Dial, Remote};
use agentcube_middleware::{Controllers, Options};
use agentcube_operator::metrics::Registry;
use anyhow::Result;
use futures_util::future::BoxFuture;
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::world::World;

/// How many effects controllers have, one set of them after another; but they die at once after an effect of a kind that nobody has
/// died after. Few alone would be too few for ever: all agents are asked to take a configuration before any of that is written.
const LIVES: [u64; 5] = [1, 2, 3, 5, 8];
/// As on `agentcube up`.
const BETWEEN_PODS: Duration = Duration::from_secs(1);

/// What happened to controllers during an operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deaths {
    pub(crate) count: usize,
    /// The kinds of effects that somebody died after: method and resource, or what was asked of an agent.
    pub(crate) after: BTreeSet<String>,
}

/// Has controllers carry out an operation that somebody waits for, none of them living for more than eight effects, and somebody dying
/// after each kind of effect that there is.
pub(crate) async fn carry_out<T>(
    world: &World,
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Deaths)> {
    let mut work = std::pin::pin!(work);
    let after = Arc::<Mutex<BTreeSet<String>>>::default();
    let mut count = 0;
    for life in LIVES.into_iter().cycle() {
        let fuse = Fuse { after: after.clone(), left: Arc::new(AtomicU64::new(life)), ..Fuse::default() };
        let running = tokio::spawn(controllers(world, &fuse).run(CancellationToken::new()));
        let done = tokio::select! {
            biased;
            () = fuse.blown.cancelled() => None,
            done = &mut work => Some(done),
        };
        running.abort();
        let _dead = running.await;
        match done {
            None => count += 1,
            Some(done) => {
                let after = std::mem::take(&mut *after.lock());
                return Ok((done?, Deaths { count, after }));
            }
        }
    }
    anyhow::bail!("there is always another life")
}

fn controllers(world: &World, fuse: &Fuse) -> Controllers {
    let dial = Arc::new(Forwarded(world.client.clone()));
    let agents = Doomed { remote: Remote { dial, ..Remote::default() }, fuse: fuse.clone() };
    let mut options = Options::default();
    options.settings.group.rolling_update.interval = BETWEEN_PODS.into();
    Controllers::new(fuse.client(&world.client), Arc::new(agents), options, &Registry::new())
}

#[derive(Clone, Default)]
struct Fuse {
    left: Arc<AtomicU64>,
    blown: CancellationToken,
    /// The kinds of effects that somebody died after.
    after: Arc<Mutex<BTreeSet<String>>>,
}

impl Fuse {
    /// An effect that counts.
    async fn effect<T>(&self, what: String, work: impl Future<Output = T>) -> T {
        let answer = self.through(work).await;
        let is_new = !self.blown.is_cancelled() && !self.after.lock().contains(&what);
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 || is_new {
            self.after.lock().insert(what);
            self.blown.cancel();
        }
        // Whoever is dead hears nothing.
        self.through(async { answer }).await
    }

    /// Something that changes nothing.
    async fn through<T>(&self, work: impl Future<Output = T>) -> T {
        if self.blown.is_cancelled() {
            std::future::pending::<()>().await;
        }
        work.await
    }

    /// A client whose writes are effects. Events say what happened, and are no part of it.
    fn client(&self, client: &Client) -> Client {
        let (client, fuse) = (client.clone(), self.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, fuse) = (client.clone(), fuse.clone());
            async move {
                let counts = request.method() != Method::GET && !request.uri().path().contains("/events");
                let what = effect_of(request.method(), request.uri().path());
                let answering = client.send(request);
                if counts { fuse.effect(what, answering).await } else { fuse.through(answering).await }
            }
        });
        Client::new(service, "default")
    }
}

/// `PATCH pods`, `PUT apps/status`: without the names of objects.
fn effect_of(method: &Method, path: &str) -> String {
    let parts: Vec<&str> = path.split('/').skip_while(|part| *part != "namespaces").skip(2).collect();
    let resource = parts.first().copied().unwrap_or(path);
    let below = parts.get(2).map(|part| format!("/{part}")).unwrap_or_default();
    format!("{method} {resource}{below}")
}

/// The way to Pods of `agentcube up` from outside of it: through its API.
struct Forwarded(Client);

impl Dial for Forwarded {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        let client = self.0.clone();
        Box::pin(async move { forward(client, address).await.map_err(io::Error::other) })
    }
}

async fn forward(client: Client, address: SocketAddr) -> Result<TcpStream> {
    let pods: Api<Pod> = Api::default_namespaced(client);
    let ip = address.ip().to_string();
    let has = |pod: &Pod| pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()) == Some(&ip);
    let found = pods.list(&ListParams::default()).await?.items.into_iter().find(has);
    let name = found.and_then(|pod| pod.metadata.name).ok_or_else(|| anyhow::anyhow!("nobody is at {ip}"))?;
    let mut forwarder = pods.portforward(&name, &[address.port()]).await?;
    let mut there = forwarder.take_stream(address.port()).ok_or_else(|| anyhow::anyhow!("no stream"))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let (mut far, _) = listener.accept().await?;
    tokio::spawn(async move {
        let _ended = tokio::io::copy_bidirectional(&mut far, &mut there).await;
        drop(forwarder);
    });
    Ok(near)
}

/// The real agents, for controllers that may be dead.
struct Doomed {
    remote: Remote,
    fuse: Fuse,
}

impl Doomed {
    fn effect<'a, T: Send + 'a>(&'a self, what: &str, answer: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(self.fuse.effect(format!("agent {what}"), answer))
    }

    fn through<'a, T: Send + 'a>(&'a self, answer: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(self.fuse.through(answer))
    }
}

impl Agents for Doomed {
    fn group_order<'a>(
        &'a self,
        place: &'a Place,
        component: &'a str,
        scenario: Scenario,
        groups: &'a [String],
    ) -> Answer<'a, Order> {
        self.through(self.remote.group_order(place, component, scenario, groups))
    }

    fn pod_order<'a>(
        &'a self,
        place: &'a Place,
        group: &'a str,
        scenario: Scenario,
        pods: &'a [String],
    ) -> Answer<'a, Order> {
        self.through(self.remote.pod_order(place, group, scenario, pods))
    }

    fn role<'a>(&'a self, place: &'a Place, detection: &'a RoleDetection) -> Answer<'a, Role> {
        self.through(self.remote.role(place, detection))
    }

    fn failover<'a>(
        &'a self,
        place: &'a Place,
        how: Option<&'a ActiveHighAvailability>,
        leader: Option<&'a str>,
    ) -> Answer<'a, ()> {
        let what = if leader.is_some() { "switchover" } else { "promote" };
        self.effect(what, self.remote.failover(place, how, leader))
    }

    fn tell<'a>(&'a self, place: &'a Place, command: &'a str, leader: &'a str) -> Answer<'a, ()> {
        let what = if leader.is_empty() { "fence" } else { "follow" };
        self.effect(what, self.remote.tell(place, command, leader))
    }

    fn reload<'a>(&'a self, place: &'a Place, files: &'a [(String, String)]) -> Answer<'a, bool> {
        self.effect("reload", self.remote.reload(place, files))
    }

    fn check<'a>(&'a self, place: &'a Place, check: &'a PreUpgradeCheck) -> Answer<'a, ()> {
        self.through(self.remote.check(place, check))
    }

    fn verify<'a>(&'a self, place: &'a Place, verify: &'a PostUpgradeVerify) -> Answer<'a, ()> {
        self.through(self.remote.verify(place, verify))
    }

    fn stop<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        self.effect("stop", self.remote.stop(place))
    }
}
