//! Where a connection of a Pod may go. Pure: the same view and destination give the same decision.
//!
//! Within a namespace Pods reach each other unless a NetworkPolicy forbids it. Across namespaces they do not, unless a
//! policy of the target allows it and none of the source forbids it. The host itself is never reachable; the API
//! server only with the label [`API_ACCESS`] on the Pod or on its namespace; the [`Platform`] by its Service. Guests get as
//! far as their [`Reach`], and never to what is closed to all of them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort};

use super::addresses::Range;
use super::policy::{self, Identity, Peer, Port, Verdict};
use super::view::{Key, Labels, Member, Reach, View};

/// With the value `true` on a Pod or its namespace, the Pod may talk to the API server.
pub const API_ACCESS: &str = "agentcube.io/api-access";

/// Whether Pods reach what is outside the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Egress {
    /// Everything that the host reaches, but not the host itself.
    #[default]
    Open,
    Closed,
}

/// A Service that is no Pod's: what is behind it listens on the host, and asks everybody who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    pub namespace: &'static str,
    pub service: &'static str,
}

/// What holds for all Pods of the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub pods: Range,
    pub services: Range,
    /// The node as Pods see it: the name server, and the source of probes.
    pub gateway: Ipv4Addr,
    /// Where the API server listens behind the gateway's address.
    pub api_port: Option<u16>,
    pub platform: Option<Platform>,
    pub egress: Egress,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The node's own name server, over TCP.
    NameServer,
    ApiServer,
    Platform,
    Pod(SocketAddrV4),
    /// One of these, by turns; never empty.
    Service {
        key: Key,
        port: u16,
        affinity: Option<Duration>,
        endpoints: Vec<SocketAddrV4>,
    },
    Egress(SocketAddrV4),
    Refused(Reason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Reason {
    #[error("no Pod has this address")]
    NoPod,
    #[error("no Service has this address and port")]
    NoService,
    #[error("the Service has no endpoint that is ready and allowed")]
    NoEndpoint,
    #[error("the Pod is of another namespace, and no NetworkPolicy there lets this one in")]
    OtherNamespace,
    #[error("a NetworkPolicy of the target does not let this Pod in")]
    Ingress,
    #[error("a NetworkPolicy of this Pod does not let it go there")]
    EgressPolicy,
    #[error("the API server is for Pods with the label {API_ACCESS}=true on them or their namespace")]
    ApiServer,
    #[error("the address is the host's own, or leads nowhere outside")]
    Host,
    #[error("this node lets no Pod out of the cluster")]
    Closed,
    #[error("this sandbox reaches nothing")]
    Nothing,
    #[error("this sandbox reaches addresses of the internet only")]
    NotPublic,
    #[error("the address is of those who run sandboxes, or in a range that is closed to all of them")]
    ClosedToGuests,
}

/// Decides; `is_own` says of an address whether the host has it.
pub(super) fn decide(
    view: &View,
    plan: &Plan,
    source: &Member,
    to: SocketAddrV4,
    is_own: impl Fn(Ipv4Addr) -> bool,
) -> Decision {
    match source.guest {
        Some(Reach::Nothing) => return Decision::Refused(Reason::Nothing),
        Some(Reach::Public) => return to_public(view, plan, source, to, &is_own),
        Some(Reach::Cluster) | None => {}
    }
    if *to.ip() == plan.gateway {
        return match to.port() {
            53 => Decision::NameServer,
            port if Some(port) == plan.api_port => api_server(view, plan, source),
            _ => Decision::Refused(Reason::Host),
        };
    }
    if let Some(service) = view.service_at(*to.ip()) {
        return to_service(view, plan, source, service, to.port(), &is_own);
    }
    if plan.services.contains(*to.ip()) {
        return Decision::Refused(Reason::NoService);
    }
    if plan.pods.contains(*to.ip()) {
        return refuse(may_reach(view, source, to), || Decision::Pod(to));
    }
    refuse(may_leave(view, plan, source, to, &is_own), || Decision::Egress(to))
}

/// The internet, and names of it.
fn to_public(
    view: &View,
    plan: &Plan,
    source: &Member,
    to: SocketAddrV4,
    is_own: &impl Fn(Ipv4Addr) -> bool,
) -> Decision {
    if *to.ip() == plan.gateway && to.port() == 53 {
        return Decision::NameServer;
    }
    let inside = [plan.pods, plan.services].iter().any(|range| range.contains(*to.ip()));
    if inside || !is_public(*to.ip()) {
        return Decision::Refused(Reason::NotPublic);
    }
    refuse(may_leave(view, plan, source, to, is_own), || Decision::Egress(to))
}

/// Whether an address is one of the internet: not of a private network, of a carrier's, of tests or of documents.
fn is_public(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    let is_assignment = (a, b, c) == (192, 0, 0);
    let is_relay = (a, b, c) == (192, 88, 99);
    !(address.is_private()
        || address.is_documentation()
        || leads_nowhere(address)
        || is_shared
        || is_benchmark
        || is_assignment
        || is_relay)
}

/// Whether a Pod may have names outside the cluster looked up. Policies speak of the name server as everywhere: as a
/// Pod of kube-system with the label k8s-app=kube-dns, here at the gateway's address.
pub(super) fn may_resolve(view: &View, plan: &Plan, source: &Member) -> bool {
    let labels = Labels::from([("k8s-app".into(), "kube-dns".into())]);
    let server =
        Peer { address: plan.gateway, pod: Some(Identity { namespace: "kube-system", labels: &labels }) };
    let port = Port { protocol: "UDP", number: 53, target: None };
    source.guest != Some(Reach::Nothing)
        && plan.egress == Egress::Open
        && policy::egress(view, source, server, port) != Verdict::Denied
}

fn refuse(result: Result<(), Reason>, otherwise: impl FnOnce() -> Decision) -> Decision {
    match result {
        Ok(()) => otherwise(),
        Err(reason) => Decision::Refused(reason),
    }
}

fn to_service(
    view: &View,
    plan: &Plan,
    source: &Member,
    service: &Service,
    port: u16,
    is_own: &impl Fn(Ipv4Addr) -> bool,
) -> Decision {
    let Some(key) = service.metadata.namespace.clone().zip(service.metadata.name.clone()) else {
        return Decision::Refused(Reason::NoService);
    };
    let Some(service_port) = tcp_port(service, port) else {
        return Decision::Refused(Reason::NoService);
    };
    if (key.0.as_str(), key.1.as_str()) == ("default", "kubernetes") {
        return api_server(view, plan, source);
    }
    if plan.platform.is_some_and(|own| (own.namespace, own.service) == (key.0.as_str(), key.1.as_str())) {
        return platform(view, plan, source, port);
    }
    let (mut endpoints, mut reason) = (Vec::new(), Reason::NoEndpoint);
    for endpoint in ready_endpoints(view, &key, service_port) {
        let allowed = match plan.pods.contains(*endpoint.ip()) {
            true => may_reach(view, source, endpoint),
            // An endpoint that somebody wrote by hand is no way around the rules for what is outside.
            false => may_leave(view, plan, source, endpoint, is_own),
        };
        match allowed {
            Ok(()) => endpoints.push(endpoint),
            Err(refusal) => reason = refusal,
        }
    }
    if endpoints.is_empty() {
        return Decision::Refused(reason);
    }
    Decision::Service { key, port, affinity: affinity(service), endpoints }
}

fn tcp_port(service: &Service, port: u16) -> Option<&ServicePort> {
    let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.find(|one| one.port == i32::from(port) && one.protocol.as_deref().unwrap_or("TCP") == "TCP")
}

/// The endpoints behind a port of a Service: the ready ones, or if none is, those that still serve while they end.
pub(super) fn ready_endpoints(view: &View, key: &Key, port: &ServicePort) -> Vec<SocketAddrV4> {
    let (mut ready, mut serving) = (Vec::new(), Vec::new());
    for slice in view.slices(&key.0, &key.1).filter(|slice| slice.address_type == "IPv4") {
        let mut ports = slice.ports.iter().flatten();
        let named = ports.find(|one| one.name.as_deref().unwrap_or("") == port.name.as_deref().unwrap_or(""));
        let Some(number) = named.and_then(|one| u16::try_from(one.port?).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(Ok(address)) = endpoint.addresses.first().map(|address| address.parse()) else {
                continue;
            };
            let to = SocketAddrV4::new(address, number);
            let conditions = endpoint.conditions.as_ref();
            if conditions.and_then(|conditions| conditions.ready).unwrap_or(true) {
                ready.push(to);
            } else if conditions.is_some_and(|all| all.serving == Some(true) && all.terminating == Some(true))
            {
                serving.push(to);
            }
        }
    }
    if ready.is_empty() { serving } else { ready }
}

/// How long a client keeps to its endpoint.
pub(super) fn affinity(service: &Service) -> Option<Duration> {
    let spec = service.spec.as_ref().filter(|spec| spec.session_affinity.as_deref() == Some("ClientIP"))?;
    let configured =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    Some(Duration::from_secs(configured.unwrap_or(10800).try_into().unwrap_or(0)))
}

fn api_server(view: &View, plan: &Plan, source: &Member) -> Decision {
    let namespaced = view.namespace_label(&source.namespace, API_ACCESS);
    let allowed = [source.labels.get(API_ACCESS).map(String::as_str), namespaced].contains(&Some("true"));
    // The labels of a guest are whoever's makes it.
    if !allowed || source.guest.is_some() || plan.api_port.is_none() {
        return Decision::Refused(Reason::ApiServer);
    }
    let peer = Peer { address: plan.gateway, pod: None };
    let port = Port { protocol: "TCP", number: plan.api_port.unwrap_or(443), target: None };
    match policy::egress(view, source, peer, port) {
        Verdict::Denied => Decision::Refused(Reason::EgressPolicy),
        Verdict::Silent | Verdict::Allowed => Decision::ApiServer,
    }
}

/// For every Pod that its own policies let out; not for guests, which are whoever's.
fn platform(view: &View, plan: &Plan, source: &Member, port: u16) -> Decision {
    if source.guest.is_some() {
        return Decision::Refused(Reason::Host);
    }
    let peer = Peer { address: plan.gateway, pod: None };
    match policy::egress(view, source, peer, Port { protocol: "TCP", number: port, target: None }) {
        Verdict::Denied => Decision::Refused(Reason::EgressPolicy),
        Verdict::Silent | Verdict::Allowed => Decision::Platform,
    }
}

fn may_reach(view: &View, source: &Member, to: SocketAddrV4) -> Result<(), Reason> {
    let target = view.member(*to.ip()).ok_or(Reason::NoPod)?;
    if target.address == source.address {
        return Ok(());
    }
    let port = Port { protocol: "TCP", number: to.port(), target: Some(target) };
    if policy::egress(view, source, Peer::from(&**target), port) == Verdict::Denied {
        return Err(Reason::EgressPolicy);
    }
    match policy::ingress(view, target, Peer::from(source), port) {
        Verdict::Allowed => Ok(()),
        Verdict::Denied => Err(Reason::Ingress),
        Verdict::Silent if source.namespace == target.namespace => Ok(()),
        Verdict::Silent => Err(Reason::OtherNamespace),
    }
}

fn may_leave(
    view: &View,
    plan: &Plan,
    source: &Member,
    to: SocketAddrV4,
    is_own: &impl Fn(Ipv4Addr) -> bool,
) -> Result<(), Reason> {
    if leads_nowhere(*to.ip()) || plan.services.contains(*to.ip()) || is_own(*to.ip()) {
        return Err(Reason::Host);
    }
    if source.guest.is_some() && view.closed.contains(*to.ip()) {
        return Err(Reason::ClosedToGuests);
    }
    let port = Port { protocol: "TCP", number: to.port(), target: None };
    match policy::egress(view, source, Peer { address: *to.ip(), pod: None }, port) {
        _ if plan.egress == Egress::Closed => Err(Reason::Closed),
        Verdict::Denied => Err(Reason::EgressPolicy),
        Verdict::Silent | Verdict::Allowed => Ok(()),
    }
}

/// Where clouds have metadata beside 169.254.169.254: Azure (by an address of the internet), Alibaba, Oracle's first.
const METADATA: [Ipv4Addr; 3] =
    [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];

/// Addresses that mean this machine, its neighbours on the wire, the metadata services of clouds, or many at once.
fn leads_nowhere(address: Ipv4Addr) -> bool {
    let is_this_network = address.octets()[0] == 0;
    let is_reserved = address.octets()[0] >= 240;
    address.is_loopback()
        || is_this_network
        || address.is_link_local()
        || METADATA.contains(&address)
        || address.is_multicast()
        || is_reserved
}

#[cfg(test)]
pub(super) mod tests;
