//! What is said of a Component in its status: a sum of its Groups. Pure.

use std::collections::BTreeMap;

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE, Update};
use agentcube_api::middleware::component::ComponentGroupStatus;
use agentcube_api::middleware::parts::PartPhase;
use agentcube_api::middleware::{Component, ComponentStatus, Group, GroupSpec};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{Observed, Standing, refusal, standing};
use crate::order::Doubt;

/// Writes the report. `doubt` is about an order that was just decided, if one was.
pub(super) fn report(
    observed: &Observed<'_>,
    status: &mut ComponentStatus,
    wanted: &[(String, GroupSpec)],
    doubt: Option<&Option<Doubt>>,
) {
    let (component, groups, now) = (observed.component, observed.groups, observed.now);
    let generation = component.metadata.generation;
    let before = status.observed_generation;
    status.observed_generation = generation;
    status.groups = wanted.iter().map(|(name, spec)| group(name, spec, groups.get(name))).collect();
    let stands: Vec<(&String, Standing)> =
        wanted.iter().map(|(name, spec)| (name, standing(groups.get(name), spec))).collect();
    let any =
        |wanted: Standing| stands.iter().find(|(_, standing)| *standing == wanted).map(|(name, _)| *name);
    let all = stands.iter().all(|(_, standing)| *standing == Standing::Reached);
    let surplus = groups.keys().find(|name| wanted.iter().all(|(one, _)| one != *name));
    let failed = any(Standing::Failed);
    let refused = wanted.iter().find_map(|(name, spec)| Some((name, refusal(observed, name, spec)?)));
    let phase = match () {
        () if failed.is_some() || refused.is_some() => PartPhase::Failed,
        () if all && surplus.is_none() => PartPhase::Ready,
        () if status.current_operation.is_some() => PartPhase::Progressing,
        () => PartPhase::Degraded,
    };
    status.phase = Some(phase);
    let (reason, message) = match (failed, refused) {
        (Some(name), _) => said(name, groups.get(name)),
        (None, Some((name, fault))) => (fault.reason.into(), format!("group {name}: {}", fault.message)),
        (None, None) if phase == PartPhase::Ready => (reasons::REASON_AS_WANTED.into(), String::new()),
        (None, None) => {
            let next = stands.iter().find(|(_, standing)| *standing != Standing::Reached);
            let name = next.map(|(name, _)| *name).or(surplus);
            let words = name.map(|name| said(name, groups.get(name)).1).unwrap_or_default();
            (reasons::REASON_PROGRESSING.into(), words)
        }
    };
    let holds = if phase == PartPhase::Ready { TRUE } else { FALSE };
    let time = Time(now);
    let ready =
        Update { type_: READY, status: holds, reason: &reason, message, observed_generation: generation };
    conditions::set(&mut status.conditions, ready, &time);
    let order = match doubt {
        Some(Some(doubt)) => (FALSE, reason_of(doubt), doubt.to_string()),
        Some(None) => (TRUE, reasons::REASON_AS_WANTED, String::new()),
        None if before.is_none() => (TRUE, reasons::REASON_AS_WANTED, String::new()),
        None => return,
    };
    let update = Update {
        type_: reasons::ORDER_KNOWN,
        status: order.0,
        reason: order.1,
        message: order.2,
        observed_generation: generation,
    };
    conditions::set(&mut status.conditions, update, &time);
}

pub(crate) fn reason_of(doubt: &Doubt) -> &'static str {
    match doubt {
        Doubt::Unreachable(_) => reasons::REASON_AGENT_UNREACHABLE,
        Doubt::NoPermutation(_) => reasons::REASON_ORDER_INVALID,
    }
}

/// What a group says of itself.
fn said(name: &str, group: Option<&Group>) -> (String, String) {
    let status = group.and_then(|group| group.status.as_ref());
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    match ready {
        Some(ready) if !ready.message.is_empty() => {
            (ready.reason.clone(), format!("group {name}: {}", ready.message))
        }
        _ => (reasons::REASON_PROGRESSING.into(), format!("group {name} is on its way")),
    }
}

fn group(name: &str, spec: &GroupSpec, group: Option<&Group>) -> ComponentGroupStatus {
    let status = group.and_then(|group| group.status.clone()).unwrap_or_default();
    let phase = match standing(group, spec) {
        Standing::Untold => PartPhase::Pending,
        Standing::Working => PartPhase::Progressing,
        Standing::Degraded => PartPhase::Degraded,
        Standing::Reached => PartPhase::Ready,
        Standing::Failed => PartPhase::Failed,
    };
    ComponentGroupStatus {
        name: name.into(),
        phase: Some(phase),
        replicas: spec.replicas,
        ready_replicas: status.ready_replicas,
        observed_generation: status.observed_generation,
    }
}

/// The report of a Component that is being removed.
pub(super) fn terminating(
    component: &Component,
    status: &mut ComponentStatus,
    groups: &BTreeMap<String, Group>,
    now: Timestamp,
) {
    status.phase = Some(PartPhase::Terminating);
    status.observed_generation = component.metadata.generation;
    let left: Vec<&str> = groups.keys().map(String::as_str).collect();
    let message = format!("being removed; still there: {}", left.join(", "));
    let observed_generation = component.metadata.generation;
    let update = Update { type_: READY, status: FALSE, reason: "Terminating", message, observed_generation };
    conditions::set(&mut status.conditions, update, &Time(now));
}
