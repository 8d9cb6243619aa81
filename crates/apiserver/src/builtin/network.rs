//! NetworkPolicies and PodDisruptionBudgets.

use serde_json::{Value, json};

use super::access::{Errors, Path, Peek, Poke, top};
use super::{PLAIN, Strategy, names, selector, workloads};

pub(crate) const POLICY: Strategy = Strategy {
    defaults: |policy| {
        let Some(spec) = policy.part("spec") else { return };
        for key in ["ingress", "egress"] {
            spec.each(key, |rule| rule.each("ports", |port| port.fill("protocol", "TCP")));
        }
        if spec.list("policyTypes").is_empty() {
            let both = !spec.list("egress").is_empty();
            spec.set("policyTypes", if both { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
        }
    },
    validate: validate_policy,
    validate_update: |new, _, errors| validate_policy(new, errors),
    ..PLAIN
};

fn validate_policy(policy: &Value, errors: &mut Errors) {
    let (spec, path) = (policy.sub("spec"), Path::root("spec"));
    selector::validate(spec.sub("podSelector"), &path.child("podSelector"), errors);
    for (key, peers) in [("ingress", "from"), ("egress", "to")] {
        let path = path.child(key);
        for (index, rule) in spec.list(key).iter().enumerate() {
            let path = path.index(index);
            let ports = path.child("ports");
            for (index, port) in rule.list("ports").iter().enumerate() {
                policy_port(port, &ports.index(index), errors);
            }
            let path = path.child(peers);
            for (index, peer) in rule.list(peers).iter().enumerate() {
                policy_peer(peer, &path.index(index), errors);
            }
        }
    }
    let types = spec.list("policyTypes");
    let path = path.child("policyTypes");
    if types.len() > 2 {
        errors
            .push(path.invalid(spec.sub("policyTypes").clone(), "may not specify more than two policyTypes"));
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        if !["Ingress", "Egress"].contains(&kind) {
            errors.push(path.index(index).unsupported(kind, &["Ingress", "Egress"]));
        }
    }
}

fn policy_port(port: &Value, path: &Path<'_>, errors: &mut Errors) {
    let protocol = port.str_of("protocol");
    let supported = ["TCP", "UDP", "SCTP"];
    if port.has("protocol") && !supported.contains(&protocol) {
        errors.push(path.child("protocol").unsupported(protocol, &supported));
    }
    let end = port.int_of("endPort");
    match port.sub("port") {
        Value::Null => {
            if let Some(end) = end {
                errors.push(
                    path.child("endPort").invalid(end, "may not be specified when `port` is not specified"),
                );
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                errors.push(
                    path.child("endPort").invalid(end, "may not be specified when `port` is non-numeric"),
                );
            }
            path.child("port").all_invalid(name, names::port_name(name), errors);
        }
        number => {
            let number = number.as_i64().unwrap_or_default();
            errors.extend(names::port(number).map(|message| path.child("port").invalid(number, message)));
            if let Some(end) = end {
                // The real server shows the port, not the end.
                if end < number {
                    errors.push(
                        path.child("endPort").invalid(number, "must be greater than or equal to `port`"),
                    );
                }
                errors.extend(names::port(end).map(|message| path.child("endPort").invalid(end, message)));
            }
        }
    }
}

fn policy_peer(peer: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut count = 0;
    for key in ["podSelector", "namespaceSelector"] {
        if peer.has(key) {
            count += 1;
            selector::validate(peer.sub(key), &path.child(key), errors);
        }
    }
    if peer.has("ipBlock") {
        count += 1;
        ip_block(peer.sub("ipBlock"), &path.child("ipBlock"), errors);
        if count > 1 {
            errors.push(path.forbidden("may not specify both ipBlock and another peer"));
        }
    }
    if count == 0 {
        errors.push(path.required("must specify a peer"));
    }
}

fn ip_block(block: &Value, path: &Path<'_>, errors: &mut Errors) {
    let text = block.str_of("cidr");
    if text.is_empty() {
        errors.push(path.child("cidr").required(""));
        return;
    }
    let (bits, length, width) = match names::cidr(text) {
        Ok(network) => network,
        Err(message) => {
            errors.push(path.child("cidr").invalid(text, message));
            return;
        }
    };
    let path = path.child("except");
    for (index, except) in block.list("except").iter().enumerate() {
        let text = except.as_str().unwrap_or_default();
        match names::cidr(text) {
            Err(message) => errors.push(path.index(index).invalid(text, message)),
            Ok((inner, inner_length, inner_width)) => {
                let network = |bits: u128| bits - names::host_bits(bits, length, width);
                let inside = inner_width == width && inner_length > length && network(inner) == network(bits);
                if !inside {
                    errors.push(path.index(index).invalid(text, "must be a strict subset of `cidr`"));
                }
            }
        }
    }
}

pub(crate) const DISRUPTION_BUDGET: Strategy = Strategy {
    validate: validate_budget,
    validate_update: |new, _, errors| validate_budget(new, errors),
    ..PLAIN
};

fn validate_budget(budget: &Value, errors: &mut Errors) {
    let (spec, path) = (budget.sub("spec"), Path::root("spec"));
    let (low, high) = (spec.sub("minAvailable"), spec.sub("maxUnavailable"));
    if !low.is_null() && !high.is_null() {
        let shown = format!(
            "{{\"MinAvailable\":{low},\"Selector\":{},\"MaxUnavailable\":{high},\"UnhealthyPodEvictionPolicy\":{}}}",
            selector::shown(spec.sub("selector")),
            spec.sub("unhealthyPodEvictionPolicy"),
        );
        errors.push(top("spec").invalid_text(&shown, "minAvailable and maxUnavailable cannot be both set"));
    }
    for (value, key) in [(low, "minAvailable"), (high, "maxUnavailable")] {
        workloads::int_or_percent(value, &path.child(key), errors);
        workloads::at_most_all(value, &path.child(key), errors);
    }
    selector::validate(spec.sub("selector"), &path.child("selector"), errors);
    path.maybe_one_of(spec, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], errors);
}
