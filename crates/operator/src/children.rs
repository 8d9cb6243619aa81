//! What a controller does with a child object that it owns: finds out whether it is missing, out of date, or changed
//! by somebody else, and puts it right by server-side apply. Never touches an object that is not its owner's, and
//! never sends anything when there is nothing to put right.

mod alone;
mod compare;

use std::borrow::Cow;
use std::fmt::Debug;

use kube::Resource;
use kube::api::{Api, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use alone::ensure_alone;
pub use compare::{APPLIED, Standing, compare, stamp};

/// What was done with a child. Whatever was written is to be put into the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Ensured<K> {
    /// Nothing: it is as it should be.
    Same,
    /// It did not exist. If it did before, this is worth a `ResourceRecreated`.
    Created(K),
    /// It was as it should have been before, and is as it should be now.
    Updated(K),
    /// Somebody had changed it, at this JSON pointer; worth a `DriftRepaired`.
    Repaired { object: K, at: String },
    /// It is being deleted; to be created again when it is gone, of which the watch tells.
    Ending,
}

impl<K> Ensured<K> {
    /// The child as it was written, if it was.
    pub fn written(&self) -> Option<&K> {
        match self {
            Ensured::Created(object) | Ensured::Updated(object) | Ensured::Repaired { object, .. } => {
                Some(object)
            }
            Ensured::Same | Ensured::Ending => None,
        }
    }
}

/// Why a child is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Waits for a change: somebody has to remove or rename the other object.
    #[error(
        "{kind} {name} exists and belongs to {owner}: it is left alone; delete it, or choose another name for what \
         needs it"
    )]
    Foreign { kind: String, name: String, owner: String },
    /// The server refuses it; with 4xx other than 409 and 429 it stays so until what is wanted changes.
    #[error("{kind} {name} could not be written: {source}")]
    Write { kind: String, name: String, source: Box<kube::Error> },
    /// What is known of it is too old; to be tried again when the cache has caught up.
    #[error("{kind} {name} was replaced meanwhile by another of the same name")]
    Replaced { kind: String, name: String },
    /// A mistake of the caller.
    #[error("a child cannot be written like this: {0}")]
    Malformed(String),
}

impl Error {
    /// Whether the server found fault with the object itself, so that trying again does not help.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Write { source, .. } => match &**source {
                kube::Error::Api(status) => {
                    (400..500).contains(&status.code) && ![404, 409, 410, 429].contains(&status.code)
                }
                _ => false,
            },
            Error::Replaced { .. } => false,
            Error::Foreign { .. } | Error::Malformed(_) => true,
        }
    }
}

/// Makes the child what it should be. `desired` has a name, `apiVersion`, `kind` and a controller among its owners, and
/// leaves out what it does not care for. `current` is what the cache has; `manager` is the controller's field manager.
pub async fn ensure<K>(
    api: &Api<K>,
    manager: &str,
    desired: &K,
    current: Option<&K>,
) -> Result<Ensured<K>, Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let desired = Desired::new(manager, desired)?;
    match desired.look_up(api, current).await? {
        Some(current) => desired.mend(api, &json(&*current)?).await,
        None => desired.write(api, None).await.map(Ensured::Created),
    }
}

struct Desired<'a> {
    manager: &'a str,
    kind: String,
    name: String,
    object: Value,
}

impl<'a> Desired<'a> {
    fn new<K: Serialize>(manager: &'a str, object: &K) -> Result<Desired<'a>, Error> {
        let mut object = json(object)?;
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        let missing = |what: &str| Error::Malformed(format!("it has no {what}"));
        let kind = text("/kind").ok_or_else(|| missing("kind"))?.to_owned();
        text("/apiVersion").ok_or_else(|| missing("apiVersion"))?;
        let name = text("/metadata/name").ok_or_else(|| missing("metadata.name"))?.to_owned();
        if compare::controller(&object).is_none() {
            return Err(missing("owner with controller: true"));
        }
        stamp(&mut object);
        Ok(Desired { manager, kind, name, object })
    }

    /// The child as it is. What the cache does not know may be there, and may be somebody else's.
    async fn look_up<'k, K>(&self, api: &Api<K>, current: Option<&'k K>) -> Result<Option<Cow<'k, K>>, Error>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        match current {
            Some(current) => Ok(Some(Cow::Borrowed(current))),
            None => {
                let found = api.get_opt(&self.name).await.map_err(|error| self.failed(error))?;
                Ok(found.map(Cow::Owned))
            }
        }
    }

    async fn mend<K>(&self, api: &Api<K>, current: &Value) -> Result<Ensured<K>, Error>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        let uid = current.pointer("/metadata/uid").and_then(Value::as_str);
        match compare(&self.object, Some(current), self.manager) {
            Standing::Same => Ok(Ensured::Same),
            Standing::Ending => Ok(Ensured::Ending),
            Standing::Missing => self.write(api, None).await.map(Ensured::Created),
            Standing::Outdated => self.write(api, uid).await.map(Ensured::Updated),
            Standing::Drifted { at } => {
                self.write(api, uid).await.map(|object| Ensured::Repaired { object, at })
            }
            Standing::Foreign { owner } => {
                Err(Error::Foreign { kind: self.kind.clone(), name: self.name.clone(), owner })
            }
        }
    }

    /// Applies: by force over the object with this uid only, or else only where nobody is in the way.
    async fn write<K>(&self, api: &Api<K>, uid: Option<&str>) -> Result<K, Error>
    where
        K: Resource + DeserializeOwned + Clone + Debug,
    {
        let mut object = self.object.clone();
        if let Some(uid) = uid {
            object["metadata"]["uid"] = uid.into();
        }
        let parameters = PatchParams { force: uid.is_some(), ..PatchParams::apply(self.manager) };
        let applied = api.patch(&self.name, &parameters, &Patch::Apply(object)).await;
        applied.map_err(|error| self.failed(error))
    }

    fn failed(&self, source: kube::Error) -> Error {
        let (kind, name) = (self.kind.clone(), self.name.clone());
        if let kube::Error::Api(status) = &source
            && let Some(details) = &status.details
            && details.causes.iter().any(|cause| cause.field == "metadata.uid")
        {
            return Error::Replaced { kind, name };
        }
        Error::Write { kind, name, source: Box::new(source) }
    }
}

fn json<K: Serialize>(object: &K) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|error| Error::Malformed(error.to_string()))
}
