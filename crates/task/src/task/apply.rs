//! Carries out what was planned for a Task, and writes its status.

use std::sync::Arc;

use agentcube_api::agentcube::TaskStatus;
use agentcube_api::{Task, conditions, labels};
use agentcube_instance::SpecId;
use agentcube_instance::provider::{InstanceSpecProvider, Repaired, SpecError};
use agentcube_operator::controller::Requeue;
use agentcube_operator::events::Recorder;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use super::observe::{Answers, Observed};
use super::plan::{Plan, Serve, plan};
use super::references::references;
use super::status::{self, Outcome, Prepared};
use crate::caches::Caches;
use crate::child::{self, Ensured, Look, MANAGER};
use crate::missing::Missing;
use crate::options::Options;
use crate::passes::Passes;
use crate::{DRIFT_REPAIRED, Name, RECREATED};

/// Why a pass over a Task has to be repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Spec(#[from] SpecError),
    #[error("{0}")]
    Child(#[from] child::Error),
    #[error("writing the Task: {0}")]
    Task(#[from] kube::Error),
}

/// Reconciles Tasks.
#[derive(Clone)]
pub(crate) struct Reconciler {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) provider: Arc<dyn InstanceSpecProvider>,
    pub(crate) options: Arc<Options>,
    pub(crate) events: Recorder,
    pub(crate) missing: Missing,
    pub(crate) passes: Passes<Name>,
}

impl Reconciler {
    /// One pass over a Task.
    pub(crate) async fn reconcile(self, key: Name) -> Result<Requeue, Error> {
        let Some(task) = self.caches.tasks.get(&key.namespace, &key.name) else {
            self.missing.found(&key);
            self.passes.forget(&key);
            return Ok(Requeue::No);
        };
        let closely = self.passes.begin(&key, self.options.full_pass);
        let observed = Observed::new(task, &self.caches, &*self.provider, closely);
        match plan(&observed, &self.options) {
            Plan::Nothing => Ok(Requeue::No),
            Plan::End { release } => self.end(&observed, &release).await.map(|()| Requeue::No),
            Plan::Serve(serve) => self.serve(&key, observed, &serve).await,
        }
    }

    async fn serve(&self, key: &Name, mut observed: Observed, serve: &Serve) -> Result<Requeue, Error> {
        if serve.hold {
            let mut finalizers = observed.task.finalizers().to_vec();
            finalizers.push(labels::TASK_FINALIZER.into());
            observed.task = Arc::new(self.set_finalizers(&observed.task, finalizers).await?);
        }
        let task = &*observed.task;
        // Nothing is sent to instances before the status names their revision, so the route need not wait for it.
        let (spec, route, others) = tokio::join!(
            self.prepare(task, serve, observed.closely),
            self.ensure_route(task, serve),
            self.ensure_others(task, serve),
        );
        let outcome = Outcome { spec, route, others };
        let released = self.release(task, &serve.release).await;
        let answers = Answers::new(task, serve.label.as_deref(), &self.caches);
        let now = Time(Timestamp::now());
        let status = status::status(&observed, serve, &outcome, &answers, &self.options, &now);
        self.tell_missing(task, &outcome);
        self.write_status(task, status).await?;
        match &outcome.spec {
            Err(SpecError::Missing { .. }) => self.missing.wait_for(key, references(task)),
            _ => self.missing.found(key),
        }
        released?;
        self.verdict(key, outcome)
    }

    /// When to come back. What only a change can mend is no reason to try again.
    fn verdict(&self, key: &Name, outcome: Outcome) -> Result<Requeue, Error> {
        let mut after = self.passes.rest(key, self.options.full_pass);
        match outcome.spec {
            Err(error @ SpecError::Transient(_)) => return Err(error.into()),
            Err(SpecError::Missing { .. } | SpecError::Blocked(_)) => {
                after = after.min(self.options.missing_every);
            }
            _ => {}
        }
        for error in outcome.route.err().into_iter().chain(outcome.others) {
            match error {
                child::Error::Transient(_) => return Err(error.into()),
                child::Error::Refused(_) => after = after.min(self.options.missing_every),
            }
        }
        Ok(Requeue::After(after))
    }

    async fn prepare(&self, task: &Task, serve: &Serve, closely: bool) -> Result<Prepared, SpecError> {
        let revision = serve.revision.as_ref().map_err(Clone::clone)?;
        let repairs = self.provider.initialize_spec(task, &revision.spec, revision.known, closely).await?;
        for repair in &repairs {
            match repair.what {
                Repaired::Recreated => self.tell_recreated(task, repair.kind, &repair.name),
                Repaired::Restored => self.tell_restored(task, repair.kind, &repair.name),
            }
        }
        if revision.update {
            self.provider.update_spec(task, &revision.spec).await?;
        }
        Ok(Prepared { repairs, standing: self.provider.spec_status(task, &revision.spec) })
    }

    async fn ensure_route(&self, task: &Task, serve: &Serve) -> Result<Ensured, child::Error> {
        let ensured =
            child::ensure(&self.client, &self.caches.routes, &serve.route, serve.route_look).await?;
        self.tell(task, "HTTPRoute", &serve.route.name_any(), ensured);
        Ok(ensured)
    }

    async fn ensure_others(&self, task: &Task, serve: &Serve) -> Vec<child::Error> {
        let Some(caches) = &self.caches.envoy else { return Vec::new() };
        let look = |there: bool| Look { known: there && serve.route_look.known, ..serve.route_look };
        let mut failed = Vec::new();
        let settled =
            task.status.as_ref().and_then(|status| status.observed_generation) == task.meta().generation;
        if let Some(policy) = &serve.policy {
            let ensured = child::ensure(&self.client, &caches.traffic, policy, look(settled)).await;
            match ensured {
                Ok(ensured) => self.tell(task, "BackendTrafficPolicy", &policy.name_any(), ensured),
                Err(error) => failed.push(error),
            }
        }
        if let Some(service) = &serve.service {
            match child::ensure(&self.client, &caches.services, service, look(settled)).await {
                Ok(ensured) => self.tell(task, "Service", &service.name_any(), ensured),
                Err(error) => failed.push(error),
            }
        }
        for policy in &serve.stale_policies {
            failed.extend(child::remove(&self.client, &caches.traffic, &**policy).await.err());
        }
        for service in &serve.stale_services {
            failed.extend(child::remove(&self.client, &caches.services, &**service).await.err());
        }
        failed
    }

    async fn release(&self, task: &Task, release: &[SpecId]) -> Result<(), SpecError> {
        for spec in release {
            self.provider.release_spec(task, spec).await?;
            tracing::info!(task = task.name_any(), %spec, "released a revision that nothing uses any longer");
        }
        Ok(())
    }

    async fn end(&self, observed: &Observed, release: &[SpecId]) -> Result<(), Error> {
        let task = &*observed.task;
        if let Err(error) = self.release(task, release).await {
            let (now, generation) = (Time(Timestamp::now()), task.metadata.generation.unwrap_or(1));
            let status = task.status.clone().unwrap_or_default();
            self.write_status(task, status::ending(status, generation, &error.to_string(), &now)).await?;
            return Err(error.into());
        }
        let others = task.finalizers().iter().filter(|finalizer| *finalizer != labels::TASK_FINALIZER);
        match self.set_finalizers(task, others.cloned().collect()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).map_err(Error::from),
        }
    }

    fn tell(&self, task: &Task, kind: &str, name: &str, ensured: Ensured) {
        match ensured {
            Ensured::Recreated => self.tell_recreated(task, kind, name),
            Ensured::Restored => self.tell_restored(task, kind, name),
            Ensured::Unchanged | Ensured::Written | Ensured::Going => {}
        }
    }

    /// Tells once of what is missing; the condition says it for as long as it is so.
    fn tell_missing(&self, task: &Task, outcome: &Outcome) {
        let Err(SpecError::Missing { reason, message }) = &outcome.spec else { return };
        let status = task.status.as_ref();
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let before = conditions::find(conditions, conditions::task::SPEC_READY);
        if before.is_none_or(|before| before.reason != *reason || before.message != *message) {
            self.events.warning(task, reason, message);
        }
    }

    fn tell_recreated(&self, task: &Task, kind: &str, name: &str) {
        self.events.warning(task, RECREATED, format!("{kind} {name} was deleted, automatically recreated"));
    }

    fn tell_restored(&self, task: &Task, kind: &str, name: &str) {
        self.events.warning(
            task,
            DRIFT_REPAIRED,
            format!("{kind} {name} was changed, automatically restored"),
        );
    }

    async fn set_finalizers(&self, task: &Task, finalizers: Vec<String>) -> Result<Task, kube::Error> {
        let patch = json!({ "metadata": {
            "resourceVersion": task.resource_version(), "finalizers": finalizers,
        } });
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let task = self.api(task).patch(&task.name_any(), &parameters, &Patch::Merge(patch)).await?;
        self.caches.tasks.put(task.clone());
        Ok(task)
    }

    /// Writes the status if it says anything new.
    async fn write_status(&self, task: &Task, status: TaskStatus) -> Result<(), kube::Error> {
        if task.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut object = task.clone();
        object.status = Some(status);
        object.metadata.managed_fields = None;
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let written = self.api(task).replace_status(&task.name_any(), &parameters, &object).await?;
        self.caches.tasks.put(written);
        Ok(())
    }

    fn api(&self, task: &Task) -> Api<Task> {
        Api::namespaced(self.client.clone(), &task.namespace().unwrap_or_default())
    }
}
