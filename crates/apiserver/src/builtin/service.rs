//! Services. Addresses and node ports are state of the server: this module says what is needed and writes it down.

use serde_json::{Value, json};

use super::access::{Errors, Path, Peek, Poke};
use super::{PLAIN, Strategy, metadata, names};
use crate::status::{FieldError, FieldErrorKind};

pub(crate) const STRATEGY: Strategy = Strategy {
    defaults,
    create: |service, _| {
        mirror_addresses(service);
        families(service);
    },
    update,
    validate,
    validate_update,
    ..PLAIN
};

/// The service gets an address that it does not have yet.
pub fn needs_cluster_ip(service: &Value) -> bool {
    let spec = service.sub("spec");
    spec.str_of("type") != "ExternalName" && spec.str_of("clusterIP").is_empty()
}

/// Gives a service its address.
pub fn set_cluster_ip(service: &mut Value, ip: &str) {
    if let Some(spec) = service.make("spec") {
        spec.set("clusterIP", ip);
        spec.set("clusterIPs", json!([ip]));
    }
}

/// The ports (by index) that get a node port and have none yet.
pub fn needs_node_ports(service: &Value) -> Vec<usize> {
    let spec = service.sub("spec");
    let wanted = match spec.str_of("type") {
        "NodePort" => true,
        "LoadBalancer" => spec.sub("allocateLoadBalancerNodePorts") != false,
        _ => false,
    };
    let ports = spec.list("ports").iter().enumerate();
    ports
        .filter(|(_, port)| wanted && port.int_of("nodePort").unwrap_or_default() == 0)
        .map(|(index, _)| index)
        .collect()
}

/// Gives one port its node port.
pub fn set_node_port(service: &mut Value, index: usize, number: u16) {
    let ports = service.get_mut("spec").and_then(|spec| spec.get_mut("ports"));
    if let Some(port) = ports.and_then(|ports| ports.get_mut(index)) {
        port.set("nodePort", number);
    }
}

/// The node ports that a service holds.
pub fn node_ports(service: &Value) -> impl Iterator<Item = u16> {
    let ports = service.sub("spec").list("ports").iter();
    ports
        .filter_map(|port| port.int_of("nodePort"))
        .filter_map(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

fn is_external(spec: &Value) -> bool {
    ["NodePort", "LoadBalancer"].contains(&spec.str_of("type")) || !spec.list("externalIPs").is_empty()
}

fn defaults(service: &mut Value) {
    if let Some(balancer) = service.part("status").and_then(|status| status.part("loadBalancer")) {
        balancer.each("ingress", |ingress| {
            if !ingress.str_of("ip").is_empty() {
                ingress.fill("ipMode", "VIP");
            }
        });
    }
    let Some(spec) = service.part("spec") else { return };
    spec.fill_str("sessionAffinity", "None");
    match spec.str_of("sessionAffinity") {
        "None" => {
            spec.unset("sessionAffinityConfig");
        }
        "ClientIP" => {
            if let Some(client) =
                spec.make("sessionAffinityConfig").and_then(|config| config.make("clientIP"))
            {
                client.fill("timeoutSeconds", 10800);
            }
        }
        _ => {}
    }
    spec.fill_str("type", "ClusterIP");
    spec.each("ports", |port| {
        port.fill_str("protocol", "TCP");
        if port.sub("targetPort") == 0 || port.sub("targetPort") == "" || !port.has("targetPort") {
            let number = port.sub("port").clone();
            port.set("targetPort", number);
        }
    });
    if is_external(spec) && spec.str_of("type") != "ExternalName" {
        spec.fill_str("externalTrafficPolicy", "Cluster");
    }
    if ["ClusterIP", "NodePort", "LoadBalancer"].contains(&spec.str_of("type")) {
        spec.fill("internalTrafficPolicy", "Cluster");
    }
    if spec.str_of("type") == "LoadBalancer" {
        spec.fill("allocateLoadBalancerNodePorts", true);
    }
}

fn mirror_addresses(service: &mut Value) {
    let Some(spec) = service.part("spec") else { return };
    let single = spec.str_of("clusterIP").to_owned();
    if !single.is_empty() && spec.list("clusterIPs").is_empty() {
        spec.set("clusterIPs", json!([single]));
    }
}

/// The server has addresses of one family.
fn families(service: &mut Value) {
    let Some(spec) = service.part("spec") else { return };
    if spec.str_of("type") == "ExternalName" {
        return;
    }
    let anything =
        spec.str_of("clusterIP") == "None" && spec.map("selector").is_none_or(serde_json::Map::is_empty);
    if anything && !spec.has("ipFamilyPolicy") && spec.list("ipFamilies").is_empty() {
        spec.set("ipFamilies", json!(["IPv4", "IPv6"]));
        spec.set("ipFamilyPolicy", "RequireDualStack");
        return;
    }
    spec.fill("ipFamilies", json!(["IPv4"]));
    spec.fill("ipFamilyPolicy", "SingleStack");
}

/// What was allocated stays, unless the new type has no use for it.
fn update(new: &mut Value, old: &Value) {
    let before = old.sub("spec");
    let Some(spec) = new.part("spec") else { return };
    let has_address = |spec: &Value| spec.str_of("type") != "ExternalName";
    let has_node_ports = |spec: &Value| ["NodePort", "LoadBalancer"].contains(&spec.str_of("type"));
    if has_address(spec) && has_address(before) {
        if spec.str_of("clusterIP").is_empty() && spec.list("clusterIPs").is_empty() {
            super::copy(spec, before, "clusterIP");
            super::copy(spec, before, "clusterIPs");
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if !spec.has(key) {
                super::copy(spec, before, key);
            }
        }
    }
    if has_address(before) && !has_address(spec) {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if spec.sub(key) == before.sub(key) {
                spec.unset(key);
            }
        }
    }
    if has_node_ports(spec) && has_node_ports(before) {
        spec.each("ports", |port| keep_node_port(port, before.list("ports")));
    } else if has_node_ports(before) && !has_node_ports(spec) {
        let numbers: Vec<&Value> = before.list("ports").iter().map(|port| port.sub("nodePort")).collect();
        spec.each("ports", |port| {
            if numbers.contains(&port.sub("nodePort")) {
                port.unset("nodePort");
            }
        });
    }
    let balances = |spec: &Value| spec.str_of("type") == "LoadBalancer";
    if balances(before) && !balances(spec) {
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort"] {
            if spec.sub(key) == before.sub(key) {
                spec.unset(key);
            }
        }
    }
    if !is_external(spec) && spec.sub("externalTrafficPolicy") == before.sub("externalTrafficPolicy") {
        spec.unset("externalTrafficPolicy");
    }
    mirror_addresses(new);
    families(new);
}

fn keep_node_port(port: &mut Value, before: &[Value]) {
    if port.int_of("nodePort").unwrap_or_default() != 0 {
        return;
    }
    let same = before
        .iter()
        .find(|old| old.sub("port") == port.sub("port") && old.str_of("protocol") == port.str_of("protocol"));
    if let Some(number) = same.and_then(|old| old.int_of("nodePort")).filter(|number| *number != 0) {
        port.set("nodePort", number);
    }
}

fn validate(service: &Value, errors: &mut Errors) {
    let (spec, path) = (service.sub("spec"), Path::root("spec"));
    let kind = spec.str_of("type");
    let headless = spec.str_of("clusterIP") == "None";
    if spec.list("ports").is_empty() && !headless && kind != "ExternalName" {
        errors.push(path.child("ports").required(""));
    }
    match kind {
        "NodePort" | "LoadBalancer" if headless => errors.push(
            path.child("clusterIPs")
                .index(0)
                .invalid("None", format!("may not be set to 'None' for {kind} services")),
        ),
        "ExternalName" => external_name(spec, &path, errors),
        _ => {}
    }
    ports(spec, &path, errors);
    metadata::labels(spec.map("selector"), &path.child("selector"), errors);
    affinity(spec, &path, errors);
    addresses(spec, &path, errors);
    path.one_of(spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    if kind == "ClusterIP" {
        let ports = path.child("ports");
        for (index, port) in spec.list("ports").iter().enumerate() {
            if port.int_of("nodePort").unwrap_or_default() != 0 {
                errors.push(
                    ports
                        .index(index)
                        .child("nodePort")
                        .forbidden("may not be used when `type` is 'ClusterIP'"),
                );
            }
        }
    }
    unique_ports(spec, &path.child("ports"), errors);
    source_ranges(spec, &path, errors);
    traffic(spec, &path, errors);
}

fn external_name(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !spec.list("clusterIPs").is_empty() {
        errors.push(path.child("clusterIPs").forbidden("may not be set for ExternalName services"));
    }
    let name = spec.str_of("externalName").trim_end_matches('.');
    if name.is_empty() {
        errors.push(path.child("externalName").required(""));
    } else {
        path.child("externalName").all_invalid(name, names::subdomain(name), errors);
    }
}

fn ports(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let list = path.child("ports");
    let named = spec.list("ports").len() > 1;
    let mut seen = Vec::new();
    for (index, port) in spec.list("ports").iter().enumerate() {
        let path = list.index(index);
        let name = port.str_of("name");
        if name.is_empty() {
            if named {
                errors.push(path.child("name").required(""));
            }
        } else {
            path.child("name").all_invalid(name, names::label(name), errors);
            if seen.contains(&name) {
                errors.push(path.child("name").duplicate(name));
            }
            seen.push(name);
        }
        let number = port.int_of("port").unwrap_or_default();
        errors.extend(names::port(number).map(|message| path.child("port").invalid(number, message)));
        path.one_of(port, "protocol", &["SCTP", "TCP", "UDP"], errors);
        let target = path.child("targetPort");
        match port.sub("targetPort") {
            Value::String(name) => target.all_invalid(name, names::port_name(name), errors),
            number => {
                let number = number.as_i64().unwrap_or_default();
                errors.extend(names::port(number).map(|message| target.invalid(number, message)));
            }
        }
        let protocol = port.str_of("appProtocol");
        if !protocol.is_empty() {
            path.child("appProtocol").all_invalid(protocol, names::qualified(protocol), errors);
        }
    }
}

fn unique_ports(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut seen: Vec<(&str, i64)> = Vec::new();
    for (index, port) in spec.list("ports").iter().enumerate() {
        let this = (port.str_of("protocol"), port.int_of("port").unwrap_or_default());
        if seen.contains(&this) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{},\"TargetPort\":0,\"NodePort\":0}}",
                Value::from(this.0),
                this.1
            );
            errors.push(FieldError::new(
                FieldErrorKind::Duplicate,
                path.index(index).to_string(),
                None,
                shown,
            ));
        }
        seen.push(this);
    }
}

fn affinity(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    path.one_of(spec, "sessionAffinity", &["ClientIP", "None"], errors);
    if spec.str_of("sessionAffinity") != "ClientIP" {
        return;
    }
    let seconds =
        spec.at(&["sessionAffinityConfig", "clientIP"]).int_of("timeoutSeconds").unwrap_or_default();
    if !(1..=86400).contains(&seconds) {
        errors.push(
            path.child("sessionAffinityConfig")
                .child("clientIP")
                .child("timeoutSeconds")
                .invalid(seconds, "must be greater than 0 and less than 86400"),
        );
    }
}

fn addresses(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let families = path.child("ipFamilies");
    for (index, family) in spec.list("ipFamilies").iter().enumerate() {
        let family = family.as_str().unwrap_or_default();
        if !["IPv4", "IPv6"].contains(&family) {
            errors.push(families.index(index).unsupported(family, &["IPv4", "IPv6"]));
        }
    }
    path.maybe_one_of(
        spec,
        "ipFamilyPolicy",
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
        errors,
    );
    for (key, none) in [("clusterIPs", true), ("externalIPs", false)] {
        let path = path.child(key);
        for (index, ip) in spec.list(key).iter().enumerate() {
            let text = ip.as_str().unwrap_or_default();
            let skip = none && (text == "None" || spec.str_of("type") == "ExternalName");
            if let Err(message) = names::ip(text)
                && !skip
            {
                errors.push(path.index(index).invalid(text, message));
            }
        }
    }
}

fn source_ranges(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    // The real server spells the field like this.
    let path = path.child("LoadBalancerSourceRanges");
    let ranges = spec.list("loadBalancerSourceRanges");
    if !ranges.is_empty() && spec.str_of("type") != "LoadBalancer" {
        errors.push(path.forbidden("may only be used when `type` is 'LoadBalancer'"));
    }
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default();
        match names::cidr(text.trim()) {
            Err(message) => errors.push(path.index(index).invalid(text, message)),
            Ok((bits, length, width)) => {
                if names::host_bits(bits, length, width) != 0 {
                    errors.push(
                        path.index(index).invalid(text, "must not have bits set beyond the prefix length"),
                    );
                }
            }
        }
    }
}

fn traffic(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let policies = ["Cluster", "Local"];
    let balances = spec.str_of("type") == "LoadBalancer";
    if spec.has("loadBalancerClass") && !balances {
        errors.push(
            path.child("loadBalancerClass").forbidden("may only be used when `type` is 'LoadBalancer'"),
        );
    }
    let external = spec.str_of("externalTrafficPolicy");
    if !external.is_empty() && !is_external(spec) {
        errors.push(
            path.child("externalTrafficPolicy")
                .invalid(external, "may only be set for externally-accessible services"),
        );
    } else if is_external(spec) && spec.str_of("type") != "ExternalName" {
        path.one_of(spec, "externalTrafficPolicy", &policies, errors);
    }
    let check = spec.int_of("healthCheckNodePort").unwrap_or_default();
    if check != 0 && !(balances && external == "Local") {
        errors.push(path.child("healthCheckNodePort").invalid(
            check,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ));
    }
    path.maybe_one_of(spec, "internalTrafficPolicy", &policies, errors);
    path.maybe_one_of(
        spec,
        "trafficDistribution",
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
        errors,
    );
}

fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::root("spec");
    let (spec, before) = (new.sub("spec"), old.sub("spec"));
    let keeps = |spec: &Value| spec.str_of("type") != "ExternalName";
    let (now, then) = (spec.list("clusterIPs").first(), before.list("clusterIPs").first());
    if keeps(spec) && keeps(before) && then.is_some() && now != then {
        errors.push(
            path.child("clusterIPs")
                .index(0)
                .invalid(spec.sub("clusterIPs").clone(), "may not change once set"),
        );
    }
    validate(new, errors);
}
