//! What Pods ask of a node, and what those that are on it take: resources, host ports, room.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use agentcube_api::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

/// Amounts by resource: processors in thousandths, everything else in units.
pub type Amounts = BTreeMap<String, i64>;

/// A port of the host, as a Pod asks for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub protocol: String,
    pub address: String,
    pub port: i32,
}

impl HostPort {
    /// The unspecified address stands for all of them.
    fn meets(&self, other: &HostPort) -> bool {
        let any = |address: &str| address.is_empty() || address == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (any(&self.address) || any(&other.address) || self.address == other.address)
    }
}

/// What one Pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    pub amounts: Amounts,
    pub ports: BTreeSet<HostPort>,
}

impl Demand {
    pub fn of(pod: &Pod) -> Demand {
        let Some(spec) = &pod.spec else { return Demand::default() };
        Demand { amounts: requests(spec), ports: ports(spec) }
    }
}

/// What the Pods of a node take together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    pub amounts: Amounts,
    /// A port can be there twice if somebody else than this scheduler put Pods on the node.
    pub ports: Vec<HostPort>,
    pub pods: i64,
}

impl Load {
    pub fn add(&mut self, demand: &Demand) {
        sum(&mut self.amounts, &demand.amounts);
        self.ports.extend(demand.ports.iter().cloned());
        self.pods += 1;
    }

    pub fn subtract(&mut self, demand: &Demand) {
        for (resource, amount) in &demand.amounts {
            if let Some(total) = self.amounts.get_mut(resource) {
                *total = total.saturating_sub(*amount);
            }
        }
        for port in &demand.ports {
            if let Some(index) = self.ports.iter().position(|taken| taken == port) {
                self.ports.swap_remove(index);
            }
        }
        self.pods -= 1;
    }

    pub fn port_taken(&self, demand: &Demand) -> bool {
        demand.ports.iter().any(|wanted| self.ports.iter().any(|taken| taken.meets(wanted)))
    }
}

/// An amount in the unit of its resource.
pub(super) fn amount(resource: &str, quantity: &Written) -> i64 {
    let Ok(quantity) = Quantity::from_str(&quantity.0) else { return 0 };
    if resource == "cpu" { quantity.milli_value() } else { quantity.value() }
}

fn sum(total: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let total = total.entry(resource.clone()).or_default();
        *total = total.saturating_add(*amount);
    }
}

fn at_least(total: &mut Amounts, other: &Amounts) {
    for (resource, amount) in other {
        let total = total.entry(resource.clone()).or_default();
        *total = (*total).max(*amount);
    }
}

fn of_container(container: &Container) -> Amounts {
    let requests = container.resources.iter().flat_map(|resources| resources.requests.iter().flatten());
    requests.map(|(resource, quantity)| (resource.clone(), amount(resource, quantity))).collect()
}

/// Containers run together; each init container runs alone, beside the sidecars that were started before it.
fn requests(spec: &PodSpec) -> Amounts {
    let mut together = Amounts::new();
    for container in &spec.containers {
        sum(&mut together, &of_container(container));
    }
    let (mut sidecars, mut highest) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sum(&mut together, &own);
            sum(&mut sidecars, &own);
            at_least(&mut highest, &sidecars);
        } else {
            let mut while_it_runs = sidecars.clone();
            sum(&mut while_it_runs, &own);
            at_least(&mut highest, &while_it_runs);
        }
    }
    at_least(&mut together, &highest);
    // What is said of the whole Pod counts instead.
    for (resource, quantity) in spec.resources.iter().flat_map(|all| all.requests.iter().flatten()) {
        together.insert(resource.clone(), amount(resource, quantity));
    }
    let overhead = spec.overhead.iter().flatten();
    sum(&mut together, &overhead.map(|(resource, q)| (resource.clone(), amount(resource, q))).collect());
    together.retain(|_, amount| *amount > 0);
    together
}

fn ports(spec: &PodSpec) -> BTreeSet<HostPort> {
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(HostPort {
                port: port.host_port.filter(|port| *port > 0)?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                address: port.host_ip.clone().unwrap_or_default(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn demand(spec: Value) -> Demand {
        Demand::of(&serde_json::from_value(json!({"spec": spec})).unwrap())
    }

    fn amounts(spec: Value) -> Vec<String> {
        demand(spec).amounts.iter().map(|(resource, amount)| format!("{resource} {amount}")).collect()
    }

    fn container(requests: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests}})
    }

    #[test]
    fn requests_of_pods() {
        let sidecar = |requests: Value| {
            let mut container = container(requests);
            container["restartPolicy"] = "Always".into();
            container
        };
        for (spec, expected) in [
            (json!({"containers": [{"name": "c"}]}), vec![]),
            (
                json!({"containers": [container(json!({"cpu": "100m", "memory": "1Mi"})), container(json!({"cpu": "1"}))]}),
                vec!["cpu 1100", "memory 1048576"],
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))],
                    "initContainers": [container(json!({"cpu": "3"})), container(json!({"memory": "5"}))]}),
                vec!["cpu 3000", "memory 5"],
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))],
                    "initContainers": [sidecar(json!({"cpu": "1"})), container(json!({"cpu": "2"}))]}),
                vec!["cpu 3000"],
            ),
            (
                json!({"containers": [container(json!({"cpu": "4"}))],
                    "initContainers": [container(json!({"cpu": "2"})), sidecar(json!({"cpu": "1"}))]}),
                vec!["cpu 5000"],
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "overhead": {"cpu": "250m"},
                    "resources": {"requests": {"cpu": "2"}}}),
                vec!["cpu 2250"],
            ),
            (
                json!({"containers": [container(json!({"example.com/gpu": "2", "cpu": "0"}))]}),
                vec!["example.com/gpu 2"],
            ),
        ] {
            assert_eq!(amounts(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn ports_of_the_host() {
        let at = |ip: &str, port: i32, protocol: &str| {
            demand(json!({"containers": [{"name": "c", "ports": [
                {"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol}, {"containerPort": 2}]}]}))
        };
        let mut load = Load::default();
        load.add(&at("127.0.0.1", 80, "TCP"));
        for (ip, port, protocol, taken) in [
            ("127.0.0.1", 80, "TCP", true),
            ("", 80, "TCP", true),
            ("0.0.0.0", 80, "TCP", true),
            ("127.0.0.2", 80, "TCP", false),
            ("127.0.0.1", 80, "UDP", false),
            ("127.0.0.1", 81, "TCP", false),
        ] {
            assert_eq!(load.port_taken(&at(ip, port, protocol)), taken, "{ip}:{port}/{protocol}");
        }
        load.subtract(&at("127.0.0.1", 80, "TCP"));
        assert!(!load.port_taken(&at("", 80, "TCP")));
        assert_eq!(load.pods, 0);
    }
}
