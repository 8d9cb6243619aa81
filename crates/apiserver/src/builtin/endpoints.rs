//! Endpoints and EndpointSlices.

use serde_json::Value;

use super::access::{Errors, IMMUTABLE, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, names};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const MOST_ENDPOINTS: usize = 1000;
const MOST_ADDRESSES: usize = 100;
const MOST_PORTS: usize = 20_000;

pub(crate) const ENDPOINTS: Strategy = Strategy {
    defaults: |endpoints| {
        endpoints.each("subsets", |subset| {
            subset.each("ports", |port| port.fill_str("protocol", "TCP"));
        });
    },
    validate: validate_endpoints,
    validate_update: |new, _, errors| validate_endpoints(new, errors),
    ..PLAIN
};

fn validate_endpoints(endpoints: &Value, errors: &mut Errors) {
    let path = Path::root("subsets");
    for (index, subset) in endpoints.list("subsets").iter().enumerate() {
        let path = path.index(index);
        let (ready, other) = (subset.list("addresses"), subset.list("notReadyAddresses"));
        if ready.is_empty() && other.is_empty() {
            errors.push(path.required("must specify `addresses` or `notReadyAddresses`"));
        }
        for (key, addresses) in [("addresses", ready), ("notReadyAddresses", other)] {
            let path = path.child(key);
            for (index, address) in addresses.iter().enumerate() {
                endpoint_address(address, &path.index(index), errors);
            }
        }
        let ports = path.child("ports");
        let named = subset.list("ports").len() > 1;
        for (index, port) in subset.list("ports").iter().enumerate() {
            let path = ports.index(index);
            let name = port.str_of("name");
            if !name.is_empty() {
                path.child("name").all_invalid(name, names::label(name), errors);
            } else if named {
                errors.push(path.child("name").required(""));
            }
            let number = port.int_of("port").unwrap_or_default();
            errors.extend(names::port(number).map(|message| path.child("port").invalid(number, message)));
            path.one_of(port, "protocol", PROTOCOLS, errors);
        }
    }
}

fn endpoint_address(address: &Value, path: &Path<'_>, errors: &mut Errors) {
    let ip = address.str_of("ip");
    match names::ip(ip) {
        Ok(parsed) => special_address(ip, parsed, &path.child("ip"), errors),
        Err(message) => {
            errors.push(path.child("ip").invalid(ip, message));
            errors.push(path.child("ip").invalid(ip, "must be a valid IP address"));
        }
    }
    let hostname = address.str_of("hostname");
    if !hostname.is_empty() {
        path.child("hostname").all_invalid(hostname, names::label(hostname), errors);
    }
    let node = address.str_of("nodeName");
    if !node.is_empty() {
        path.child("nodeName").all_invalid(node, names::subdomain(node), errors);
    }
}

/// Addresses that lead to no pod.
fn special_address(text: &str, ip: std::net::IpAddr, path: &Path<'_>, errors: &mut Errors) {
    let link_local = match ip {
        std::net::IpAddr::V4(v4) => v4.is_link_local(),
        std::net::IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let link_multicast = match ip {
        std::net::IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        std::net::IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    };
    for (is, detail) in [
        (ip.is_unspecified(), "may not be unspecified (0.0.0.0 or ::)"),
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (link_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ] {
        if is {
            errors.push(path.invalid(text, detail));
        }
    }
}

pub(crate) const SLICE: Strategy = Strategy {
    defaults: |slice| {
        slice.each("ports", |port| {
            port.fill("name", "");
            port.fill_str("protocol", "TCP");
        });
    },
    validate: validate_slice,
    validate_update: |new, old, errors| {
        validate_slice(new, errors);
        if new.str_of("addressType") != old.str_of("addressType") {
            errors.push(top("addressType").invalid(new.str_of("addressType"), IMMUTABLE));
        }
    },
    ..PLAIN
};

fn validate_slice(slice: &Value, errors: &mut Errors) {
    let kind = slice.str_of("addressType");
    let supported = ["FQDN", "IPv4", "IPv6"];
    if kind.is_empty() {
        errors.push(top("addressType").required(""));
    } else if !supported.contains(&kind) {
        errors.push(top("addressType").unsupported(kind, &supported));
    }
    too_many(slice.list("endpoints").len(), MOST_ENDPOINTS, &top("endpoints"), errors);
    let path = Path::root("endpoints");
    for (index, endpoint) in slice.list("endpoints").iter().enumerate() {
        validate_endpoint(endpoint, kind, &path.index(index), errors);
    }
    too_many(slice.list("ports").len(), MOST_PORTS, &top("ports"), errors);
    let path = Path::root("ports");
    let mut seen = Vec::new();
    for (index, port) in slice.list("ports").iter().enumerate() {
        let path = path.index(index);
        let name = port.str_of("name");
        if seen.contains(&name) {
            errors.push(path.child("name").duplicate(name));
        }
        seen.push(name);
        if !name.is_empty() {
            path.child("name").all_invalid(name, names::label(name), errors);
        }
        path.one_of(port, "protocol", PROTOCOLS, errors);
        let protocol = port.str_of("appProtocol");
        if !protocol.is_empty() {
            path.child("appProtocol").all_invalid(protocol, names::qualified(protocol), errors);
        }
    }
}

fn too_many(count: usize, limit: usize, path: &Path<'_>, errors: &mut Errors) {
    if count > limit {
        errors.push(crate::status::FieldError::new(
            crate::status::FieldErrorKind::TooMany,
            path.to_string(),
            Some(count.into()),
            format!("must have at most {limit} items"),
        ));
    }
}

fn validate_endpoint(endpoint: &Value, kind: &str, path: &Path<'_>, errors: &mut Errors) {
    let addresses = path.child("addresses");
    let list = endpoint.list("addresses");
    if list.is_empty() {
        errors.push(addresses.required("must contain at least 1 address"));
    }
    too_many(list.len(), MOST_ADDRESSES, &addresses, errors);
    for (index, address) in list.iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        let item = addresses.index(index);
        match (kind, names::ip(text)) {
            ("FQDN", _) => item.all_invalid(text, names::subdomain(text), errors),
            ("IPv4" | "IPv6", Err(message)) => errors.push(item.invalid(text, message)),
            ("IPv4" | "IPv6", Ok(ip)) => {
                if ip.is_ipv4() == (kind == "IPv4") {
                    special_address(text, ip, &item, errors);
                } else {
                    errors.push(addresses.invalid(text, format!("must be an {kind} address")));
                }
            }
            _ => {}
        }
    }
    let node = endpoint.str_of("nodeName");
    if !node.is_empty() {
        path.child("nodeName").all_invalid(node, names::subdomain(node), errors);
    }
    let hostname = endpoint.str_of("hostname");
    if !hostname.is_empty() {
        path.child("hostname").all_invalid(hostname, names::label(hostname), errors);
    }
}
