//! Whether a Pod fits a node, and why not, in the words of kube-scheduler.

use std::fmt;

use k8s_openapi::api::core::v1::{Node, Pod};

use super::demand::{Demand, Load, amount};
use super::placement;

/// Why a Pod does not fit a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Unschedulable,
    Taint,
    Selector,
    HostPort,
    TooManyPods,
    Insufficient(String),
    /// A ReadWriteOncePod claim that another Pod uses.
    ClaimInUse,
    VolumeElsewhere,
    VolumeMissing,
    NoVolume,
}

impl Reason {
    /// Whether it can go away when other Pods do.
    pub fn is_about_others(&self) -> bool {
        matches!(self, Reason::HostPort | Reason::TooManyPods | Reason::Insufficient(_) | Reason::ClaimInUse)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Unschedulable => "node(s) were unschedulable",
            Reason::Taint => "node(s) had untolerated taint(s)",
            Reason::Selector => "node(s) didn't match Pod's node affinity/selector",
            Reason::HostPort => "node(s) didn't have free ports for the requested pod ports",
            Reason::TooManyPods => "Too many pods",
            Reason::Insufficient(resource) => return write!(f, "Insufficient {resource}"),
            Reason::ClaimInUse => {
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod"
            }
            Reason::VolumeElsewhere => "node(s) didn't match PersistentVolume's node affinity",
            Reason::VolumeMissing => "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            Reason::NoVolume => "node(s) didn't find available persistent volumes to bind",
        })
    }
}

/// Whether a node has what a Pod asks for, besides what the Pods of the node take already. Like kube-scheduler it
/// stops at the first kind of reason. How Pods want to be near or far from each other is not looked at: with one node,
/// there is nothing to choose.
pub fn fit(node: &Node, load: &Load, pod: &Pod, demand: &Demand) -> Result<(), Vec<Reason>> {
    if placement::cordoned(pod, node) {
        return Err(vec![Reason::Unschedulable]);
    }
    if placement::repelled(pod, node) {
        return Err(vec![Reason::Taint]);
    }
    if !placement::selects(pod, node) {
        return Err(vec![Reason::Selector]);
    }
    if load.port_taken(demand) {
        return Err(vec![Reason::HostPort]);
    }
    let lacking = lacking(node, load, demand);
    if lacking.is_empty() { Ok(()) } else { Err(lacking) }
}

fn lacking(node: &Node, load: &Load, demand: &Demand) -> Vec<Reason> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let has = |resource: &str| {
        allocatable.and_then(|all| all.get(resource)).map_or(0, |quantity| amount(resource, quantity))
    };
    let mut reasons = Vec::new();
    if load.pods + 1 > has("pods") {
        reasons.push(Reason::TooManyPods);
    }
    for (resource, wanted) in &demand.amounts {
        let taken = load.amounts.get(resource).copied().unwrap_or_default();
        if taken.saturating_add(*wanted) > has(resource) {
            reasons.push(Reason::Insufficient(resource.clone()));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_first_kind_of_reason_is_given() {
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "2"}});
        let node = |spec: Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec, "status": ready})).unwrap()
        };
        let pod = |requests: Value, more: Value| -> Pod {
            let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": requests},
                "ports": [{"containerPort": 1, "hostPort": 80}]}]});
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let none = || json!({});
        let reasons = |node: &Node, pods: &[Pod], pod: &Pod| {
            let mut load = Load::default();
            pods.iter().for_each(|pod| load.add(&Demand::of(pod)));
            let fit = fit(node, &load, pod, &Demand::of(pod));
            fit.err().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let other: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]}}))
        .unwrap();
        let elsewhere = json!({"nodeSelector": {"a": "b"}});
        for (node, pods, pod, expected) in [
            (node(none()), vec![], pod(json!({"cpu": "2"}), none()), ""),
            (node(none()), vec![other.clone()], pod(json!({"cpu": "500m"}), none()), ""),
            (node(none()), vec![other.clone()], pod(json!({"cpu": "501m"}), none()), "Insufficient cpu"),
            (
                node(none()),
                vec![other.clone(), other.clone()],
                pod(json!({"cpu": "1", "memory": "2Gi", "gpu": "1"}), none()),
                "Too many pods, Insufficient cpu, Insufficient gpu, Insufficient memory",
            ),
            (
                node(none()),
                vec![pod(none(), none())],
                pod(none(), none()),
                "node(s) didn't have free ports for the requested pod ports",
            ),
            (
                node(none()),
                vec![],
                pod(json!({"cpu": "9"}), elsewhere.clone()),
                "node(s) didn't match Pod's node affinity/selector",
            ),
            (
                node(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})),
                vec![],
                pod(none(), elsewhere),
                "node(s) had untolerated taint(s)",
            ),
            (node(json!({"unschedulable": true})), vec![], pod(none(), none()), "node(s) were unschedulable"),
        ] {
            assert_eq!(reasons(&node, &pods, &pod), expected);
        }
    }
}
