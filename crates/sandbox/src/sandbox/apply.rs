//! Carries out one step. Every write is conditional on the version that was planned for; what an agent answers is data.

mod recover;

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::conditions::sandbox as reasons;
use agentcube_api::sandbox::{SandboxPhase, SandboxStatus};
use agentcube_api::{Sandbox, SandboxPool, labels};
use agentcube_protos::agent::{PauseRequest, Reason, Refusal, Why};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::observe::{Allocated, Claimed, Observed};
use super::plan::Step;
use super::{Done, Error, status};
use crate::agents::{Agent, Contact, Seen};
use crate::core::{Core, pool_of};
use crate::names::{AgentId, Name, RunId};
use crate::object;
use crate::pending::{allocated_run, annotated_run};
use crate::start::Outcome;

/// How long the start of a run waits for its ports, so that one write says that it is ready.
const READY_WITHIN_MS: u32 = 200;
/// How soon one that waits for room looks by itself.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);

pub(super) async fn apply(core: &Arc<Core>, name: &Name, seen: &Observed, step: Step) -> Result<Done, Error> {
    let hands = Hands { core, name };
    let object = seen.object.as_ref();
    match (step, object) {
        (Step::Rest(after), _) => Ok(Done::Rest(after)),
        (Step::Adopt(claimed), _) => hands.adopt(&claimed).await,
        (Step::StopOrphan { agent, run }, _) => hands.stop_orphan(&agent, &run).await,
        (Step::Recover, _) => hands.recover().await,
        (Step::Forget { run, proved }, _) => hands.forget(&run, proved).await,
        (Step::Stop { agent, run, why }, _) => {
            let claim = object.map(|object| object::claim(object));
            hands.core.stop(&*hands.agent(&agent)?, &run, claim, why).await?;
            Ok(Done::Step)
        }
        (step, Some(object)) => hands.with_object(object, step).await,
        // Steps on an object are planned only where there is one.
        (_, None) => Ok(Done::Rest(None)),
    }
}

struct Hands<'a> {
    core: &'a Arc<Core>,
    name: &'a Name,
}

impl Hands<'_> {
    async fn with_object(&self, object: &Arc<Sandbox>, step: Step) -> Result<Done, Error> {
        match step {
            Step::Hold => {
                let mut finalizers = object.finalizers().to_vec();
                finalizers.push(labels::SANDBOX_FINALIZER.into());
                self.patch(object, json!({ "finalizers": finalizers })).await
            }
            Step::Release => self.release(object).await,
            Step::Unannotate => {
                let done = self
                    .patch(object, json!({ "annotations": { labels::SANDBOX_ALLOCATION: null } }))
                    .await?;
                if let Some(run) = annotated_run(object) {
                    self.core.pending.grown(&run);
                }
                Ok(done)
            }
            Step::Write { status, tell } => {
                if let Some(at) = tell {
                    self.tell(object, &at).await?;
                }
                self.write(object, *status).await
            }
            Step::Assign => self.assign(object, &[]).await,
            Step::Start(at) => self.start(object, &at).await,
            Step::Pause { agent, run, paused } => {
                let request =
                    PauseRequest { run_id: run.to_string(), paused: Some(paused), ..PauseRequest::default() };
                self.core.pause(&*self.agent(&agent)?, request).await?;
                Ok(Done::Step)
            }
            Step::Unfence { agent, run } => self.unfence(&agent, &run).await,
            Step::Delete => self.delete(object).await,
            Step::Rest(_)
            | Step::Stop { .. }
            | Step::Adopt(_)
            | Step::StopOrphan { .. }
            | Step::Recover
            | Step::Forget { .. } => Ok(Done::Step),
        }
    }

    fn agent(&self, id: &AgentId) -> Result<Arc<Agent>, Error> {
        let known = self.core.agents.get(&id.uid);
        known.ok_or_else(|| tonic::Status::unavailable(format!("agent {} is gone", id.name)).into())
    }

    fn pool(&self, object: &Sandbox) -> Option<Arc<SandboxPool>> {
        let key = pool_of(object);
        self.core.pools.get(&key.namespace, &key.name)
    }

    /// Takes in the answer to a conditional write: the object as it is now, or as it is instead.
    async fn settle(&self, answer: Result<Sandbox, crate::core::ApiError>) -> Result<Done, Error> {
        match answer {
            Ok(object) => self.core.sandboxes.put(object),
            Err(error) if error.is_stale() => drop(self.core.refresh(self.name).await?),
            Err(error) => return Err(error.into()),
        }
        Ok(Done::Step)
    }

    /// Changes metadata, if the object has not changed. Merged, so that what others wrote stays.
    async fn patch(&self, object: &Sandbox, metadata: serde_json::Value) -> Result<Done, Error> {
        let mut change = json!({ "metadata": metadata });
        change["metadata"]["uid"] = json!(object.metadata.uid);
        change["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
        let api = self.core.api(&self.name.namespace);
        let patch = Patch::Merge(change);
        let parameters = PatchParams::default();
        let request = api.patch(&self.name.name, &parameters, &patch);
        self.settle(self.core.answered(request).await).await
    }

    async fn write(&self, object: &Sandbox, status: SandboxStatus) -> Result<Done, Error> {
        let lost = status.phase == Some(SandboxPhase::Lost)
            && object.status.as_ref().and_then(|status| status.phase) != Some(SandboxPhase::Lost);
        self.tell_of(object, &status);
        let new = Sandbox { status: Some(status), ..object.clone() };
        let api = self.core.api(&self.name.namespace);
        let parameters = PostParams::default();
        let request = api.replace_status(&self.name.name, &parameters, &new);
        let done = self.settle(self.core.answered(request).await).await?;
        if lost {
            self.core.counts.lost.with(&[]).inc();
        }
        Ok(done)
    }

    /// Events for what a user may want to know of.
    fn tell_of(&self, object: &Sandbox, status: &SandboxStatus) {
        let before = object.status.as_ref().and_then(|status| status.phase);
        let conditions = &status.conditions;
        let said = |type_: &str| agentcube_api::conditions::find(conditions, type_);
        if let Some(invalid) = said(reasons::ALLOCATION_VALID)
            && object.status.as_ref().is_none_or(|status| !status.conditions.contains(invalid))
        {
            self.core.warn(object, &invalid.reason, &invalid.message);
        }
        if let Some(phase @ (SandboxPhase::Lost | SandboxPhase::Failed)) = status.phase
            && before != Some(phase)
            && let Some(ready) = said(agentcube_api::conditions::READY)
        {
            self.core.warn(object, &ready.reason, &ready.message);
        }
    }

    /// What may change in the life of a run goes to its agent.
    async fn tell(&self, object: &Sandbox, at: &Allocated) -> Result<(), Error> {
        let expire = object.spec.expire_time.as_ref().map_or(0, |at| at.0.as_millisecond());
        let request = PauseRequest {
            run_id: at.run.to_string(),
            expire_unix_ms: Some(expire),
            recovery_timeout_seconds: Some(object.spec.recovery_timeout_seconds.max(0).unsigned_abs()),
            ..PauseRequest::default()
        };
        self.core.pause(&*self.agent(&at.agent)?, request).await?;
        Ok(())
    }

    /// Chooses an agent, and writes down which before anything is started there.
    async fn assign(&self, object: &Arc<Sandbox>, without: &[AgentId]) -> Result<Done, Error> {
        let Some(pool) = self.pool(object) else { return Ok(Done::Step) };
        let key = Name::of(&*pool);
        let slot = match self.core.reserve(&pool, &object.spec.image, without).await {
            Ok(slot) => slot,
            Err(_) => return self.no_room(object, &key).await,
        };
        let Some(agent) = self.core.agents.get(&slot.agent().uid) else { return Ok(Done::Step) };
        self.core.waiting.remove(&key, self.name);
        let at = Allocated {
            agent: slot.agent().clone(),
            node: agent.node(),
            run: slot.run().clone(),
            contact: Contact::Heard(Seen::Absent),
            started: false,
        };
        let status = status::bound(object, &at, Timestamp::now());
        // What is left behind without a word of its agent is stopped as soon as that is heard of.
        self.give_up(object);
        let done = self.write(object, *status).await?;
        let written = self.core.sandboxes.get(&self.name.namespace, &self.name.name);
        if written.and_then(|object| allocated_run(&object)).as_ref() == Some(slot.run()) {
            slot.keep(agent.asked());
        }
        Ok(done)
    }

    /// The run that status names is about to be replaced.
    fn give_up(&self, object: &Arc<Sandbox>) {
        let Some(status) = object.status.as_ref() else { return };
        let (Some(run), Some(uid)) = (status.sandbox_id.as_deref(), status.assigned_pod_uid.as_deref())
        else {
            return;
        };
        let (run, Some(agent)) = (RunId::from(run), self.core.agents.get(uid)) else { return };
        if matches!(self.core.contact(agent.id(), &run), Contact::Silent { .. }) {
            agent.give_up(&run);
            self.core.stop_given_up(self.name.clone(), agent, run, object::claim(object));
        }
    }

    async fn no_room(&self, object: &Arc<Sandbox>, pool: &Name) -> Result<Done, Error> {
        self.core.waiting.add(pool, self.name);
        self.core.pool_queue.add(pool.clone());
        let message = "no agent of its pool has a free slot";
        let status = status::pending(object, reasons::REASON_NO_CAPACITY, message, Timestamp::now());
        if object.status.as_ref() != Some(&*status) {
            self.write(object, *status).await?;
        }
        // There may have come to be room before it was known that this one waits.
        if self.core.registry.free(pool) > 0 {
            return Ok(Done::Rest(Some(Duration::from_millis(50))));
        }
        Ok(Done::Rest(Some(LOOK_FOR_ROOM)))
    }

    async fn start(&self, object: &Arc<Sandbox>, at: &Allocated) -> Result<Done, Error> {
        let Some(pool) = self.pool(object) else { return Ok(Done::Step) };
        let agent = self.agent(&at.agent)?;
        let mut request = self.core.start_request(object, &pool, &at.run).await?;
        request.wait_ready_ms = READY_WITHIN_MS;
        self.core.registry.hold(&agent.pool, agent.id(), &at.run, agent.asked());
        match self.core.start(&agent, request).await {
            Outcome::Started(_) => Ok(Done::Step),
            Outcome::Doubt(status) => Err(status.into()),
            Outcome::Refused(refusal) => self.refused(object, &agent, at, &refusal).await,
        }
    }

    /// The agent did not start it, for certain.
    async fn refused(
        &self,
        object: &Arc<Sandbox>,
        agent: &Arc<Agent>,
        at: &Allocated,
        refusal: &Refusal,
    ) -> Result<Done, Error> {
        let now = Timestamp::now();
        let words = || format!("{}: {}", refusal.reason().as_str_name(), refusal.message);
        match refusal.reason() {
            Reason::StaleTerm | Reason::OtherIncarnation => return Err(Error::Refused(words())),
            Reason::OtherRun => {
                let other = RunId::from(refusal.run_id.as_str());
                self.core.stop(agent, &other, Some(object::claim(object)), Why::Replaced).await?;
                return Ok(Done::Step);
            }
            // An agent that is out of contact: it is asked again.
            Reason::Unknown => return Err(Error::Refused(words())),
            // An earlier try of the same start may still be on its way: it is left only with a tombstone.
            _ => self.core.stop(agent, &at.run, Some(object::claim(object)), Why::Abandoned).await?,
        }
        match refusal.reason() {
            Reason::Full | Reason::NoPort | Reason::Draining => {
                self.assign(object, std::slice::from_ref(agent.id())).await
            }
            Reason::Tombstoned | Reason::Taken => self.assign(object, &[]).await,
            Reason::Expired => {
                let (phase, reason) = (SandboxPhase::Expired, reasons::REASON_EXPIRED);
                self.write(object, *status::ended(object, phase, reason, &refusal.message, None, now)).await
            }
            _ => {
                let (phase, reason) = (SandboxPhase::Failed, reasons::REASON_START_FAILED);
                self.write(object, *status::ended(object, phase, reason, &words(), None, now)).await
            }
        }
    }

    /// Contact alone thaws nothing: whether this is still the right run is read anew.
    async fn unfence(&self, agent: &AgentId, run: &RunId) -> Result<Done, Error> {
        let fresh = self.core.refresh(self.name).await?;
        let right = fresh.is_some_and(|object| {
            let status = object.status.clone().unwrap_or_default();
            status.sandbox_id.as_deref() == Some(run.as_str()) && status.phase == Some(SandboxPhase::Running)
        });
        if right {
            let request =
                PauseRequest { run_id: run.to_string(), fenced: Some(false), ..PauseRequest::default() };
            self.core.pause(&*self.agent(agent)?, request).await?;
            self.core.counts.fenced.with(&[]).inc();
        }
        Ok(Done::Step)
    }

    /// Makes the object that an agent's record has, because whoever started the run did not get to.
    async fn adopt(&self, claimed: &Claimed) -> Result<Done, Error> {
        let agent = self.agent(&claimed.agent)?;
        let run = claimed.run();
        let record: Option<Sandbox> = serde_json::from_slice(&claimed.entry.object).ok();
        let fits = |object: &Sandbox| Name::of(object) == *self.name && pool_of(object) == agent.pool;
        let Some(mut object) = record.filter(fits) else {
            tracing::warn!(sandbox = %self.name, "an agent's record cannot be used: its run is stopped");
            self.core.stop(&agent, &run, claimed.entry.claim.clone(), Why::Abandoned).await?;
            return Ok(Done::Step);
        };
        object::allocate(&mut object, &agent.pool, agent.id(), &claimed.node, &run, true);
        if let Some(object) = self.make(object, "made from its agent's record after a restart").await? {
            agent.confirm(&run, &object.uid().unwrap_or_default());
        }
        Ok(Done::Step)
    }

    /// A run without an object, whose object was there once: it is stopped if the server says that it is gone.
    async fn stop_orphan(&self, agent: &AgentId, run: &RunId) -> Result<Done, Error> {
        if self.core.refresh(self.name).await?.is_none() {
            self.core.stop(&*self.agent(agent)?, run, None, Why::Deleted).await?;
        }
        Ok(Done::Step)
    }

    async fn delete(&self, object: &Sandbox) -> Result<Done, Error> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = self.core.api(&self.name.namespace);
        match self.core.answered(api.delete(&self.name.name, &parameters)).await {
            Ok(answer) => self.core.sandboxes.deleted(object, answer.left()),
            Err(error) if error.is_stale() => drop(self.core.refresh(self.name).await?),
            Err(error) => return Err(error.into()),
        }
        Ok(Done::Step)
    }

    async fn release(&self, object: &Arc<Sandbox>) -> Result<Done, Error> {
        self.forgotten().await?;
        let pool = pool_of(object);
        for run in allocated_run(object).into_iter().chain(annotated_run(object)) {
            self.core.release(&pool, &run);
            self.core.pending.grown(&run);
        }
        self.core.waiting.remove(&pool, self.name);
        let mut change = json!({ "metadata": { "finalizers": object.finalizers().iter()
            .filter(|name| *name != labels::SANDBOX_FINALIZER).collect::<Vec<_>>() } });
        change["metadata"]["uid"] = json!(object.metadata.uid);
        change["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
        let patch = Patch::Merge(change);
        let api = self.core.api(&self.name.namespace);
        let parameters = PatchParams::default();
        let request = api.patch(&self.name.name, &parameters, &patch);
        match self.core.answered(request).await {
            Ok(left) => self.core.sandboxes.deleted(object, Some(left)),
            Err(error) if error.is_stale() => drop(self.core.refresh(self.name).await?),
            Err(error) => return Err(error.into()),
        }
        Ok(Done::Step)
    }
}
