//! The names of the cluster, as Kubernetes' DNS specification gives them. Pure: a view and a question in, an answer out.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::Endpoint;

use super::message::{ANY, Code, Data, Name, Record, Response, SRV};
use crate::network::decide::Plan;
use crate::network::view::{View, cluster_ip};

pub(super) const DOMAIN: &str = "cluster.local";
/// Seconds for which an answer may be remembered: short, because Pods come and go.
const TTL: u32 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// A name of the cluster, with what is known of it.
    Ours(Response),
    /// An alias for another name, which is to be looked up too.
    Alias(Name),
    /// Somebody else's name.
    Outside,
}

/// Why a name of the cluster has no record of the wanted kind.
enum Absent {
    NoData,
    NoName,
    Alias(Name),
}

pub(super) fn answer(view: &View, plan: &Plan, name: &Name, kind: u16) -> Answer {
    let Some(labels) = name.labels() else { return Answer::Outside };
    let found = match labels.as_slice() {
        [path @ .., "cluster", "local"] => lookup(view, path, kind),
        [d, c, b, a, "in-addr", "arpa"] => match format!("{a}.{b}.{c}.{d}").parse() {
            Ok(address) if plan.pods.contains(address) || plan.services.contains(address) => {
                reverse(view, address)
            }
            _ => return Answer::Outside,
        },
        _ => return Answer::Outside,
    };
    let mut response = Response { authoritative: true, ..Response::failure(Code::NoError) };
    match found {
        Ok(records) => {
            for (owner, data) in records {
                let record = Record { name: owner.unwrap_or_else(|| name.clone()), ttl: TTL, data };
                match &record.name == name {
                    true if kind == ANY || record.data.kind() == kind => response.answers.push(record),
                    true => {}
                    false => response.additional.push(record),
                }
            }
        }
        Err(Absent::Alias(target)) => return Answer::Alias(target),
        Err(Absent::NoName) => response.code = Code::NoSuchName,
        Err(Absent::NoData) => {}
    }
    if response.answers.is_empty() {
        response.additional.clear();
        response.authority.extend(start_of_authority());
    }
    Answer::Ours(response)
}

/// The alias itself, for the answer about it.
pub(super) fn alias(name: &Name, target: &Name) -> Record {
    Record { name: name.clone(), ttl: TTL, data: Data::Cname(target.clone()) }
}

/// Records with the names that they belong to; `None` is the name that was asked.
type Records = Vec<(Option<Name>, Data)>;

fn lookup(view: &View, path: &[&str], kind: u16) -> Result<Records, Absent> {
    match path {
        [] | ["svc"] | ["pod"] => Err(Absent::NoData),
        [namespace, "svc" | "pod"] if view.has_namespace(namespace) => Err(Absent::NoData),
        [address, namespace, "pod"] => pod(view, address, namespace),
        [name, namespace, "svc"] => service(view, namespace, name, kind),
        [host, name, namespace, "svc"] => endpoint(view, namespace, name, host),
        [port, protocol, name, namespace, "svc"] => {
            let (port, protocol) =
                port.strip_prefix('_').zip(protocol.strip_prefix('_')).ok_or(Absent::NoName)?;
            named_port(view, namespace, name, port, protocol)
        }
        _ => Err(Absent::NoName),
    }
}

fn pod(view: &View, dashed: &str, namespace: &str) -> Result<Records, Absent> {
    let address: Ipv4Addr = dashed.replace('-', ".").parse().map_err(|_| Absent::NoName)?;
    view.member(address).filter(|member| member.namespace == namespace).ok_or(Absent::NoName)?;
    Ok(vec![(None, Data::A(address))])
}

fn service(view: &View, namespace: &str, name: &str, kind: u16) -> Result<Records, Absent> {
    let service = find(view, namespace, name)?;
    if kind == SRV {
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        return Ok(ports.flat_map(|port| locations(view, service, namespace, name, port)).collect());
    }
    if let Some(address) = cluster_ip(service) {
        return Ok(vec![(None, Data::A(address))]);
    }
    let records: Records =
        ready(view, namespace, name).map(|(_, address, _)| (None, Data::A(address))).collect();
    if records.is_empty() { Err(Absent::NoName) } else { Ok(records) }
}

/// A Service that is there by itself; one that is an alias is absent with what it stands for.
fn find<'a>(view: &'a View, namespace: &str, name: &str) -> Result<&'a Service, Absent> {
    let service = view.service(namespace, name).ok_or(Absent::NoName)?;
    let spec = service.spec.as_ref().ok_or(Absent::NoName)?;
    if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.as_deref().and_then(Name::from_text).ok_or(Absent::NoName)?;
        return Err(Absent::Alias(target));
    }
    Ok(service)
}

fn endpoint(view: &View, namespace: &str, service: &str, host: &str) -> Result<Records, Absent> {
    find(view, namespace, service)?;
    let of_host =
        ready(view, namespace, service).filter(|(endpoint, address, _)| label(endpoint, *address) == host);
    let records: Records = of_host.map(|(_, address, _)| (None, Data::A(address))).collect();
    if records.is_empty() { Err(Absent::NoName) } else { Ok(records) }
}

fn named_port(
    view: &View,
    namespace: &str,
    name: &str,
    port: &str,
    protocol: &str,
) -> Result<Records, Absent> {
    let service = find(view, namespace, name)?;
    let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let port = ports.find(|one| {
        let of_protocol = one.protocol.as_deref().unwrap_or("TCP").eq_ignore_ascii_case(protocol);
        of_protocol && one.name.as_deref() == Some(port)
    });
    let records = locations(view, service, namespace, name, port.ok_or(Absent::NoName)?);
    if records.is_empty() { Err(Absent::NoName) } else { Ok(records) }
}

/// Where a port of a Service is served: at the Service's address, or at each endpoint of one without address.
fn locations(view: &View, service: &Service, namespace: &str, name: &str, port: &ServicePort) -> Records {
    let own = format!("{name}.{namespace}.svc.{DOMAIN}");
    let location = |host: String, address: Ipv4Addr, number: i32| {
        let (target, port) = (Name::from_text(&host)?, u16::try_from(number).ok()?);
        let srv = Data::Srv { weight: 100, port, target: target.clone() };
        Some([(None, srv), (Some(target), Data::A(address))])
    };
    if let Some(address) = cluster_ip(service) {
        return location(own, address, port.port).into_iter().flatten().collect();
    }
    let of_endpoints = ready(view, namespace, name).filter_map(|(endpoint, address, ports)| {
        let mut ports = ports.iter();
        let served = ports.find(|(name, _)| *name == port.name.as_deref().unwrap_or(""))?;
        location(format!("{}.{own}", label(endpoint, address)), address, served.1)
    });
    of_endpoints.flatten().collect()
}

/// The name of an endpoint within its Service: the Pod's host name, or its address with dashes.
fn label(endpoint: &Endpoint, address: Ipv4Addr) -> String {
    endpoint.hostname.clone().unwrap_or_else(|| address.to_string().replace('.', "-"))
}

type Ready<'a> = (&'a Endpoint, Ipv4Addr, Vec<(&'a str, i32)>);

fn ready<'a>(view: &'a View, namespace: &str, service: &str) -> impl Iterator<Item = Ready<'a>> {
    view.slices(namespace, service).flat_map(|slice| {
        let ports: Vec<_> = slice.ports.iter().flatten().collect();
        let ports: Vec<_> =
            ports.iter().filter_map(|port| Some((port.name.as_deref().unwrap_or(""), port.port?))).collect();
        slice.endpoints.iter().flatten().filter_map(move |endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let is_ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
            let address = endpoint.addresses.first()?.parse().ok()?;
            is_ready.then(|| (endpoint, address, ports.clone()))
        })
    })
}

fn reverse(view: &View, address: Ipv4Addr) -> Result<Records, Absent> {
    let names: Vec<String> = match view.service_at(address) {
        Some(service) => {
            let meta = &service.metadata;
            meta.name
                .iter()
                .zip(&meta.namespace)
                .map(|(name, namespace)| format!("{name}.{namespace}"))
                .collect()
        }
        None => {
            let slices = view.all_slices().filter(|((namespace, name), _)| {
                view.service(namespace, name).is_some_and(|service| cluster_ip(service).is_none())
            });
            let endpoints =
                slices.flat_map(|(key, slice)| slice.endpoints.iter().flatten().map(move |one| (key, one)));
            let of_address = endpoints.filter(|(_, one)| one.addresses.first() == Some(&address.to_string()));
            of_address
                .map(|((namespace, name), one)| format!("{}.{name}.{namespace}", label(one, address)))
                .collect()
        }
    };
    let names = names.iter().filter_map(|name| Name::from_text(&format!("{name}.svc.{DOMAIN}")));
    let records: Records = names.map(|name| (None, Data::Ptr(name))).collect();
    if records.is_empty() { Err(Absent::NoName) } else { Ok(records) }
}

fn start_of_authority() -> Option<Record> {
    let server = Name::from_text(&format!("ns.dns.{DOMAIN}"))?;
    let mailbox = Name::from_text(&format!("hostmaster.{DOMAIN}"))?;
    let data = Data::Soa { server, mailbox, minimum: TTL };
    Some(Record { name: Name::from_text(DOMAIN)?, ttl: TTL, data })
}

#[cfg(test)]
mod tests;
