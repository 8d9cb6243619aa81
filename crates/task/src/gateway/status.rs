//! What is reported of a TaskGateway. Pure. Every way through it says which generation it is about.

use agentcube_api::agentcube::TaskGatewayStatus;
use agentcube_api::agentcube::gateway::{GatewayAddress, ListenerStatus};
use agentcube_api::conditions::gateway::{
    GATEWAY_READY, LIMITS_IN_FORCE, RATE_LIMIT_READY, REASON_ALL_READY, REASON_CREATION_FAILED,
    REASON_GATEWAY_CREATED, REASON_NOT_ACCEPTED, REASON_NOT_READY, REASON_POLICY_CREATED, REASON_UNSUPPORTED,
    SECURITY_IN_FORCE, SECURITY_POLICY_READY,
};
use agentcube_api::conditions::{self, FALSE, READY};
use gateway_api::gateways::{Gateway, GatewayStatusListeners};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::observe::{Children, Observed};
use super::plan::{Plan, authenticates};
use crate::child::{self, Ensured};
use crate::envoy::{PolicyStatus, Verdict, verdict};
use crate::options::Implementation;
use crate::said::{Said, no, not_yet, yes};

/// How the writes went, by what they are reported under.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The Gateway, and the policies that every gateway has.
    pub(crate) gateway: Part,
    pub(crate) security: Part,
    pub(crate) limits: Part,
}

/// How the writes of one part went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub(crate) errors: Vec<child::Error>,
    /// What was put right: kind, name, how.
    pub(crate) repaired: Vec<(String, String, Ensured)>,
}

impl Part {
    fn failed(&self) -> Option<Said> {
        let errors: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
        (!errors.is_empty()).then(|| no(REASON_CREATION_FAILED, errors.join("; ")))
    }

    fn repaired(&self) -> Option<String> {
        let told = self.repaired.iter().map(|(kind, name, how)| match how {
            Ensured::Recreated => format!("{kind} {name} was recreated after deletion"),
            _ => format!("{kind} {name} was restored after a change"),
        });
        let told: Vec<String> = told.collect();
        Some(told.join("; ")).filter(|_| !told.is_empty())
    }
}

/// The status. `children` is what is there after the writes.
pub(crate) fn status(
    observed: &Observed,
    plan: &Plan,
    outcome: &Outcome,
    children: &Children,
    now: &Time,
) -> TaskGatewayStatus {
    let gateway = &*observed.gateway;
    let generation = gateway.metadata.generation.unwrap_or(1);
    let mut status = gateway.status.clone().unwrap_or_default();
    let said = [
        (GATEWAY_READY, Some(gateway_ready(plan, outcome, children))),
        (SECURITY_POLICY_READY, security_ready(observed, plan, outcome, children)),
        (RATE_LIMIT_READY, limits_ready(observed, plan, outcome, children)),
    ];
    let failing: Vec<String> = said
        .iter()
        .filter_map(|(type_, said)| Some((type_, said.as_ref()?)))
        .filter(|(_, said)| !said.holds)
        .map(|(type_, said)| format!("{type_}: {}", said.message))
        .collect();
    let ready = match failing.as_slice() {
        [] => yes(REASON_ALL_READY, "All components ready"),
        failing => no(REASON_NOT_READY, failing.join("; ")),
    };
    for (type_, said) in said.into_iter().chain([(READY, Some(ready))]) {
        match said {
            Some(said) => said.set(&mut status.conditions, type_, generation, now),
            None => {
                conditions::remove(&mut status.conditions, type_);
            }
        }
    }
    let reported = children.gateway.as_ref().and_then(|gateway| gateway.status.as_ref());
    let addresses = reported.and_then(|reported| reported.addresses.clone()).unwrap_or_default();
    status.addresses = addresses.iter().filter_map(copy::<_, GatewayAddress>).take(16).collect();
    let listeners = reported.and_then(|reported| reported.listeners.clone()).unwrap_or_default();
    status.listeners = listeners.iter().filter_map(copy::<_, ListenerStatus>).take(64).collect();
    status.observed_generation = Some(generation);
    status
}

/// The same in a type of ours; both are those of the Gateway API.
fn copy<A: Serialize, B: DeserializeOwned>(value: &A) -> Option<B> {
    serde_json::from_value(serde_json::to_value(value).ok()?).ok()
}

fn gateway_ready(plan: &Plan, outcome: &Outcome, children: &Children) -> Said {
    if let Some(why) = plan.withheld.as_ref().or(plan.unsupported.as_ref()) {
        return no(REASON_UNSUPPORTED, why.clone());
    }
    if let Some(failed) = outcome.gateway.failed() {
        return failed;
    }
    let name = plan.gateway.name_any();
    let Some(gateway) = children.gateway.as_deref().filter(|one| one.metadata.deletion_timestamp.is_none())
    else {
        return no(REASON_CREATION_FAILED, format!("Gateway {name} is being deleted; it will be made again"));
    };
    // A listener in trouble is the better explanation of a gateway in trouble.
    if let Some(trouble) = listener_trouble(gateway) {
        return no(REASON_NOT_ACCEPTED, trouble);
    }
    let conditions = gateway.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let generation = gateway.metadata.generation.unwrap_or(1);
    match verdict(&conditions, &["Accepted", "Programmed"], generation) {
        Verdict::Taken => {}
        Verdict::Refused(why) => return no(REASON_NOT_ACCEPTED, format!("Gateway {name} is refused: {why}")),
        Verdict::Unknown => {
            let class = &plan.gateway.spec.gateway_class_name;
            let message = format!(
                "Gateway {name} has not been taken up yet: if this lasts, nothing here implements GatewayClass {class}"
            );
            return not_yet(REASON_NOT_ACCEPTED, message).after(outcome.gateway.repaired());
        }
    }
    if let Some(said) = policy_trouble(plan, children) {
        return said.after(outcome.gateway.repaired());
    }
    let said = yes(REASON_GATEWAY_CREATED, format!("Gateway {name} is programmed"));
    said.after(outcome.gateway.repaired())
}

/// What is wrong with a listener, with what it names: a Secret that does not exist is said here by whoever reads it, so
/// that we need not read Secrets ourselves.
fn listener_trouble(gateway: &Gateway) -> Option<String> {
    let generation = gateway.metadata.generation.unwrap_or(1);
    let reported = gateway.status.as_ref()?.listeners.as_ref()?;
    reported.iter().find_map(|listener| {
        let bad = listener.conditions.iter().find(|one| {
            let expected = if one.type_ == "Conflicted" { FALSE } else { conditions::TRUE };
            let known =
                ["Accepted", "Programmed", "ResolvedRefs", "Conflicted"].contains(&one.type_.as_str());
            let current = one.observed_generation.is_none_or(|seen| seen >= generation);
            known && current && one.status != expected && one.status != conditions::UNKNOWN
        })?;
        // The cause is the reference, whatever follows from it.
        let cause = listener.conditions.iter().find(|one| one.type_ == "ResolvedRefs" && one.status == FALSE);
        let said = cause.unwrap_or(bad);
        let named = cause.map(|_| certificates(gateway, listener)).filter(|named| !named.is_empty());
        let hint = named.map(|named| format!(": make sure that {named} exists, of type kubernetes.io/tls"));
        Some(format!(
            "listener {}: {} ({}){}",
            listener.name,
            said.message.trim_end_matches('.'),
            said.reason,
            hint.unwrap_or_default()
        ))
    })
}

fn certificates(gateway: &Gateway, listener: &GatewayStatusListeners) -> String {
    let listener = gateway.spec.listeners.iter().find(|one| one.name == listener.name);
    let refs = listener.and_then(|one| one.tls.as_ref()?.certificate_refs.clone()).unwrap_or_default();
    let own = gateway.namespace().unwrap_or_default();
    let names = refs.iter().map(|object| {
        let kind = object.kind.as_deref().unwrap_or("Secret");
        format!("{kind} {}/{}", object.namespace.as_ref().unwrap_or(&own), object.name)
    });
    names.collect::<Vec<_>>().join(" and ")
}

fn policy_trouble(plan: &Plan, children: &Children) -> Option<Said> {
    for policy in &plan.policies.client {
        let have = children.client.iter().find(|have| have.name_any() == policy.name_any());
        let status = have.and_then(|have| have.status.as_ref());
        let generation = have.and_then(|have| have.metadata.generation).unwrap_or(1);
        match PolicyStatus::verdict(status, generation) {
            Verdict::Taken => {}
            other => return Some(told("ClientTrafficPolicy", &policy.name_any(), &other)),
        }
    }
    // These have something to act on only when there are Tasks; what they are told then, the Tasks report too.
    let others =
        children.patch.iter().map(|one| ("EnvoyPatchPolicy", one.name_any(), &one.status, &one.metadata));
    let extension = children.extension.iter();
    let extension = extension.map(|one| ("EnvoyExtensionPolicy", one.name_any(), &one.status, &one.metadata));
    others.chain(extension).find_map(|(kind, name, status, metadata)| {
        let verdict = PolicyStatus::verdict(status.as_ref(), metadata.generation.unwrap_or(1));
        matches!(verdict, Verdict::Refused(_)).then(|| told(kind, &name, &verdict))
    })
}

fn told(kind: &str, name: &str, verdict: &Verdict) -> Said {
    match verdict {
        Verdict::Refused(why) => no(REASON_NOT_ACCEPTED, format!("{kind} {name} is refused: {why}")),
        Verdict::Taken | Verdict::Unknown => {
            not_yet(REASON_NOT_ACCEPTED, format!("{kind} {name} has not been accepted yet"))
        }
    }
}

fn security_ready(observed: &Observed, plan: &Plan, outcome: &Outcome, children: &Children) -> Option<Said> {
    let gateway = &observed.gateway;
    if !authenticates(gateway) && gateway.spec.cors.is_none() {
        return None;
    }
    if plan.implementation == Implementation::BuiltIn {
        return Some(in_force(SECURITY_IN_FORCE, observed, children));
    }
    let have = children.security.first();
    let policy = Policy {
        kind: "SecurityPolicy",
        refused: plan.no_security.as_deref(),
        status: have.and_then(|have| have.status.as_ref()),
        generation: have.and_then(|have| have.metadata.generation),
    };
    Some(policy.ready(plan, &outcome.security))
}

fn limits_ready(observed: &Observed, plan: &Plan, outcome: &Outcome, children: &Children) -> Option<Said> {
    let limits = observed.gateway.spec.rate_limiting.as_ref()?;
    if limits.global.is_none() && limits.per_route.is_none() && limits.rules.is_empty() {
        return None;
    }
    if plan.implementation == Implementation::BuiltIn {
        return Some(in_force(LIMITS_IN_FORCE, observed, children));
    }
    let have = children.traffic.first();
    let policy = Policy {
        kind: "BackendTrafficPolicy",
        refused: plan.no_limits.as_deref(),
        status: have.and_then(|have| have.status.as_ref()),
        generation: have.and_then(|have| have.metadata.generation),
    };
    Some(policy.ready(plan, &outcome.limits))
}

/// What the built-in gateway says of a part of the policy, by a condition of the Gateway.
fn in_force(type_: &str, observed: &Observed, children: &Children) -> Said {
    let status = children.gateway.as_ref().and_then(|gateway| gateway.status.as_ref());
    let said = status.and_then(|status| conditions::find(status.conditions.as_deref()?, type_));
    match said.filter(|said| said.observed_generation == observed.gateway.metadata.generation) {
        Some(said) if said.status == conditions::TRUE => yes(REASON_POLICY_CREATED, said.message.clone()),
        Some(said) => no(REASON_UNSUPPORTED, said.message.clone()),
        None => not_yet(REASON_NOT_ACCEPTED, "the built-in gateway has not taken it up yet"),
    }
}

/// A policy that a condition of its own speaks of.
struct Policy<'a> {
    kind: &'static str,
    /// Why it was not even written.
    refused: Option<&'a str>,
    status: Option<&'a PolicyStatus>,
    generation: Option<i64>,
}

impl Policy<'_> {
    fn ready(&self, plan: &Plan, part: &Part) -> Said {
        if let Some(why) = self.refused.or(plan.unsupported.as_deref()) {
            return no(REASON_UNSUPPORTED, why);
        }
        if let Some(failed) = part.failed() {
            return failed;
        }
        let name = plan.gateway.name_any();
        let said = match PolicyStatus::verdict(self.status, self.generation.unwrap_or(1)) {
            Verdict::Taken => yes(REASON_POLICY_CREATED, format!("{} {name} is accepted", self.kind)),
            other => told(self.kind, &name, &other),
        };
        said.after(part.repaired())
    }
}
