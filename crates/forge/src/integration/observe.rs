//! Reads what the plan needs: from memory, and once from the server where memory may lag behind.

use agentcube_api::JSBundle;
use agentcube_api::labels::{FORGE_BUILD_JOB, FORGE_SPEC_HASH};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use kube::api::ListParams;

use super::plan::{JobState, SeenBundle, SeenJob};
use super::status::Failure;
use crate::core::{Core, Error};
use crate::raw::Integration;
use crate::{files, names};

/// The Jobs of an integration.
pub(super) async fn jobs(core: &Core, integration: &Integration) -> Result<Vec<SeenJob>, Error> {
    let uid = integration.uid().unwrap_or_default();
    let active = integration.status.as_ref().and_then(|status| status.active_build.as_ref());
    let mut seen = Vec::new();
    for job in core.caches.jobs.owned_by(&uid) {
        let is_active = active.is_some_and(|active| active.job_ref.name == job.name_any());
        seen.push(SeenJob {
            name: job.name_any(),
            uid: job.uid().unwrap_or_default(),
            is_ending: job.metadata.deletion_timestamp.is_some(),
            state: state(core, &job, is_active).await?,
        });
    }
    Ok(seen)
}

async fn state(core: &Core, job: &Job, is_active: bool) -> Result<JobState, Error> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ended = |type_: &str| conditions.iter().find(|one| one.type_ == type_ && one.status == "True");
    if ended("Complete").is_some() {
        return Ok(JobState::Complete);
    }
    let Some(condition) = ended("Failed") else { return Ok(JobState::Running) };
    let at: Option<Timestamp> = condition.last_transition_time.as_ref().map(|time| time.0);
    let uid = job.uid().unwrap_or_default();
    let mut last = said(core.caches.pods.owned_by(&uid).iter().map(|pod| &**pod));
    if last.is_none() && is_active {
        // Why it failed decides whether it is tried again, and the news of the Pod may come after those of the Job.
        let labels = ListParams::default().labels(&format!("{FORGE_SPEC_HASH}={}", label(job)));
        let pods = core.api::<Pod>(&job.namespace().unwrap_or_default()).list(&labels).await?.items;
        last = said(pods.iter().filter(|pod| pod.owner_references().iter().any(|owner| owner.uid == uid)));
    }
    let said = match last {
        Some(said) => Failure::said(&said),
        None => Failure::text(condition.message.as_deref().unwrap_or("its Job failed")),
    };
    Ok(JobState::Failed { at, said })
}

fn label(job: &Job) -> String {
    job.labels().get(FORGE_SPEC_HASH).cloned().unwrap_or_default()
}

/// What the last of the Pods of a Job has said at its end.
fn said<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<String> {
    let last = pods.max_by_key(|pod| pod.metadata.creation_timestamp.clone())?;
    let status = last.status.clone()?;
    let ended = |container: ContainerStatus| container.state?.terminated?.message;
    let said = status.container_statuses.unwrap_or_default().into_iter().find_map(ended);
    said.filter(|said| !said.trim().is_empty())
}

/// The bundle of an integration. A Job that has ended is news that may be ahead of the bundle that it wrote: then the server is
/// asked, since a memory that lags must not make a success a failure.
pub(super) async fn bundle(
    core: &Core,
    integration: &Integration,
    jobs: &[SeenJob],
) -> Result<Option<SeenBundle>, Error> {
    let namespace = integration.namespace().unwrap_or_default();
    let name = names::bundle(&integration.name_any());
    let active = integration.status.as_ref().and_then(|status| status.active_build.as_ref());
    let has_ended = active.is_some_and(|active| {
        let job = jobs.iter().find(|job| job.name == active.job_ref.name);
        job.map_or(active.job_ref.uid.is_some(), |job| job.state != JobState::Running)
    });
    if !has_ended {
        let known = core.caches.bundles.get(&namespace, &name);
        return Ok(known.map(|bundle| seen(&bundle, integration)));
    }
    let found = core.api::<JSBundle>(&namespace).get_opt(&name).await?;
    if let Some(bundle) = &found {
        core.caches.bundles.put(bundle.clone());
    }
    Ok(found.map(|bundle| seen(&bundle, integration)))
}

fn seen(bundle: &JSBundle, integration: &Integration) -> SeenBundle {
    let uid = integration.uid();
    let mut owners = bundle.owner_references().iter();
    SeenBundle {
        uid: bundle.uid().unwrap_or_default(),
        is_ours: owners.any(|owner| Some(&owner.uid) == uid.as_ref())
            && bundle.metadata.deletion_timestamp.is_none(),
        spec_label: bundle.labels().get(FORGE_SPEC_HASH).cloned().unwrap_or_default(),
        manifest_hash: bundle.spec.manifest_hash.clone(),
        built_by: bundle.annotations().get(FORGE_BUILD_JOB).cloned(),
        is_whole: files::check(&bundle.spec.files).is_ok(),
    }
}
