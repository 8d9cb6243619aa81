//! The Job of a revision whose instances end after one request.

use agentcube_api::{Task, labels};
use agentcube_operator::children::Ensured;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};

use super::kept::{Repairs, failed};
use super::{Providers, wanted};
use crate::identity::{SpecId, TaskId};
use crate::provider::SpecError;
use crate::spec::render::Rendered;

impl Providers {
    /// Makes the Job, or mends what may be changed of it. How many Pods it has is for routers to say.
    pub(super) async fn job(
        &self,
        task: &Task,
        id: &TaskId,
        spec: &SpecId,
        rendered: &Rendered,
        repairs: &mut Repairs,
    ) -> Result<(), SpecError> {
        let mut desired = wanted::job(id, spec, &rendered.template, wanted::least(task));
        desired.annotations_mut().insert(labels::TEMPLATE_HASH.into(), rendered.hash());
        let api: Api<Job> = Api::namespaced(self.client.clone(), &id.namespace);
        let failed = |error: kube::Error| failed::<Job>(&spec.0, &error);
        let held = match self.jobs.get(&id.namespace, &spec.0).filter(|_| !repairs.look.closely) {
            Some(job) => Some((*job).clone()),
            // It may be there without our labels, and then it is not in the cache.
            None => api.get_opt(&spec.0).await.map_err(failed)?,
        };
        let hash = |job: &Job| job.annotations().get(labels::TEMPLATE_HASH).cloned();
        let Some(job) = held else {
            let made = api.create(&PostParams::default(), &desired).await.map_err(failed)?;
            self.jobs.put(made.clone());
            repairs.add(&desired, Ensured::Created(made));
            return Ok(());
        };
        if !job.owner_references().iter().any(|owner| owner.uid == *id.uid) {
            return Err(SpecError::Blocked(format!(
                "Job {spec} exists and does not belong to this Task: delete it, or give the Task another name"
            )));
        }
        if job.metadata.deletion_timestamp.is_some() || hash(&job) != hash(&desired) {
            // What a Job makes cannot be changed: another one takes its place.
            self.remove(&self.jobs, &job).await?;
            return Err(SpecError::Transient(format!("Job {spec} is being replaced")));
        }
        if wanted::spoilt(&job) {
            let patch = Patch::Merge(wanted::mended());
            let object = api.patch(&spec.0, &PatchParams::default(), &patch).await.map_err(failed)?;
            self.jobs.put(object.clone());
            repairs.add(&desired, Ensured::Repaired { object, at: "/spec".into() });
        }
        Ok(())
    }

    /// Never scales down: the Job would choose what to end, and might choose an instance that is in use.
    pub(super) async fn update(&self, task: &Task, spec: &SpecId) -> Result<(), SpecError> {
        let id = wanted::identify(task)?;
        self.listed().await?;
        let Some(job) = self.jobs.get(&id.namespace, &spec.0) else { return Ok(()) };
        let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(0);
        let least = wanted::least(task);
        if parallelism >= least {
            return Ok(());
        }
        let api: Api<Job> = Api::namespaced(self.client.clone(), &id.namespace);
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": job.resource_version() },
            "spec": { "parallelism": least },
        });
        let scaled = api.patch(&spec.0, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.jobs.put(scaled.map_err(|error| failed::<Job>(&spec.0, &error))?);
        Ok(())
    }
}
