//! Keeps an object that we make as we want it: makes it when it is missing, puts it right when somebody has changed it.
//! It never takes over an object that is not ours, and leaves foreign labels and annotations alone.

use std::fmt::Debug;

use agentcube_operator::cache::{Cache, Object};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, ValidationDirective};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

/// The name under which we own fields.
pub(crate) const MANAGER: &str = "agentcube-task";
/// The label that all our objects carry: the caches hold nothing else.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub(crate) const MANAGED_BY_US: &str = "agentcube";

/// Annotation: hash of what was applied last.
const APPLIED: &str = "agentcube.io/applied";

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
    /// There is one of the same name that is not ours. Waits for a change.
    #[error("{kind} {name} exists and was made by somebody else: delete or rename it")]
    Foreign { kind: String, name: String },
    /// The server refuses what we write. Trying again helps only if the server changes.
    #[error("the server refuses {kind} {name}: {message}")]
    Refused { kind: String, name: String, message: String },
    /// To be tried again.
    #[error("{kind} {name}: {message}")]
    Transient { kind: String, name: String, message: String },
}

impl Error {
    fn of<K: Child>(name: &str, error: &kube::Error) -> Error {
        let (kind, name) = (K::kind(&()).into_owned(), name.to_owned());
        match error {
            kube::Error::Api(status) if matches!(status.code, 400 | 403 | 404 | 422) => {
                Error::Refused { kind, name, message: status.message.clone() }
            }
            error => Error::Transient { kind, name, message: error.to_string() },
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
    let desired = &sealed(desired)?;
    let (namespace, name) = (desired.namespace().unwrap_or_default(), desired.name_any());
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let held = cache.get(&namespace, &name);
    let current = match held {
        Some(current) if !look.closely => Some((*current).clone()),
        // It may be there without our label, and then it is not in the cache.
        _ => api.get_opt(&name).await.map_err(|error| Error::of::<K>(&name, &error))?,
    };
    let Some(current) = current else {
        write(&api, cache, desired).await?;
        return Ok(if look.known { Ensured::Recreated } else { Ensured::Written });
    };
    let is_ours = match controller_of(desired) {
        Some(controller) => controller_of(&current) == Some(controller),
        None => current.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGED_BY_US),
    };
    if !is_ours {
        return Err(Error::Foreign { kind: K::kind(&()).into_owned(), name });
    }
    if current.meta().deletion_timestamp.is_some() {
        return Ok(Ensured::Going);
    }
    let foreign = has_foreign_fields(&current);
    if !foreign && holds(desired, &current) {
        cache.put(current);
        return Ok(Ensured::Unchanged);
    }
    if foreign {
        reset(&api, desired, &current).await?;
    }
    write(&api, cache, desired).await?;
    let settled = current.annotations().get(APPLIED) == desired.annotations().get(APPLIED);
    Ok(if settled { Ensured::Restored } else { Ensured::Written })
}

/// The object with a hash of itself: as long as that is the same, a difference is somebody else's doing.
fn sealed<K: Child>(desired: &K) -> Result<K, Error> {
    let text = serde_json::to_vec(desired).map_err(|error| not_json::<K>(&desired.name_any(), &error))?;
    let digest = ring::digest::digest(&ring::digest::SHA256, &text);
    let hash = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let mut desired = desired.clone();
    desired.annotations_mut().insert(APPLIED.into(), hash);
    Ok(desired)
}

fn not_json<K: Child>(name: &str, error: &serde_json::Error) -> Error {
    Error::Refused { kind: K::kind(&()).into_owned(), name: name.into(), message: error.to_string() }
}

async fn write<K: Child>(api: &Api<K>, cache: &Cache<K>, desired: &K) -> Result<(), Error> {
    let name = desired.name_any();
    let mut patch = serde_json::to_value(desired).map_err(|error| not_json::<K>(&name, &error))?;
    patch["apiVersion"] = json!(K::api_version(&()));
    patch["kind"] = json!(K::kind(&()));
    let parameters = PatchParams::apply(MANAGER).force().validation(ValidationDirective::Strict);
    let written = api.patch(&name, &parameters, &Patch::Apply(patch)).await;
    cache.put(written.map_err(|error| Error::of::<K>(&name, &error))?);
    Ok(())
}

/// Takes the spec out of the hands of others. What they added, an apply of ours would leave in place.
async fn reset<K: Child>(api: &Api<K>, desired: &K, current: &K) -> Result<(), Error> {
    let name = desired.name_any();
    let refused = |error: serde_json::Error| not_json::<K>(&name, &error);
    let mut object = serde_json::to_value(current).map_err(refused)?;
    object["spec"] = serde_json::to_value(desired).map_err(refused)?["spec"].take();
    // An empty entry removes what is known of who wrote what.
    object["metadata"]["managedFields"] = json!([{}]);
    let object: K = serde_json::from_value(object).map_err(refused)?;
    let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let done = api.replace(&name, &parameters, &object).await;
    done.map(drop).map_err(|error| Error::of::<K>(&name, &error))
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
        Err(error) => return Err(Error::of::<K>(&name, &error)),
    }
    Ok(())
}

fn controller_of<K: Resource>(object: &K) -> Option<&str> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// Whether somebody else has written into the spec.
fn has_foreign_fields<K: Resource>(object: &K) -> bool {
    object.meta().managed_fields.iter().flatten().any(|entry| {
        let spec = entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some());
        spec && entry.subresource.as_deref().unwrap_or_default().is_empty()
            && entry.manager.as_deref() != Some(MANAGER)
    })
}

/// Whether everything that is wanted holds. The server may have filled in more.
fn holds<K: Child>(desired: &K, current: &K) -> bool {
    let (Ok(desired), Ok(current)) = (serde_json::to_value(desired), serde_json::to_value(current)) else {
        return false;
    };
    let of_metadata = ["labels", "annotations", "ownerReferences"];
    of_metadata.iter().all(|part| contains(&current["metadata"][part], &desired["metadata"][part]))
        && contains(&current["spec"], &desired["spec"])
}

fn contains(current: &Value, desired: &Value) -> bool {
    match (current, desired) {
        (_, Value::Null) => true,
        (Value::Object(current), Value::Object(desired)) => desired
            .iter()
            .all(|(name, value)| value.is_null() || current.get(name).is_some_and(|now| contains(now, value))),
        (Value::Array(current), Value::Array(desired)) => {
            current.len() == desired.len() && current.iter().zip(desired).all(|(now, value)| contains(now, value))
        }
        (current, desired) => current == desired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_fills_in_is_no_difference() {
        for (current, desired, expected) in [
            (json!({"a": 1, "b": 2}), json!({"a": 1}), true),
            (json!({"a": 2}), json!({"a": 1}), false),
            (json!({}), json!({"a": 1}), false),
            (json!({"a": [{"b": 1, "c": 2}]}), json!({"a": [{"b": 1}]}), true),
            (json!({"a": [{"b": 1}, {"b": 2}]}), json!({"a": [{"b": 1}]}), false),
            (json!({"a": null}), json!({"a": null}), true),
        ] {
            assert_eq!(contains(&current, &desired), expected, "{current} {desired}");
        }
    }
}
