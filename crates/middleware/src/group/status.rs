//! What is said of a Group in its status, and of roles on its Pods. Pure.

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE, Update};
use agentcube_api::labels::MIDDLEWARE_GROUP;
use agentcube_api::middleware::GroupStatus;
use agentcube_api::middleware::group::{Failure, GroupPodStatus};
use agentcube_api::middleware::parts::PartPhase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::observe::{Fault, Observed, Pod};
use super::plan::Operation;
use super::revision::Revision;
use super::roll::{is_outdated, leads};
use crate::order::Doubt;

/// How it stands.
pub(super) enum Outcome {
    /// Nothing is to be done. With a failure it is at the revision before.
    Settled {
        arrived: bool,
        failure: Option<Failure>,
    },
    /// On the way; back, if something has failed.
    Working {
        back: Option<Failure>,
        what: String,
    },
    /// It goes on trying, but somebody should know.
    Failed(String),
    Unrendered(Fault),
}

/// What stands in the way of a revision, in words.
pub(super) fn obstacle(observed: &Observed<'_>, target: &Revision) -> String {
    let names = |pods: Vec<&Pod>| pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(", ");
    let pods = || observed.pods.iter();
    let unready: Vec<&Pod> = pods().filter(|pod| !pod.ready && !pod.terminating).collect();
    let ending: Vec<&Pod> = pods().filter(|pod| pod.terminating).collect();
    let outdated: Vec<&Pod> = pods().filter(|pod| is_outdated(observed, target, pod)).collect();
    let wanted = if target.pods.is_empty() { 0 } else { usize::try_from(target.replicas).unwrap_or(0) };
    let mut said = Vec::new();
    if let Some((pod, why)) = homeless(observed) {
        said.push(format!("no node takes {pod}: {why}"));
    }
    if !unready.is_empty() {
        said.push(format!("{} not ready", names(unready)));
    }
    if !ending.is_empty() {
        said.push(format!("{} ending", names(ending)));
    }
    if !outdated.is_empty() {
        said.push(format!("{} of an older revision", names(outdated)));
    }
    if observed.pods.len() != wanted {
        said.push(format!("{} of {wanted} Pods there", observed.pods.len()));
    }
    let small = observed.claims.iter().find(|claim| {
        target.volume(&claim.template).is_some_and(|size| claim.capacity.as_ref().is_none_or(|is| *is < size))
    });
    said.extend(small.map(|claim| format!("volume {} too small", claim.name)));
    if !observed.others_ready {
        said.push("a Deployment not rolled out".into());
    }
    if said.is_empty() { "on its way".into() } else { said.join("; ") }
}

/// The first Pod that no node takes, and why.
fn homeless<'a>(observed: &Observed<'a>) -> Option<(&'a str, &'a str)> {
    let waiting = observed.pods.iter().filter(|pod| !pod.ready && !pod.terminating);
    waiting.filter_map(|pod| Some((pod.name.as_str(), pod.homeless.as_deref()?))).next()
}

pub(super) fn report(
    observed: &Observed<'_>,
    status: &mut GroupStatus,
    outcome: &Outcome,
    doubt: Option<&Option<Doubt>>,
    leaderless: Option<&str>,
) {
    let group = observed.group;
    let generation = group.metadata.generation;
    status.observed_generation = generation;
    let ready = observed.pods.iter().filter(|pod| pod.ready && !pod.terminating).count();
    status.replicas = i32::try_from(observed.pods.len()).unwrap_or(i32::MAX);
    status.ready_replicas = i32::try_from(ready).unwrap_or(i32::MAX);
    status.selector = Some(format!("{MIDDLEWARE_GROUP}={}", group.name_any()));
    status.target_version = Some(group.spec.runtime.version.clone());
    status.pods = pods(observed, status);
    let failed = |failure: &Failure| format!("revision {} failed: {}", failure.revision, failure.message);
    let (phase, reason, message) = match outcome {
        Outcome::Settled { failure: Some(failure), .. } => {
            let message = format!("{}; went back to the last complete revision", failed(failure));
            (PartPhase::Failed, reasons::REASON_ROLLED_BACK, message)
        }
        Outcome::Settled { arrived: true, .. } => {
            (PartPhase::Ready, reasons::REASON_AS_WANTED, String::new())
        }
        Outcome::Settled { .. } => {
            let message = observed.rendered.map(|target| obstacle(observed, target)).unwrap_or_default();
            (PartPhase::Degraded, reasons::REASON_PROGRESSING, message)
        }
        Outcome::Working { back: Some(failure), what } => {
            let message = format!("{}; going back: {what}", failed(failure));
            (PartPhase::Progressing, reasons::REASON_PROGRESSING, message)
        }
        Outcome::Working { back: None, what } => {
            // More nodes may come: it is said, and waited for.
            let lacks = homeless(observed).is_some();
            let reason = if lacks { reasons::REASON_RESOURCES } else { reasons::REASON_PROGRESSING };
            (PartPhase::Progressing, reason, what.clone())
        }
        Outcome::Failed(message) => (PartPhase::Failed, reasons::REASON_TASK_FAILED, message.clone()),
        Outcome::Unrendered(fault) => (PartPhase::Failed, fault.reason, fault.message.clone()),
    };
    let message = match leaderless {
        Some(why) if message.is_empty() => why.to_owned(),
        Some(why) => format!("{message}; {why}"),
        None => message,
    };
    status.phase = Some(phase);
    let mut set = |type_, holds: bool, reason, message: String| {
        let status_word = if holds { TRUE } else { FALSE };
        let message = crate::app::cut(&message, 4000);
        let update = Update { type_, status: status_word, reason, message, observed_generation: generation };
        conditions::set(&mut status.conditions, update, &Time(observed.now));
    };
    set(READY, phase == PartPhase::Ready, reason, message);
    match outcome {
        Outcome::Unrendered(fault) => {
            set(reasons::TEMPLATES_RENDERED, false, fault.reason, fault.message.clone());
        }
        _ => set(reasons::TEMPLATES_RENDERED, true, reasons::REASON_AS_WANTED, String::new()),
    }
    match doubt {
        Some(Some(doubt)) => {
            set(reasons::ORDER_KNOWN, false, crate::component::reason_of(doubt), doubt.to_string());
        }
        Some(None) => set(reasons::ORDER_KNOWN, true, reasons::REASON_AS_WANTED, String::new()),
        None => {}
    }
}

fn pods(observed: &Observed<'_>, before: &GroupStatus) -> Vec<GroupPodStatus> {
    let of = |pod: &Pod| {
        let old = before.pods.iter().find(|old| old.name == pod.name);
        // A role that is not known now is what it was.
        let known = observed.answers.roles.get(&pod.name);
        let led = || old.is_some_and(|old| old.leader) && !leads(observed, &pod.name);
        let role = match known {
            Some(role) => Some(role.name.clone()),
            None if led() => None,
            None => old.and_then(|old| old.role.clone()),
        };
        let changed = old.map(|old| &old.role) != Some(&role);
        let since = match (changed, &role) {
            (_, None) => None,
            (true, Some(_)) => Some(Time(observed.now)),
            (false, Some(_)) => old.and_then(|old| old.last_role_change.clone()),
        };
        let revision = observed.revisions.values().map(|(_, one)| one).find(|one| one.pods == pod.revision);
        GroupPodStatus {
            name: pod.name.clone(),
            ready: pod.ready && !pod.terminating,
            leader: leads(observed, &pod.name),
            role,
            last_role_change: since,
            version: revision.map(|revision| revision.version.clone()),
        }
    };
    observed.pods.iter().map(of).collect()
}

/// Labels for roles that Pods have. What is not known stays as it is, unless somebody else has that role now; and
/// everything stays while two lead.
pub(super) fn roles(observed: &Observed<'_>) -> Vec<Operation> {
    let leaders = observed.answers.roles.values().filter(|role| role.leader).count();
    if leaders > 1 {
        return Vec::new();
    }
    let mut labels: Vec<(bool, Operation)> = Vec::new();
    for pod in observed.pods.iter().filter(|pod| !pod.terminating) {
        let Some(role) = observed.answers.roles.get(&pod.name) else {
            // Somebody else leads: whoever is silent does not, whatever its label says.
            let leader = observed.answers.roles.values().find(|role| role.leader);
            if leader.is_some_and(|leader| pod.labelled.as_ref() == Some(&leader.name)) {
                labels.push((false, Operation::LabelRole { pod: pod.name.clone(), role: String::new() }));
            }
            continue;
        };
        // One of the past: whatever it says, it does not lead.
        if role.name.is_empty() && pod.labelled.is_some() {
            labels.push((false, Operation::LabelRole { pod: pod.name.clone(), role: String::new() }));
        }
        if !role.name.is_empty() && pod.labelled.as_ref() != Some(&role.name) {
            let operation = Operation::LabelRole { pod: pod.name.clone(), role: role.name.clone() };
            labels.push((role.leader, operation));
        }
    }
    // Whoever led is relabelled before whoever leads: there is never more than one behind the Service.
    labels.sort_by_key(|(leader, _)| *leader);
    labels.into_iter().map(|(_, operation)| operation).collect()
}

pub(super) fn terminating(observed: &Observed<'_>, status: &mut GroupStatus) {
    status.phase = Some(PartPhase::Terminating);
    status.observed_generation = observed.group.metadata.generation;
    let message = format!("being removed; {} Pods are still there", observed.pods.len());
    let observed_generation = observed.group.metadata.generation;
    let update = Update { type_: READY, status: FALSE, reason: "Terminating", message, observed_generation };
    conditions::set(&mut status.conditions, update, &Time(observed.now));
}
