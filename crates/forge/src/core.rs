//! What both controllers share: client, caches, and writes that both make.

use std::fmt::Debug;

use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::children;
use agentcube_operator::events::Recorder;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caches::Caches;
use crate::options::Options;

/// The name under which we own fields.
pub(crate) const MANAGER: &str = "agentcube-forge";

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Name {
    pub(crate) fn of<K: Resource>(object: &K) -> Name {
        Name { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

/// Why a reconcile did not come to its end; all of them are tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    #[error(transparent)]
    Child(#[from] children::Error),
    #[error("an object cannot be made: {0}")]
    Object(#[from] serde_json::Error),
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        Error::Api(Box::new(error))
    }
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) events: Recorder,
    pub(crate) options: Options,
}

impl Core {
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Writes the status of an object, which has it already, if nobody wrote the object meanwhile.
    pub(crate) async fn write_status<K>(&self, cache: &Cache<K>, mut object: K) -> Result<K, Error>
    where
        K: Object + Resource<Scope = NamespaceResourceScope> + Serialize,
    {
        object.meta_mut().managed_fields = None;
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let written = api.replace_status(&object.name_any(), &parameters, &object).await?;
        cache.put(written.clone());
        Ok(written)
    }

    /// Makes a child what it should be; it is not kept in memory.
    pub(crate) async fn ensure<K>(&self, desired: &K) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Serialize + DeserializeOwned + Clone + Debug,
    {
        let api = self.api::<K>(&desired.namespace().unwrap_or_default());
        children::ensure(&api, MANAGER, desired, None).await?;
        Ok(())
    }

    /// Deletes an object, if it is still the one that was seen.
    pub(crate) async fn delete<K>(&self, cache: &Cache<K>, object: &K) -> Result<(), Error>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::background()
        };
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        match api.delete(&object.name_any(), &parameters).await {
            Ok(answer) => cache.deleted(object, answer.left()),
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => cache.gone(object),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(crate) fn tell<K: Resource<DynamicType = ()>>(&self, about: &K, notes: &[Note]) {
        for note in notes {
            match note.warning {
                true => self.events.warning(about, note.reason, &note.message),
                false => self.events.normal(about, note.reason, &note.message),
            }
        }
    }
}

pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
