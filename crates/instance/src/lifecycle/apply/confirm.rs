//! Fresh reads before what cannot be undone: a cache may be late.

use agentcube_api::{Task, labels};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{Hands, is_stale};
use crate::identity::InstanceId;
use crate::lifecycle::observe::TaskKey;
use crate::lifecycle::operation::{Confirm, Given, LeaseRef, Operation, PodRef};
use crate::lifecycle::view::{SeenInstance, is_held_for};
use crate::record::{Instance, Life, Session};

impl Hands {
    /// Whether what the operation assumes of other objects than its own is so.
    pub(super) async fn is_confirmed(
        &self,
        key: &TaskKey,
        operation: &Operation,
    ) -> Result<bool, kube::Error> {
        let confirm = match operation {
            Operation::EndSession { lease, confirm: Confirm::NotBound(instance), .. } => {
                return self.is_not_bound(lease, instance).await;
            }
            Operation::MarkInstance { pod, confirm: Confirm::NotHeldBy(lease), .. }
            | Operation::DeleteInstance { pod, confirm: Confirm::NotHeldBy(lease), .. } => {
                return self.is_not_held(key, pod, lease).await;
            }
            Operation::FinishSession { lease, holder: Some(holder), given, .. } if *given != Given::Lost => {
                return self.is_given_back(lease, holder, *given).await;
            }
            Operation::SetParallelism { from, to, marked, job, .. } if to < from => {
                return self.are_all_marked(key, job, marked).await;
            }
            Operation::EndSession { confirm, .. } | Operation::DeleteInstance { confirm, .. } => confirm,
            _ => &Confirm::Nothing,
        };
        match confirm {
            Confirm::TaskGone(name) => self.is_task_gone(key, name).await,
            _ => Ok(true),
        }
    }

    async fn fresh(&self, namespace: &str, id: &InstanceId) -> Result<Option<Instance>, kube::Error> {
        let read = self.instances().get(id.kind, namespace, &id.name).await?;
        let Some(body) = read else { return Ok(None) };
        let instance = body.instance();
        if instance.is_some() {
            self.take_body(body);
        }
        Ok(instance.filter(|instance| instance.id == *id))
    }

    /// Whether the instance that the Lease names is not bound to it.
    async fn is_not_bound(&self, lease: &LeaseRef, instance: &InstanceId) -> Result<bool, kube::Error> {
        let instance = self.fresh(&lease.namespace, instance).await?;
        Ok(instance.is_none_or(|instance| !is_held_for(&instance, &lease.uid)))
    }

    /// Whether no session holds the instance, though it says so. The instance is read first: a bond that is being
    /// made has its Lease before its instance.
    async fn is_not_held(&self, key: &TaskKey, pod: &PodRef, lease: &str) -> Result<bool, kube::Error> {
        let Some(instance) = self.fresh(&pod.namespace, &pod.id).await? else { return Ok(false) };
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &pod.namespace);
        let Some(lease) = api.get_opt(lease).await? else { return Ok(true) };
        if !lease.labels().contains_key(labels::LEASE) {
            self.label_again(&lease).await?;
            return Ok(false);
        }
        let session = Session::read(&lease);
        let of_task = lease.labels().get(labels::TASK_UID).is_some_and(|uid| **uid == *key.uid);
        self.take(self.leases(), lease);
        // One that cannot be read is removed, and gives its instance back, unless it claims to be another Task's.
        let Some(session) = session else { return Ok(!of_task) };
        // One that ends gives its instance back itself.
        let ends = session.ending && is_held_for(&instance, &session.uid);
        Ok(!instance.is_bound_to(&session) && !ends)
    }

    /// Makes a session's Lease visible again that somebody took the label from.
    async fn label_again(&self, lease: &Lease) -> Result<(), kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &lease.namespace().unwrap_or_default());
        let label = Patch::Merge(json!({ "metadata": { "uid": lease.uid(),
            "resourceVersion": lease.resource_version(),
            "labels": { labels::LEASE: labels::LEASE_OF_SESSION } } }));
        let labelled = api.patch(&lease.name_any(), &PatchParams::default(), &label).await;
        match labelled {
            Ok(lease) => self.take(self.leases(), lease),
            Err(error) if is_stale(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether the instance of a session that ends is no longer the session's.
    async fn is_given_back(
        &self,
        lease: &LeaseRef,
        holder: &InstanceId,
        given: Given,
    ) -> Result<bool, kube::Error> {
        let Some(instance) = self.fresh(&lease.namespace, holder).await? else { return Ok(true) };
        Ok(match instance.life {
            Life::Dead => true,
            Life::Terminating if given == Given::Back => true,
            _ => !is_held_for(&instance, &lease.uid),
        })
    }

    async fn are_all_marked(&self, key: &TaskKey, job: &str, marked: &[PodRef]) -> Result<bool, kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let spec = self.caches.jobs.get(&key.namespace, job);
        let spec = spec.as_ref().and_then(|job| job.metadata.labels.as_ref()?.get(labels::SPEC_ID));
        let Some(spec) = spec else { return Ok(false) };
        let of_job = format!("{}={},{}={spec}", labels::TASK_UID, key.uid, labels::SPEC_ID);
        let pods = api.list(&ListParams::default().labels(&of_job)).await?;
        let now = tokio::time::Instant::now();
        let instances = pods.items.iter().filter_map(|pod| SeenInstance::read(pod, None, now));
        let mut alive = instances.filter(SeenInstance::is_alive).map(|instance| instance.reference());
        Ok(alive.all(|instance| marked.contains(&instance)))
    }

    async fn is_task_gone(&self, key: &TaskKey, name: &str) -> Result<bool, kube::Error> {
        let api: Api<Task> = Api::namespaced(self.client.clone(), &key.namespace);
        let task = api.get_opt(name).await?;
        Ok(task.is_none_or(|task| task.metadata.uid.as_deref() != Some(&*key.uid)))
    }

    /// Whether there is a router that was not heard of yet: what all others agreed to, it may not.
    pub(in crate::lifecycle) async fn is_any_router_unknown(&self) -> Result<bool, kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.routers_in);
        let of_routers = format!("{}={}", labels::LEASE, labels::LEASE_OF_ROUTER);
        let leases = api.list(&ListParams::default().labels(&of_routers)).await?;
        let index = self.index.lock();
        let known = |name: Option<&str>, uid: Option<&str>| {
            let router = index.routers().0.get(name.unwrap_or_default());
            router.is_some_and(|router| Some(&*router.reference.uid) == uid)
        };
        Ok(leases
            .items
            .iter()
            .any(|lease| !known(lease.metadata.name.as_deref(), lease.metadata.uid.as_deref())))
    }
}
