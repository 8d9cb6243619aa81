//! The Endpoints object of a Service, which EndpointSlices replace and old clients still read. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::desired::{
    self, HEADLESS, address, hostname, is_headless, is_member, is_ready, node_name, protocol,
    publishes_not_ready, reference, target_port,
};
use super::observe::Observed;
use super::plan::Operation;

const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Some clients elect their leader on Endpoints without a Service.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// What the object holds at most.
const MOST_ADDRESSES: usize = 1000;

pub(super) fn plan(observed: &Observed, service: &Service) -> Option<Operation> {
    let mut subsets = subsets(observed, service);
    let truncated = truncate(&mut subsets);
    let current = observed.endpoints.as_deref();
    let mut annotations = current.map(|current| current.annotations().clone()).unwrap_or_default();
    match truncated {
        true => annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned()),
        false => annotations.remove(OVER_CAPACITY),
    };
    let mut next = current.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: Some(service.name_any()),
            namespace: service.namespace(),
            ..ObjectMeta::default()
        },
        ..Endpoints::default()
    });
    next.metadata.labels = Some(labels(service));
    next.metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    next.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    match current {
        None if service.metadata.deletion_timestamp.is_some() => None,
        None => Some(Operation::CreateEndpoints(Box::new(next))),
        Some(current) if is_same(current, &next) => None,
        Some(_) => Some(Operation::UpdateEndpoints(Box::new(next))),
    }
}

/// The Endpoints of a Service that is no more, whoever wrote them.
pub(super) fn leftover(observed: &Observed) -> Option<Arc<Endpoints>> {
    observed.endpoints.clone().filter(|endpoints| !endpoints.annotations().contains_key(LEADER))
}

pub(super) fn is_ours(endpoints: &Endpoints) -> bool {
    endpoints.labels().get(MANAGED_BY.0).is_some_and(|manager| manager == MANAGED_BY.1)
}

fn is_same(current: &Endpoints, next: &Endpoints) -> bool {
    let sorted = |endpoints: &Endpoints| {
        let mut subsets = endpoints.subsets.clone().unwrap_or_default();
        subsets.iter_mut().for_each(sort);
        subsets.sort_by_key(|subset| format!("{subset:?}"));
        subsets
    };
    current.metadata.labels == next.metadata.labels
        && current.metadata.annotations == next.metadata.annotations
        && sorted(current) == sorted(next)
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    labels
}

/// A Pod's address and whether it is ready; ordered by address, then by Pod.
type Addresses = BTreeMap<(String, String), (EndpointAddress, bool)>;

/// Ports with the same addresses are one subset.
fn subsets(observed: &Observed, service: &Service) -> Vec<EndpointSubset> {
    let service_ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let mut ports: Vec<(Option<EndpointPort>, Addresses)> = Vec::new();
    for pod in observed.pods.iter().filter(|pod| is_member(pod, publishes_not_ready(service))) {
        let Some(ip) = address(pod) else { continue };
        let target_ref = Some(reference(pod));
        let own = EndpointAddress {
            hostname: hostname(pod, service),
            ip: ip.clone(),
            node_name: node_name(pod),
            target_ref,
        };
        let entry = (own, publishes_not_ready(service) || is_ready(pod));
        let numbers = service_ports.iter().filter_map(|port| {
            Some(Some(EndpointPort {
                app_protocol: port.app_protocol.clone(),
                name: port.name.clone(),
                port: target_port(port, pod)?,
                protocol: Some(protocol(port).to_owned()),
            }))
        });
        // A headless Service needs no ports.
        let without = (service_ports.is_empty() && desired::is_headless(service)).then_some(None);
        for port in numbers.chain(without) {
            let place = ports.iter().position(|(one, _)| *one == port).unwrap_or_else(|| {
                ports.push((port, Addresses::new()));
                ports.len() - 1
            });
            ports[place].1.insert((ip.clone(), pod.uid().unwrap_or_default()), entry.clone());
        }
    }
    let mut subsets: Vec<(Addresses, Vec<EndpointPort>)> = Vec::new();
    for (port, addresses) in ports {
        let place = subsets.iter().position(|(one, _)| *one == addresses).unwrap_or_else(|| {
            subsets.push((addresses, Vec::new()));
            subsets.len() - 1
        });
        subsets[place].1.extend(port);
    }
    subsets.into_iter().map(|(addresses, ports)| subset(addresses, ports)).collect()
}

fn subset(addresses: Addresses, ports: Vec<EndpointPort>) -> EndpointSubset {
    let (ready, not_ready): (Vec<_>, Vec<_>) = addresses.into_values().partition(|(_, ready)| *ready);
    let list = |addresses: Vec<(EndpointAddress, bool)>| {
        let list: Vec<_> = addresses.into_iter().map(|(address, _)| address).collect();
        Some(list).filter(|list| !list.is_empty())
    };
    EndpointSubset {
        addresses: list(ready),
        not_ready_addresses: list(not_ready),
        ports: Some(ports).filter(|ports| !ports.is_empty()),
    }
}

fn sort(subset: &mut EndpointSubset) {
    let key = |address: &EndpointAddress| {
        (address.ip.clone(), address.target_ref.as_ref().and_then(|target| target.uid.clone()))
    };
    subset.addresses.iter_mut().for_each(|addresses| addresses.sort_by_key(key));
    subset.not_ready_addresses.iter_mut().for_each(|addresses| addresses.sort_by_key(key));
    subset.ports.iter_mut().for_each(|ports| ports.sort_by_key(|port| (port.name.clone(), port.port)));
}

/// Leaves at most as many addresses as fit, ready ones first; says whether any had to go.
fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let mut room = MOST_ADDRESSES;
    let mut truncated = false;
    let mut cut = |addresses: &mut Option<Vec<EndpointAddress>>| {
        if let Some(list) = addresses {
            truncated |= list.len() > room;
            list.truncate(room);
            room -= list.len();
        }
        *addresses = addresses.take().filter(|list| !list.is_empty());
    };
    subsets.iter_mut().for_each(|subset| cut(&mut subset.addresses));
    subsets.iter_mut().for_each(|subset| cut(&mut subset.not_ready_addresses));
    truncated
}
