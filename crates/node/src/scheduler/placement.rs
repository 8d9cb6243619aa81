//! Which nodes a Pod may be on: selectors, affinity, taints and tolerations.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Whether the node is one that the Pod's selector and required affinity ask for.
pub(super) fn selects(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    if !spec.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|selector| matches(selector, node))
}

/// Whether any term of a selector fits the node. A term without requirements fits none.
pub(super) fn matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let name = node.metadata.name.clone().unwrap_or_default();
    let named = BTreeMap::from([("metadata.name".to_owned(), name)]);
    let labels = node.metadata.labels.clone().unwrap_or_default();
    expressions.iter().all(|one| holds(one, &labels)) && fields.iter().all(|one| holds(one, &named))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    let bound = || values.first().and_then(number);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound()).is_some_and(|(value, bound)| value > bound),
        "Lt" => value.and_then(number).zip(bound()).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether the node takes no new Pods, and this one does not mind.
pub(super) fn cordoned(pod: &Pod, node: &Node) -> bool {
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    cordoned && !tolerated(pod, &no_schedule(UNSCHEDULABLE))
}

/// Whether a taint of the node keeps the Pod off. Whether the node is ready is asked of its condition: the taints that
/// repeat it come and go later than it does.
pub(super) fn repelled(pod: &Pod, node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let implied = match ready.map(|condition| condition.status.as_str()) {
        Some("True") => None,
        Some("Unknown") => Some(no_schedule(UNREACHABLE)),
        _ => Some(no_schedule(NOT_READY)),
    };
    taints
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        // The flag has a reason of its own.
        .filter(|taint| ![UNSCHEDULABLE, NOT_READY, UNREACHABLE].contains(&taint.key.as_str()))
        .chain(&implied)
        .any(|taint| !tolerated(pod, taint))
}

fn no_schedule(key: &str) -> Taint {
    Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }
}

fn tolerated(pod: &Pod, taint: &Taint) -> bool {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let value = taint.value.as_deref().unwrap_or_default();
    let own = toleration.value.as_deref().unwrap_or_default();
    said(&toleration.effect).is_none_or(|effect| effect == taint.effect)
        && said(&toleration.key).is_none_or(|key| key == taint.key)
        && match said(&toleration.operator).as_deref() {
            None | Some("Equal") => own == value,
            Some("Exists") => true,
            Some("Gt") => {
                value.parse::<i64>().ok().zip(own.parse().ok()).is_some_and(|(a, b): (i64, i64)| a > b)
            }
            Some("Lt") => {
                value.parse::<i64>().ok().zip(own.parse().ok()).is_some_and(|(a, b): (i64, i64)| a < b)
            }
            Some(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn selectors_and_affinity() {
        let node =
            node(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "size": "4", "word": "x"}}}));
        let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let both = json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]);
        let either = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
        for (terms, expected) in [
            (expression("zone", "In", &["b", "a"]), true),
            (expression("zone", "In", &["b"]), false),
            (expression("absent", "In", &["b"]), false),
            (expression("zone", "NotIn", &["a"]), false),
            (expression("absent", "NotIn", &["a"]), true),
            (expression("zone", "Exists", &[]), true),
            (expression("zone", "DoesNotExist", &[]), false),
            (expression("absent", "DoesNotExist", &[]), true),
            (expression("size", "Gt", &["3"]), true),
            (expression("size", "Gt", &["4"]), false),
            (expression("size", "Lt", &["5"]), true),
            (expression("word", "Lt", &["5"]), false),
            (json!([{}]), false),
            (both, false),
            (either, true),
        ] {
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}});
            assert_eq!(selects(&pod(json!({"affinity": affinity})), &node), expected, "{terms}");
        }
        assert!(selects(&pod(json!({"nodeSelector": {"zone": "a"}})), &node));
        assert!(!selects(&pod(json!({"nodeSelector": {"zone": "a", "other": "x"}})), &node));
        assert!(selects(&pod(json!({})), &node));
    }

    #[test]
    fn taints_and_tolerations() {
        let tainted = |effect: &str| {
            node(json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        };
        for (tolerations, expected) in [
            (json!([]), true),
            (json!([{"key": "k", "value": "v"}]), false),
            (json!([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]), false),
            (json!([{"key": "k", "value": "w"}]), true),
            (json!([{"key": "k", "operator": "Exists"}]), false),
            (json!([{"operator": "Exists"}]), false),
            (json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), true),
            (json!([{"key": "l", "operator": "Exists"}]), true),
        ] {
            let pod = pod(json!({"tolerations": tolerations}));
            assert_eq!(repelled(&pod, &tainted("NoSchedule")), expected, "{tolerations}");
        }
        assert!(!repelled(&pod(json!({})), &tainted("PreferNoSchedule")));
        assert!(repelled(&pod(json!({})), &tainted("NoExecute")));
    }

    #[test]
    fn nodes_that_are_not_ready_or_cordoned() {
        let with =
            |status: &str| node(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
        let plain = pod(json!({"tolerations": [
            {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]}));
        let brave = pod(json!({"tolerations": [{"key": NOT_READY, "operator": "Exists"}]}));
        for (node, plainly, bravely) in [
            (with("True"), false, false),
            (with("False"), true, false),
            (with("Unknown"), true, true),
            (node(json!({})), true, false),
        ] {
            assert_eq!((repelled(&plain, &node), repelled(&brave, &node)), (plainly, bravely), "{node:?}");
        }
        let closed = node(
            json!({"spec": {"unschedulable": true, "taints": [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        assert!(cordoned(&plain, &closed) && !repelled(&plain, &closed));
        assert!(!cordoned(&pod(json!({"tolerations": [{"operator": "Exists"}]})), &closed));
    }
}
