//! What came of an operation, and what it changes.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::plan::Operation;
use super::probes::{Kind, Probes, Verdict};
use super::state::{Container, Ended, Hook, Part, Phase, Running, Stage, State, Stopping, Work, specs};
use super::{Timing, after};

/// Why a container could not be started; becomes the reason and message of its waiting state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// When to try again, if only time holds it back.
    pub(crate) retry: Option<Timestamp>,
}

/// News from whoever performs the operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    VolumesReady,
    VolumesFailed(String),
    SandboxReady(Ipv4Addr),
    SandboxFailed(String),
    /// The image is there.
    Pulled {
        container: String,
        image_id: String,
    },
    /// It is not, for now.
    PullFailed {
        container: String,
        reason: &'static str,
        message: String,
    },
    Started {
        container: String,
        id: String,
    },
    /// The container could not even be described.
    Unstartable {
        container: String,
        reason: &'static str,
        message: String,
    },
    /// It was made, but its program could not be executed.
    StartFailed {
        container: String,
        id: String,
        message: String,
    },
    HookReturned {
        container: String,
        id: String,
        error: Option<String>,
    },
    PreStopReturned {
        container: String,
        id: String,
    },
    Exited {
        container: String,
        id: String,
        ended: Ended,
    },
    Probed {
        container: String,
        id: String,
        kind: Kind,
        verdict: Verdict,
    },
    SandboxRemoved,
    SandboxStuck,
    VolumesRemoved,
    VolumesStuck,
    DirectoryRemoved,
    DirectoryStuck,
    Deleted,
    DeletionFailed(String),
}

impl State {
    /// An operation was handed out; planning again must not give it again.
    pub(crate) fn begin(&mut self, pod: &Pod, operation: &Operation, now: Timestamp, timing: &Timing) {
        match operation {
            Operation::PrepareVolumes => self.volumes = Part::Making,
            Operation::CreateSandbox => self.sandbox = Part::Making,
            Operation::RemoveSandbox => self.sandbox = Part::Removing,
            Operation::RemoveVolumes => self.volumes = Part::Removing,
            Operation::RemoveDirectory => self.directory = Part::Removing,
            Operation::Delete => self.deletion = Part::Making,
            Operation::End(end) => self.end = Some(end.clone()),
            Operation::BeginEnding => self.ending = Some(now),
            Operation::Stop { container, why, hook, .. } => {
                let stage = if *hook { Stage::Hook } else { Stage::HookDone };
                let stopping = Stopping { why: *why, since: now, stage };
                self.running(container, |running| running.stopping = Some(stopping));
            }
            other => self.begin_container(pod, other, now, timing),
        }
    }

    fn begin_container(&mut self, pod: &Pod, operation: &Operation, now: Timestamp, timing: &Timing) {
        let Some(name) = operation.container() else { return };
        let spec = find(pod, name);
        let Some(container) = self.containers.get_mut(name) else { return };
        match operation {
            Operation::Pull { .. } => {
                container.work = Work::Pulling;
                container.announced = false;
            }
            Operation::CancelPull { .. } => container.work = Work::Idle,
            Operation::Start { .. } => {
                container.work = Work::Starting;
                if let Phase::Ended(ended) = &container.phase {
                    let failed = ended.at.unwrap_or(now);
                    container.crashes.advance(failed, now, timing);
                }
            }
            Operation::AnnounceBackOff { .. } => {
                container.announced = true;
                if let Some(trouble) = &mut container.trouble
                    && trouble.reason == "ErrImagePull"
                {
                    let image = spec.and_then(|spec| spec.image.as_deref()).unwrap_or_default();
                    trouble.message =
                        format!("Back-off pulling image \"{image}\": ErrImagePull: {}", trouble.message);
                    trouble.reason = "ImagePullBackOff";
                }
            }
            Operation::PostStart { .. } => self.running(name, |running| running.hook = Hook::Going),
            Operation::Probe { kind, early, .. } => {
                if let Some(probe) = spec.and_then(|spec| kind.of(spec)) {
                    container.probes.sent(*kind, probe, *early, now);
                }
            }
            Operation::Signal { .. } => self.stage(name, Stage::Asked(now)),
            Operation::Kill { .. } => self.stage(name, Stage::Killed),
            Operation::Clean { .. } => {
                if let Phase::Ended(ended) = &mut container.phase {
                    ended.cleaned = true;
                }
            }
            _ => {}
        }
    }

    fn stage(&mut self, name: &str, stage: Stage) {
        self.running(name, |running| {
            if let Some(stopping) = &mut running.stopping {
                stopping.stage = stage;
            }
        });
    }

    fn running(&mut self, name: &str, change: impl FnOnce(&mut Running)) {
        if let Some(Container { phase: Phase::Running(running), .. }) = self.containers.get_mut(name) {
            change(running);
        }
    }

    /// Takes in what came of an operation. News of a run that is over changes nothing.
    pub(crate) fn absorb(&mut self, pod: &Pod, report: Report, now: Timestamp, timing: &Timing) {
        let retry = after(now, timing.retry);
        match report {
            Report::VolumesReady => self.volumes = Part::Made(()),
            Report::VolumesFailed(message) => self.volumes = Part::Failed { message, retry },
            Report::SandboxReady(address) => {
                self.sandbox = Part::Made(address);
                self.address = Some(address);
            }
            Report::SandboxFailed(message) => self.sandbox = Part::Failed { message, retry },
            Report::SandboxRemoved => self.sandbox = Part::Removed,
            Report::VolumesRemoved => self.volumes = Part::Removed,
            Report::DirectoryRemoved => self.directory = Part::Removed,
            Report::Deleted => self.deletion = Part::Made(()),
            Report::DeletionFailed(message) => self.deletion = Part::Failed { message, retry },
            Report::SandboxStuck => self.sandbox = Part::Stuck { retry },
            Report::VolumesStuck => self.volumes = Part::Stuck { retry },
            Report::DirectoryStuck => self.directory = Part::Stuck { retry },
            other => self.absorb_container(pod, other, now, timing),
        }
    }

    fn absorb_container(&mut self, pod: &Pod, report: Report, now: Timestamp, timing: &Timing) {
        let Some(spec) = report.container().and_then(|name| find(pod, name)) else { return };
        let Some(container) = self.containers.get_mut(&spec.name) else { return };
        let current = |container: &Container, id: &str| container.running().is_some_and(|it| it.id == id);
        match report {
            Report::Pulled { image_id, .. } if container.work == Work::Pulling => {
                container.work = Work::Pulled;
                container.image_id = image_id;
            }
            Report::PullFailed { reason, message, .. } if container.work == Work::Pulling => {
                container.work = Work::Idle;
                let retry = if reason == "ErrImagePull" {
                    container.pulls.advance(now, now, timing);
                    container.pulls.until(now, timing)
                } else {
                    Some(after(now, timing.retry))
                };
                container.trouble = Some(Trouble { reason, message, retry });
            }
            Report::Started { id, .. } => container.start(spec, id, now),
            Report::Unstartable { reason, message, .. } => {
                container.work = Work::Idle;
                let retry = Some(after(now, timing.retry));
                container.trouble = Some(Trouble { reason, message, retry });
            }
            Report::StartFailed { id, message, .. } => container.start_failed(id, message, now),
            Report::HookReturned { id, error, .. } if current(container, &id) => {
                let hook = if error.is_some() { Hook::Failed } else { Hook::Done };
                self.running(&spec.name, |running| running.hook = hook);
            }
            Report::PreStopReturned { id, .. } if current(container, &id) => {
                self.running(&spec.name, |running| running.pre_stop_returned());
            }
            Report::Exited { id, ended, .. } if current(container, &id) => container.exit(ended),
            Report::Probed { id, kind, verdict, .. } if current(container, &id) => {
                if let Some(probe) = kind.of(spec) {
                    container.probes.answered(kind, probe, &verdict);
                }
            }
            _ => {}
        }
    }
}

impl Running {
    fn pre_stop_returned(&mut self) {
        if let Some(stopping) = &mut self.stopping
            && stopping.stage == Stage::Hook
        {
            stopping.stage = Stage::HookDone;
        }
    }
}

impl Container {
    fn start(&mut self, spec: &Spec, id: String, now: Timestamp) {
        self.begin_run();
        let hook = spec.lifecycle.as_ref().is_some_and(|it| it.post_start.is_some());
        self.probes = Probes::begin(spec, now);
        self.phase = Phase::Running(Running {
            id,
            image: spec.image.clone().unwrap_or_default(),
            since: now,
            hook: if hook { Hook::Due } else { Hook::Done },
            stopping: None,
        });
    }

    fn start_failed(&mut self, id: String, message: String, now: Timestamp) {
        self.begin_run();
        self.trouble = Some(Trouble { reason: "RunContainerError", message: message.clone(), retry: None });
        self.phase = Phase::Ended(Ended {
            id,
            code: 128,
            reason: "StartError".into(),
            message,
            // As a container runtime writes a start that never was.
            since: Some(Timestamp::UNIX_EPOCH),
            at: Some(now),
            stopped_for: None,
            cleaned: false,
        });
    }

    fn begin_run(&mut self) {
        if let Phase::Ended(ended) = std::mem::take(&mut self.phase) {
            self.last = Some(ended);
        }
        self.restarts = self.next_attempt();
        self.ran = true;
        self.work = Work::Idle;
        self.trouble = None;
        self.announced = false;
    }

    fn exit(&mut self, mut ended: Ended) {
        if let Phase::Running(running) = &self.phase {
            ended.since = Some(running.since);
            ended.stopped_for = running.stopping.as_ref().map(|stopping| stopping.why);
        }
        self.announced = false;
        self.phase = Phase::Ended(ended);
    }
}

impl Report {
    fn container(&self) -> Option<&str> {
        match self {
            Self::Pulled { container, .. }
            | Self::PullFailed { container, .. }
            | Self::Started { container, .. }
            | Self::Unstartable { container, .. }
            | Self::StartFailed { container, .. }
            | Self::HookReturned { container, .. }
            | Self::PreStopReturned { container, .. }
            | Self::Exited { container, .. }
            | Self::Probed { container, .. } => Some(container),
            _ => None,
        }
    }
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Spec> {
    specs(pod.spec.as_ref()?).map(|(spec, _)| spec).find(|spec| spec.name == name)
}
