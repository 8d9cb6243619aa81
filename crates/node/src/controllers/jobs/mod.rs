//! Jobs: Pods that are run until enough of them have succeeded, each end counted exactly once.

mod apply;
mod backoff;
mod facts;
mod indexes;
mod manage;
mod observe;
mod plan;
mod policy;
mod status;
#[cfg(test)]
mod tests;
mod track;
mod worker;
#[cfg(test)]
mod world;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::ownership::controller_of;
use super::{Caches, Key};
use agentcube_operator::cache::Change;
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::events::Recorder;
use backoff::Backoff;

const NAME: &str = "job-controller";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Observe(#[from] observe::Error),
    #[error("looking for Pods whose creation was not confirmed: {0}")]
    Refresh(#[source] kube::Error),
    #[error("looking whether the Job of Pod {pod} is gone: {source}")]
    Orphan { pod: Key, source: kube::Error },
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

/// What to reconcile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    Job(Key),
    /// A Pod that may be held by the finalizer of a Job that is gone.
    Orphan(Key),
}

/// What a reconcile needs besides the target.
struct Context {
    client: Client,
    caches: Caches,
    events: Recorder,
    /// By the uids of Jobs that have not ended.
    memory: Mutex<HashMap<String, Memory>>,
}

/// What this process knows of a Job that its objects do not say. Nothing depends on it but when Pods are made.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    backoff: Option<Backoff>,
    /// There may be a Pod that the caches do not show yet.
    unsure: bool,
}

pub async fn run(client: Client, caches: Caches, shutdown: CancellationToken) {
    let events = Recorder::start(client.clone(), NAME, None, shutdown.clone());
    let (of_jobs, of_pods) = (caches.clone(), caches.clone());
    let controller = Controller::new(NAME)
        .watch(&caches.jobs, move |change| of_job(&of_jobs, change))
        .watch(&caches.pods, move |change| {
            change.sides().flat_map(|pod| of_pod(&of_pods, pod)).collect::<Vec<_>>()
        });
    let context = Arc::new(Context { client, caches, events, memory: Mutex::default() });
    controller.run(shutdown, move |target| reconcile(context.clone(), target)).await;
}

/// A Job, and once it is gone, the Pods that it leaves behind.
fn of_job(caches: &Caches, change: &Change<Job>) -> Vec<Target> {
    let job = change.latest();
    let mut targets = vec![Target::Job(Key::of(&**job))];
    if change.new.is_none() {
        let left = caches.pods.owned_by(&job.uid().unwrap_or_default());
        let free = caches.pods.orphans(&job.namespace().unwrap_or_default());
        targets.extend(left.iter().chain(&free).map(|pod| Target::Orphan(Key::of(&**pod))));
    }
    targets
}

/// The Job of a Pod, or everyone who could adopt it, or the Pod itself if it has no one.
fn of_pod(caches: &Caches, pod: &Pod) -> Vec<Target> {
    if observe::is_abandoned(caches, pod) {
        return vec![Target::Orphan(Key::of(pod))];
    }
    let jobs = match controller_of(&pod.metadata) {
        Some(_) => observe::owner(caches, pod).into_iter().collect(),
        None => observe::adopters(caches, pod),
    };
    jobs.iter().map(|job| Target::Job(Key::of(&**job))).collect()
}

async fn reconcile(context: Arc<Context>, target: Target) -> Result<Requeue, Error> {
    match target {
        Target::Job(key) => reconcile_job(&context, key).await,
        Target::Orphan(key) => release_orphan(&context, key).await,
    }
}

async fn reconcile_job(context: &Context, key: Key) -> Result<Requeue, Error> {
    let Some(job) = context.caches.jobs.get(&key.namespace, &key.name) else { return Ok(Requeue::No) };
    let uid = job.uid().unwrap_or_default();
    let memory = context.memory.lock().get(&uid).copied().unwrap_or_default();
    if memory.unsure {
        refresh(context, &key, &job).await?;
    }
    let observed = observe::observe(&context.caches, &key, &job, memory.backoff)?;
    let plan = plan::plan(&observed, Timestamp::now());
    let mut apply = apply::Apply { context, job: observed.job, recorded: false, unsure: false };
    let done = apply.all(plan.operations).await;
    let ended = status::ended_at(&apply.job).is_some() || apply.job.metadata.deletion_timestamp.is_some();
    let known = if done.is_ok() || apply.recorded { Some(plan.backoff) } else { memory.backoff };
    let mut memories = context.memory.lock();
    match ended {
        true => drop(memories.remove(&uid)),
        false => drop(memories.insert(uid, Memory { backoff: known, unsure: apply.unsure })),
    }
    done?;
    Ok(plan.requeue.map_or(Requeue::No, Requeue::After))
}

/// Takes in the Pods of a Job that the server has. A creation whose answer was lost must not be made up for before.
async fn refresh(context: &Context, key: &Key, job: &Job) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let Ok(selector) = observe::selector(job) else { return Ok(()) };
    let there = api.list(&ListParams::default().labels_from(&selector)).await.map_err(Error::Refresh)?;
    there.items.into_iter().for_each(|pod| context.caches.pods.put(pod));
    Ok(())
}

/// Lets a Pod go whose Job is gone, after asking the server whether it really is.
async fn release_orphan(context: &Context, key: Key) -> Result<Requeue, Error> {
    let Some(pod) = context.caches.pods.get(&key.namespace, &key.name) else { return Ok(Requeue::No) };
    if !observe::is_abandoned(&context.caches, &pod) {
        return Ok(Requeue::No);
    }
    if let Some(controller) = controller_of(&pod.metadata) {
        let jobs: Api<Job> = Api::namespaced(context.client.clone(), &key.namespace);
        let job = jobs.get_opt(&controller.name).await;
        let job = job.map_err(|source| Error::Orphan { pod: key.clone(), source })?;
        if job.is_some_and(|job| job.uid().as_deref() == Some(&controller.uid)) {
            return Ok(Requeue::No);
        }
    }
    let uid = pod.uid().unwrap_or_default();
    apply::remove_finalizer(context, &key.namespace, key.name.clone(), uid).await?;
    Ok(Requeue::No)
}
