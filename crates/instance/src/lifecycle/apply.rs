//! Carries out operations, each a conditional write. Where the condition does not hold the world has changed: that
//! is no error, the object is read anew and planned for again.

mod confirm;

use std::sync::Arc;

use agentcube_api::{Sandbox, Task, labels};
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
use crate::bearer::{Bearer, Body, Instances};
use crate::identity::{Kind, SpecId};
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
        let body = operation.pod().and_then(|pod| self.held(pod));
        let outcome = self.carry_out(key, operation).await?;
        if outcome == Outcome::Done {
            tracing::debug!(namespace = %key.namespace, ?operation, "done");
            self.explainer.done(self.task(key).as_deref(), body.as_ref(), operation);
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
            Operation::RestSession { lease: seen } => {
                self.change_lease(seen, |lease| {
                    lease.annotations_mut().insert(labels::RESTS.into(), seen.version.to_string());
                    lease.annotations_mut().remove(labels::RELEASING);
                })
                .await
            }
            Operation::PauseInstance { pod } => self.change(pod, json!({ "spec": { "paused": true } })).await,
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
            Operation::DeleteInstance { pod, condition, .. } => self.delete(pod, *condition).await,
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

    /// The object of an instance, as the cache has it.
    fn held(&self, pod: &PodRef) -> Option<Body> {
        let (namespace, name) = (&pod.namespace, &pod.id.name);
        match pod.id.kind {
            Kind::Pod => self.caches.pods.get(namespace, name).map(|pod| Body::from((*pod).clone())),
            Kind::Sandbox => {
                self.caches.sandboxes.get(namespace, name).map(|held| Body::from((*held).clone()))
            }
        }
    }

    /// Changes annotations of an instance, if it has not changed.
    async fn annotate(&self, pod: &PodRef, annotations: Value) -> Result<Outcome, kube::Error> {
        self.change(pod, json!({ "metadata": { "annotations": annotations } })).await
    }

    /// Merges something into the object of an instance, if it has not changed.
    async fn change(&self, pod: &PodRef, mut change: Value) -> Result<Outcome, kube::Error> {
        change["metadata"]["uid"] = json!(&*pod.id.uid);
        change["metadata"]["resourceVersion"] = json!(pod.version.to_string());
        match pod.id.kind {
            Kind::Pod => self.change_in(self.pods(), pod, change).await,
            Kind::Sandbox => self.change_in(self.sandboxes(), pod, change).await,
        }
    }

    async fn change_in<B: Bearer>(
        &self,
        store: Store<'_, B>,
        pod: &PodRef,
        change: Value,
    ) -> Result<Outcome, kube::Error> {
        let Some(known) = known(store.cache, &pod.namespace, &pod.id.name, pod.version) else {
            return Ok(Outcome::Stale);
        };
        let api: Api<B> = Api::namespaced(self.client.clone(), &pod.namespace);
        let answer = api.patch(&pod.id.name, &PatchParams::default(), &Patch::Merge(change)).await;
        self.settle(store, &known, answer.map(Some)).await
    }

    async fn delete(&self, pod: &PodRef, condition: Condition) -> Result<Outcome, kube::Error> {
        match pod.id.kind {
            Kind::Pod => self.delete_in(self.pods(), pod, condition).await,
            Kind::Sandbox => self.delete_in(self.sandboxes(), pod, condition).await,
        }
    }

    async fn delete_in<B: Bearer>(
        &self,
        store: Store<'_, B>,
        pod: &PodRef,
        condition: Condition,
    ) -> Result<Outcome, kube::Error> {
        let Some(known) = store.cache.get(&pod.namespace, &pod.id.name) else { return Ok(Outcome::Stale) };
        let version = (condition == Condition::Version).then_some(pod.version);
        let api: Api<B> = Api::namespaced(self.client.clone(), &pod.namespace);
        let answer = api.delete(&pod.id.name, &delete_if(&pod.id.uid, version)).await;
        self.settle(store, &known, answer.map(|rest| rest.left())).await
    }

    async fn start(&self, key: &TaskKey, spec: &SpecId, slot: u32) -> Result<Outcome, kube::Error> {
        let template = self.caches.templates.get(&key.namespace, &spec.0);
        let revision = template.and_then(|template| Revision::read(&template));
        let Some(revision) = revision.filter(|revision| revision.task.uid == key.uid) else {
            return Ok(Outcome::Stale);
        };
        let body = revision.instance(slot, None);
        match self.instances().create(&body).await {
            Ok(created) => {
                self.take_body(created);
                Ok(Outcome::Done)
            }
            Err(error) if is_stale(&error) => {
                self.look_into_slot(key, body.kind(), &body.name(), slot).await?;
                Ok(Outcome::Stale)
            }
            Err(error) => {
                self.explainer.start_failed(self.task(key).as_deref(), &body.name(), &error.to_string());
                Err(error)
            }
        }
    }

    /// Finds out what is in a slot that was taken to be empty: an instance, or something that has its name.
    async fn look_into_slot(
        &self,
        key: &TaskKey,
        kind: Kind,
        name: &str,
        slot: u32,
    ) -> Result<(), kube::Error> {
        let of_task = |body: &Body| {
            let labels = body.meta().labels.as_ref();
            labels.and_then(|labels| labels.get(labels::TASK_UID)).is_some_and(|uid| **uid == *key.uid)
        };
        match self.instances().get(kind, &key.namespace, name).await? {
            Some(body) if of_task(&body) => self.take_body(body),
            Some(_) => {
                let kind = kind.as_str();
                tracing::warn!(namespace = %key.namespace, kind, name, "a slot is taken by what is no instance");
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

    fn leases(&self) -> Store<'_, Lease> {
        Store { cache: &self.caches.leases, refresh: Index::lease }
    }

    fn pods(&self) -> Store<'_, Pod> {
        Store { cache: &self.caches.pods, refresh: Index::pod }
    }

    fn sandboxes(&self) -> Store<'_, Sandbox> {
        Store { cache: &self.caches.sandboxes, refresh: Index::sandbox }
    }

    fn instances(&self) -> Instances {
        Instances::new(self.client.clone())
    }

    /// Takes in the object of an instance.
    fn take_body(&self, body: Body) {
        match body {
            Body::Pod(pod) => self.take(self.pods(), *pod),
            Body::Sandbox(sandbox) => self.take(self.sandboxes(), *sandbox),
        }
    }

    fn jobs(&self) -> Store<'_, Job> {
        Store { cache: &self.caches.jobs, refresh: Index::job }
    }

    /// Takes in an object as the server gave it.
    fn take<K: Object>(&self, store: Store<'_, K>, object: K) {
        let meta = object.meta();
        let place = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        store.cache.put(object);
        (store.refresh)(&mut self.index.lock(), &place.0, &place.1);
    }

    /// Takes in the answer to a write: what is left of the object, if anything; or, if the condition of the write did
    /// not hold, what is there instead.
    async fn settle<K: Object<Scope = NamespaceResourceScope>>(
        &self,
        store: Store<'_, K>,
        known: &K,
        answer: Result<Option<K>, kube::Error>,
    ) -> Result<Outcome, kube::Error> {
        let meta = known.meta();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref());
        let name = name.unwrap_or_default();
        let outcome = match answer {
            Ok(Some(left)) if left.meta().deletion_timestamp.is_none() => {
                store.cache.put(left);
                Outcome::Done
            }
            Ok(left) => {
                store.cache.deleted(known, left);
                Outcome::Done
            }
            Err(error) if is_stale(&error) => {
                let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
                match api.get_opt(name).await? {
                    Some(current) => store.cache.put(current),
                    None => store.cache.gone(known),
                }
                Outcome::Stale
            }
            Err(error) => return Err(error),
        };
        (store.refresh)(&mut self.index.lock(), namespace, name);
        Ok(outcome)
    }
}

/// Where objects of a kind are kept.
struct Store<'a, K> {
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
