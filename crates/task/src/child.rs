//! Keeps an object that we make as we want it, on top of [`children`]: nothing that others write into its spec stays.
//! What is not ours is left alone.

use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::children;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;

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
    let current = match look.closely {
        false => cache.get(&namespace, &name).map(|held| (*held).clone()),
        true => api.get_opt(&name).await.map_err(|error| failed::<K>(&name, &error))?,
    };
    let ensured = children::ensure_alone(&api, MANAGER, desired, current.as_ref(), &["spec"]).await?;
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
