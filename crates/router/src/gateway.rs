//! The built-in gateway as a whole: caches, classes, ports and proxy, wired; stopped in order.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::provider::InstanceProvider;
use agentcube_operator::cache::Cache;
use agentcube_operator::metrics::Registry;
use http::header::HeaderName;
use kube::Client;
use kube::runtime::watcher;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::authorize::Protocol;
use crate::classes::{Caches, Classes};
use crate::guard::{Guards, Reach};
use crate::observe::{AccessLog, Observer};
use crate::pool::Connect;
use crate::ports::Ports;
use crate::proxy::Proxy;
use crate::route::Table;
use crate::server::Port;
use crate::tls::SECRET_TYPE;

/// By this name a GatewayClass says that its Gateways are for this gateway.
pub const CONTROLLER: &str = "agentcube.io/gateway";

/// What can be chosen of a gateway.
pub struct Options {
    /// Name by which classes name it.
    pub controller: String,
    /// Where it listens.
    pub address: IpAddr,
    /// What it says its address is, where that differs.
    pub advertised: Option<String>,
    /// Sockets that are bound already; a listener with the port of one of them uses it.
    pub bound: Vec<std::net::TcpListener>,
    /// The header that names on whose behalf a request comes.
    pub tenant_header: HeaderName,
    /// How long requests may take to come to their end when it stops.
    pub drain: Duration,
    /// How many connections of clients there may be at once; more wait to be taken in.
    pub connections: usize,
    /// How many of them may be of one address (of one network of 64 bits for IPv6); more are closed.
    pub connections_per_address: usize,
    /// How long a client may take to send the head of a request, or a body that has to be read before it is known where
    /// it goes; to take a refusal; and how long it may be silent between two requests.
    pub head_timeout: Duration,
    /// How authorisation services are asked by gRPC, if they can be.
    pub grpc: Option<Arc<dyn Protocol>>,
    /// Where requests are counted.
    pub metrics: Registry,
    /// Where there is a line for each.
    pub access_log: Option<AccessLog>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            controller: CONTROLLER.into(),
            address: Ipv4Addr::LOCALHOST.into(),
            advertised: None,
            bound: Vec::new(),
            tenant_header: HeaderName::from_static("x-tenant-id"),
            drain: Duration::from_secs(20),
            connections: 10_000,
            connections_per_address: 2_500,
            head_timeout: Duration::from_secs(60),
            grpc: None,
            metrics: Registry::new(),
            access_log: None,
        }
    }
}

/// The built-in gateway.
pub struct Gateway {
    classes: Arc<Classes>,
    proxy: Arc<Proxy>,
    drain: Duration,
}

impl Gateway {
    pub fn new(
        client: Client,
        provider: Arc<dyn InstanceProvider>,
        connect: Arc<dyn Connect>,
        options: Options,
    ) -> Gateway {
        let observer = Observer::new("gateway", &options.metrics, options.access_log.clone());
        let table = Arc::new(RwLock::new(Table::counted(observer.counts().clone())));
        let caches = Caches {
            tasks: Cache::new(client.clone(), watcher::Config::default()),
            classes: Cache::new(client.clone(), watcher::Config::default()),
            gateways: Cache::new(client.clone(), watcher::Config::default()),
            routes: Cache::new(client.clone(), watcher::Config::default()),
            policies: Cache::new(client.clone(), watcher::Config::default()),
            secrets: Cache::new(
                client.clone(),
                watcher::Config::default().fields(&format!("type={SECRET_TYPE}")),
            ),
        };
        let reach = Reach { client: client.clone(), connect: connect.clone(), grpc: options.grpc.clone() };
        let guards = Arc::new(Guards::new(reach, caches.policies.clone()));
        let proxy = Proxy::new(table.clone(), guards.clone(), provider, connect, observer, &options);
        let proxy = Arc::new(proxy);
        let ports = Arc::new(Ports::new(options.address, options.bound, proxy.clone()));
        let address = options.advertised.unwrap_or_else(|| options.address.to_string());
        let classes = Arc::new(Classes {
            client,
            caches,
            controller: options.controller,
            address,
            table,
            guards,
            ports,
        });
        Gateway { classes, proxy, drain: options.drain }
    }

    /// Serves until the shutdown, and then until requests have come to their end or their time is over.
    pub async fn run(self, shutdown: CancellationToken) {
        let caches = &self.classes.caches;
        let classes = self.classes.clone();
        let controller = self.classes.controller();
        let queue = controller.queue();
        let news = self.classes.clone().follow_guards(queue.clone());
        tokio::join!(
            shutdown.clone().run_until_cancelled_owned(news),
            caches.tasks.clone().run(shutdown.clone()),
            caches.classes.clone().run(shutdown.clone()),
            caches.gateways.clone().run(shutdown.clone()),
            caches.routes.clone().run(shutdown.clone()),
            caches.policies.clone().run(shutdown.clone()),
            caches.secrets.clone().run(shutdown.clone()),
            controller.run(shutdown, move |key| classes.clone().reconcile(key, queue.clone())),
        );
        self.stop().await;
    }

    async fn stop(&self) {
        let ports = self.classes.ports.close();
        self.proxy.tunnels.close();
        let ended = async {
            for port in &ports {
                port.drained().await;
            }
            self.proxy.tunnels.wait().await;
        };
        if tokio::time::timeout(self.drain, ended).await.is_err() {
            tracing::warn!("requests that had not ended after {:?} were cut", self.drain);
        }
        self.proxy.cut.cancel();
        self.proxy.close_idle();
        for port in ports.iter().filter(|port| !Port::is_drained(port)) {
            port.drained().await;
        }
    }
}
