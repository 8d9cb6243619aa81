//! The allocation that the fast path writes into an annotation at creation, for the controller to move into status.
//! Reading fails closed: a corrupt annotation is an error, never "no allocation".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::labels;

/// Which agent a sandbox was given, written at creation because a create cannot set status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocationInfo {
    /// Agent Pod.
    pub assigned_pod: String,
    /// Node of the agent Pod.
    pub assigned_node: String,
    /// When it was allocated, RFC 3339.
    pub allocated_at: String,
    /// UID of the agent Pod; an allocation without it is trusted only if the agent confirms it.
    #[serde(rename = "assignedPodUID", default, skip_serializing_if = "String::is_empty")]
    pub assigned_pod_uid: String,
    /// Pool that the agent belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// Namespace of pool and agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Id of the sandbox on the agent.
    #[serde(rename = "sandboxID", default, skip_serializing_if = "String::is_empty")]
    pub sandbox_id: String,
    /// It was started before this was written, as FAST does: if its agent does not have it, it is lost and not to be
    /// started for the first time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
}

/// An allocation annotation that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("annotation {name} is corrupt: {0}", name = labels::SANDBOX_ALLOCATION)]
pub struct CorruptAllocation(#[from] serde_json::Error);

impl AllocationInfo {
    /// The allocation in an object's annotations, if there is one. Empty counts as none.
    pub fn from_annotations(
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<Self>, CorruptAllocation> {
        match annotations.and_then(|a| a.get(labels::SANDBOX_ALLOCATION)) {
            None => Ok(None),
            Some(text) if text.is_empty() => Ok(None),
            Some(text) => Ok(Some(serde_json::from_str(text)?)),
        }
    }

    /// Merges the allocation into an object's annotations; the others stay.
    pub fn annotate(&self, annotations: &mut BTreeMap<String, String>) {
        let text = serde_json::to_string(self).expect("a struct of strings is always JSON");
        annotations.insert(labels::SANDBOX_ALLOCATION.into(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(text: &str) -> BTreeMap<String, String> {
        [(labels::SANDBOX_ALLOCATION.to_string(), text.to_string())].into()
    }

    #[test]
    fn reads_what_the_seed_shows() {
        let text = r#"{"assignedPod":"sandbox-agent-abc123","assignedNode":"node-1","allocatedAt":"2024-01-30T10:00:00Z"}"#;
        let info =
            AllocationInfo::from_annotations(Some(&annotations(text))).expect("valid").expect("present");
        assert_eq!(
            (info.assigned_pod.as_str(), info.assigned_node.as_str()),
            ("sandbox-agent-abc123", "node-1")
        );
    }

    #[test]
    fn corrupt_is_not_absent() {
        for text in ["{", "null", "[]", r#"{"assignedPod":"a"}"#] {
            assert!(AllocationInfo::from_annotations(Some(&annotations(text))).is_err(), "{text}");
        }
        assert_eq!(AllocationInfo::from_annotations(None).expect("none"), None);
    }

    #[test]
    fn annotating_keeps_what_is_there() {
        let mut map: BTreeMap<String, String> = [("mine".to_string(), "1".to_string())].into();
        let info = AllocationInfo { assigned_pod: "a".into(), ..Default::default() };
        info.annotate(&mut map);
        assert_eq!(map["mine"], "1");
        assert_eq!(AllocationInfo::from_annotations(Some(&map)).expect("valid"), Some(info));
    }
}
