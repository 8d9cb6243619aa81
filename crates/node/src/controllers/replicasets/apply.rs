//! Carries out what was planned for a ReplicaSet, and tells of it in Events. Every answer is written through.

use std::sync::Arc;

use futures_util::future::join_all;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::Value;

use super::super::ownership::{adoption, controller_reference, release};
use super::super::{is_current, is_namespace_ending, pods, reason_of, refusal};
use super::Context;
use super::observe::Observed;
use super::plan::Operation;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("taking or letting go a Pod: {0}")]
    Claim(#[source] kube::Error),
    #[error("asking whether the ReplicaSet is still as it was: {0}")]
    Look(#[source] kube::Error),
    /// Shown as Kubernetes shows it: the message of the API server alone.
    #[error("{}", reason_of(.0))]
    Create(#[source] kube::Error),
    #[error("unable to delete pods: {}", reason_of(.0))]
    Delete(#[source] kube::Error),
}

impl Error {
    /// The reason of the condition that reports this, if one does.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Error::Create(_) => Some("FailedCreate"),
            Error::Delete(_) => Some("FailedDelete"),
            Error::Claim(_) | Error::Look(_) => None,
        }
    }
}

pub(super) async fn apply(
    context: &Context,
    observed: &Observed,
    operations: &[Operation],
) -> Result<(), Error> {
    if operations.is_empty() {
        return Ok(());
    }
    let api = Api::namespaced(context.client.clone(), &observed.set.namespace().unwrap_or_default());
    let current = is_current(&api, &context.caches.replica_sets, &*observed.set).await;
    if !current.map_err(Error::Look)? {
        return Ok(());
    }
    let mut deletions = Vec::new();
    for operation in operations {
        match operation {
            Operation::Adopt(pod) => {
                let reference = controller_reference(&*observed.set);
                claim(context, pod, adoption(&reference, &pod.metadata)).await?;
            }
            Operation::Release(pod) => {
                claim(context, pod, release(&observed.set.metadata, &pod.metadata)).await?;
            }
            Operation::Create { count } => create(context, observed, *count).await?,
            Operation::Delete(pod) => deletions.push(delete(context, &observed.set, pod)),
        }
    }
    join_all(deletions).await.into_iter().collect()
}

fn pods_of(context: &Context, set: &ReplicaSet) -> Api<Pod> {
    Api::namespaced(context.client.clone(), &set.namespace().unwrap_or_default())
}

/// Changes the owners of a Pod. A Pod that is gone or another by now is no failure: the caches will tell.
async fn claim(context: &Context, pod: &Arc<Pod>, patch: Value) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    match api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(pod) => context.caches.pods.put(pod),
        Err(kube::Error::Api(status)) if status.code == 404 => context.caches.pods.gone(pod),
        Err(error) => return Err(Error::Claim(error)),
    }
    Ok(())
}

/// Creates Pods in batches that double: a template that cannot be created is not tried a hundred times.
async fn create(context: &Context, observed: &Observed, count: usize) -> Result<(), Error> {
    let Some(template) = observed.template() else { return Ok(()) };
    let (set, api) = (&observed.set, pods_of(context, &observed.set));
    let pod = pods::from_template(template, controller_reference(&**set));
    let (mut left, mut batch) = (count, 1);
    while left > 0 {
        let size = batch.min(left);
        let creations = (0..size).map(|_| create_one(context, &api, set, &pod));
        join_all(creations).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        left -= size;
        batch *= 2;
    }
    Ok(())
}

async fn create_one(context: &Context, api: &Api<Pod>, set: &ReplicaSet, pod: &Pod) -> Result<(), Error> {
    match api.create(&PostParams::default(), pod).await {
        Ok(pod) => {
            let message = format!("Created pod: {}", pod.name_any());
            context.caches.pods.put(pod);
            context.events.normal(set, "SuccessfulCreate", message);
            Ok(())
        }
        // The namespace is going, and the ReplicaSet with it.
        Err(error) if is_namespace_ending(&error) => Ok(()),
        Err(error) => {
            let message = format!("Error creating: {}", reason_of(&error));
            context.events.warning(set, "FailedCreate", message);
            Err(Error::Create(error))
        }
    }
}

async fn delete(context: &Context, set: &ReplicaSet, pod: &Arc<Pod>) -> Result<(), Error> {
    let (api, name, uid) = (pods_of(context, set), pod.name_any(), pod.uid().unwrap_or_default());
    let refusal = match api.delete(&name, &refusal::only(uid.clone())).await {
        Ok(answer) => {
            context.caches.pods.deleted(pod, answer.left());
            context.events.normal(set, "SuccessfulDelete", format!("Deleted pod: {name}"));
            return Ok(());
        }
        Err(refusal) => refusal,
    };
    match refusal::is_gone(&api, &name, &uid, refusal).await {
        Ok(()) => {
            context.caches.pods.gone(pod);
            Ok(())
        }
        Err(error) => {
            context.events.warning(set, "FailedDelete", format!("Error deleting: {}", reason_of(&error)));
            Err(Error::Delete(error))
        }
    }
}

pub(super) async fn write_status(
    context: &Context,
    observed: &Observed,
    status: ReplicaSetStatus,
) -> Result<(), kube::Error> {
    let set = &observed.set;
    let api: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &set.namespace().unwrap_or_default());
    let new = ReplicaSet { status: Some(status), ..(**set).clone() };
    match api.replace_status(&set.name_any(), &PostParams::default(), &new).await {
        Ok(set) => context.caches.replica_sets.put(set),
        Err(kube::Error::Api(status)) if status.code == 404 => context.caches.replica_sets.gone(set),
        Err(error) => return Err(error),
    }
    Ok(())
}
