//! Carries out operations, each a conditional write. Where the condition does not hold the world has changed: that
//! is no error, the object is read anew and planned for again.

mod confirm;

use std::sync::Arc;

use agentcube_api::{Task, labels};
use agentcube_operator::cache::{Cache, Object};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::caches::Caches;
use super::explain::Explainer;
use super::observe::{Concerned, Index, TaskKey};
use super::operation::{Condition, LeaseRef, Operation, PodRef, Reason};
use super::view::Rules;
use crate::identity::SpecId;
use crate::revision::Revision;

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// What it was planned for is not so, or not so any more.
    Stale,
}

/// What applying needs; cheap to clone.
#[derive(Clone)]
pub(super) struct Hands {
    pub(super) client: Client,
    pub(super) caches: Caches,
    pub(super) index: Arc<Mutex<Index>>,
    pub(super) explainer: Explainer,
    pub(super) rules: Rules,
    /// Where the routers' Leases are.
    pub(super) routers_in: String,
}

impl Hands {
    /// Carries out one operation for a Task.
    pub(super) async fn apply(&self, key: &TaskKey, operation: &Operation) -> Result<Outcome, kube::Error> {
        // Read before it is gone, for the Event.
        let pod = operation.pod().and_then(|pod| self.caches.pods.get(&pod.namespace, &pod.id.name));
        let outcome = self.carry_out(key, operation).await?;
        if outcome == Outcome::Done {
            tracing::debug!(namespace = %key.namespace, ?operation, "done");
            self.explainer.done(self.task(key).as_deref(), pod.as_deref(), operation);
            self.remember(key, operation);
        }
        Ok(outcome)
    }

    /// Keeps in mind what later plans build on and no object says.
    fn remember(&self, key: &TaskKey, operation: &Operation) {
        let mut index = self.index.lock();
        let Some(view) = index.view_mut(key) else { return };
        view.in_vain = 0;
        match operation {
            Operation::DeleteInstance { reason: Reason::InstanceDead, .. } => {
                view.deaths.add(tokio::time::Instant::now(), &self.rules.limits);
            }
            Operation::EndSession { lease, kept: true, reason, .. } => {
                view.ends.insert(lease.uid.clone(), *reason);
            }
            Operation::FinishSession { lease, .. } => drop(view.ends.remove(&lease.uid)),
            _ => {}
        }
    }

    async fn carry_out(&self, key: &TaskKey, operation: &Operation) -> Result<Outcome, kube::Error> {
        if !self.is_confirmed(key, operation).await? {
            return Ok(Outcome::Stale);
        }
        match operation {
            Operation::MarkSession { lease, reason } => {
                self.change_lease(lease, |lease| {
                    lease.annotations_mut().insert(labels::RELEASING.into(), reason.as_str().into());
                })
                .await
            }
            Operation::UnmarkSession { lease } => {
                self.change_lease(lease, |lease| drop(lease.annotations_mut().remove(labels::RELEASING)))
                    .await
            }
            Operation::EndSession { lease, .. } => self.delete_lease(lease).await,
            Operation::FinishSession { lease, .. } => {
                self.change_lease(lease, |lease| {
                    lease.finalizers_mut().retain(|name| name != labels::SESSION_FINALIZER);
                })
                .await
            }
            Operation::FreeInstance { pod, .. } => {
                let now = Timestamp::now().to_string();
                let free = json!({ labels::RESERVE_KEY: "", labels::RESERVATION: "", labels::LAST_ACTIVE: now,
                    labels::RELEASING: null, labels::CREATED_FOR: null });
                self.annotate(pod, free).await
            }
            Operation::MarkInstance { pod, reason, .. } => {
                self.annotate(pod, json!({ labels::RELEASING: reason.as_str() })).await
            }
            Operation::UnmarkInstance { pod } => self.annotate(pod, json!({ labels::RELEASING: null })).await,
            Operation::DeleteInstance { pod, condition, .. } => self.delete_pod(pod, *condition).await,
            Operation::StartInstance { spec, slot } => self.start(key, spec, *slot).await,
            Operation::SetParallelism { job, version, to, .. } => {
                self.set_parallelism(&key.namespace, job, *version, *to).await
            }
        }
    }

    /// The Task, if it exists.
    pub(super) fn task(&self, key: &TaskKey) -> Option<Arc<Task>> {
        let name = self.index.lock().view_mut(key)?.task.as_ref()?.id.name.clone();
        let task = self.caches.tasks.get(&key.namespace, &name)?;
        (task.metadata.uid.as_deref() == Some(&*key.uid)).then_some(task)
    }

    /// Replaces a Lease by a changed one.
    async fn change_lease(
        &self,
        lease: &LeaseRef,
        change: impl FnOnce(&mut Lease),
    ) -> Result<Outcome, kube::Error> {
        let Some(known) = known(&self.caches.leases, &lease.namespace, &lease.name, lease.version) else {
            return Ok(Outcome::Stale);
        };
        let mut changed = (*known).clone();
        change(&mut changed);
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &lease.namespace);
        let answer = api.replace(&lease.name, &PostParams::default(), &changed).await;
        self.settle(self.leases(), &known, answer.map(Some)).await
    }

    async fn delete_lease(&self, lease: &LeaseRef) -> Result<Outcome, kube::Error> {
        let Some(known) = known(&self.caches.leases, &lease.namespace, &lease.name, lease.version) else {
            return Ok(Outcome::Stale);
        };
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &lease.namespace);
        let answer = api.delete(&lease.name, &delete_if(&lease.uid, Some(lease.version))).await;
        self.settle(self.leases(), &known, answer.map(|rest| rest.left())).await
    }

    /// Removes the Lease of a router that counts as dead. If it has changed, it is left to the watch to say so: what a
    /// router says may not be taken in before what it wrote earlier.
    pub(super) async fn remove_router(&self, lease: &LeaseRef) -> Result<Outcome, kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &lease.namespace);
        match api.delete(&lease.name, &delete_if(&lease.uid, Some(lease.version))).await {
            Ok(_) => Ok(Outcome::Done),
            Err(error) if is_stale(&error) => Ok(Outcome::Stale),
            Err(error) => Err(error),
        }
    }

    /// Changes annotations of a Pod, if it has not changed.
    async fn annotate(&self, pod: &PodRef, annotations: Value) -> Result<Outcome, kube::Error> {
        let Some(known) = known(&self.caches.pods, &pod.namespace, &pod.id.name, pod.version) else {
            return Ok(Outcome::Stale);
        };
        let version = pod.version.to_string();
        let change = json!({ "metadata":
            { "uid": &*pod.id.uid, "resourceVersion": version, "annotations": annotations } });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let answer = api.patch(&pod.id.name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.settle(self.pods(), &known, answer.map(Some)).await
    }

    async fn delete_pod(&self, pod: &PodRef, condition: Condition) -> Result<Outcome, kube::Error> {
        let Some(known) = self.caches.pods.get(&pod.namespace, &pod.id.name) else {
            return Ok(Outcome::Stale);
        };
        let version = (condition == Condition::Version).then_some(pod.version);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let answer = api.delete(&pod.id.name, &delete_if(&pod.id.uid, version)).await;
        self.settle(self.pods(), &known, answer.map(|rest| rest.left())).await
    }

    async fn start(&self, key: &TaskKey, spec: &SpecId, slot: u32) -> Result<Outcome, kube::Error> {
        let template = self.caches.templates.get(&key.namespace, &spec.0);
        let revision = template.and_then(|template| Revision::read(&template));
        let Some(revision) = revision.filter(|revision| revision.task.uid == key.uid) else {
            return Ok(Outcome::Stale);
        };
        let pod = revision.pod(slot, None);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.create(&PostParams::default(), &pod).await {
            Ok(created) => {
                self.take(self.pods(), created);
                Ok(Outcome::Done)
            }
            Err(error) if is_stale(&error) => {
                self.look_into_slot(key, &pod.name_any(), slot).await?;
                Ok(Outcome::Stale)
            }
            Err(error) => {
                self.explainer.start_failed(self.task(key).as_deref(), &pod.name_any(), &error.to_string());
                Err(error)
            }
        }
    }

    /// Finds out what is in a slot that was taken to be empty: an instance, or something that has its name.
    async fn look_into_slot(&self, key: &TaskKey, name: &str, slot: u32) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.get_opt(name).await? {
            Some(pod) if pod.labels().get(labels::TASK_UID).is_some_and(|uid| **uid == *key.uid) => {
                self.take(self.pods(), pod);
            }
            Some(_) => {
                tracing::warn!(namespace = %key.namespace, pod = name, "a slot is taken by a Pod of another kind");
                if let Some(view) = self.index.lock().view_mut(key) {
                    view.blocked.insert(slot);
                }
            }
            None => {}
        }
        Ok(())
    }

    async fn set_parallelism(
        &self,
        namespace: &str,
        job: &str,
        version: u64,
        to: i32,
    ) -> Result<Outcome, kube::Error> {
        let Some(known) = known(&self.caches.jobs, namespace, job, version) else {
            return Ok(Outcome::Stale);
        };
        let change = json!({ "metadata": { "uid": known.metadata.uid, "resourceVersion": version.to_string() },
            "spec": { "parallelism": to } });
        let api: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        let answer = api.patch(job, &PatchParams::default(), &Patch::Merge(change)).await;
        self.settle(self.jobs(), &known, answer.map(Some)).await
    }

    fn leases(&self) -> Kind<'_, Lease> {
        Kind { cache: &self.caches.leases, refresh: Index::lease }
    }

    fn pods(&self) -> Kind<'_, Pod> {
        Kind { cache: &self.caches.pods, refresh: Index::pod }
    }

    fn jobs(&self) -> Kind<'_, Job> {
        Kind { cache: &self.caches.jobs, refresh: Index::job }
    }

    /// Takes in an object as the server gave it.
    fn take<K: Object>(&self, kind: Kind<'_, K>, object: K) {
        let meta = object.meta();
        let place = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        kind.cache.put(object);
        (kind.refresh)(&mut self.index.lock(), &place.0, &place.1);
    }

    /// Takes in the answer to a write: what is left of the object, if anything; or, if the condition of the write did
    /// not hold, what is there instead.
    async fn settle<K: Object<Scope = NamespaceResourceScope>>(
        &self,
        kind: Kind<'_, K>,
        known: &K,
        answer: Result<Option<K>, kube::Error>,
    ) -> Result<Outcome, kube::Error> {
        let meta = known.meta();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref());
        let name = name.unwrap_or_default();
        let outcome = match answer {
            Ok(Some(left)) if left.meta().deletion_timestamp.is_none() => {
                kind.cache.put(left);
                Outcome::Done
            }
            Ok(left) => {
                kind.cache.deleted(known, left);
                Outcome::Done
            }
            Err(error) if is_stale(&error) => {
                let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
                match api.get_opt(name).await? {
                    Some(current) => kind.cache.put(current),
                    None => kind.cache.gone(known),
                }
                Outcome::Stale
            }
            Err(error) => return Err(error),
        };
        (kind.refresh)(&mut self.index.lock(), namespace, name);
        Ok(outcome)
    }
}

/// Where objects of a kind are kept.
struct Kind<'a, K> {
    cache: &'a Cache<K>,
    refresh: fn(&mut Index, &str, &str) -> Concerned,
}

/// The object in this very version.
fn known<K: Object>(cache: &Cache<K>, namespace: &str, name: &str, version: u64) -> Option<Arc<K>> {
    let known = cache.get(namespace, name)?;
    let same = known.meta().resource_version.as_deref() == Some(version.to_string().as_str());
    same.then_some(known)
}

fn delete_if(uid: &str, version: Option<u64>) -> DeleteParams {
    let preconditions =
        Preconditions { uid: Some(uid.into()), resource_version: version.map(|version| version.to_string()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Whether the server refused because the object is gone, or another one, or has changed.
fn is_stale(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}
