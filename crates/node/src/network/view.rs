//! What the network knows of the cluster, in the shape in which it is asked. Pure: changes come in, questions are
//! answered; it reads nothing itself.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

use agentcube_runtime::SandboxId;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::closed::Closed;
use super::policy::Policy;

pub(super) type Labels = BTreeMap<String, String>;

/// Namespace and name.
pub(super) type Key = (String, String);

/// A Pod or guest that has a sandbox on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub sandbox: SandboxId,
    pub address: Ipv4Addr,
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub ports: Vec<NamedPort>,
    /// How far a guest gets; Pods have rules of their own.
    pub guest: Option<Reach>,
}

/// Somebody with an address who is no Pod: the sandbox of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub reach: Reach,
}

/// How far the connections of a guest get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Nowhere.
    Nothing,
    /// To addresses of the internet: to no Pod, Service or private network, and by no name of the cluster.
    Public,
    /// As far as those of a Pod.
    Cluster,
}

/// A port of a container that a policy can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedPort {
    pub name: String,
    pub protocol: String,
    pub port: u16,
}

impl Member {
    pub(super) fn new(sandbox: SandboxId, address: Ipv4Addr, pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                port: u16::try_from(port.container_port).ok()?,
            })
        });
        Self {
            sandbox,
            address,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            ports: ports.collect(),
            guest: None,
        }
    }

    pub(super) fn guest(sandbox: SandboxId, address: Ipv4Addr, guest: Guest) -> Self {
        let Guest { namespace, name, labels, reach } = guest;
        Self { sandbox, address, namespace, name, labels, ports: Vec::new(), guest: Some(reach) }
    }
}

#[derive(Debug, Default)]
pub(super) struct View {
    members: HashMap<Ipv4Addr, Arc<Member>>,
    by_pod: HashMap<Key, Ipv4Addr>,
    namespaces: HashMap<String, Labels>,
    services: HashMap<Key, Arc<Service>>,
    by_cluster_ip: HashMap<Ipv4Addr, Key>,
    /// By Service, then by the slice's own name.
    slices: HashMap<Key, BTreeMap<String, Arc<EndpointSlice>>>,
    policies: HashMap<String, BTreeMap<String, Policy>>,
    /// What no guest reaches.
    pub(super) closed: Closed,
}

impl View {
    pub(super) fn closed_to(closed: Closed) -> Self {
        Self { closed, ..Self::default() }
    }

    pub(super) fn member(&self, address: Ipv4Addr) -> Option<&Arc<Member>> {
        self.members.get(&address)
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    pub(super) fn namespace_label(&self, namespace: &str, label: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(label).map(String::as_str)
    }

    pub(super) fn namespace_labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace)
    }

    pub(super) fn service(&self, namespace: &str, name: &str) -> Option<&Arc<Service>> {
        self.services.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub(super) fn service_at(&self, cluster_ip: Ipv4Addr) -> Option<&Arc<Service>> {
        self.services.get(self.by_cluster_ip.get(&cluster_ip)?)
    }

    pub(super) fn slices(&self, namespace: &str, service: &str) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.slices.get(&(namespace.to_owned(), service.to_owned())).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn all_slices(&self) -> impl Iterator<Item = (&Key, &Arc<EndpointSlice>)> {
        self.slices.iter().flat_map(|(service, slices)| slices.values().map(move |slice| (service, slice)))
    }

    pub(super) fn policies(&self, namespace: &str) -> impl Iterator<Item = &Policy> {
        self.policies.get(namespace).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn attach(&mut self, member: Member) {
        // A guest may have the name of a Pod, and is not found by it.
        if member.guest.is_none() {
            self.by_pod.insert((member.namespace.clone(), member.name.clone()), member.address);
        }
        self.members.insert(member.address, Arc::new(member));
    }

    pub(super) fn detach(&mut self, address: Ipv4Addr) {
        if let Some(member) = self.members.remove(&address) {
            let key = (member.namespace.clone(), member.name.clone());
            if self.by_pod.get(&key) == Some(&address) {
                self.by_pod.remove(&key);
            }
        }
    }

    /// Labels can change while a Pod runs; its ports cannot.
    pub(super) fn pod(&mut self, pod: &Pod) {
        let Some(key) = key(&pod.metadata) else { return };
        let Some(member) = self.by_pod.get(&key).and_then(|address| self.members.get_mut(address)) else {
            return;
        };
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        if member.labels != labels {
            Arc::make_mut(member).labels = labels;
        }
    }

    pub(super) fn namespace(&mut self, old: Option<&Namespace>, new: Option<&Namespace>) {
        if let Some(name) = old.and_then(|old| old.metadata.name.as_ref()) {
            self.namespaces.remove(name);
        }
        if let Some(new) = new
            && let Some(name) = &new.metadata.name
        {
            self.namespaces.insert(name.clone(), new.metadata.labels.clone().unwrap_or_default());
        }
    }

    pub(super) fn change_service(&mut self, old: Option<&Service>, new: Option<&Arc<Service>>) {
        if let Some(old) = old {
            if let Some(address) = cluster_ip(old) {
                self.by_cluster_ip.remove(&address);
            }
            key(&old.metadata).and_then(|key| self.services.remove(&key));
        }
        if let Some(new) = new
            && let Some(key) = key(&new.metadata)
        {
            if let Some(address) = cluster_ip(new) {
                self.by_cluster_ip.insert(address, key.clone());
            }
            self.services.insert(key, new.clone());
        }
    }

    pub(super) fn change_slice(&mut self, old: Option<&EndpointSlice>, new: Option<&Arc<EndpointSlice>>) {
        if let Some((service, name)) = old.and_then(slice_keys)
            && let Some(slices) = self.slices.get_mut(&service)
        {
            slices.remove(&name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        if let Some(new) = new
            && let Some((service, name)) = slice_keys(new)
        {
            self.slices.entry(service).or_default().insert(name, new.clone());
        }
    }

    pub(super) fn change_policy(&mut self, old: Option<&NetworkPolicy>, new: Option<&NetworkPolicy>) {
        if let Some((namespace, name)) = old.and_then(|old| key(&old.metadata))
            && let Some(policies) = self.policies.get_mut(&namespace)
        {
            policies.remove(&name);
            if policies.is_empty() {
                self.policies.remove(&namespace);
            }
        }
        if let Some(new) = new
            && let Some((namespace, name)) = key(&new.metadata)
        {
            self.policies.entry(namespace).or_default().insert(name, Policy::new(new));
        }
    }
}

/// The address of a Service, if it has one of its own.
pub(super) fn cluster_ip(service: &Service) -> Option<Ipv4Addr> {
    service.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok()
}

fn key(meta: &kube::core::ObjectMeta) -> Option<Key> {
    Some((meta.namespace.clone()?, meta.name.clone()?))
}

/// The Service to which a slice belongs, and the slice's own name.
fn slice_keys(slice: &EndpointSlice) -> Option<(Key, String)> {
    let (namespace, name) = key(&slice.metadata)?;
    let service = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?.clone();
    Some(((namespace, service), name))
}
