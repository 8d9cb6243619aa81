//! What to do next for a Pod: pure, from its spec, its state and the time.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec};

use super::back_off::printed;
use super::probes::Kind;
use super::state::{Container, End, Hook, Part, Phase, Running, Stage, State, Stopping, Why, Work, specs};
use super::{Timing, after, is_sidecar, restarts, seconds};

/// Something to do. Whoever is given one performs it once and reports what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    PrepareVolumes,
    CreateSandbox,
    Pull {
        container: String,
    },
    CancelPull {
        container: String,
    },
    Start {
        container: String,
        attempt: u32,
    },
    /// A container is held back; say so in an Event.
    AnnounceBackOff {
        container: String,
        message: String,
    },
    PostStart {
        container: String,
    },
    Probe {
        container: String,
        kind: Kind,
        /// Ahead of its time: only a good answer counts.
        early: bool,
    },
    /// Say why the container is stopped, and run its hook, which may take `limit`.
    Stop {
        container: String,
        why: Why,
        message: String,
        hook: bool,
        limit: Duration,
    },
    /// Ask the container's program to end.
    Signal {
        container: String,
    },
    Kill {
        container: String,
    },
    /// Give back what an ended container held.
    Clean {
        container: String,
        id: String,
    },
    /// The Pod ends by itself.
    End(End),
    /// From now on nothing of the Pod is started again.
    BeginEnding,
    RemoveSandbox,
    RemoveVolumes,
    /// Delete the object for good.
    Delete,
    RemoveDirectory,
}

impl Operation {
    pub(crate) fn container(&self) -> Option<&str> {
        match self {
            Self::Pull { container }
            | Self::CancelPull { container }
            | Self::Start { container, .. }
            | Self::AnnounceBackOff { container, .. }
            | Self::PostStart { container }
            | Self::Probe { container, .. }
            | Self::Stop { container, .. }
            | Self::Signal { container }
            | Self::Kill { container }
            | Self::Clean { container, .. } => Some(container),
            _ => None,
        }
    }
}

/// Operations, and when to plan again if nothing is reported before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<Operation>,
    pub(crate) wake: Option<Timestamp>,
    /// Nothing of the Pod is left on this node, or in the API.
    pub(crate) finished: bool,
}

impl Plan {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }

    /// True if the time has come; else plans to look again then.
    fn reached(&mut self, time: Timestamp, now: Timestamp) -> bool {
        if now < time {
            self.wake_at(time);
        }
        now >= time
    }

    fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }
}

/// Everything that planning looks at.
struct View<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    state: &'a State,
    now: Timestamp,
    timing: &'a Timing,
}

pub(crate) fn plan(pod: &Pod, state: &State, now: Timestamp, timing: &Timing) -> Plan {
    let Some(spec) = &pod.spec else { return Plan { finished: true, ..Plan::default() } };
    let view = View { pod, spec, state, now, timing };
    let mut plan = Plan::default();
    view.plan_cleaning(&mut plan);
    if view.ends() {
        view.plan_end(&mut plan);
        return plan;
    }
    if view.plan_deadline(&mut plan) || view.state.refused.is_some() {
        return plan;
    }
    view.plan_running(&mut plan);
    if view.plan_ground(&mut plan) {
        view.plan_starts(&mut plan);
    }
    plan
}

/// The Pod has had its last run: deleted, ended by the node, or every container is done.
pub(crate) fn is_ending(pod: &Pod, state: &State) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    state.ending.is_some()
        || state.gone
        || state.leaving
        || state.end.is_some()
        || pod.metadata.deletion_timestamp.is_some()
        || matches!(phase, Some("Succeeded" | "Failed"))
        || is_done(pod, state)
}

/// Whether an ended container is to run again.
pub(crate) fn runs_again(spec: &PodSpec, container: &Spec, init: bool, known: &Container) -> bool {
    let Some(ended) = known.ended() else { return false };
    match ended.stopped_for {
        Some(Why::Liveness | Why::Startup | Why::PostStart | Why::Changed) => {
            restarts(spec, container, init, 1)
        }
        _ => restarts(spec, container, init, ended.code),
    }
}

/// No container but a sidecar has anything left to do.
fn is_done(pod: &Pod, state: &State) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let over = |container: &Spec, init: bool| {
        let known = state.containers.get(&container.name);
        known.is_some_and(|known| known.ended().is_some() && !runs_again(spec, container, init, known))
    };
    let failed = |container: &Spec| {
        let code = state.containers.get(&container.name).and_then(|it| it.ended()).map(|it| it.code);
        over(container, true) && code != Some(0)
    };
    spec.containers.iter().all(|container| over(container, false))
        || spec.init_containers.iter().flatten().any(failed)
}

impl View<'_> {
    fn known(&self, container: &Spec) -> Option<&Container> {
        self.state.containers.get(&container.name)
    }

    fn ends(&self) -> bool {
        is_ending(self.pod, self.state)
    }

    fn plan_cleaning(&self, plan: &mut Plan) {
        for (name, container) in &self.state.containers {
            if let Some(ended) = container.ended()
                && !ended.cleaned
            {
                plan.push(Operation::Clean { container: name.clone(), id: ended.id.clone() });
            }
        }
    }

    /// True if the Pod has been active for too long.
    fn plan_deadline(&self, plan: &mut Plan) -> bool {
        let (Some(limit), Some(started)) = (self.spec.active_deadline_seconds, self.state.started) else {
            return false;
        };
        let passed = plan.reached(after(started, seconds(limit)), self.now);
        if passed {
            let message = "Pod was active on the node longer than the specified deadline".to_owned();
            plan.push(Operation::End(End { reason: "DeadlineExceeded", message }));
        }
        passed
    }

    /// Volumes first, then the sandbox. True if both are there.
    fn plan_ground(&self, plan: &mut Plan) -> bool {
        if !self.made(&self.state.volumes, Operation::PrepareVolumes, plan) {
            return false;
        }
        self.made(&self.state.sandbox, Operation::CreateSandbox, plan)
    }

    fn made<T>(&self, part: &Part<T>, make: Operation, plan: &mut Plan) -> bool {
        match part {
            Part::Made(_) => return true,
            Part::Unknown | Part::Removed => plan.push(make),
            Part::Failed { retry, .. } if plan.reached(*retry, self.now) => plan.push(make),
            Part::Stuck { .. } | Part::Failed { .. } | Part::Making | Part::Removing => {}
        }
        false
    }

    /// Hooks, probes, and what to do about containers that must not run on.
    fn plan_running(&self, plan: &mut Plan) {
        for (spec, init) in specs(self.spec) {
            let Some(container) = self.known(spec) else { continue };
            let Some(running) = container.running() else { continue };
            if let Some(stopping) = &running.stopping {
                self.plan_stop(spec, stopping, plan);
                continue;
            }
            if running.hook == Hook::Due {
                plan.push(Operation::PostStart { container: spec.name.clone() });
            }
            match self.reason_to_stop(spec, container, running) {
                Some((why, message)) => {
                    let again = if restarts(self.spec, spec, init, 1) { ", will be restarted" } else { "" };
                    self.push_stop(spec, why, format!("{message}{again}"), plan);
                }
                None => self.plan_probes(spec, container, &Kind::ALL, plan),
            }
        }
    }

    fn reason_to_stop(&self, spec: &Spec, container: &Container, running: &Running) -> Option<(Why, String)> {
        let name = &spec.name;
        if running.hook == Hook::Failed {
            return Some((Why::PostStart, "FailedPostStartHook".to_owned()));
        }
        if let Some(broken) = container.probes.broken() {
            let (why, probe) = match broken {
                Kind::Startup => (Why::Startup, "startup"),
                _ => (Why::Liveness, "liveness"),
            };
            return Some((why, format!("Container {name} failed {probe} probe")));
        }
        let changed = spec.image.as_deref().unwrap_or_default() != running.image;
        changed.then(|| (Why::Changed, format!("Container {name} definition changed")))
    }

    fn plan_probes(&self, spec: &Spec, container: &Container, kinds: &[Kind], plan: &mut Plan) {
        for &kind in kinds {
            if let Some(due) = container.probes.due(kind)
                && plan.reached(due, self.now)
            {
                let early = container.probes.is_early(kind, self.now);
                plan.push(Operation::Probe { container: spec.name.clone(), kind, early });
            }
        }
    }

    /// Starts what is to run: init containers one after the other, then the others.
    fn plan_starts(&self, plan: &mut Plan) {
        let initialized =
            self.spec.containers.iter().any(|spec| self.known(spec).is_some_and(|it| it.phase != Phase::New));
        for (spec, init) in specs(self.spec) {
            let Some(container) = self.known(spec) else { continue };
            if init && initialized && !is_sidecar(spec) {
                continue;
            }
            let goes_on = self.plan_start(spec, init, container, plan);
            let held = if init && !initialized { !self.init_done(spec, container) } else { !goes_on };
            if held {
                return;
            }
        }
    }

    /// The next container may be looked at.
    fn init_done(&self, spec: &Spec, container: &Container) -> bool {
        if is_sidecar(spec) {
            let up = |running: &Running| running.hook == Hook::Done && container.probes.started();
            return container.running().is_some_and(up);
        }
        container.ended().is_some_and(|ended| ended.code == 0)
    }

    /// Brings one container a step nearer to running. False while it is on its way, as others wait for it.
    fn plan_start(&self, spec: &Spec, init: bool, container: &Container, plan: &mut Plan) -> bool {
        let name = || spec.name.clone();
        match (&container.phase, container.work) {
            (_, Work::Pulling | Work::Starting) => return false,
            (_, Work::Pulled) => {
                plan.push(Operation::Start { container: name(), attempt: container.next_attempt() });
                return false;
            }
            (Phase::Running(running), Work::Idle) => {
                return !matches!(running.hook, Hook::Due | Hook::Going);
            }
            (Phase::Ended(_), Work::Idle) if !runs_again(self.spec, spec, init, container) => return true,
            (Phase::New | Phase::Ended(_), Work::Idle) => {}
        }
        if self.held_back(spec, container, plan) {
            return true;
        }
        plan.push(Operation::Pull { container: name() });
        false
    }

    /// True while a failure is waited out.
    fn held_back(&self, spec: &Spec, container: &Container, plan: &mut Plan) -> bool {
        let name = &spec.name;
        if let Some(trouble) = &container.trouble
            && let Some(retry) = trouble.retry
            && !plan.reached(retry, self.now)
        {
            // The first word must have been heard before it turns into the second.
            if trouble.reason == "ErrImagePull" && self.state.reported {
                let message =
                    format!("Back-off pulling image \"{}\"", spec.image.as_deref().unwrap_or_default());
                plan.push(Operation::AnnounceBackOff { container: name.clone(), message });
            }
            return true;
        }
        let Some(until) = crash_wait(container, self.timing) else { return false };
        if plan.reached(until, self.now) {
            return false;
        }
        if !container.announced {
            let pod = printed_pod(self.pod);
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            plan.push(Operation::AnnounceBackOff { container: name.clone(), message });
        }
        true
    }

    fn plan_end(&self, plan: &mut Plan) {
        if self.state.ending.is_none() {
            plan.push(Operation::BeginEnding);
        }
        let mut active = false;
        // Sidecars end after what they serve, the last one first.
        for (spec, init) in specs(self.spec).collect::<Vec<_>>().into_iter().rev() {
            let Some(container) = self.known(spec) else { continue };
            if matches!(container.work, Work::Pulling | Work::Pulled) {
                plan.push(Operation::CancelPull { container: spec.name.clone() });
            }
            let waits = init && is_sidecar(spec) && active;
            if let Some(running) = container.running() {
                self.plan_probes(spec, container, &[Kind::Readiness], plan);
                match &running.stopping {
                    Some(stopping) => self.plan_stop(spec, stopping, plan),
                    None if waits && !self.grace_is_over(plan) => {}
                    None => {
                        self.push_stop(spec, Why::Ending, format!("Stopping container {}", spec.name), plan)
                    }
                }
            }
            active |= container.active();
        }
        if !active {
            self.plan_release(plan);
        }
    }

    /// Gives everything back, and lets the object go once the API has heard the last of it.
    fn plan_release(&self, plan: &mut Plan) {
        let sandbox = self.removed(&self.state.sandbox, Operation::RemoveSandbox, plan);
        // The next process needs the rest, unless nobody does.
        if self.state.leaving && !self.state.gone {
            plan.finished = sandbox;
            return;
        }
        let volumes = sandbox && self.removed(&self.state.volumes, Operation::RemoveVolumes, plan);
        if !volumes {
            return;
        }
        if self.state.gone {
            plan.finished = self.removed(&self.state.directory, Operation::RemoveDirectory, plan);
        } else if self.pod.metadata.deletion_timestamp.is_some() && self.state.reported {
            self.made(&self.state.deletion, Operation::Delete, plan);
        }
    }

    fn removed<T>(&self, part: &Part<T>, remove: Operation, plan: &mut Plan) -> bool {
        match part {
            Part::Removed => return true,
            Part::Unknown | Part::Made(_) | Part::Failed { .. } => plan.push(remove),
            Part::Stuck { retry } if plan.reached(*retry, self.now) => plan.push(remove),
            Part::Stuck { .. } | Part::Making | Part::Removing => {}
        }
        false
    }

    /// Sidecars wait for the others no longer than the Pod's grace.
    fn grace_is_over(&self, plan: &mut Plan) -> bool {
        let Some(since) = self.state.ending else { return false };
        plan.reached(after(since, self.grace(None, Why::Ending)), self.now)
    }

    /// How long a container gets between the first word and the kill.
    fn grace(&self, spec: Option<&Spec>, why: Why) -> Duration {
        let own = |probe: fn(&Spec) -> Option<&k8s_openapi::api::core::v1::Probe>| {
            spec.and_then(probe).and_then(|probe| probe.termination_grace_period_seconds)
        };
        let of_probe = match why {
            Why::Liveness => own(|spec| Kind::Liveness.of(spec)),
            Why::Startup => own(|spec| Kind::Startup.of(spec)),
            _ => None,
        };
        let pod = self.spec.termination_grace_period_seconds.unwrap_or(30);
        let grace = seconds(self.pod.metadata.deletion_grace_period_seconds.or(of_probe).unwrap_or(pod));
        if self.state.leaving { grace.min(self.timing.drain) } else { grace }
    }

    fn push_stop(&self, spec: &Spec, why: Why, message: String, plan: &mut Plan) {
        let limit = self.grace(Some(spec), why);
        let has_hook = spec.lifecycle.as_ref().is_some_and(|it| it.pre_stop.is_some());
        let hook = has_hook && !limit.is_zero();
        plan.push(Operation::Stop { container: spec.name.clone(), why, message, hook, limit });
    }

    /// Hook, then the signal, then the kill: each at its time. A grace that was shortened meanwhile counts.
    fn plan_stop(&self, spec: &Spec, stopping: &Stopping, plan: &mut Plan) {
        let why = if self.ends() { Why::Ending } else { stopping.why };
        let end = after(stopping.since, self.grace(Some(spec), why));
        let container = spec.name.clone();
        match stopping.stage {
            Stage::Hook if !plan.reached(end, self.now) => {}
            Stage::Hook | Stage::HookDone => plan.push(Operation::Signal { container }),
            Stage::Asked(at) => {
                if plan.reached(end.max(after(at, self.timing.least_grace)), self.now) {
                    plan.push(Operation::Kill { container });
                }
            }
            Stage::Killed => {}
        }
    }
}

/// Until when a container that ended is held back.
pub(crate) fn crash_wait(container: &Container, timing: &Timing) -> Option<Timestamp> {
    let ended = container.ended()?;
    container.crashes.until(ended.at?, timing)
}

/// The message of `CrashLoopBackOff`.
pub(crate) fn crash_message(pod: &Pod, name: &str, container: &Container, timing: &Timing) -> Option<String> {
    let wait = container.crashes.wait(container.ended()?.at?, timing)?;
    let pod = printed_pod(pod);
    Some(format!("back-off {} restarting failed container={name} pod={pod}", printed(wait)))
}

/// `name_namespace(uid)`, as messages name a Pod.
pub(crate) fn printed_pod(pod: &Pod) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", part(&meta.name), part(&meta.namespace), part(&meta.uid))
}
