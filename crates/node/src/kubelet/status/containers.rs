//! The statuses of a Pod's containers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod, PodSpec, VolumeMountStatus,
};

use super::{Surroundings, time};
use crate::kubelet::machine::{
    Container, Ended, Phase, State, crash_message, crash_wait, is_sidecar, runs_again,
};

/// The scheme of container ids.
const SCHEME: &str = "agentcube://";

/// Of init containers, and of the others.
pub(super) fn statuses(
    pod: &Pod,
    spec: &PodSpec,
    state: &State,
    ending: bool,
    around: Surroundings<'_>,
) -> (Vec<ContainerStatus>, Vec<ContainerStatus>) {
    let has_init = spec.init_containers.as_ref().is_some_and(|init| !init.is_empty());
    let default = Container::default();
    let of = |container: &Spec, init: bool| {
        let known = state.containers.get(&container.name).unwrap_or(&default);
        let view = View { pod, spec, container, init, has_init, known, ending, around };
        view.status(state)
    };
    let init = spec.init_containers.iter().flatten().map(|container| of(container, true)).collect();
    let mut regular: Vec<ContainerStatus> =
        spec.containers.iter().map(|container| of(container, false)).collect();
    regular.sort_by(|a, b| a.name.cmp(&b.name));
    (init, regular)
}

/// Containers that were to run, but never did, will not run any more.
pub(super) fn settle(statuses: &mut [ContainerStatus], spec: &PodSpec, state: &State) {
    let done = |container: &Spec| {
        let known = state.containers.get(&container.name);
        known.and_then(Container::ended).is_some_and(|ended| ended.code == 0 || is_sidecar(container))
    };
    if !spec.init_containers.iter().flatten().all(done) {
        return;
    }
    for status in statuses {
        let waiting = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        let ran = status.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
        if waiting && !ran {
            let unknown = Ended::unknown(String::new(), None, Timestamp::UNIX_EPOCH);
            let mut ended = terminated(&unknown);
            ended.finished_at = None;
            status.state = Some(ContainerState { terminated: Some(ended), ..ContainerState::default() });
            status.started = Some(false);
        }
    }
}

/// Ephemeral containers cannot be run here; say so.
pub(super) fn ephemeral(spec: &PodSpec) -> Option<Vec<ContainerStatus>> {
    let containers = spec.ephemeral_containers.as_ref().filter(|it| !it.is_empty())?;
    let message = "this node does not run ephemeral containers";
    let status = |container: &k8s_openapi::api::core::v1::EphemeralContainer| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting("CreateContainerConfigError", Some(message.to_owned()))),
        ..ContainerStatus::default()
    };
    Some(containers.iter().map(status).collect())
}

struct View<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    container: &'a Spec,
    init: bool,
    has_init: bool,
    known: &'a Container,
    ending: bool,
    around: Surroundings<'a>,
}

impl View<'_> {
    fn status(&self, state: &State) -> ContainerStatus {
        let (now, last) = self.states(state);
        let known = self.known;
        let running = known.running();
        let id = running.map(|it| &it.id).or(known.ended().map(|it| &it.id)).filter(|id| !id.is_empty());
        let started = running.is_some() && known.probes.started();
        ContainerStatus {
            name: self.container.name.clone(),
            image: self.container.image.clone().unwrap_or_default(),
            image_id: known.image_id.clone(),
            container_id: id.map(|id| format!("{SCHEME}{id}")),
            last_state: Some(last.map(ended_state).unwrap_or_default()),
            ready: self.ready(started),
            started: Some(started),
            restart_count: i32::try_from(known.restarts).unwrap_or(i32::MAX),
            state: Some(now),
            resources: self.container.resources.clone(),
            allocated_resources: self.container.resources.clone().and_then(|resources| resources.requests),
            volume_mounts: self.mounts(),
            ..ContainerStatus::default()
        }
    }

    fn ready(&self, started: bool) -> bool {
        if self.init && !is_sidecar(self.container) {
            return self.known.ended().is_some_and(|ended| ended.code == 0);
        }
        started && self.known.probes.ready()
    }

    /// What it is in now, and the run before.
    fn states(&self, state: &State) -> (ContainerState, Option<&Ended>) {
        let before = self.known.last.as_ref();
        if let Some(running) = self.known.running() {
            let since = ContainerStateRunning { started_at: Some(time(running.since)) };
            return (ContainerState { running: Some(since), ..ContainerState::default() }, before);
        }
        let ended = self.known.ended();
        if let Some(ended) = ended
            && (self.ending || !runs_again(self.spec, self.container, self.init, self.known))
        {
            return (ended_state(ended), before);
        }
        if let Some((reason, message)) = self.held_back(state) {
            return (waiting(reason, Some(message)), ended.or(before));
        }
        match &self.known.phase {
            Phase::Ended(ended) => (ended_state(ended), before),
            _ => (waiting(self.first_word(), None), before),
        }
    }

    fn first_word(&self) -> &'static str {
        if self.has_init { "PodInitializing" } else { "ContainerCreating" }
    }

    fn held_back(&self, state: &State) -> Option<(&'static str, String)> {
        if let Some(why) = &state.refused {
            return Some(("CreateContainerConfigError", why.clone()));
        }
        let name = &self.container.name;
        let Surroundings { now, timing, .. } = self.around;
        if crash_wait(self.known, timing)
            .is_some_and(|until| until > now || self.known.work != Default::default())
            && let Some(message) = crash_message(self.pod, name, self.known, timing)
        {
            return Some(("CrashLoopBackOff", message));
        }
        let trouble = self.known.trouble.as_ref()?;
        Some((trouble.reason, trouble.message.clone()))
    }

    fn mounts(&self) -> Option<Vec<VolumeMountStatus>> {
        let mounts = self.container.volume_mounts.as_ref()?;
        let status = |mount: &k8s_openapi::api::core::v1::VolumeMount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
            ..VolumeMountStatus::default()
        };
        Some(mounts.iter().map(status).collect())
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn ended_state(ended: &Ended) -> ContainerState {
    ContainerState { terminated: Some(terminated(ended)), ..ContainerState::default() }
}

fn terminated(ended: &Ended) -> ContainerStateTerminated {
    let filled = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    ContainerStateTerminated {
        exit_code: ended.code,
        signal: None,
        reason: filled(&ended.reason),
        message: filled(&ended.message),
        started_at: ended.since.map(time),
        finished_at: ended.at.map(time),
        container_id: filled(&ended.id).map(|id| format!("{SCHEME}{id}")),
    }
}
