//! Keeps an object that we make as we want it, on top of [`children`]: nothing that others write into its spec stays,
//! since a policy that somebody has added to may let through what it is to keep out. What is not ours is left alone.

use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::children;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::json;

/// The name under which we own fields.
pub(crate) const MANAGER: &str = "agentcube-task";
/// The label that all our objects carry: the caches hold nothing else.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub(crate) const MANAGED_BY_US: &str = "agentcube";

/// An object of a namespace that we make.
pub(crate) trait Child: Object + Serialize + Resource<Scope = NamespaceResourceScope> {}

impl<K: Object + Serialize + Resource<Scope = NamespaceResourceScope>> Child for K {}

/// What had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ensured {
    /// Nothing.
    Unchanged,
    /// It was made, or changed because what is wanted has changed.
    Written,
    /// It had been there, and was gone.
    Recreated,
    /// Somebody had changed it.
    Restored,
    /// It is being deleted; it comes back when it is gone.
    Going,
}

/// Why an object could not be brought about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Waits for a change: of what is wanted, or of an object that is in the way.
    #[error("{0}")]
    Refused(String),
    /// To be tried again.
    #[error("{0}")]
    Transient(String),
}

impl From<children::Error> for Error {
    fn from(error: children::Error) -> Error {
        if error.is_refusal() {
            Error::Refused(error.to_string())
        } else {
            Error::Transient(error.to_string())
        }
    }
}

/// How an object is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// It was made before: its absence is somebody's doing.
    pub(crate) known: bool,
    /// Ask the server, whatever the cache says.
    pub(crate) closely: bool,
}

/// Brings the object about.
pub(crate) async fn ensure<K: Child>(
    client: &Client,
    cache: &Cache<K>,
    desired: &K,
    look: Look,
) -> Result<Ensured, Error> {
    let (namespace, name) = (desired.namespace().unwrap_or_default(), desired.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let held = cache.get(&namespace, &name).filter(|_| !look.closely);
    let current = match held {
        Some(held) => Some((*held).clone()),
        // It may be there without our label, and then it is not in the cache.
        None => api.get_opt(&name).await.map_err(|error| failed::<K>(&name, &error))?,
    };
    if let Some(current) = current.as_ref().filter(|current| is_changed_by_others(*current, desired)) {
        cache.put(replace(&api, desired, current).await?);
        return Ok(Ensured::Restored);
    }
    let ensured = children::ensure(&api, MANAGER, desired, current.as_ref()).await?;
    let written = ensured.written().cloned().or(current);
    let outcome = match ensured {
        children::Ensured::Same => Ensured::Unchanged,
        children::Ensured::Created(_) if look.known => Ensured::Recreated,
        children::Ensured::Created(_) | children::Ensured::Updated(_) => Ensured::Written,
        children::Ensured::Repaired { .. } => Ensured::Restored,
        children::Ensured::Ending => Ensured::Going,
    };
    written.into_iter().for_each(|written| cache.put(written));
    Ok(outcome)
}

/// Whether it is ours and somebody else has written into the spec: the server knows who wrote what.
fn is_changed_by_others<K: Child>(current: &K, desired: &K) -> bool {
    let ours = controller_of(current).is_some() && controller_of(current) == controller_of(desired);
    let changed = current.meta().managed_fields.iter().flatten().any(is_foreign);
    ours && changed && current.meta().deletion_timestamp.is_none()
}

/// Whether an entry says of the spec that it was written otherwise than by an apply of ours.
fn is_foreign(entry: &ManagedFieldsEntry) -> bool {
    let spec = entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some());
    let whole = entry.subresource.as_deref().unwrap_or_default().is_empty();
    let applied = entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply");
    spec && whole && !applied
}

/// Takes the spec out of the hands of others: replaces it as a whole, and forgets what they wrote. An apply alone would
/// leave in place what they have added.
async fn replace<K: Child>(api: &Api<K>, desired: &K, current: &K) -> Result<K, Error> {
    let name = desired.name_any();
    let refused = |error: serde_json::Error| Error::Refused(format!("{} {name}: {error}", K::kind(&())));
    let mut wanted = serde_json::to_value(desired).map_err(refused)?;
    let mut object = serde_json::to_value(current).map_err(refused)?;
    object["spec"] = wanted["spec"].clone();
    disown(api, serde_json::from_value(object).map_err(refused)?).await?;
    children::stamp(&mut wanted);
    // Never one of the same name that was made meanwhile, and none at all if it is gone.
    wanted["metadata"]["uid"] = json!(current.uid());
    let written = api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(wanted)).await;
    let written = written.map_err(|error| failed::<K>(&name, &error))?;
    // The replacement counts as a change of ours that was no apply, and would outlive what is wanted now.
    let left = written.meta().managed_fields.iter().flatten().any(is_foreign);
    if left { disown(api, written).await } else { Ok(written) }
}

/// Writes the object, and that its spec is nobody else's.
async fn disown<K: Child>(api: &Api<K>, mut object: K) -> Result<K, Error> {
    if let Some(entries) = &mut object.meta_mut().managed_fields {
        entries.retain(|entry| !is_foreign(entry));
    }
    let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let name = object.name_any();
    api.replace(&name, &parameters, &object).await.map_err(|error| failed::<K>(&name, &error))
}

/// Removes an object of ours that is no longer wanted, if it is still the one that was seen.
pub(crate) async fn remove<K: Child>(client: &Client, cache: &Cache<K>, object: &K) -> Result<(), Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let parameters = DeleteParams {
        preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
        ..DeleteParams::background()
    };
    match api.delete(&name, &parameters).await {
        Ok(answer) => cache.deleted(object, answer.left()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => cache.gone(object),
        Err(error) => return Err(failed::<K>(&name, &error)),
    }
    Ok(())
}

/// Makes sure that an object of ours is not there, whatever the cache knows of it.
pub(crate) async fn withhold<K: Child>(client: &Client, cache: &Cache<K>, unwanted: &K) -> Result<(), Error> {
    let (namespace, name) = (unwanted.namespace().unwrap_or_default(), unwanted.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(|error| failed::<K>(&name, &error))?;
    match found.filter(|found| controller_of(found) == controller_of(unwanted)) {
        Some(found) if found.meta().deletion_timestamp.is_none() => remove(client, cache, &found).await,
        _ => Ok(()),
    }
}

fn failed<K: Child>(name: &str, error: &kube::Error) -> Error {
    Error::Transient(format!("{} {name}: {error}", K::kind(&())))
}

fn controller_of<K: Resource>(object: &K) -> Option<&str> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}
