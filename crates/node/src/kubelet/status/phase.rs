//! The phase of a Pod from the statuses of its containers.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};

use crate::kubelet::machine::{State, is_sidecar, runs_again};

/// How many containers are in which condition.
#[derive(Debug, Default)]
struct Count {
    /// Not run yet.
    waiting: usize,
    running: usize,
    /// Ended at least once and not running.
    stopped: usize,
    succeeded: usize,
    /// Stopped, and to run again.
    again: usize,
}

/// `ending`: nothing runs again. `over`: nothing runs any more.
pub(super) fn phase(
    spec: &PodSpec,
    state: &State,
    statuses: &[ContainerStatus],
    ending: bool,
    over: bool,
) -> &'static str {
    let again = |container: &Container, init: bool| {
        state.containers.get(&container.name).is_some_and(|known| runs_again(spec, container, init, known))
    };
    let of = |container: &Container| statuses.iter().find(|status| status.name == container.name);
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let initialized = spec.containers.iter().any(|it| of(it).is_some_and(has_run));
    let mut pending = false;
    let mut sidecars = 0;
    for container in init {
        let status = of(container);
        if is_sidecar(container) {
            let up = status.is_some_and(|status| status.started == Some(true));
            let stopped = status.is_some_and(|status| !is_running(status) && has_run(status));
            pending |= !up && !stopped && !initialized;
            sidecars += usize::from(status.is_some_and(is_running));
            continue;
        }
        match status.and_then(exit_code) {
            Some(0) => {}
            Some(_) if ending || !again(container, true) => return "Failed",
            Some(_) | None => pending = true,
        }
    }
    let count = count(spec, of, |container| again(container, false));
    let running = count.running + sidecars;
    if !over && (pending || count.waiting > 0) {
        return "Pending";
    }
    if running > 0 || (!over && count.again > 0) {
        return "Running";
    }
    if count.waiting == 0 && !pending && count.stopped == count.succeeded { "Succeeded" } else { "Failed" }
}

fn count<'a>(
    spec: &PodSpec,
    of: impl Fn(&Container) -> Option<&'a ContainerStatus>,
    again: impl Fn(&Container) -> bool,
) -> Count {
    let mut count = Count::default();
    for container in &spec.containers {
        let Some(status) = of(container) else {
            count.waiting += 1;
            continue;
        };
        if is_running(status) {
            count.running += 1;
        } else if let Some(code) = exit_code(status) {
            count.stopped += 1;
            count.succeeded += usize::from(code == 0);
            count.again += usize::from(again(container));
        } else {
            count.waiting += 1;
        }
    }
    count
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn has_run(status: &ContainerStatus) -> bool {
    is_running(status) || exit_code(status).is_some()
}

/// The code of the last run, if the container is not running.
fn exit_code(status: &ContainerStatus) -> Option<i32> {
    let state = status.state.as_ref()?;
    if let Some(ended) = &state.terminated {
        return Some(ended.exit_code);
    }
    if state.running.is_some() {
        return None;
    }
    status.last_state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code)
}
