//! Cluster addresses and node ports of Services: handed out once, given back when the Service goes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use parking_lot::Mutex;
use serde_json::Value;

use crate::builtin::service;
use crate::status::{FieldError, FieldErrorKind};

/// 10.96.0.0/16, the first address reserved for the API server itself.
const FIRST: u32 = u32::from_be_bytes([10, 96, 0, 1]);
const LAST: u32 = u32::from_be_bytes([10, 96, 255, 254]);
const PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<u32>,
    next: u32,
    ports: BTreeSet<u16>,
    next_port: u16,
}

impl Addresses {
    /// Remembers what a Service from an earlier run holds.
    pub(crate) fn adopt(&self, value: &Value) {
        let mut taken = self.taken.lock();
        if let Some(address) = address_of(value) {
            taken.addresses.insert(address);
        }
        taken.ports.extend(service::node_ports(value));
    }

    pub(crate) fn release(&self, value: &Value) {
        let mut taken = self.taken.lock();
        if let Some(address) = address_of(value) {
            taken.addresses.remove(&address);
        }
        for port in service::node_ports(value) {
            taken.ports.remove(&port);
        }
    }

    /// Fills in what the Service asks for and lacks; refuses what it names itself and cannot have. `old` is the
    /// Service as it was, which keeps what it holds.
    pub(crate) fn assign(
        &self,
        value: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<(), Vec<FieldError>> {
        let mut taken = self.taken.lock();
        let held = old.and_then(address_of);
        let held_ports: Vec<u16> = old.into_iter().flat_map(service::node_ports).collect();
        let mut errors = refused_families(value);
        if let Some(asked) = address_of(value).filter(|asked| Some(*asked) != held) {
            errors.extend(taken.refused_address(asked));
        }
        errors.extend(taken.refused_ports(value, &held_ports));
        if !errors.is_empty() {
            return Err(errors);
        }
        if service::needs_cluster_ip(value) {
            let address = taken.free_address().ok_or_else(|| {
                let detail = "failed to allocate a serviceIP: range is full";
                vec![FieldError::new(FieldErrorKind::Internal, "spec.clusterIPs", None, detail)]
            })?;
            service::set_cluster_ip(value, &Ipv4Addr::from(address).to_string());
        }
        for index in service::needs_node_ports(value) {
            if let Some(free) = taken.free_port() {
                service::set_node_port(value, index, free);
            }
        }
        if !dry_run {
            taken.addresses.extend(address_of(value));
            taken.ports.extend(service::node_ports(value));
        }
        Ok(())
    }
}

/// The cluster has IPv4 addresses only.
fn refused_families(value: &Value) -> Vec<FieldError> {
    let spec = &value["spec"];
    let headless_without_selector =
        spec["clusterIP"] == "None" && spec["selector"].as_object().is_none_or(|s| s.is_empty());
    if headless_without_selector || spec["type"] == "ExternalName" {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", "RequireDualStack", detail));
    }
    for (n, family) in spec["ipFamilies"].as_array().into_iter().flatten().enumerate() {
        if family == "IPv6" {
            let field = format!("spec.ipFamilies[{n}]");
            errors.push(FieldError::invalid(field, "IPv6", "not configured on this cluster"));
        }
    }
    errors
}

impl Taken {
    fn free_address(&mut self) -> Option<u32> {
        for _ in FIRST..=LAST {
            // The first address is the API server's own Service.
            self.next = if (FIRST + 1..LAST).contains(&self.next) { self.next + 1 } else { FIRST + 1 };
            if !self.addresses.contains(&self.next) {
                return Some(self.next);
            }
        }
        None
    }

    fn refused_address(&self, asked: u32) -> Option<FieldError> {
        let text = Ipv4Addr::from(asked).to_string();
        let problem = if !(FIRST..=LAST).contains(&asked) {
            format!("failed to allocate IP {text}: the provided network does not match the current range")
        } else if self.addresses.contains(&asked) {
            format!("failed to allocate IP {text}: provided IP is already allocated")
        } else {
            return None;
        };
        Some(FieldError::invalid("spec.clusterIPs", Value::from(vec![text]), problem))
    }

    fn refused_ports(&self, value: &Value, held: &[u16]) -> Vec<FieldError> {
        let ports = value["spec"]["ports"].as_array().into_iter().flatten().enumerate();
        let judge = |(n, port): (usize, &Value)| {
            let number = port["nodePort"].as_i64().filter(|number| *number != 0)?;
            let field = format!("spec.ports[{n}].nodePort");
            match u16::try_from(number).ok().filter(|number| PORTS.contains(number)) {
                None => {
                    let detail =
                        "provided port is not in the valid range. The range of valid ports is 30000-32767";
                    Some(FieldError::invalid(field, number, detail))
                }
                Some(port) if self.ports.contains(&port) && !held.contains(&port) => {
                    Some(FieldError::invalid(field, number, "provided port is already allocated"))
                }
                Some(_) => None,
            }
        };
        ports.filter_map(judge).collect()
    }

    fn free_port(&mut self) -> Option<u16> {
        for _ in PORTS {
            let next = self.next_port.wrapping_add(1);
            self.next_port = if PORTS.contains(&next) { next } else { *PORTS.start() };
            if !self.ports.contains(&self.next_port) {
                return Some(self.next_port);
            }
        }
        None
    }
}

fn address_of(service: &Value) -> Option<u32> {
    service["spec"]["clusterIP"].as_str()?.parse::<Ipv4Addr>().ok().map(u32::from)
}
