//! What the three controllers share: client, caches, agents, and writes that all of them make.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Plugin, labels};
use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::children;
use agentcube_operator::events::Recorder;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::app::Note;
use crate::caches::Caches;
use crate::options::Options;
use crate::refusals::{self, Key, Refusals, Refused};

/// The name under which we own fields.
pub(crate) const MANAGER: &str = "agentcube-middleware";

/// The annotation of a Pod that is being taken down: for which revision.
pub(crate) const TAKEN_FOR: &str = "middleware.io/taken-for";

/// Before it is planned again what was refused.
pub(crate) const REFUSED_LOOK: Duration = Duration::from_millis(10);

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Name {
    pub(crate) fn of<K: Resource>(object: &K) -> Name {
        Name {
            namespace: object.meta().namespace.clone().unwrap_or_default(),
            name: object.meta().name.clone().unwrap_or_default(),
        }
    }
}

/// Why a pass has to be repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Api(Box<kube::Error>),
    #[error("{0}")]
    Child(#[from] children::Error),
    #[error("an agent does not do what it is asked: {0}")]
    Agent(String),
    #[error("what was planned on has changed since")]
    Stale,
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        Error::Api(Box::new(error))
    }
}

impl Error {
    /// Says which object it is about: so what the server refuses can be told from what passes.
    pub(crate) fn about<K: Resource<DynamicType = ()>>(self, name: &str) -> Error {
        match self {
            Error::Api(source) => {
                let (kind, name) = (K::kind(&()).into_owned(), name.to_owned());
                children::Error::Write { kind, name, source }.into()
            }
            other => other,
        }
    }
}

/// An object of a namespace that is ours to write.
pub(crate) trait Ours: Object + Serialize + Resource<Scope = NamespaceResourceScope> {}

impl<K: Object + Serialize + Resource<Scope = NamespaceResourceScope>> Ours for K {}

pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) agents: Arc<dyn Agents>,
    pub(crate) options: Options,
    pub(crate) events: Recorder,
    pub(crate) refused: Refusals,
    /// Since when these controllers look.
    pub(crate) begun: jiff::Timestamp,
}

impl Core {
    pub(crate) fn api<K: Ours>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// A Plugin object: of this namespace, or else of the system's.
    pub(crate) fn plugin(&self, namespace: &str, name: &str) -> Option<Arc<Plugin>> {
        let plugins = &self.caches.plugins;
        plugins.get(namespace, name).or_else(|| plugins.get(&self.options.system_namespace, name))
    }

    /// Adds our finalizer, or removes it.
    pub(crate) async fn set_finalizer<K: Ours>(
        &self,
        cache: &Cache<K>,
        object: &K,
        held: bool,
    ) -> Result<(), Error> {
        let mut finalizers: Vec<String> = object.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != labels::MIDDLEWARE_FINALIZER);
        if held {
            finalizers.push(labels::MIDDLEWARE_FINALIZER.into());
        }
        let patch =
            json!({ "metadata": { "resourceVersion": object.resource_version(), "finalizers": finalizers } });
        match self.patch(cache, object, &patch).await {
            Err(Error::Api(error)) if !held && is_code(&error, 404) => {
                cache.gone(object);
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Changes metadata of an object.
    pub(crate) async fn patch<K: Ours>(
        &self,
        cache: &Cache<K>,
        object: &K,
        patch: &Value,
    ) -> Result<K, Error> {
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        let written = api.patch(&object.name_any(), &parameters, &Patch::Merge(patch)).await?;
        if written.meta().deletion_timestamp.is_some() && written.finalizers().is_empty() {
            cache.gone(&written);
        } else {
            cache.put(written.clone());
        }
        Ok(written)
    }

    /// Writes the status of an object, which has it already.
    pub(crate) async fn write_status<K: Ours>(&self, cache: &Cache<K>, mut object: K) -> Result<(), Error> {
        object.meta_mut().managed_fields = None;
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let written = api.replace_status(&object.name_any(), &parameters, &object).await?;
        cache.put(written);
        Ok(())
    }

    /// Makes a child what it should be.
    pub(crate) async fn ensure<K: Ours>(&self, cache: &Cache<K>, desired: &K) -> Result<(), Error> {
        let namespace = desired.namespace().unwrap_or_default();
        let current = cache.get(&namespace, &desired.name_any());
        let api = self.api::<K>(&namespace);
        let ensured = children::ensure(&api, MANAGER, desired, current.as_deref()).await?;
        if let Some(written) = ensured.written() {
            cache.put(written.clone());
        }
        Ok(())
    }

    /// Makes a child what it should be. What the server refuses for good is kept, and told to whoever wanted it; says whether it was.
    pub(crate) async fn ensure_or_keep<K: Ours>(
        &self,
        cache: &Cache<K>,
        desired: &K,
        about: &impl Ours,
        refused: (Key, String),
    ) -> Result<bool, Error> {
        let error = match self.ensure(cache, desired).await {
            Err(Error::Child(error)) => error,
            other => return other.map(|()| true),
        };
        let Some(fault) = refusals::fault(&error) else { return Err(error.into()) };
        self.events.warning(about, fault.reason, &fault.message);
        let (key, what) = refused;
        self.refused.keep(key, Refused { what, fault });
        Ok(false)
    }

    /// Deletes an object, if it is still the one that was seen.
    pub(crate) async fn delete<K: Ours>(&self, cache: &Cache<K>, object: &K) -> Result<(), Error> {
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

    /// Deletes an object, if nothing about it has changed since it was seen.
    pub(crate) async fn delete_unchanged<K: Ours>(&self, cache: &Cache<K>, object: &K) -> Result<(), Error> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            }),
            ..DeleteParams::background()
        };
        let api = self.api::<K>(&object.namespace().unwrap_or_default());
        match api.delete(&object.name_any(), &parameters).await {
            Ok(answer) => cache.deleted(object, answer.left()),
            Err(error) if is_code(&error, 404) => cache.gone(object),
            Err(error) if is_code(&error, 409) => return Err(Error::Stale),
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

/// The owner of everything that is made for an object.
pub(crate) fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Option<OwnerReference> {
    object.controller_owner_ref(&())
}
