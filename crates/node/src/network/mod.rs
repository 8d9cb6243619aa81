//! The network of the node's Pods: addresses, connections between them, Services, names, and the way out.
//!
//! No packet of a Pod leaves its network namespace. Its connections end at a socket that is served here, and whatever
//! is allowed is connected anew from here. Nothing on the host's network is changed.

mod addresses;
mod balance;
mod closed;
mod decide;
mod dns;
mod feed;
mod hook;
mod policy;
mod proxy;
mod view;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentcube_runtime::{SandboxId, SandboxSockets, Sandboxes};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use addresses::Pool;
pub use addresses::{Exhausted, InvalidRange, Range};
use balance::Balancer;
use closed::Closed;
pub use decide::{API_ACCESS, Egress, Platform};
use decide::{Decision, Plan, Reason};
pub use feed::Caches;
pub use hook::PodConnect;
pub use proxy::Counters;
pub use view::{Guest, Reach};
use view::{Key, Member, View};

/// How the network is laid out.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pods get their addresses from here; the first one is the node's.
    pub pods: Range,
    /// The API server gives Services addresses from here.
    pub services: Range,
    pub egress: Egress,
    /// What no guest reaches, besides whoever is [heard](Network::hear) to decide over the node.
    pub closed: Vec<Range>,
    /// Where the `kubernetes` Service leads; without it, nowhere.
    pub api_server: Option<SocketAddr>,
    /// A Service that leads to a socket of the host.
    pub platform: Option<(Platform, SocketAddr)>,
    /// A Pod's connections beyond this many are refused.
    pub connections_per_pod: usize,
    /// The host's list of name servers, for names outside the cluster.
    pub resolv_conf: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        let range = |text: &str| text.parse().expect("a range that is written correctly");
        Self {
            pods: range("10.244.0.0/16"),
            services: range("10.96.0.0/16"),
            egress: Egress::Open,
            closed: Vec::new(),
            api_server: None,
            platform: None,
            connections_per_pod: 1024,
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

/// A handle on the network; cheap to clone.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    options: Options,
    sandboxes: Arc<dyn Sandboxes>,
    view: RwLock<View>,
    pool: Mutex<Pool>,
    balancer: Mutex<Balancer>,
    attached: Mutex<HashMap<SandboxId, Attached>>,
    dns: dns::Server,
    synced: watch::Sender<bool>,
}

/// A sandbox that is being served; dropping it ends its connections.
struct Attached {
    address: Ipv4Addr,
    counters: Arc<Counters>,
    _tasks: JoinSet<()>,
}

impl Network {
    /// A network without Pods. It serves none before [`Network::follow`] has learnt what the cluster consists of.
    pub fn new(mut options: Options, sandboxes: Arc<dyn Sandboxes>) -> Self {
        // Documentation only: no machine has this address.
        if options.egress == Egress::Open && is_own(Ipv4Addr::new(192, 0, 2, 1)) {
            tracing::warn!(
                "net.ipv4.ip_nonlocal_bind is set on this host, so its own addresses cannot be told from others: \
                 Pods cannot reach anything outside the cluster; set it to 0 and restart"
            );
            options.egress = Egress::Closed;
        }
        let plan = Plan {
            pods: options.pods,
            services: options.services,
            gateway: options.pods.first(),
            api_port: options.api_server.map(|address| address.port()),
            platform: options.platform.map(|(platform, _)| platform),
            egress: options.egress,
        };
        let shared = Shared {
            plan,
            sandboxes,
            view: RwLock::new(View::closed_to(Closed::new(options.closed.clone()))),
            pool: Mutex::new(Pool::new(options.pods)),
            balancer: Mutex::default(),
            attached: Mutex::default(),
            dns: dns::Server::new(options.resolv_conf.clone()),
            synced: watch::Sender::new(false),
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The address of the node as its Pods see it: their name server, and where probes come from.
    pub fn gateway(&self) -> Ipv4Addr {
        self.shared.plan.gateway
    }

    /// An address for a new sandbox; [`Network::detach`] or [`Network::free`] gives it back.
    pub fn allocate(&self) -> Result<Ipv4Addr, Exhausted> {
        self.shared.pool.lock().allocate()
    }

    /// Takes the address of a sandbox that was there before this network. `false` if somebody else has it.
    pub fn take(&self, address: Ipv4Addr) -> bool {
        self.shared.pool.lock().take(address)
    }

    /// For a node of guests, without a cluster to be known: whoever calls from there decides over it, and no guest reaches
    /// that address from now on. None is served before the first, who it must not reach either.
    pub fn hear(&self, controller: IpAddr) {
        if let IpAddr::V4(address) = controller.to_canonical() {
            let known = self.shared.view.read().closed.knows(address);
            if !known {
                self.shared.view.write().closed.hear(address);
            }
        }
        self.shared.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
    }

    /// Gives back an address that was never attached.
    pub fn free(&self, address: Ipv4Addr) {
        self.shared.pool.lock().free(address);
    }

    /// Serves the sandbox of a Pod from now on: its connections and its DNS queries. To be called in a tokio runtime.
    pub fn attach(
        &self,
        sandbox: SandboxId,
        address: Ipv4Addr,
        pod: &Pod,
        sockets: SandboxSockets,
    ) -> io::Result<()> {
        self.serve(Member::new(sandbox, address, pod), sockets)
    }

    /// Serves the sandbox of a guest from now on.
    pub fn attach_guest(
        &self,
        sandbox: SandboxId,
        address: Ipv4Addr,
        guest: Guest,
        sockets: SandboxSockets,
    ) -> io::Result<()> {
        self.serve(Member::guest(sandbox, address, guest), sockets)
    }

    /// A sandbox that was prepared for anybody belongs to this guest from now on. Gives its address.
    pub fn rename(&self, sandbox: &SandboxId, guest: Guest) -> io::Result<Ipv4Addr> {
        let address = self.address(sandbox).ok_or_else(|| unreachable(Reason::NoPod))?;
        self.shared.view.write().attach(Member::guest(sandbox.clone(), address, guest));
        Ok(address)
    }

    /// The address of a sandbox that is attached.
    pub fn address(&self, sandbox: &SandboxId) -> Option<Ipv4Addr> {
        self.shared.attached.lock().get(sandbox).map(|attached| attached.address)
    }

    fn serve(&self, member: Member, sockets: SandboxSockets) -> io::Result<()> {
        let (sandbox, address) = (member.sandbox.clone(), member.address);
        let listener = tokio::net::TcpListener::from_std(sockets.outgoing.into())?;
        let queries = tokio::net::UdpSocket::from_std(sockets.dns.into())?;
        self.shared.view.write().attach(member);
        let counters = Arc::new(Counters::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(proxy::serve(self.clone(), address, listener, counters.clone()));
        tasks.spawn(dns::serve_datagrams(self.clone(), address, queries, counters.clone()));
        let attached = Attached { address, counters, _tasks: tasks };
        self.shared.attached.lock().insert(sandbox, attached);
        Ok(())
    }

    /// Ends all connections of a sandbox and gives back its address; one that is not attached is no error.
    pub fn detach(&self, sandbox: &SandboxId) {
        let Some(attached) = self.shared.attached.lock().remove(sandbox) else { return };
        self.shared.view.write().detach(attached.address);
        self.free(attached.address);
    }

    pub fn counters(&self, sandbox: &SandboxId) -> Option<Arc<Counters>> {
        self.shared.attached.lock().get(sandbox).map(|attached| attached.counters.clone())
    }

    /// A connection from the node itself to a port of a Pod. No policy stands in the way, as in Kubernetes.
    pub async fn connect(&self, pod: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
        self.dial(SocketAddrV4::new(pod, port), self.gateway()).await
    }

    /// A connection from the node itself to a ready endpoint behind a port of a Service.
    pub async fn connect_service(&self, namespace: &str, name: &str, port: u16) -> io::Result<TcpStream> {
        let key: Key = (namespace.to_owned(), name.to_owned());
        let (affinity, endpoints) = {
            let view = self.shared.view.read();
            let service = view.service(namespace, name).ok_or_else(|| unreachable(Reason::NoService))?;
            let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            let port = ports.into_iter().find(|one| one.port == i32::from(port));
            let port = port.ok_or_else(|| unreachable(Reason::NoService))?;
            let mut endpoints = decide::ready_endpoints(&view, &key, port);
            endpoints.retain(|endpoint| self.shared.plan.pods.contains(*endpoint.ip()));
            (decide::affinity(service), endpoints)
        };
        if endpoints.is_empty() {
            return Err(unreachable(Reason::NoEndpoint));
        }
        let order = self.order((key, port), endpoints, self.gateway(), affinity);
        proxy::first(self, order, self.gateway()).await
    }

    fn decide(&self, source: Ipv4Addr, to: SocketAddrV4) -> Decision {
        let view = self.shared.view.read();
        match view.member(source) {
            Some(member) => decide::decide(&view, &self.shared.plan, member, to, is_own),
            None => Decision::Refused(Reason::NoPod),
        }
    }

    fn order(
        &self,
        service: (Key, u16),
        endpoints: Vec<SocketAddrV4>,
        client: Ipv4Addr,
        affinity: Option<Duration>,
    ) -> Vec<SocketAddrV4> {
        self.shared.balancer.lock().order(service, endpoints, client, affinity, Instant::now())
    }

    /// Connects to a Pod from within its own network namespace, in the name of `source`.
    async fn dial(&self, to: SocketAddrV4, source: Ipv4Addr) -> io::Result<TcpStream> {
        let member = self.shared.view.read().member(*to.ip()).cloned();
        let sandbox = &member.ok_or_else(|| unreachable(Reason::NoPod))?.sandbox;
        proxy::enter(self.shared.sandboxes.socket(sandbox, Some(source)), to).await
    }

    /// Waits until all of the cluster is known: before that, a missing policy would allow too much.
    async fn ready(&self) {
        // The sender lives as long as this handle.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }
}

fn unreachable(reason: Reason) -> io::Error {
    io::Error::new(io::ErrorKind::HostUnreachable, reason)
}

/// Whether the host has this address. The kernel says so: only its own addresses can be bound to.
fn is_own(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
