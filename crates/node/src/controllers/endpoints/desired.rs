//! What a Service and its Pods should be written as: endpoints, ports and labels. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::super::ownership::controller_reference;
use super::observe::Observed;

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// Pods that serve the same ports, and so share slices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// The endpoints of a Service, by the ports that they serve.
pub(super) fn groups(observed: &Observed, service: &Service) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for pod in observed.pods.iter().filter(|pod| is_member(pod, true)) {
        let ports = ports(service, pod);
        let place = groups.iter().position(|group| same_ports(&group.ports, &ports)).unwrap_or_else(|| {
            groups.push(Group { ports, endpoints: Vec::new() });
            groups.len() - 1
        });
        groups[place].endpoints.extend(endpoint(observed, service, pod));
    }
    groups
}

/// Whether a Pod has an address and may still serve.
pub(super) fn is_member(pod: &Pod, even_terminating: bool) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    !is_over && address(pod).is_some() && (even_terminating || pod.metadata.deletion_timestamp.is_none())
}

/// The IPv4 address of a Pod.
pub(super) fn address(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = status.pod_ips.iter().flatten().map(|one| &one.ip).chain(&status.pod_ip);
    all.into_iter().find_map(|ip| Some(ip.parse::<std::net::Ipv4Addr>().ok()?.to_string()))
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false)
}

pub(super) fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    matches!(address, None | Some("" | "None"))
}

/// The host name under which a Pod is known within a Service.
pub(super) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let subdomain = spec.subdomain.as_deref().unwrap_or_default();
    let hostname = spec.hostname.clone().filter(|hostname| !hostname.is_empty())?;
    (subdomain == service.name_any()).then_some(hostname)
}

pub(super) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.namespace(),
        name: pod.metadata.name.clone(),
        uid: pod.uid(),
        ..ObjectReference::default()
    }
}

pub(super) fn node_name(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone().filter(|name| !name.is_empty())
}

/// A Pod on a node that is not there is left out, unless the Service wants Pods at any cost.
fn endpoint(observed: &Observed, service: &Service, pod: &Pod) -> Option<Endpoint> {
    let (node_name, publishes) = (node_name(pod), publishes_not_ready(service));
    let node = observed.nodes.get(node_name.as_deref().unwrap_or_default());
    if node.is_none() && !publishes {
        return None;
    }
    let (serving, terminating) = (is_ready(pod), pod.metadata.deletion_timestamp.is_some());
    Some(Endpoint {
        addresses: vec![address(pod)?],
        conditions: Some(EndpointConditions {
            ready: Some(publishes || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service),
        node_name,
        target_ref: Some(reference(pod)),
        zone: node.cloned().flatten(),
        ..Endpoint::default()
    })
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(target_port(port, pod)?),
                protocol: Some(protocol(port).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

pub(super) fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The port of a Pod to which one of the Service leads. A name is looked up in the containers, then in the init
/// containers that keep running.
pub(super) fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None | Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let mut named = ports.filter(|one| {
        one.name.as_ref() == Some(name) && one.protocol.as_deref().unwrap_or("TCP") == protocol(port)
    });
    Some(named.next()?.container_port)
}

/// Whether two lists have the same ports, in whatever order.
pub(super) fn same_ports(left: &[EndpointPort], right: &[EndpointPort]) -> bool {
    left.len() == right.len() && left.iter().all(|port| right.contains(port))
}

/// The labels of a slice: those of its Service, and which Service that is.
pub(super) fn slice_labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), service.name_any());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

/// A slice that is not yet there.
pub(super) fn slice(service: &Service, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>) -> EndpointSlice {
    // The name that the server makes of it must still be one.
    const LONGEST_PREFIX: usize = 253 - 1;
    let name = service.name_any();
    let prefix = if name.len() <= LONGEST_PREFIX { format!("{name}-") } else { name };
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(prefix),
            namespace: service.namespace(),
            labels: Some(slice_labels(service)),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".into(),
        endpoints: Some(endpoints),
        ports: Some(ports),
    }
}
