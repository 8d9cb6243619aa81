//! The kinds of Envoy Gateway that we write. There are no Rust types of them, and we write few of their many fields: a
//! spec is JSON, made by the functions of the modules here, so that what others put into it is seen and not dropped.

pub(crate) mod client;
pub(crate) mod extension;
pub(crate) mod patch;
pub(crate) mod security;
pub(crate) mod telemetry;
pub(crate) mod traffic;
#[cfg(test)]
mod values;

use agentcube_api::conditions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::options::ServicePort;

macro_rules! kinds {
    ($($kind:literal, $spec:ident, $about:literal;)*) => { $(
        #[doc = $about]
        #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[kube(
            group = "gateway.envoyproxy.io", version = "v1alpha1", kind = $kind, namespaced,
            status = "PolicyStatus", schema = "disabled", derive = "PartialEq"
        )]
        #[serde(transparent)]
        pub struct $spec(pub Value);
    )* };
}

kinds! {
    "SecurityPolicy", SecurityPolicySpec, "Who may send requests: JWT, external authorisation, CORS.";
    "BackendTrafficPolicy", BackendTrafficPolicySpec, "Rate limits, time limits and circuit breakers.";
    "ClientTrafficPolicy", ClientTrafficPolicySpec, "What is done with a request before anything else.";
    "EnvoyExtensionPolicy", EnvoyExtensionPolicySpec, "The external processor.";
    "EnvoyProxy", EnvoyProxySpec, "How the Envoys of a gateway are set up.";
    "EnvoyPatchPolicy", EnvoyPatchPolicySpec, "Changes to what Envoy Gateway makes for Envoy.";
}

/// What gateways say of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatus {
    #[serde(default)]
    pub ancestors: Vec<PolicyAncestor>,
}

/// What one gateway says of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestor {
    #[serde(default)]
    pub ancestor_ref: Value,
    #[serde(default)]
    pub controller_name: String,
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Whether an object that somebody else acts on was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Taken,
    Refused(String),
    /// Nobody has said anything of the current generation.
    Unknown,
}

/// What conditions say in sum: all of `wanted` must hold, and be about `generation`.
pub(crate) fn verdict(found: &[Condition], wanted: &[&str], generation: i64) -> Verdict {
    let mut sum = Verdict::Taken;
    for type_ in wanted {
        match conditions::find(found, type_) {
            Some(one) if one.observed_generation.is_some_and(|seen| seen < generation) => {
                sum = Verdict::Unknown
            }
            Some(one) if one.status == conditions::TRUE => {}
            Some(one) if one.status == conditions::FALSE => {
                return Verdict::Refused(format!("{} ({})", one.message.trim_end_matches('.'), one.reason));
            }
            _ => sum = Verdict::Unknown,
        }
    }
    sum
}

impl PolicyStatus {
    /// What all gateways say of the policy in sum. One that does not select anything yet has nobody to say anything.
    pub(crate) fn verdict(status: Option<&PolicyStatus>, generation: i64) -> Verdict {
        let ancestors = status.map(|status| status.ancestors.as_slice()).unwrap_or_default();
        let mut sum = if ancestors.is_empty() { Verdict::Unknown } else { Verdict::Taken };
        for ancestor in ancestors {
            match verdict(&ancestor.conditions, &["Accepted"], generation) {
                Verdict::Taken => {}
                other @ Verdict::Refused(_) => return other,
                Verdict::Unknown => sum = Verdict::Unknown,
            }
        }
        sum
    }
}

/// A reference to a Service from an object of a namespace.
fn backend(service: &ServicePort) -> Value {
    json!({
        "group": "", "kind": "Service", "name": service.name, "namespace": service.namespace, "port": service.port,
    })
}

/// The Gateway that a policy is for.
fn target(gateway: &str, section: Option<&str>) -> Value {
    let mut target = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway });
    if let Some(section) = section {
        target["sectionName"] = json!(section);
    }
    json!([target])
}

/// Puts a value in if there is one.
fn set(object: &mut Value, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

/// Puts a list in unless it is empty.
fn set_list(object: &mut Value, name: &str, list: &[String]) {
    if !list.is_empty() {
        object[name] = json!(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, status: &str, generation: i64) -> Condition {
        serde_json::from_value(json!({
            "type": type_, "status": status, "reason": "R", "message": "M.", "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn only_what_is_said_of_the_current_generation_counts() {
        let wanted = ["Accepted", "Programmed"];
        let of = |conditions: &[Condition]| verdict(conditions, &wanted, 2);
        let taken = [condition("Accepted", "True", 2), condition("Programmed", "True", 3)];
        assert_eq!(of(&taken), Verdict::Taken);
        assert_eq!(of(&taken[..1]), Verdict::Unknown);
        assert_eq!(of(&[taken[0].clone(), condition("Programmed", "False", 1)]), Verdict::Unknown);
        let refused = [condition("Accepted", "False", 2), condition("Programmed", "Unknown", 2)];
        assert_eq!(of(&refused), Verdict::Refused("M (R)".into()));
    }

    #[test]
    fn a_policy_needs_all_of_its_gateways() {
        let ancestor = |status: &str| PolicyAncestor {
            conditions: vec![condition("Accepted", status, 1)],
            ..PolicyAncestor::default()
        };
        let of = |statuses: &[&str]| {
            let ancestors = statuses.iter().map(|status| ancestor(status)).collect();
            PolicyStatus::verdict(Some(&PolicyStatus { ancestors }), 1)
        };
        assert_eq!(PolicyStatus::verdict(None, 1), Verdict::Unknown);
        assert_eq!(of(&["True"]), Verdict::Taken);
        assert_eq!(of(&["True", "Unknown"]), Verdict::Unknown);
        assert_eq!(of(&["Unknown", "False"]), Verdict::Refused("M (R)".into()));
    }
}
