//! The parts that make Tasks, Apps and front ends work: controllers, providers, lifecycle manager, router, gateway. One process runs them on
//! its data directory, so each leads without election. Stopped from the outside in: the gateway lets requests end, the
//! router gives up its Lease, then the rest.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use agentcube_apiserver::hooks;
use agentcube_instance::lifecycle::{self, Limits};
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::spec::{Config, Providers};
use agentcube_instance::timing::Timing;
use agentcube_instance::{Endpoint, token};
use agentcube_middleware::remote::{Dial, Remote};
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::{self, AccessLog, Hiding};
use agentcube_router::{Connect, Gateway};
use agentcube_task::Controllers;
use anyhow::Context;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::forge::{self, Forge};
use crate::access_log;

/// Where the operator has its own objects.
pub(super) const NAMESPACE: &str = "agentcube-system";
/// Time between one Pod of a middleware and the next.
const BETWEEN_PODS: Duration = Duration::from_secs(1);
/// The name of the one router.
const ROUTER: &str = "embedded";

/// What the parts need.
pub(super) struct Options {
    pub(super) client: Client,
    pub(super) config: Config,
    pub(super) connect: Arc<dyn Connect>,
    /// The socket for requests to Tasks.
    pub(super) listener: TcpListener,
    pub(super) address: IpAddr,
    /// Where all of them count what they do.
    pub(super) metrics: Registry,
    pub(super) access_log: access_log::Arguments,
    /// What front ends are built with, if they are looked after.
    pub(super) forge: Option<forge::Machine>,
    /// Apps are looked after.
    pub(super) middleware: bool,
}

/// A part that runs until it is told to stop.
struct Part {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Part {
    fn start<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(CancellationToken) -> F) -> Part {
        let stop = CancellationToken::new();
        Part { running: tokio::spawn(run(stop.clone())), stop }
    }

    async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.running.await {
            tracing::error!(%error, "a part did not end well");
        }
    }
}

/// The parts, in the order in which they stop.
pub(super) struct Operator {
    parts: Vec<Part>,
    reserver: Reserver,
    hiding: Hiding,
    access_log: Option<AccessLog>,
}

impl Operator {
    /// Starts everything; comes back when requests can be served.
    pub(super) async fn start(options: Options) -> anyhow::Result<Operator> {
        let Options { client, config, connect, listener, address, metrics, access_log, forge, middleware } =
            options;
        make_namespace(&client).await.context("cannot make the operator's namespace")?;
        let keys = token::ensure_master_keys(client.clone(), NAMESPACE).await?;
        let hiding = Hiding::new(keys.hiding_key());
        let access_log = access_log.open(&hiding, &metrics)?;
        let timing = Timing::default();
        let providers = Providers::new(client.clone(), config);
        let provider = Arc::new(providers.clone());
        let tasks = agentcube_task::Options::default();
        let controllers = Controllers::counted(client.clone(), provider, tasks, &metrics);
        let lifecycle = lifecycle::Options { namespace: NAMESPACE.into(), timing, limits: Limits::default() };
        let lifecycle = lifecycle::Manager::counted(client.clone(), lifecycle, &metrics);
        let router = reserve::Options { name: ROUTER.into(), namespace: NAMESPACE.into(), keys, timing };
        let reserver = Reserver::counted(client.clone(), router, &metrics);
        let gateway = agentcube_router::Options {
            address,
            bound: vec![listener],
            grpc: Some(Arc::new(agentcube_extproc::Grpc)),
            metrics: metrics.clone(),
            access_log: access_log.clone(),
            ..agentcube_router::Options::default()
        };
        let middleware = middleware.then(|| of_apps(&client, &connect, &metrics));
        let forge = match forge {
            Some(machine) => Some(Forge::make(&client, machine, &metrics).await?),
            None => None,
        };
        let (forge, gate) = forge.map(|forge| (forge.controllers, (forge.gate, forge.listener))).unzip();
        let gateway = Gateway::new(client, Arc::new(reserver.clone()), connect, gateway);
        let parts = [
            Some(Part::start(|stop| gateway.run(stop))),
            Some(Part::start({
                let reserver = reserver.clone();
                |stop| reserver.run(stop)
            })),
            Some(Part::start(|stop| lifecycle.run(stop))),
            Some(Part::start(|stop| controllers.run(stop))),
            middleware.map(|middleware| Part::start(|stop| middleware.run(stop))),
            forge.map(|forge| Part::start(|stop| forge.run(stop))),
            gate.map(|(gate, builds)| Part::start(|stop| gate.run(builds, stop))),
            Some(Part::start(|stop| providers.run(stop))),
        ];
        reserver.ready().await;
        Ok(Operator { parts: parts.into_iter().flatten().collect(), reserver, hiding, access_log })
    }

    /// Pages for whoever looks for a mistake.
    pub(super) fn debug(&self) -> hooks::Debug {
        let (reserver, hiding) = (self.reserver.clone(), self.hiding.clone());
        Arc::new(move |page, query| match page {
            "sessions" => Some(observe::sessions(&reserver, &hiding, query)),
            _ => None,
        })
    }

    /// Stops one part after the other.
    pub(super) async fn stop(self) {
        for part in self.parts {
            part.stop().await;
        }
        if let Some(log) = self.access_log {
            let _ended = tokio::task::spawn_blocking(move || log.finish()).await;
        }
    }
}

/// The controllers of middleware.
fn of_apps(
    client: &Client,
    connect: &Arc<dyn Connect>,
    metrics: &Registry,
) -> agentcube_middleware::Controllers {
    let agents = Remote { dial: Arc::new(ByNode(connect.clone())), ..Remote::default() };
    let mut options = agentcube_middleware::Options {
        system_namespace: NAMESPACE.into(),
        ..agentcube_middleware::Options::default()
    };
    // On one machine there is nothing that would have to come to rest between one Pod and the next.
    options.settings.group.rolling_update.interval = BETWEEN_PODS.into();
    agentcube_middleware::Controllers::new(client.clone(), Arc::new(agents), options, metrics)
}

/// Agents in Pods, on the node's own network.
struct ByNode(Arc<dyn Connect>);

impl Dial for ByNode {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        let connect = self.0.clone();
        Box::pin(async move { connect.connect(Endpoint { host: address.ip(), port: address.port() }).await })
    }
}

async fn make_namespace(client: &Client) -> Result<(), kube::Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let metadata = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
    match api.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}
