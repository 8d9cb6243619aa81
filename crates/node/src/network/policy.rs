//! NetworkPolicies, read once and asked often. Pure.
//!
//! A rule that cannot be read allows nothing, and a policy whose selector cannot be read holds for its whole
//! namespace: a mistake may cut a Pod off, never open it.

use std::net::Ipv4Addr;

use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};

use super::addresses::Range;
use super::view::{Labels, Member, View};

/// One end of a connection, as a policy sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer<'a> {
    pub address: Ipv4Addr,
    /// Absent for what is no Pod.
    pub pod: Option<Identity<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a> {
    pub namespace: &'a str,
    pub labels: &'a Labels,
}

impl<'a> From<&'a Member> for Peer<'a> {
    fn from(member: &'a Member) -> Self {
        let pod = Identity { namespace: &member.namespace, labels: &member.labels };
        Peer { address: member.address, pod: Some(pod) }
    }
}

/// Where a connection goes: its port, and the ports of the target that have names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port<'a> {
    pub protocol: &'a str,
    pub number: u16,
    pub target: Option<&'a Member>,
}

/// What the policies of a Pod say about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No policy concerns it.
    Silent,
    Allowed,
    Denied,
}

#[derive(Debug)]
pub(super) struct Policy {
    /// The Pods of the policy's namespace for which it holds; `None` for all of them.
    selector: Option<Selector>,
    /// `None` if the policy says nothing of this direction.
    ingress: Option<Vec<Rule>>,
    egress: Option<Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    /// Empty for everyone.
    peers: Vec<PeerRule>,
    /// Empty for every port.
    ports: Vec<PortRule>,
}

#[derive(Debug)]
enum PeerRule {
    Pods { namespaces: Option<Selector>, pods: Option<Selector> },
    Block { range: Range, except: Vec<Range> },
    Nobody,
}

#[derive(Debug)]
enum PortRule {
    Numbers { protocol: String, first: u16, last: u16 },
    Name { protocol: String, name: String },
    Every { protocol: String },
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// Whether the policies of the target let it be reached.
pub(super) fn ingress(view: &View, target: &Member, from: Peer<'_>, port: Port<'_>) -> Verdict {
    verdict(view, Direction::Ingress, target, from, port)
}

/// Whether the policies of the source let it go there.
pub(super) fn egress(view: &View, source: &Member, to: Peer<'_>, port: Port<'_>) -> Verdict {
    verdict(view, Direction::Egress, source, to, port)
}

fn verdict(view: &View, direction: Direction, subject: &Member, other: Peer<'_>, port: Port<'_>) -> Verdict {
    let mut verdict = Verdict::Silent;
    for policy in view.policies(&subject.namespace) {
        let rules = match direction {
            Direction::Ingress => &policy.ingress,
            Direction::Egress => &policy.egress,
        };
        let Some(rules) = rules else { continue };
        if policy.selector.as_ref().is_some_and(|selector| !selector.matches(&subject.labels)) {
            continue;
        }
        if rules.iter().any(|rule| rule.allows(view, &subject.namespace, other, port)) {
            return Verdict::Allowed;
        }
        verdict = Verdict::Denied;
    }
    verdict
}

impl Policy {
    pub(super) fn new(policy: &NetworkPolicy) -> Self {
        let Some(spec) = &policy.spec else {
            return Self { selector: None, ingress: Some(Vec::new()), egress: None };
        };
        let ingress = spec.ingress.iter().flatten().map(|rule| Rule::new(&rule.from, &rule.ports)).collect();
        let egress: Vec<Rule> =
            spec.egress.iter().flatten().map(|rule| Rule::new(&rule.to, &rule.ports)).collect();
        let concerns = |direction: &str| match spec.policy_types.as_deref() {
            Some(types) if !types.is_empty() => types.iter().any(|one| one == direction),
            _ => direction == "Ingress" || !egress.is_empty(),
        };
        let (concerns_ingress, concerns_egress) = (concerns("Ingress"), concerns("Egress"));
        Self {
            selector: spec.pod_selector.as_ref().and_then(|selector| selector.clone().try_into().ok()),
            ingress: concerns_ingress.then_some(ingress),
            egress: concerns_egress.then_some(egress),
        }
    }
}

impl Rule {
    fn new(peers: &Option<Vec<NetworkPolicyPeer>>, ports: &Option<Vec<NetworkPolicyPort>>) -> Self {
        Self {
            peers: peers.iter().flatten().map(PeerRule::new).collect(),
            ports: ports.iter().flatten().map(PortRule::new).collect(),
        }
    }

    fn allows(&self, view: &View, own_namespace: &str, other: Peer<'_>, port: Port<'_>) -> bool {
        (self.peers.is_empty() || self.peers.iter().any(|peer| peer.matches(view, own_namespace, other)))
            && (self.ports.is_empty() || self.ports.iter().any(|rule| rule.matches(port)))
    }
}

impl PeerRule {
    fn new(peer: &NetworkPolicyPeer) -> Self {
        let read = |selector: &LabelSelector| Selector::try_from(selector.clone());
        let pods = (
            peer.namespace_selector.as_ref().map(read).transpose(),
            peer.pod_selector.as_ref().map(read).transpose(),
        );
        match (&peer.ip_block, pods) {
            (Some(block), _) => Self::block(block).unwrap_or(Self::Nobody),
            (None, (Ok(namespaces), Ok(pods))) if namespaces.is_some() || pods.is_some() => {
                Self::Pods { namespaces, pods }
            }
            _ => Self::Nobody,
        }
    }

    fn block(block: &IPBlock) -> Option<Self> {
        let except =
            block.except.iter().flatten().map(|range| range.parse()).collect::<Result<_, _>>().ok()?;
        Some(Self::Block { range: block.cidr.parse().ok()?, except })
    }

    fn matches(&self, view: &View, own_namespace: &str, other: Peer<'_>) -> bool {
        match (self, other.pod) {
            (Self::Block { range, except }, _) => {
                range.contains(other.address) && !except.iter().any(|range| range.contains(other.address))
            }
            (Self::Pods { namespaces, pods }, Some(pod)) => {
                let in_namespace = match namespaces {
                    None => pod.namespace == own_namespace,
                    Some(selector) => {
                        view.namespace_labels(pod.namespace).is_some_and(|labels| selector.matches(labels))
                    }
                };
                in_namespace && pods.as_ref().is_none_or(|selector| selector.matches(pod.labels))
            }
            (Self::Pods { .. }, None) | (Self::Nobody, _) => false,
        }
    }
}

impl PortRule {
    fn new(port: &NetworkPolicyPort) -> Self {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        let number = |value: i32| u16::try_from(value).ok();
        match &port.port {
            None => Self::Every { protocol },
            Some(IntOrString::String(name)) => Self::Name { protocol, name: name.clone() },
            Some(IntOrString::Int(first)) => {
                match (number(*first), number(port.end_port.unwrap_or(*first))) {
                    (Some(first), Some(last)) => Self::Numbers { protocol, first, last },
                    _ => Self::None,
                }
            }
        }
    }

    fn matches(&self, port: Port<'_>) -> bool {
        match self {
            Self::Every { protocol } => protocol == port.protocol,
            Self::Numbers { protocol, first, last } => {
                protocol == port.protocol && (*first..=*last).contains(&port.number)
            }
            Self::Name { protocol, name } => {
                let mut named = port.target.into_iter().flat_map(|target| &target.ports);
                protocol == port.protocol
                    && named
                        .any(|one| one.name == *name && one.protocol == *protocol && one.port == port.number)
            }
            Self::None => false,
        }
    }
}
