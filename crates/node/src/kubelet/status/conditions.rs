//! The conditions of a Pod that a kubelet writes, in its order and words.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodSpec};

use super::{phase::has_run, time};
use crate::kubelet::machine::{State, is_sidecar};

const OURS: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// A condition before it has its times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Finding {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Finding {
    const TRUE: Self = Self { holds: true, reason: None, message: None };

    fn fails(reason: &'static str, message: Option<String>) -> Self {
        Self { holds: false, reason: Some(reason), message }
    }
}

pub(super) fn conditions(
    pod: &Pod,
    spec: &PodSpec,
    state: &State,
    statuses: &[ContainerStatus],
    phase: &str,
    now: Timestamp,
) -> Vec<PodCondition> {
    let old = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let foreign = old.iter().filter(|condition| !OURS.contains(&condition.type_.as_str())).cloned();
    let containers = containers_ready(spec, statuses, phase);
    let found = [
        Finding { holds: state.sandbox.made().is_some(), ..Finding::default() },
        initialized(spec, statuses, phase),
        ready(spec, &containers, old),
        containers,
        Finding::TRUE,
    ];
    let ours = OURS.iter().zip(found).map(|(kind, finding)| {
        let before = old.iter().find(|condition| condition.type_ == *kind);
        let status = if finding.holds { "True" } else { "False" };
        let unchanged = before.filter(|before| before.status == status);
        let since = unchanged.and_then(|before| before.last_transition_time.clone());
        PodCondition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            reason: finding.reason.map(str::to_owned),
            message: finding.message,
            last_transition_time: since.or(Some(time(now))),
            last_probe_time: None,
            observed_generation: pod.metadata.generation,
        }
    });
    foreign.chain(ours).collect()
}

fn status_of<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == container.name)
}

/// As Go prints a list of names.
fn listed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn containers_ready(spec: &PodSpec, statuses: &[ContainerStatus], phase: &str) -> Finding {
    match phase {
        "Succeeded" => return Finding::fails("PodCompleted", None),
        "Failed" => return Finding::fails("PodFailed", None),
        _ => {}
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|it| is_sidecar(it));
    let unready: Vec<&str> = sidecars
        .chain(&spec.containers)
        .filter(|container| !status_of(statuses, container).is_some_and(|status| status.ready))
        .map(|container| container.name.as_str())
        .collect();
    if unready.is_empty() {
        return Finding::TRUE;
    }
    Finding::fails(
        "ContainersNotReady",
        Some(format!("containers with unready status: {}", listed(&unready))),
    )
}

fn ready(spec: &PodSpec, containers: &Finding, conditions: &[PodCondition]) -> Finding {
    if !containers.holds {
        return containers.clone();
    }
    let unmet: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match conditions.iter().find(|condition| condition.type_ == *kind) {
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist."))
                }
                Some(condition) if condition.status != "True" => {
                    let status = &condition.status;
                    Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {status}"))
                }
                Some(_) => None,
            }
        })
        .collect();
    if unmet.is_empty() {
        Finding::TRUE
    } else {
        Finding::fails("ReadinessGatesNotReady", Some(unmet.join(", ")))
    }
}

fn initialized(spec: &PodSpec, statuses: &[ContainerStatus], phase: &str) -> Finding {
    if phase == "Succeeded" {
        return Finding { reason: Some("PodCompleted"), ..Finding::TRUE };
    }
    if spec.containers.iter().any(|container| status_of(statuses, container).is_some_and(has_run)) {
        return Finding::TRUE;
    }
    let done = |container: &Container| {
        status_of(statuses, container).is_some_and(|status| match is_sidecar(container) {
            true => status.started == Some(true),
            false => status.ready,
        })
    };
    let init = spec.init_containers.iter().flatten();
    let incomplete: Vec<&str> =
        init.filter(|container| !done(container)).map(|container| container.name.as_str()).collect();
    if incomplete.is_empty() {
        return Finding::TRUE;
    }
    Finding::fails(
        "ContainersNotInitialized",
        Some(format!("containers with incomplete status: {}", listed(&incomplete))),
    )
}
