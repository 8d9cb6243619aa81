//! What there is of one Job: itself and the Pods that are or may become its own, as the caches have them.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::Selector;

use super::backoff::Backoff;
use super::plan::Observed;
use super::{status, worker};
use crate::controllers::ownership::{self, Claim, controller_of};
use crate::controllers::{Caches, Key};

#[derive(Debug, thiserror::Error)]
#[error("Job {key} has a selector that cannot be read: {reason}")]
pub(super) struct Error {
    key: Key,
    reason: String,
}

pub(super) fn observe(
    caches: &Caches,
    key: &Key,
    job: &Job,
    backoff: Option<Backoff>,
) -> Result<Observed, Error> {
    let selector = selector(job).map_err(|reason| Error { key: key.clone(), reason })?;
    let mut observed = Observed { job: job.clone(), backoff, ..Observed::default() };
    let owned = caches.pods.owned_by(&job.uid().unwrap_or_default());
    for pod in owned.into_iter().chain(caches.pods.orphans(&key.namespace)) {
        match ownership::claim(&job.metadata, &selector, &pod.metadata) {
            Claim::Held => observed.pods.push(pod),
            Claim::Adopt => observed.orphans.push(pod),
            Claim::Release => observed.strays.push(pod),
            Claim::Foreign => {}
        }
    }
    Ok(observed)
}

pub(super) fn selector(job: &Job) -> Result<Selector, String> {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
    Selector::try_from(selector).map_err(|error| error.to_string())
}

/// Whether a Pod is held by the finalizer of a Job although none will ever count it: its Job is gone, or nobody controls
/// it and nobody will.
pub(super) fn is_abandoned(caches: &Caches, pod: &Pod) -> bool {
    worker::is_tracked(pod)
        && match controller_of(&pod.metadata) {
            Some(_) => owner(caches, pod).is_none() && is_of_a_job(pod),
            None => adopters(caches, pod).is_empty(),
        }
}

fn is_of_a_job(pod: &Pod) -> bool {
    controller_of(&pod.metadata).is_some_and(|one| one.kind == "Job" && one.api_version == "batch/v1")
}

/// The Job that controls a Pod, if it is there.
pub(super) fn owner(caches: &Caches, pod: &Pod) -> Option<Arc<Job>> {
    let controller = controller_of(&pod.metadata).filter(|_| is_of_a_job(pod))?;
    let job = caches.jobs.get(&pod.namespace().unwrap_or_default(), &controller.name)?;
    (job.uid().as_deref() == Some(&controller.uid)).then_some(job)
}

/// The Jobs that would take in a Pod which nobody controls.
pub(super) fn adopters(caches: &Caches, pod: &Pod) -> Vec<Arc<Job>> {
    let adopts = |job: &Arc<Job>| {
        status::ended_at(job).is_none()
            && selector(job).is_ok_and(|selector| {
                ownership::claim(&job.metadata, &selector, &pod.metadata) == Claim::Adopt
            })
    };
    let mut jobs = caches.jobs.list(Some(&pod.namespace().unwrap_or_default()));
    jobs.retain(adopts);
    jobs
}
