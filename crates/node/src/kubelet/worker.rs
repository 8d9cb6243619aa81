//! One Pod: asks its machine for a plan, performs it, takes in what came of it, and keeps the API informed. Statuses
//! are written one at a time and in order; of those that pile up meanwhile only the latest is.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use agentcube_runtime::Runtime;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, PodStatus};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::container::{Names, refusal};
use super::machine::{Operation, Report, State, plan, specs};
use super::perform::{self, Loaded, Outcome};
use super::status::{Surroundings, status};
use super::volumes::Prepared;
use super::{Parts, machine};
use agentcube_operator::events::{Severity, reference};

/// Clocks are set and machines sleep: no wait is longer than this before the time is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What the kubelet tells a worker. The latest word counts.
#[derive(Clone)]
pub(super) struct Orders {
    pub(super) pod: Arc<Pod>,
    pub(super) gone: bool,
    pub(super) leave: bool,
}

/// What a sandbox came with.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) address: Ipv4Addr,
    pub(super) names: Arc<Names>,
    pub(super) runtime: Arc<dyn Runtime>,
}

pub(super) struct Worker {
    parts: Arc<Parts>,
    orders: watch::Receiver<Orders>,
    pod: Arc<Pod>,
    uid: String,
    state: State,
    prepared: Arc<Prepared>,
    ground: Option<Ground>,
    images: HashMap<String, Arc<Loaded>>,
    pulls: HashMap<String, AbortHandle>,
    tasks: JoinSet<Outcome>,
    /// The status that the API took last.
    sent: Option<PodStatus>,
    writing: bool,
}

impl Worker {
    pub(super) fn new(parts: Arc<Parts>, mut orders: watch::Receiver<Orders>) -> Self {
        let pod = orders.borrow_and_update().pod.clone();
        let now = Timestamp::now();
        let mut state = State::adopt(&pod, now);
        state.started.get_or_insert(now);
        state.refused = pod.spec.as_ref().and_then(refusal);
        let worker = Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            parts,
            orders,
            pod,
            state,
            prepared: Arc::default(),
            ground: None,
            images: HashMap::new(),
            pulls: HashMap::new(),
            tasks: JoinSet::new(),
            sent: None,
            writing: false,
        };
        if let Some(why) = &worker.state.refused {
            worker.parts.recorder.warning(worker.pod.as_ref(), "Failed", format!("Error: {why}"));
        }
        worker
    }

    pub(super) async fn run(mut self) {
        loop {
            let now = Timestamp::now();
            let plan = plan(&self.pod, &self.state, now, &self.parts.options.timing);
            if plan.finished {
                break;
            }
            let idle = plan.operations.is_empty();
            for operation in plan.operations {
                self.state.reported = false;
                self.state.begin(&self.pod, &operation, now, &self.parts.options.timing);
                self.perform(operation);
            }
            if !idle || self.report(now) {
                continue;
            }
            self.wait(plan.wake, now).await;
        }
        // What still runs belongs to nobody: probes, and a write that came too late.
        self.tasks.shutdown().await;
    }

    async fn wait(&mut self, wake: Option<Timestamp>, now: Timestamp) {
        let wait = wake.map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or_default());
        let wait = wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        tokio::select! {
            changed = self.orders.changed() => {
                let orders = self.orders.borrow_and_update().clone();
                self.obey(orders, changed.is_err());
            }
            Some(outcome) = self.tasks.join_next(), if !self.tasks.is_empty() => match outcome {
                Ok(outcome) => self.absorb(outcome),
                Err(error) if error.is_cancelled() => {}
                Err(error) => tracing::error!(pod = %machine::printed_pod(&self.pod), "a step ended badly: {error}"),
            },
            () = tokio::time::sleep(wait) => {}
        }
    }

    fn obey(&mut self, orders: Orders, alone: bool) {
        self.state.leaving |= orders.leave || alone;
        self.state.gone |= orders.gone;
        self.see(orders.pod);
    }

    /// A version of the Pod arrived, perhaps one that is older than what a write brought back.
    fn see(&mut self, pod: Arc<Pod>) {
        if version(&pod) <= version(&self.pod) {
            return;
        }
        let (old, new) = (&self.pod.metadata, &pod.metadata);
        if old.labels != new.labels || old.annotations != new.annotations {
            let (parts, pod) = (self.parts.clone(), pod.clone());
            self.tasks.spawn_blocking(move || {
                if let Err(error) = parts.volumes.refresh(&pod) {
                    tracing::warn!(pod = %machine::printed_pod(&pod), "a volume keeps its old content: {error}");
                }
                Outcome::Nothing
            });
        }
        self.pod = pod;
        self.state.reported = false;
    }

    fn absorb(&mut self, outcome: Outcome) {
        let report = match outcome {
            Outcome::Nothing => return,
            Outcome::Report(report) => report,
            Outcome::Volumes(prepared) => {
                self.prepared = Arc::new(prepared);
                Report::VolumesReady
            }
            Outcome::Sandbox(ground) => {
                let address = ground.address;
                self.ground = Some(ground);
                Report::SandboxReady(address)
            }
            Outcome::Image { container, loaded } => {
                self.pulls.remove(&container);
                let image_id = loaded.id();
                self.images.insert(container.clone(), Arc::new(loaded));
                Report::Pulled { container, image_id }
            }
            Outcome::Started(started) => {
                let perform::Started { container, attempt, run, exit } = *started;
                let id = run.id.as_str().to_owned();
                self.parts.living.begin(&self.uid, &container, run);
                let (parts, pod, id_of_run) = (self.parts.clone(), self.pod.clone(), id.clone());
                if let Some(spec) = self.spec(&container).cloned() {
                    self.tasks.spawn(perform::exit(parts, pod, spec, attempt, id_of_run, exit));
                }
                Report::Started { container, id }
            }
            Outcome::Written(written) => return self.written(written),
        };
        if let Report::Exited { container, .. } = &report {
            self.parts.living.end(&self.uid, container);
        }
        self.state.reported = false;
        self.state.absorb(&self.pod, report, Timestamp::now(), &self.parts.options.timing);
    }

    /// Starts a write if the API does not know the present status. True if that it does is news.
    fn report(&mut self, now: Timestamp) -> bool {
        if self.state.gone || self.state.leaving || self.writing {
            return false;
        }
        let Parts { options, .. } = self.parts.as_ref();
        let around = Surroundings { host: options.address, now, timing: &options.timing };
        let status = status(&self.pod, &self.state, around);
        if self.sent.as_ref() == Some(&status) || self.pod.status.as_ref() == Some(&status) {
            return !std::mem::replace(&mut self.state.reported, true);
        }
        self.writing = true;
        self.tasks.spawn(perform::write(self.parts.clone(), self.pod.clone(), status));
        false
    }

    fn written(&mut self, written: perform::Written) {
        self.writing = false;
        match written {
            perform::Written::Accepted { pod, status } => {
                self.sent = Some(*status);
                self.parts.caches.pods.put(pod.as_ref().clone());
                self.see(pod);
            }
            perform::Written::Outdated(pod) => self.see(pod),
            perform::Written::Failed => {}
        }
    }

    fn spec(&self, name: &str) -> Option<&Container> {
        specs(self.pod.spec.as_ref()?).map(|(spec, _)| spec).find(|spec| spec.name == name)
    }

    fn perform(&mut self, operation: Operation) {
        let (parts, pod) = (self.parts.clone(), self.pod.clone());
        let spec = operation.container().and_then(|name| self.spec(name)).cloned();
        match (operation, spec) {
            (Operation::PrepareVolumes, _) => drop(self.tasks.spawn(perform::volumes(parts, pod))),
            (Operation::CreateSandbox, _) => drop(self.tasks.spawn(perform::sandbox(parts, pod))),
            (Operation::RemoveSandbox, _) => drop(self.tasks.spawn(perform::remove_sandbox(parts, pod))),
            (Operation::RemoveVolumes, _) => drop(self.tasks.spawn(perform::remove_volumes(parts, pod))),
            (Operation::RemoveDirectory, _) => drop(self.tasks.spawn(perform::remove_directory(parts, pod))),
            (Operation::Delete, _) => drop(self.tasks.spawn(perform::delete(parts, pod))),
            (Operation::End(end), _) => parts.recorder.normal(pod.as_ref(), end.reason, end.message),
            (Operation::BeginEnding, _) => {}
            (Operation::CancelPull { container }, _) => {
                if let Some(pull) = self.pulls.remove(&container) {
                    pull.abort();
                }
            }
            (operation, Some(spec)) => self.perform_on(operation, spec, parts, pod),
            (operation, None) => tracing::error!(?operation, "the Pod has no such container"),
        }
    }

    fn perform_on(&mut self, operation: Operation, spec: Container, parts: Arc<Parts>, pod: Arc<Pod>) {
        match operation {
            Operation::Pull { container } => {
                let pull = self.tasks.spawn(perform::pull(parts, pod, spec));
                self.pulls.insert(container, pull);
            }
            Operation::Start { attempt, container } => {
                let (Some(ground), Some(image)) = (self.ground.clone(), self.images.get(&container).cloned())
                else {
                    return;
                };
                let run = perform::Start {
                    parts,
                    pod,
                    spec,
                    attempt,
                    ground,
                    image,
                    prepared: self.prepared.clone(),
                };
                self.tasks.spawn(run.perform());
            }
            Operation::AnnounceBackOff { message, .. } => self.announce(&spec, message),
            Operation::Stop { message, hook, limit, .. } => {
                if !self.state.leaving {
                    parts.recorder.record(self.about(&spec), Severity::Normal, "Killing", message);
                }
                if hook && let Some(target) = self.target(&spec) {
                    self.tasks.spawn(perform::pre_stop(parts, self.about(&spec), pod, spec, target, limit));
                }
            }
            Operation::Signal { container } => self.signal(&container, None),
            Operation::Kill { container } => self.signal(&container, Some(agentcube_runtime::signals::KILL)),
            Operation::Clean { id, container } => {
                let runtime = self.ground.as_ref().map(|ground| ground.runtime.clone());
                self.images.remove(&container);
                self.tasks.spawn(perform::clean(parts, pod, runtime, id));
            }
            Operation::PostStart { .. } => {
                if let Some(target) = self.target(&spec) {
                    self.tasks.spawn(perform::post_start(parts, self.about(&spec), pod, spec, target));
                }
            }
            Operation::Probe { kind, early, .. } => {
                if let Some(target) = self.target(&spec) {
                    self.tasks.spawn(perform::probe(parts, self.about(&spec), spec, (kind, early), target));
                }
            }
            _ => {}
        }
    }

    fn announce(&self, spec: &Container, message: String) {
        let recorder = &self.parts.recorder;
        let pulling = message.starts_with("Back-off pulling");
        let severity = if pulling { Severity::Normal } else { Severity::Warning };
        recorder.record(self.about(spec), severity, "BackOff", message);
        if pulling {
            recorder.record(self.about(spec), Severity::Warning, "Failed", "Error: ImagePullBackOff");
        }
    }

    fn signal(&mut self, container: &str, signal: Option<i32>) {
        let Some(run) = self.parts.living.get(&self.uid, container) else { return };
        self.tasks.spawn(async move {
            if let Err(error) = run.runtime.signal(&run.id, signal.unwrap_or(run.stop_signal)).await {
                tracing::warn!(container = %run.id, "a signal was not delivered: {error}");
            }
            Outcome::Nothing
        });
    }

    fn target(&self, spec: &Container) -> Option<super::probe::Target> {
        let run = self.parts.living.get(&self.uid, &spec.name)?;
        let address = self.ground.as_ref()?.address;
        let dial = Arc::new(self.parts.network.clone());
        Some(super::probe::Target { address, id: run.id, runtime: run.runtime, env: run.env, dial })
    }

    fn about(&self, spec: &Container) -> ObjectReference {
        about(&self.pod, spec)
    }
}

/// A container, as Events name it.
pub(super) fn about(pod: &Pod, spec: &Container) -> ObjectReference {
    let init = pod.spec.iter().flat_map(|it| it.init_containers.iter().flatten());
    let list = if init.into_iter().any(|it| it.name == spec.name) { "initContainers" } else { "containers" };
    ObjectReference { field_path: Some(format!("spec.{list}{{{}}}", spec.name)), ..reference(pod) }
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
