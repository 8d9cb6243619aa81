//! Which taints a Node should have; pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::controllers::time;

const EFFECT: &str = "NoSchedule";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The taint that a condition in a state stands for.
const CONDITIONS: [(&str, &str, &str); 6] = [
    ("Ready", "False", "node.kubernetes.io/not-ready"),
    ("Ready", "Unknown", "node.kubernetes.io/unreachable"),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// The taints that a Node should have, unless it has them.
pub(super) fn wanted(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let current = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let keys = said(node)?;
    let is_ours = |taint: &Taint| {
        let known = |(_, _, key): &(&str, &str, &str)| *key == taint.key;
        taint.effect == EFFECT && (taint.key == UNSCHEDULABLE || CONDITIONS.iter().any(known))
    };
    let kept = current.iter().filter(|taint| !is_ours(taint) || keys.contains(&taint.key.as_str()));
    let mut taints: Vec<Taint> = kept.cloned().collect();
    for key in keys {
        if !taints.iter().any(|taint| taint.key == key && taint.effect == EFFECT) {
            taints.push(Taint {
                key: key.to_owned(),
                effect: EFFECT.to_owned(),
                time_added: Some(time(now)),
                ..Taint::default()
            });
        }
    }
    (taints != current).then_some(taints)
}

/// The keys of the taints that the Node's own words stand for; none before it has said whether it is ready.
fn said(node: &Node) -> Option<Vec<&'static str>> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let holds = |kind: &str, status: &str| {
        conditions.iter().any(|condition| condition.type_ == kind && condition.status == status)
    };
    let mut keys: Vec<&str> =
        CONDITIONS.iter().filter(|(kind, status, _)| holds(kind, status)).map(|(_, _, key)| *key).collect();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        keys.push(UNSCHEDULABLE);
    }
    Some(keys)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    /// What the taints become, as `key:effect` and when it was added.
    fn become_of(spec: Value, conditions: Value) -> Option<Vec<String>> {
        let node = json!({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}});
        let node: Node = serde_json::from_value(node).unwrap();
        let shown = |taint: Taint| {
            let added = taint.time_added.map(|added| format!(" {}", added.0)).unwrap_or_default();
            format!("{}:{}{added}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect)
        };
        wanted(&node, NOW.parse().unwrap()).map(|taints| taints.into_iter().map(shown).collect())
    }

    fn taint(key: &str, effect: &str) -> Value {
        json!({"key": format!("node.kubernetes.io/{key}"), "effect": effect})
    }

    #[test]
    fn taints_repeat_what_the_node_says() {
        let ready = |status: &str| json!([{"type": "Ready", "status": status}]);
        let new = json!({"taints": [taint("not-ready", "NoSchedule")]});
        let both = json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]);
        let not_disk =
            json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]);
        let others = json!({"taints": [{"key": "k", "effect": "NoSchedule"}, taint("not-ready", "NoExecute"),
            taint("unschedulable", "NoSchedule")]});
        let cases: [(Value, Value, Option<&[&str]>); 9] = [
            (new.clone(), json!([]), None),
            (new.clone(), ready("False"), None),
            (new.clone(), ready("True"), Some(&[])),
            (new, ready("Unknown"), Some(&["unreachable:NoSchedule 2026-01-02T03:04:05Z"])),
            (json!({}), ready("True"), None),
            (json!({}), both, Some(&["disk-pressure:NoSchedule 2026-01-02T03:04:05Z"])),
            (json!({}), not_disk, None),
            (
                json!({"unschedulable": true}),
                ready("True"),
                Some(&["unschedulable:NoSchedule 2026-01-02T03:04:05Z"]),
            ),
            (others, ready("True"), Some(&["k:NoSchedule", "not-ready:NoExecute"])),
        ];
        for (spec, conditions, expected) in cases {
            let expected = expected.map(|taints| taints.iter().map(ToString::to_string).collect());
            assert_eq!(become_of(spec.clone(), conditions.clone()), expected, "{spec} {conditions}");
        }
    }
}
