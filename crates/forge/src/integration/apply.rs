//! Carries out what was planned for a FrontendIntegration: the status first, then what it announces.

use std::sync::Arc;

use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::PostParams;

use super::plan::{Observed, Operation, plan};
use super::{access, job, observe};
use crate::core::{Core, Error, MANAGER, Name, is_code};
use crate::raw::Integration;

/// One pass over a FrontendIntegration.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(integration) = core.caches.integrations.get(&key.namespace, &key.name) else {
        return Ok(Requeue::No);
    };
    let (hash, jobs) = (integration.hash(), observe::jobs(&core, &integration).await?);
    let bundle = observe::bundle(&core, &integration, &jobs).await?;
    let limits = &core.options.limits;
    let observed =
        Observed { integration: &integration, hash: &hash, bundle, jobs, limits, now: Timestamp::now() };
    let plan = plan(&observed);
    if integration.status.as_ref() != Some(&plan.status) && integration.metadata.deletion_timestamp.is_none()
    {
        let mut object = (*integration).clone();
        object.status = Some(plan.status);
        core.write_status(&core.caches.integrations, object).await?;
        core.tell(&*integration, &plan.notes);
    }
    for operation in &plan.operations {
        apply(&core, &integration, &hash, operation).await?;
    }
    Ok(plan.requeue.map_or(Requeue::No, Requeue::After))
}

async fn apply(
    core: &Core,
    integration: &Integration,
    hash: &str,
    operation: &Operation,
) -> Result<(), Error> {
    match operation {
        Operation::CreateJob { name } => {
            access::ensure(core, integration).await?;
            create(core, &job::job(&core.options, integration, hash, name)?).await
        }
        Operation::DeleteJob { name, uid } => {
            let namespace = integration.namespace().unwrap_or_default();
            match core.caches.jobs.get(&namespace, name) {
                Some(job) if job.uid().as_ref() == Some(uid) => core.delete(&core.caches.jobs, &*job).await,
                _ => Ok(()),
            }
        }
    }
}

/// It may be there from before a crash.
async fn create(core: &Core, job: &Job) -> Result<(), Error> {
    let api = core.api::<Job>(&job.namespace().unwrap_or_default());
    let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let made = match api.create(&parameters, job).await {
        Ok(made) => made,
        Err(error) if is_code(&error, 409) => {
            let found = api.get(&job.name_any()).await?;
            let owner = |job: &Job| job.owner_references().first().map(|owner| owner.uid.clone());
            if owner(&found) != owner(job) {
                return Err(error.into());
            }
            found
        }
        Err(error) => return Err(error.into()),
    };
    core.caches.jobs.put(made);
    Ok(())
}
