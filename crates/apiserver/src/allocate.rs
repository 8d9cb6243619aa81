//! Cluster addresses and node ports of Services: handed out once, given back when the Service goes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use parking_lot::Mutex;
use serde_json::Value;

use crate::builtin::service;
use crate::status::FieldError;

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

    /// Fills in what the Service asks for and lacks; checks what it names itself.
    pub(crate) fn assign(&self, value: &mut Value, dry_run: bool) -> Result<(), Vec<FieldError>> {
        let mut taken = self.taken.lock();
        if service::needs_cluster_ip(value) {
            let address = taken.free_address().ok_or_else(|| {
                vec![FieldError::new(
                    crate::status::FieldErrorKind::Internal,
                    "spec.clusterIPs",
                    None,
                    "failed to allocate a serviceIP: range is full",
                )]
            })?;
            service::set_cluster_ip(value, &Ipv4Addr::from(address).to_string());
        }
        if !dry_run && let Some(address) = address_of(value) {
            taken.addresses.insert(address);
        }
        for index in service::needs_node_ports(value) {
            if let Some(free) = taken.free_port() {
                service::set_node_port(value, index, free);
            }
        }
        if !dry_run {
            taken.ports.extend(service::node_ports(value));
        }
        Ok(())
    }
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
