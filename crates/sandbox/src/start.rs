//! The one way in which runs are started, stopped and held. What an agent answers is taken in here, once; an error
//! means that nobody knows whether it happened.

use agentcube_api::{Sandbox, SandboxPool};
use agentcube_protos::agent::start_response::Outcome as Answer;
use agentcube_protos::agent::{
    Claim, Entry, PauseRequest, Reason, Refusal, StartRequest, Started, State, StopRequest, Why,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::Api;
use tonic::Status;

use crate::agents::Agent;
use crate::core::{ApiError, Core};
use crate::names::RunId;
use crate::object;

/// How a start went.
#[derive(Debug)]
pub(crate) enum Outcome {
    Started(Started),
    Refused(Refusal),
    /// It may run.
    Doubt(Status),
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unresolved {
    #[error("file {path}: there is no key {key} in {kind} {name}")]
    Missing { path: String, key: String, kind: &'static str, name: String },
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl Core {
    /// Checked before every effect: what a process does that does not lead any more, another may undo.
    pub(crate) fn leads(&self) -> Result<(), Status> {
        if self.options.leading.now() {
            return Ok(());
        }
        Err(Status::unavailable("this process does not lead any more"))
    }

    /// Starts a run at an agent. The slot is held from here on; whoever gets a refusal gives it back.
    pub(crate) async fn start(&self, agent: &Agent, mut request: StartRequest) -> Outcome {
        if let Err(status) = self.leads() {
            return Outcome::Doubt(status);
        }
        let fence = agent.fence(self.options.term);
        let run = RunId::from(request.run_id.as_str());
        let entry = Entry {
            run_id: request.run_id.clone(),
            claim: request.claim.clone(),
            state: State::Running.into(),
            object: request.object.clone(),
            started_unix_ms: Timestamp::now().as_millisecond(),
            ..Entry::default()
        };
        request.fence = Some(fence.clone());
        let answer = tokio::time::timeout(self.options.timing.start, agent.place.link.start(request)).await;
        match answer {
            Err(_) => Outcome::Doubt(Status::deadline_exceeded("the agent did not answer in time")),
            Ok(Err(status)) => Outcome::Doubt(status),
            Ok(Ok(response)) => match response.outcome {
                Some(Answer::Started(started)) => {
                    let (endpoints, ready) = (started.endpoints.clone(), started.ready);
                    agent.started(&fence, Entry { endpoints, ready, ..entry });
                    self.registry.hold(&agent.pool, agent.id(), &run, agent.asked());
                    Outcome::Started(started)
                }
                Some(Answer::Refusal(refusal)) => {
                    self.counts.refused(refusal.reason().as_str_name());
                    if refusal.reason() == Reason::OtherIncarnation {
                        agent.forget();
                    }
                    Outcome::Refused(refusal)
                }
                None => Outcome::Doubt(Status::internal("the agent's answer has no outcome")),
            },
        }
    }

    /// Ends a run at an agent, and its slot. When this is `Ok`, nothing of it is left and the agent will not start it.
    pub(crate) async fn stop(
        &self,
        agent: &Agent,
        run: &RunId,
        claim: Option<Claim>,
        why: Why,
    ) -> Result<(), Status> {
        self.leads()?;
        let timing = &self.options.timing;
        let fence = agent.fence(self.options.term);
        let request = StopRequest {
            fence: Some(fence.clone()),
            run_id: run.to_string(),
            // An earlier object of the same name may have had it.
            claim: claim.map(|claim| Claim { uid: String::new(), ..claim }),
            grace_seconds: u32::try_from(timing.grace.as_secs()).unwrap_or(u32::MAX),
            why: why.into(),
        };
        agent.condemn(run);
        let answer = tokio::time::timeout(timing.grace + timing.call, agent.place.link.stop(request)).await;
        let response =
            answer.map_err(|_| Status::deadline_exceeded("the agent did not answer in time"))??;
        if let Some(refusal) = response.refusal {
            if refusal.reason() == Reason::OtherIncarnation {
                agent.forget();
            }
            let message = format!("{}: {}", refusal.reason().as_str_name(), refusal.message);
            return Err(Status::failed_precondition(message));
        }
        agent.stopped(&fence, run, why);
        self.release(&agent.pool, run);
        Ok(())
    }

    /// Freezes a run, lets it go on, or changes when it ends.
    pub(crate) async fn pause(&self, agent: &Agent, mut request: PauseRequest) -> Result<(), Status> {
        self.leads()?;
        request.fence = Some(agent.fence(self.options.term));
        let run = RunId::from(request.run_id.as_str());
        let (paused, fenced) = (request.paused, request.fenced);
        let answer = tokio::time::timeout(self.options.timing.call, agent.place.link.pause(request)).await;
        let response =
            answer.map_err(|_| Status::deadline_exceeded("the agent did not answer in time"))??;
        if let Some(refusal) = response.refusal {
            let message = format!("{}: {}", refusal.reason().as_str_name(), refusal.message);
            return Err(Status::failed_precondition(message));
        }
        agent.paused(&run, paused, fenced);
        Ok(())
    }

    /// What an agent is asked to run for an object, with the contents of all files.
    pub(crate) async fn start_request(
        &self,
        sandbox: &Sandbox,
        pool: &SandboxPool,
        run: &RunId,
    ) -> Result<StartRequest, Unresolved> {
        let mut request = object::start_request(sandbox, pool, run);
        let namespace = sandbox.namespace().unwrap_or_default();
        for file in request.spec.iter_mut().flat_map(|spec| &mut spec.files) {
            let (kind, name) = match (file.secret.is_empty(), file.config_map.is_empty()) {
                (false, _) => ("Secret", std::mem::take(&mut file.secret)),
                (true, false) => ("ConfigMap", std::mem::take(&mut file.config_map)),
                (true, true) => continue,
            };
            let content = match kind {
                "Secret" => self.of_secret(&namespace, &name, &file.key).await?,
                _ => self.of_config_map(&namespace, &name, &file.key).await?,
            };
            let key = std::mem::take(&mut file.key);
            let missing = || Unresolved::Missing { path: file.path.clone(), key, kind, name };
            file.content = content.ok_or_else(missing)?;
        }
        Ok(request)
    }

    async fn of_secret(&self, namespace: &str, name: &str, key: &str) -> Result<Option<Vec<u8>>, ApiError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = self.answered(api.get_opt(name)).await?;
        Ok(secret.and_then(|secret| secret.data).and_then(|mut data| data.remove(key)).map(|bytes| bytes.0))
    }

    async fn of_config_map(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let Some(map) = self.answered(api.get_opt(name)).await? else { return Ok(None) };
        let text = map.data.and_then(|mut data| data.remove(key)).map(String::into_bytes);
        let bytes = || map.binary_data.and_then(|mut data| data.remove(key)).map(|bytes| bytes.0);
        Ok(text.or_else(bytes))
    }
}
