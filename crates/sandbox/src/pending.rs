//! Creates that have no object yet, and runs that are to be stopped because nobody was told of them. While a name is in
//! here its run is neither adopted nor started again.
//!
//! Objects are made with unlimited patience as long as nobody answers, and with a bounded one against answers that refuse.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::sandbox::SandboxPhase;
use agentcube_api::{Sandbox, labels};
use agentcube_protos::agent::{Claim, Why};
use kube::ResourceExt;
use kube::api::PostParams;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::agents::Agent;
use crate::core::{ApiError, Core};
use crate::names::{Name, RunId};
use crate::object;

const FIRST_RETRY: Duration = Duration::from_millis(50);
/// So long the objects of answered creates wait while others are not answered yet.
const LET_OTHERS_GO: Duration = Duration::from_millis(100);

/// A run without an object.
#[derive(Clone, Debug)]
pub(crate) struct Create {
    pub(crate) run: RunId,
    pub(crate) agent: Arc<Agent>,
    /// With its allocation.
    pub(crate) object: Arc<Sandbox>,
    pub(crate) endpoints: Vec<String>,
    /// A request to make the object was sent, and nobody knows whether it was carried out.
    pub(crate) doubt: bool,
    pub(crate) fate: Fate,
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its object is to be made.
    Kept,
    /// It is to be stopped.
    Stopped(Why),
}

#[derive(Debug, Default)]
pub(crate) struct Pending {
    all: Mutex<HashMap<Name, Create>>,
    /// Names that a late request of ours may still make an object for.
    late: Mutex<HashMap<Name, Instant>>,
    /// Runs whose object was made by this controller, of whose creates none is under way any more.
    born: Mutex<HashSet<RunId>>,
}

impl Pending {
    pub(crate) fn get(&self, name: &Name) -> Option<Create> {
        self.all.lock().get(name).cloned()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    pub(crate) fn of(&self, namespace: &str) -> Vec<Create> {
        let all = self.all.lock();
        all.iter().filter(|(name, _)| name.namespace == namespace).map(|(_, create)| create.clone()).collect()
    }

    pub(crate) fn insert(&self, name: &Name, create: Create) {
        self.all.lock().insert(name.clone(), create);
    }

    pub(crate) fn remove(&self, name: &Name, run: &RunId) {
        let mut all = self.all.lock();
        if all.get(name).is_some_and(|create| create.run == *run) {
            all.remove(name);
        }
    }

    fn doubt(&self, name: &Name) {
        if let Some(create) = self.all.lock().get_mut(name) {
            create.doubt = true;
        }
    }

    pub(crate) fn fate(&self, name: &Name, fate: Fate) {
        if let Some(create) = self.all.lock().get_mut(name) {
            create.fate = fate;
        }
    }

    /// Of this run no create is under way any more.
    pub(crate) fn born(&self, run: &RunId) {
        self.born.lock().insert(run.clone());
    }

    pub(crate) fn is_born(&self, run: &RunId) -> bool {
        self.born.lock().contains(run)
    }

    /// Its annotation is gone, which says the same for ever.
    pub(crate) fn grown(&self, run: &RunId) {
        self.born.lock().remove(run);
    }

    /// An object of this name may still come from a request that was sent; its finalizer stays for so long.
    pub(crate) fn keep_name(&self, name: &Name, until: Instant) {
        let mut late = self.late.lock();
        late.retain(|_, until| *until > Instant::now());
        late.insert(name.clone(), until);
    }

    /// How long the name has to be kept.
    pub(crate) fn kept_for(&self, name: &Name) -> Option<Duration> {
        let until = *self.late.lock().get(name)?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// How a try to make an object went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It is there, or somebody else's is and the run was stopped.
    Over,
    /// Nobody answered.
    Silence,
    /// It was refused, and may not be next time.
    Refused,
}

impl Core {
    /// Makes the object of a pending create, in a task of its own.
    pub(crate) fn make_later(self: &Arc<Self>, name: Name) {
        let core = self.clone();
        self.spawn(async move { core.make(name).await });
    }

    async fn make(self: Arc<Self>, name: Name) {
        self.rush.over(LET_OTHERS_GO).await;
        let (mut retry, mut refused_since) = (FIRST_RETRY, None);
        loop {
            {
                let _one = self.locks.lock(&name).await;
                let Some(create) = self.pending.get(&name) else { return };
                if create.fate != Fate::Kept {
                    return;
                }
                match self.make_once(&name, &create).await {
                    Made::Over => return,
                    Made::Silence => refused_since = None,
                    Made::Refused => {
                        let since = *refused_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.options.timing.object_budget {
                            tracing::warn!(sandbox = %name, "its object cannot be made: it is stopped");
                            return self.abandon(name, &create, Why::Abandoned);
                        }
                    }
                }
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(self.options.timing.object_retry);
        }
    }

    /// Tries once. Needs the lock of the name.
    pub(crate) async fn make_once(self: &Arc<Self>, name: &Name, create: &Create) -> Made {
        let api = self.api(&name.namespace);
        match self.answered(api.create(&PostParams::default(), &create.object)).await {
            Ok(object) => self.made(name, create, object),
            Err(ApiError::Answered(status)) if status.code == 409 => {
                match self.answered(api.get_opt(&name.name)).await {
                    Ok(Some(object)) if allocated_run(&object).as_ref() == Some(&create.run) => {
                        self.made(name, create, object)
                    }
                    Ok(Some(object)) => {
                        let message = format!("run {} was stopped: another sandbox has its name", create.run);
                        self.warn(&object, "NameTaken", message);
                        self.sandboxes.put(object);
                        self.abandon(name.clone(), create, Why::Abandoned);
                        Made::Over
                    }
                    Ok(None) | Err(_) => Made::Silence,
                }
            }
            Err(ApiError::Answered(status)) if matches!(status.code, 400 | 413 | 415 | 422) => {
                tracing::warn!(sandbox = %name, "the API server does not take its object: {}", status.message);
                self.abandon(name.clone(), create, Why::Abandoned);
                Made::Over
            }
            Err(ApiError::Answered(status)) => {
                if status.code >= 500 {
                    self.pending.doubt(name);
                }
                tracing::debug!(sandbox = %name, "its object was not made: {}", status.message);
                Made::Refused
            }
            Err(ApiError::Unreachable(error)) => {
                self.pending.doubt(name);
                tracing::debug!(sandbox = %name, "its object was not made: {error}");
                Made::Silence
            }
        }
    }

    fn made(&self, name: &Name, create: &Create, object: Sandbox) -> Made {
        create.agent.confirm(&create.run, &object.uid().unwrap_or_default());
        self.sandboxes.put(object);
        // What was in doubt may land again when this object is gone.
        if self.pending.get(name).is_some_and(|create| create.doubt) {
            self.pending.keep_name(name, Instant::now() + self.options.timing.late);
        } else {
            self.pending.born(&create.run);
        }
        self.settle_log(&create.run);
        self.pending.remove(name, &create.run);
        self.queue.add(name.clone());
        Made::Over
    }

    /// Stops a run that nobody has, until its agent says so or is dead. Its name stays taken for so long: what may run
    /// must not be started again.
    pub(crate) fn abandon(self: &Arc<Self>, name: Name, create: &Create, why: Why) {
        self.pending.fate(&name, Fate::Stopped(why));
        let (core, create) = (self.clone(), create.clone());
        self.spawn(async move {
            let claim = object::claim(&create.object);
            core.stop_patiently(&create.agent, &create.run, claim, why).await;
            core.release(&create.agent.pool, &create.run);
            core.settle_log(&create.run);
            core.pending.remove(&name, &create.run);
            core.queue.add(name);
        });
    }

    /// The log need not make the object of a run any more. If it is to keep it deleted, it goes on to.
    pub(crate) fn settle_log(&self, run: &RunId) {
        if let Some(log) = &self.options.log {
            log.settle(run);
        }
    }

    /// Stops a run that was given up, in a task of its own; unless the write that gave it up failed, and it is still
    /// the right one.
    pub(crate) fn stop_given_up(self: &Arc<Self>, name: Name, agent: Arc<Agent>, run: RunId, claim: Claim) {
        let core = self.clone();
        self.spawn(async move {
            let mut retry = FIRST_RETRY;
            while !core.fleet.is_dead(agent.id()) {
                let one = core.locks.lock(&name).await;
                match core.refresh(&name).await {
                    Ok(Some(object)) if status_run(&object).as_ref() == Some(&run) => {
                        // That it runs is written first: then no write that gives it up can land any more.
                        if object.status.as_ref().and_then(|status| status.phase)
                            == Some(SandboxPhase::Running)
                        {
                            return agent.take_back(&run);
                        }
                        core.queue.add(name.clone());
                    }
                    Ok(_) => {
                        if core.stop(&agent, &run, Some(claim.clone()), Why::Replaced).await.is_ok() {
                            return;
                        }
                    }
                    Err(error) => tracing::debug!(sandbox = %name, "not stopped yet: {error}"),
                }
                drop(one);
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(core.options.timing.object_retry);
            }
        });
    }

    /// Until the agent says that it is over, or is dead.
    async fn stop_patiently(&self, agent: &Arc<Agent>, run: &RunId, claim: Claim, why: Why) {
        let mut retry = FIRST_RETRY;
        while !self.fleet.is_dead(agent.id()) {
            match self.stop(agent, run, Some(claim.clone()), why).await {
                Ok(()) => return,
                Err(status) => tracing::debug!(%run, "not stopped yet: {status}"),
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(self.options.timing.object_retry);
        }
    }
}

/// The run of an object: by its status, before that by its annotation.
pub(crate) fn allocated_run(object: &Sandbox) -> Option<RunId> {
    status_run(object).or_else(|| annotated_run(object))
}

/// The run that status names.
fn status_run(object: &Sandbox) -> Option<RunId> {
    object.status.as_ref()?.sandbox_id.as_deref().map(RunId::from)
}

/// The run that the annotation names.
pub(crate) fn annotated_run(object: &Sandbox) -> Option<RunId> {
    let text = object.annotations().get(labels::SANDBOX_ALLOCATION)?;
    let info: agentcube_api::sandbox::AllocationInfo = serde_json::from_str(text).ok()?;
    (!info.sandbox_id.is_empty()).then(|| info.sandbox_id.as_str().into())
}
