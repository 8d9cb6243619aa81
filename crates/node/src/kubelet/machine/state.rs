//! What is known about a Pod on this node. Times are wall-clock times, given by whoever drives the machine.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, ContainerState, ContainerStatus, Pod, PodSpec};

use super::probes::Probes;
use super::report::Trouble;
use super::{BackOff, restarts};

/// The whole Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) volumes: Part<()>,
    pub(crate) sandbox: Part<Ipv4Addr>,
    /// The last address that the Pod had; it stays in the status after the sandbox went.
    pub(crate) address: Option<Ipv4Addr>,
    /// By name; init containers and others have their names from one space.
    pub(crate) containers: BTreeMap<String, Container>,
    /// When this node took the Pod up.
    pub(crate) started: Option<Timestamp>,
    /// The node cannot run this Pod, and why.
    pub(crate) refused: Option<String>,
    /// Why the Pod ends though nobody deleted it.
    pub(crate) end: Option<End>,
    /// When the containers began to be stopped for good.
    pub(crate) ending: Option<Timestamp>,
    /// The node itself stops: containers end, and the API hears nothing of it.
    pub(crate) leaving: bool,
    /// The object is gone from the API.
    pub(crate) gone: bool,
    /// The API has the status of this very state.
    pub(crate) reported: bool,
    /// The final deletion of the object.
    pub(crate) deletion: Part<()>,
    /// The Pod's directory, logs and all.
    pub(crate) directory: Part<()>,
}

/// Something that is made once and given back once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Part<T> {
    /// An earlier process may have left it; making and removing must both cope.
    #[default]
    Unknown,
    Making,
    Made(T),
    /// Making it failed.
    Failed {
        message: String,
        retry: Timestamp,
    },
    Removing,
    /// Removing it failed.
    Stuck {
        retry: Timestamp,
    },
    Removed,
}

impl<T> Part<T> {
    pub(crate) fn made(&self) -> Option<&T> {
        match self {
            Self::Made(it) => Some(it),
            _ => None,
        }
    }
}

/// A Pod that ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// One container over all its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) phase: Phase,
    pub(crate) work: Work,
    /// Why the last try to start it came to nothing.
    pub(crate) trouble: Option<Trouble>,
    /// The run before the one that `phase` tells of.
    pub(crate) last: Option<Ended>,
    /// A run was begun, here or by an earlier process.
    pub(crate) ran: bool,
    pub(crate) restarts: u32,
    pub(crate) image_id: String,
    pub(crate) crashes: BackOff,
    pub(crate) pulls: BackOff,
    /// The wait that is going on was told in an Event.
    pub(crate) announced: bool,
    pub(crate) probes: Probes,
}

/// Whether a container runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    New,
    Running(Running),
    Ended(Ended),
}

/// What is being done to start a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Work {
    #[default]
    Idle,
    Pulling,
    Pulled,
    Starting,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) id: String,
    /// As the spec named it when the container was started.
    pub(crate) image: String,
    pub(crate) since: Timestamp,
    /// The hook after the start has not returned yet.
    pub(crate) hook: Hook,
    pub(crate) stopping: Option<Stopping>,
}

/// The hook after a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Due,
    Going,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stopping {
    pub(crate) why: Why,
    pub(crate) since: Timestamp,
    pub(crate) stage: Stage,
}

/// Why a running container is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The Pod ends.
    Ending,
    Liveness,
    Startup,
    PostStart,
    /// The spec names another image now.
    Changed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The hook before the stop is running.
    Hook,
    /// There is none, or it has returned.
    HookDone,
    /// It was asked to end at this time.
    Asked(Timestamp),
    Killed,
}

/// One run that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Empty if the container was lost before its id was known.
    pub(crate) id: String,
    pub(crate) code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Option<Timestamp>,
    pub(crate) at: Option<Timestamp>,
    /// We stopped it so that it starts again, whatever its code.
    pub(crate) stopped_for: Option<Why>,
    /// Its cgroup, mounts and scratch directory are given back.
    pub(crate) cleaned: bool,
}

impl Ended {
    /// A run of which nothing is known but that it is over.
    pub(crate) fn unknown(id: String, since: Option<Timestamp>, now: Timestamp) -> Self {
        Self {
            id,
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: "The container could not be located when the pod was terminated".into(),
            since,
            at: Some(now),
            stopped_for: None,
            cleaned: true,
        }
    }
}

impl Container {
    pub(crate) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            _ => None,
        }
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        match &self.phase {
            Phase::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// Something of it may be running now.
    pub(crate) fn active(&self) -> bool {
        self.running().is_some() || self.work == Work::Starting
    }

    /// The number of the next run.
    pub(crate) fn next_attempt(&self) -> u32 {
        if self.ran { self.restarts.saturating_add(1) } else { self.restarts }
    }
}

/// The containers of a Pod with whether they are init containers, in the order in which they start.
pub(crate) fn specs(spec: &PodSpec) -> impl Iterator<Item = (&Spec, bool)> {
    let init = spec.init_containers.iter().flatten().map(|container| (container, true));
    init.chain(spec.containers.iter().map(|container| (container, false)))
}

impl State {
    /// What the API tells about a Pod of which this process knows nothing: an earlier process may have run it, and its
    /// containers ended with that process.
    pub(crate) fn adopt(pod: &Pod, now: Timestamp) -> Self {
        let mut state = Self::default();
        let (Some(spec), status) = (&pod.spec, pod.status.clone().unwrap_or_default()) else { return state };
        state.started = status.start_time.map(|time| time.0);
        state.address = status.pod_ip.as_deref().and_then(|address| address.parse().ok());
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let known: Vec<ContainerStatus> =
            status.init_container_statuses.into_iter().chain(status.container_statuses).flatten().collect();
        for (container, _) in specs(spec) {
            let old = known.iter().find(|status| status.name == container.name);
            let adopted = old.map(|old| adopt(old, now)).unwrap_or_default();
            state.containers.insert(container.name.clone(), adopted);
        }
        state.rerun_init(spec, over);
        state
    }

    /// A new sandbox needs its init containers again, if anything is to run in it.
    fn rerun_init(&mut self, spec: &PodSpec, over: bool) {
        let needed = spec.containers.iter().any(|container| {
            let known = self.containers.get(&container.name).and_then(Container::ended);
            known.is_none_or(|ended| restarts(spec, container, false, ended.code))
        });
        if over || !needed {
            return;
        }
        for container in spec.init_containers.iter().flatten() {
            let Some(known) = self.containers.get_mut(&container.name) else { continue };
            if known
                .ended()
                .is_some_and(|ended| !restarts(spec, container, true, ended.code) && ended.code != 0)
            {
                continue;
            }
            if let Phase::Ended(ended) = std::mem::take(&mut known.phase) {
                known.last = Some(ended);
            }
        }
    }
}

fn adopt(old: &ContainerStatus, now: Timestamp) -> Container {
    let mut adopted = Container {
        restarts: u32::try_from(old.restart_count).unwrap_or(0),
        image_id: old.image_id.clone(),
        last: old.last_state.as_ref().and_then(ended),
        ran: old.last_state.as_ref().is_some_and(|state| state.terminated.is_some()),
        ..Container::default()
    };
    let state = old.state.clone().unwrap_or_default();
    if let Some(ended) = ended(&state) {
        adopted.ran = true;
        adopted.phase = Phase::Ended(ended);
    } else if let Some(running) = &state.running {
        adopted.ran = true;
        let id = bare_id(old.container_id.as_deref());
        adopted.phase = Phase::Ended(Ended::unknown(id, running.started_at.as_ref().map(|t| t.0), now));
    } else if let Some(last) = adopted.last.take() {
        // It was waiting for its next run.
        adopted.phase = Phase::Ended(last);
    }
    adopted
}

fn ended(state: &ContainerState) -> Option<Ended> {
    let it = state.terminated.as_ref()?;
    Some(Ended {
        id: bare_id(it.container_id.as_deref()),
        code: it.exit_code,
        reason: it.reason.clone().unwrap_or_default(),
        message: it.message.clone().unwrap_or_default(),
        since: it.started_at.as_ref().map(|time| time.0),
        at: it.finished_at.as_ref().map(|time| time.0),
        stopped_for: None,
        cleaned: true,
    })
}

fn bare_id(id: Option<&str>) -> String {
    let id = id.unwrap_or_default();
    id.split_once("://").map_or(id, |(_, bare)| bare).to_owned()
}
