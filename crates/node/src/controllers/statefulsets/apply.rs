//! Carries out what was planned for a StatefulSet, and tells of it in Events. Every answer is written through.

use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::Context;
use super::plan::Operation;
use crate::controllers::ownership::{adoption, controller_reference, release};
use crate::controllers::refusal::{self, code, is_gone};
use crate::controllers::{is_current, is_namespace_ending, reason_of};
use agentcube_operator::cache::{Cache, Object};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("taking or letting go {what}: {source}")]
    Claim { what: String, source: kube::Error },
    #[error("asking whether the StatefulSet is still as it was: {0}")]
    Look(#[source] kube::Error),
    #[error("recording the revision {name}: {source}")]
    Revision { name: String, source: kube::Error },
    #[error("{verb} the claim {name}: {source}")]
    Volume { verb: &'static str, name: String, source: kube::Error },
    #[error("{verb} Pod {name}: {source}")]
    Pod { verb: &'static str, name: String, source: kube::Error },
    #[error("writing the status: {0}")]
    Status(#[source] kube::Error),
}

/// Carries out one plan.
pub(super) struct Apply<'a> {
    pub(super) context: &'a Context,
    pub(super) set: &'a StatefulSet,
}

impl Apply<'_> {
    /// Does all in order; `false` if the set is another by now, so that nothing was done.
    pub(super) async fn all(&self, operations: Vec<Operation>) -> Result<bool, Error> {
        if operations.is_empty() {
            return Ok(true);
        }
        let current = is_current(&self.api(), &self.context.caches.stateful_sets, self.set).await;
        if !current.map_err(Error::Look)? {
            return Ok(false);
        }
        for operation in operations {
            self.one(operation).await?;
        }
        Ok(true)
    }

    async fn one(&self, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::AdoptRevision { name, uid } => {
                self.adopt(&self.context.caches.controller_revisions, name, uid).await
            }
            Operation::AdoptPod { name, uid } => self.adopt(&self.context.caches.pods, name, uid).await,
            Operation::ReleasePod { name, uid } => {
                let patch = release(&self.set.metadata, &meta(uid));
                self.claim(&self.context.caches.pods, name, patch).await
            }
            Operation::CreateRevision(revision) => self.create_revision(&revision).await,
            Operation::RenumberRevision { name, revision } => self.renumber(name, revision).await,
            Operation::DeleteRevision { name } => self.delete_revision(name).await,
            Operation::CreateClaim { pod, claim } => self.create_claim(&pod, &claim).await,
            Operation::SetClaimOwners { name, owners } => self.own_claim(name, owners).await,
            Operation::CreatePod(pod) => self.create_pod(&pod).await,
            Operation::UpdatePod { name, labels } => self.update_pod(name, labels).await,
            Operation::DeletePod { name, uid } => self.delete_pod(name, uid).await,
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), &self.set.namespace().unwrap_or_default())
    }

    async fn adopt<K>(&self, cache: &Cache<K>, name: String, uid: String) -> Result<(), Error>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        let patch = adoption(&controller_reference(self.set), &meta(uid));
        self.claim(cache, name, patch).await
    }

    async fn claim<K>(&self, cache: &Cache<K>, name: String, patch: Value) -> Result<(), Error>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        match self.api::<K>().patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(object) => cache.put(object),
            Err(error) if code(&error) == 404 => self.forget(cache, &name),
            Err(source) => return Err(Error::Claim { what: name, source }),
        }
        Ok(())
    }

    /// Takes in that an object is not there.
    fn forget<K: Object>(&self, cache: &Cache<K>, name: &str) {
        if let Some(held) = cache.get(&self.set.namespace().unwrap_or_default(), name) {
            cache.gone(&held);
        }
    }

    async fn create_revision(&self, revision: &ControllerRevision) -> Result<(), Error> {
        let created = self.api().create(&PostParams::default(), revision).await;
        let created = created.map_err(|source| Error::Revision { name: revision.name_any(), source })?;
        self.context.caches.controller_revisions.put(created);
        Ok(())
    }

    async fn renumber(&self, name: String, revision: i64) -> Result<(), Error> {
        let patch = Patch::Merge(json!({"revision": revision}));
        match self.api::<ControllerRevision>().patch(&name, &PatchParams::default(), &patch).await {
            Ok(changed) => self.context.caches.controller_revisions.put(changed),
            Err(source) => return Err(Error::Revision { name, source }),
        }
        Ok(())
    }

    async fn delete_revision(&self, name: String) -> Result<(), Error> {
        let caches = &self.context.caches;
        let Some(held) = caches.controller_revisions.get(&self.set.namespace().unwrap_or_default(), &name)
        else {
            return Ok(());
        };
        let (api, uid) = (self.api::<ControllerRevision>(), held.uid().unwrap_or_default());
        match api.delete(&name, &refusal::only(uid.clone())).await {
            Ok(answer) => caches.controller_revisions.deleted(&held, answer.left()),
            Err(error) => match is_gone(&api, &name, &uid, error).await {
                Ok(()) => caches.controller_revisions.gone(&held),
                Err(source) => return Err(Error::Revision { name, source }),
            },
        }
        Ok(())
    }

    async fn create_claim(&self, pod: &str, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let (name, set) = (claim.name_any(), self.set.name_any());
        match self.api().create(&PostParams::default(), claim).await {
            Ok(created) => {
                self.context.caches.claims.put(created);
                let message = format!("Create Claim {name} Pod {pod} in StatefulSet {set} success");
                self.context.events.normal(self.set, "SuccessfulCreate", message);
                Ok(())
            }
            Err(source) => {
                if code(&source) != 409 && !is_namespace_ending(&source) {
                    let reason = reason_of(&source);
                    let message = format!(
                        "Create Claim {name} for Pod {pod} in StatefulSet {set} failed error: {reason}"
                    );
                    self.context.events.warning(self.set, "FailedCreate", message);
                }
                Err(Error::Volume { verb: "creating", name, source })
            }
        }
    }

    /// Replaces the owners that were observed, and no others.
    async fn own_claim(&self, name: String, owners: Vec<OwnerReference>) -> Result<(), Error> {
        let held = self.context.caches.claims.get(&self.set.namespace().unwrap_or_default(), &name);
        let Some(version) = held.and_then(|held| held.resource_version()) else { return Ok(()) };
        let patch =
            Patch::Merge(json!({"metadata": {"resourceVersion": version, "ownerReferences": owners}}));
        match self.api::<PersistentVolumeClaim>().patch(&name, &PatchParams::default(), &patch).await {
            Ok(claim) => self.context.caches.claims.put(claim),
            Err(error) if code(&error) == 404 => self.forget(&self.context.caches.claims, &name),
            Err(source) => return Err(Error::Volume { verb: "changing the owners of", name, source }),
        }
        Ok(())
    }

    async fn create_pod(&self, pod: &Pod) -> Result<(), Error> {
        let name = pod.name_any();
        match self.api().create(&PostParams::default(), pod).await {
            Ok(created) => {
                self.context.caches.pods.put(created);
                self.tell("Create", &name, None);
                Ok(())
            }
            Err(source) => {
                if code(&source) != 409 && !is_namespace_ending(&source) {
                    self.tell("Create", &name, Some(&source));
                }
                Err(Error::Pod { verb: "creating", name, source })
            }
        }
    }

    async fn update_pod(&self, name: String, labels: BTreeMap<String, String>) -> Result<(), Error> {
        if !labels.is_empty() {
            let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
            match self.api::<Pod>().patch(&name, &PatchParams::default(), &patch).await {
                Ok(pod) => self.context.caches.pods.put(pod),
                Err(source) => {
                    self.tell("Update", &name, Some(&source));
                    return Err(Error::Pod { verb: "updating", name, source });
                }
            }
        }
        self.tell("Update", &name, None);
        Ok(())
    }

    async fn delete_pod(&self, name: String, uid: String) -> Result<(), Error> {
        let pods = &self.context.caches.pods;
        let Some(held) = pods.get(&self.set.namespace().unwrap_or_default(), &name) else { return Ok(()) };
        let api = self.api::<Pod>();
        match api.delete(&name, &refusal::only(uid.clone())).await {
            Ok(answer) => pods.deleted(&held, answer.left()),
            Err(error) => match is_gone(&api, &name, &uid, error).await {
                Ok(()) => pods.gone(&held),
                Err(source) => {
                    self.tell("Delete", &name, Some(&source));
                    return Err(Error::Pod { verb: "deleting", name, source });
                }
            },
        }
        self.tell("Delete", &name, None);
        Ok(())
    }

    fn tell(&self, verb: &str, pod: &str, error: Option<&kube::Error>) {
        let (set, events) = (self.set.name_any(), &self.context.events);
        match error {
            None => {
                let message = format!("{verb} Pod {pod} in StatefulSet {set} successful");
                events.normal(self.set, &format!("Successful{verb}"), message);
            }
            Some(error) => {
                let message =
                    format!("{verb} Pod {pod} in StatefulSet {set} failed error: {}", reason_of(error));
                events.warning(self.set, &format!("Failed{verb}"), message);
            }
        }
    }

    pub(super) async fn status(&self, status: StatefulSetStatus) -> Result<(), Error> {
        let new = StatefulSet { status: Some(status), ..self.set.clone() };
        let sets = &self.context.caches.stateful_sets;
        match self.api().replace_status(&self.set.name_any(), &PostParams::default(), &new).await {
            Ok(set) => sets.put(set),
            Err(error) if code(&error) == 404 => sets.gone(self.set),
            Err(error) => return Err(Error::Status(error)),
        }
        Ok(())
    }
}

fn meta(uid: String) -> ObjectMeta {
    ObjectMeta { uid: Some(uid), ..ObjectMeta::default() }
}
