//! The status of a Pod as the API shows it: pure, from what the node knows. It leaves conditions of others alone and
//! never takes back a phase that is final.

mod conditions;
mod containers;
mod phase;

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::machine::{State, Timing, is_ending};

/// What the status says besides the Pod's own state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) host: IpAddr,
    pub(crate) now: Timestamp,
    pub(crate) timing: &'a Timing,
}

/// Times are whole seconds in the API.
pub(crate) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

pub(crate) fn status(pod: &Pod, state: &State, around: Surroundings<'_>) -> PodStatus {
    let Some(spec) = &pod.spec else { return PodStatus::default() };
    let old = pod.status.clone().unwrap_or_default();
    let ending = is_ending(pod, state);
    let (init, mut regular) = containers::statuses(pod, spec, state, ending, around);
    let over = ending && !state.containers.values().any(super::machine::Container::active);
    if over {
        containers::settle(&mut regular, spec, state);
    }
    let all: Vec<_> = init.iter().chain(&regular).cloned().collect();
    let phase = match old.phase.as_deref() {
        Some(last @ ("Succeeded" | "Failed")) => last.to_owned(),
        _ if over && state.end.is_some() => "Failed".to_owned(),
        before => match phase::phase(spec, state, &all, ending, over) {
            // Not while anything of it may still run: others take the final phase for leave to use what it had.
            "Succeeded" | "Failed" if !over => before.unwrap_or("Pending").to_owned(),
            phase => phase.to_owned(),
        },
    };
    let same_phase = old.phase.as_deref() == Some(&phase);
    let (reason, message) = match &state.end {
        Some(end) if phase == "Failed" => (Some(end.reason.to_owned()), Some(end.message.clone())),
        _ if same_phase => (old.reason.clone(), old.message.clone()),
        _ => (None, None),
    };
    let address = state.address.map(|address| address.to_string());
    let host = around.host.to_string();
    PodStatus {
        conditions: Some(conditions::conditions(pod, spec, state, &all, &phase, around.now)),
        container_statuses: Some(regular),
        ephemeral_container_statuses: containers::ephemeral(spec),
        init_container_statuses: (!init.is_empty()).then_some(init),
        host_ip: Some(host.clone()),
        host_ips: Some(vec![HostIP { ip: host }]),
        pod_ips: address.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: address,
        observed_generation: pod.metadata.generation,
        start_time: state.started.map(time).or(old.start_time.clone()),
        phase: Some(phase),
        reason,
        message,
        ..old
    }
}
