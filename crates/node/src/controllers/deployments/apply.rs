//! Carries out what was planned for a Deployment, and tells of it in Events. Every answer is written through.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::super::ownership::{adoption, controller_of, controller_reference, release};
use super::super::{is_current, is_namespace_ending};
use super::Context;
use super::observe::{Observed, same_template, size};
use super::plan::{Operation, template};
use super::revision::REVISION;
use super::status::{CREATE_ERROR, Next, create_message};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("taking or letting go a ReplicaSet: {0}")]
    Claim(#[source] kube::Error),
    #[error("asking whether the Deployment is still as it was: {0}")]
    Look(#[source] kube::Error),
    #[error("creating ReplicaSet {name}: {source}")]
    Create { name: String, source: kube::Error },
    #[error("ReplicaSet {name} exists and is not of this template; another name will be tried")]
    Collision { name: String },
    #[error("changing ReplicaSet {name}: {source}")]
    Change { name: String, source: kube::Error },
}

/// Says whether the Deployment was still as observed; if it was not, nothing was done.
pub(super) async fn apply(
    context: &Context,
    observed: &Observed,
    operations: &[Operation],
) -> Result<bool, Error> {
    if operations.is_empty() {
        return Ok(true);
    }
    let deployment = &observed.deployment;
    let api = Api::namespaced(context.client.clone(), &deployment.namespace().unwrap_or_default());
    let current = is_current(&api, &context.caches.deployments, &**deployment).await;
    if !current.map_err(Error::Look)? {
        return Ok(false);
    }
    for operation in operations {
        match operation {
            Operation::Adopt(set) => {
                let patch = adoption(&controller_reference(&**deployment), &set.metadata);
                change(context, set, Patch::Strategic(patch)).await.map_err(Error::Claim)?;
            }
            Operation::Release(set) => {
                let patch = release(&deployment.metadata, &set.metadata);
                change(context, set, Patch::Strategic(patch)).await.map_err(Error::Claim)?;
            }
            Operation::Create(set) => create(context, deployment, set).await?,
            Operation::Annotate { set, annotations, min_ready_seconds } => {
                let spec = json!({ "minReadySeconds": min_ready_seconds });
                let patch =
                    json!({ "metadata": { "uid": set.uid(), "annotations": annotations }, "spec": spec });
                change(context, set, Patch::Merge(patch)).await.map_err(|source| failed(set, source))?;
            }
            Operation::Scale { set, to, annotations } => {
                scale(context, deployment, set, *to, annotations).await?;
            }
            Operation::Delete(set) => delete(context, set).await?,
        }
    }
    Ok(true)
}

fn failed(set: &ReplicaSet, source: kube::Error) -> Error {
    Error::Change { name: set.name_any(), source }
}

fn sets(context: &Context, namespace: Option<String>) -> Api<ReplicaSet> {
    Api::namespaced(context.client.clone(), &namespace.unwrap_or_default())
}

/// Patches a ReplicaSet, which its uid in the patch makes sure of. One that is gone is no failure.
async fn change(context: &Context, set: &Arc<ReplicaSet>, patch: Patch<Value>) -> Result<bool, kube::Error> {
    let api = sets(context, set.namespace());
    match api.patch(&set.name_any(), &PatchParams::default(), &patch).await {
        Ok(set) => context.caches.replica_sets.put(set),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            context.caches.replica_sets.gone(set);
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

async fn create(context: &Context, deployment: &Deployment, set: &ReplicaSet) -> Result<(), Error> {
    let (api, name) = (sets(context, set.namespace()), set.name_any());
    match api.create(&PostParams::default(), set).await {
        Ok(created) => {
            context.caches.replica_sets.put(created);
            if size(set) > 0 {
                let message = format!("Scaled up replica set {name} from 0 to {}", size(set));
                context.events.normal(deployment, "ScalingReplicaSet", message);
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let held = api.get_opt(&name).await;
            let held = held.map_err(|source| Error::Create { name: name.clone(), source })?;
            match held {
                Some(held) if is_own(deployment, &held) => {
                    context.caches.replica_sets.put(held);
                    Ok(())
                }
                _ => Err(Error::Collision { name }),
            }
        }
        Err(source) => {
            if !is_namespace_ending(&source) {
                context.events.warning(deployment, CREATE_ERROR, create_message(&name, &source));
            }
            Err(Error::Create { name, source })
        }
    }
}

/// Whether a ReplicaSet is the one that was to be created, made before by a reconcile that saw no answer.
fn is_own(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let owned = controller_of(&set.metadata)
        .is_some_and(|owner| Some(&owner.uid) == deployment.metadata.uid.as_ref());
    let held = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    owned && held.zip(template(deployment)).is_some_and(|(held, wanted)| same_template(held, wanted))
}

async fn scale(
    context: &Context,
    deployment: &Deployment,
    set: &Arc<ReplicaSet>,
    to: i32,
    annotations: &[(String, String)],
) -> Result<(), Error> {
    let annotations: Value = annotations.iter().cloned().collect();
    let meta = json!({ "uid": set.uid(), "annotations": annotations });
    let patch = json!({ "metadata": meta, "spec": { "replicas": to } });
    let there = change(context, set, Patch::Merge(patch)).await.map_err(|source| failed(set, source))?;
    let from = size(set);
    if there && from != to {
        let direction = if from < to { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {} from {from} to {to}", set.name_any());
        context.events.normal(deployment, "ScalingReplicaSet", message);
    }
    Ok(())
}

async fn delete(context: &Context, set: &Arc<ReplicaSet>) -> Result<(), Error> {
    let preconditions = Preconditions { uid: set.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match sets(context, set.namespace()).delete(&set.name_any(), &parameters).await {
        Ok(answer) => context.caches.replica_sets.deleted(set, answer.left()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            context.caches.replica_sets.gone(set);
        }
        Err(source) => return Err(failed(set, source)),
    }
    Ok(())
}

/// Writes the status, and with it the number: the server takes annotations with the status of a Deployment.
pub(super) async fn write_status(
    context: &Context,
    observed: &Observed,
    next: Next,
) -> Result<(), kube::Error> {
    let deployment = &observed.deployment;
    let namespace = deployment.namespace().unwrap_or_default();
    let api: Api<Deployment> = Api::namespaced(context.client.clone(), &namespace);
    let mut new = Deployment { status: Some(next.status), ..(**deployment).clone() };
    if let Some(revision) = next.revision {
        new.annotations_mut().insert(REVISION.to_owned(), revision);
    }
    match api.replace_status(&deployment.name_any(), &PostParams::default(), &new).await {
        Ok(deployment) => context.caches.deployments.put(deployment),
        Err(kube::Error::Api(status)) if status.code == 404 => context.caches.deployments.gone(deployment),
        Err(error) => return Err(error),
    }
    Ok(())
}
