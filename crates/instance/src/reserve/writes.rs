//! The single writes of the reservation protocol, each to one object and each conditional: creations by name, changes
//! and deletions on the version that was seen. Says what is known of a write that failed; decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::labels;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::tasks::TaskView;
use crate::alias::{AliasHash, Record};
use crate::bearer::{Body, Instances};
use crate::identity::{InstanceId, Kind, SessionKey};
use crate::record::{Instance, LeaseHash, Session, lease_name};
use crate::revision::{label_value, owner};

/// How long the answer to a write or a read may take.
const ANSWER: Duration = Duration::from_secs(10);

/// What is known of a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// It did not happen: the object is not as it was thought to be, or exists already.
    #[error("somebody else was faster")]
    Conflict,
    /// It did not happen: there is no such object.
    #[error("there is no such object")]
    Gone,
    /// It did not happen.
    #[error("{0}")]
    Refused(String),
    /// It may have happened.
    #[error("{0}")]
    Unclear(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Failure {
        match &error {
            kube::Error::Api(status) => match status.code {
                409 => Failure::Conflict,
                404 | 410 => Failure::Gone,
                400..=499 => Failure::Refused(status.message.clone()),
                _ => Failure::Unclear(status.message.clone()),
            },
            other => Failure::Unclear(other.to_string()),
        }
    }
}

async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Unclear(format!("the API server did not answer within {ANSWER:?}"))),
    }
}

/// What is left after a deletion.
#[derive(Debug)]
pub(super) enum Deleted<K> {
    /// It waits for something, and this is what it looks like.
    Waits(K),
    /// It is gone.
    Gone,
}

/// Writes as one process.
pub(super) struct Writes {
    pub(super) client: Client,
    pub(super) instances: Instances,
    /// The binder of the sessions that it binds.
    pub(super) me: Arc<str>,
}

impl Writes {
    fn leases(&self, namespace: &str) -> Api<Lease> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(super) fn new(client: Client, me: Arc<str>) -> Writes {
        Writes { instances: Instances::new(client.clone()), client, me }
    }

    pub(super) async fn read_lease(
        &self,
        namespace: &str,
        hash: &LeaseHash,
    ) -> Result<Option<Lease>, Failure> {
        answered(self.leases(namespace).get_opt(&hash.lease_name())).await
    }

    pub(super) async fn read_alias(
        &self,
        namespace: &str,
        hash: &AliasHash,
    ) -> Result<Option<Lease>, Failure> {
        answered(self.leases(namespace).get_opt(&hash.lease_name())).await
    }

    pub(super) async fn create_alias(&self, lease: &Lease) -> Result<Lease, Failure> {
        let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
        answered(self.leases(namespace).create(&PostParams::default(), lease)).await
    }

    /// Has exactly this version of an alias stand for a later binding of its session.
    pub(super) async fn rebind_alias(
        &self,
        namespace: &str,
        hash: &AliasHash,
        record: &Record,
        binding: i32,
    ) -> Result<Lease, Failure> {
        let patch = json!({
            "metadata": { "uid": &*record.uid, "resourceVersion": record.version.to_string() },
            "spec": { "leaseTransitions": binding },
        });
        let (name, parameters) = (hash.lease_name(), PatchParams::default());
        answered(self.leases(namespace).patch(&name, &parameters, &Patch::Merge(patch))).await
    }

    pub(super) async fn delete_alias(
        &self,
        namespace: &str,
        hash: &AliasHash,
        record: &Record,
    ) -> Result<(), Failure> {
        let parameters = exactly(&record.uid, record.version);
        answered(self.leases(namespace).delete(&hash.lease_name(), &parameters)).await.map(|_| ())
    }

    /// Deletes a session's Lease, whatever has been written to it since.
    pub(super) async fn end_session(
        &self,
        namespace: &str,
        hash: &LeaseHash,
        uid: &str,
    ) -> Result<Deleted<Lease>, Failure> {
        let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let answer = answered(self.leases(namespace).delete(&hash.lease_name(), &parameters)).await?;
        Ok(answer.left().map_or(Deleted::Gone, Deleted::Waits))
    }

    pub(super) async fn read_instance(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Body>, Failure> {
        answered(self.instances.get(kind, namespace, name)).await
    }

    /// A session's Lease, pointed at an instance or at nothing, with me as the binder.
    pub(super) async fn create_session(
        &self,
        task: &TaskView,
        key: &SessionKey,
        holder: Option<&InstanceId>,
    ) -> Result<Lease, Failure> {
        let lease = new_session(task, key, holder, &self.me);
        answered(self.leases(&task.id.namespace).create(&PostParams::default(), &lease)).await
    }

    /// Points the session at another instance, or at nothing, with me as the binder.
    pub(super) async fn point(
        &self,
        session: &Session,
        holder: Option<&InstanceId>,
    ) -> Result<Lease, Failure> {
        let mut patch = renewal(session);
        patch["metadata"]["annotations"][labels::BINDER] = json!(&*self.me);
        patch["metadata"]["annotations"][labels::RESTS] = Value::Null;
        patch["spec"]["holderIdentity"] = json!(holder.map(InstanceId::to_string));
        // Only a Lease that names an instance has something to give back.
        patch["metadata"]["finalizers"] = match holder {
            Some(_) => json!([labels::SESSION_FINALIZER]),
            None => Value::Null,
        };
        if holder.is_some() {
            patch["spec"]["leaseTransitions"] = json!(session.binding.saturating_add(1));
            patch["spec"]["acquireTime"] = patch["spec"]["renewTime"].clone();
        }
        self.patch_session(session, patch).await
    }

    /// Makes me the binder.
    pub(super) async fn take_over(&self, session: &Session) -> Result<Lease, Failure> {
        let mut patch = renewal(session);
        patch["metadata"]["annotations"][labels::BINDER] = json!(&*self.me);
        self.patch_session(session, patch).await
    }

    /// Renews the Lease, as of then, and removes any `releasing` mark.
    pub(super) async fn renew(&self, session: &Session, active: Timestamp) -> Result<Lease, Failure> {
        let mut patch = renewal(session);
        patch["spec"]["renewTime"] = json!(MicroTime(active.max(session.renewed)));
        self.patch_session(session, patch).await
    }

    /// Says that the session rests no longer: its instance was woken.
    pub(super) async fn resume(&self, session: &Session) -> Result<Lease, Failure> {
        let mut patch = renewal(session);
        patch["metadata"]["annotations"][labels::RESTS] = Value::Null;
        self.patch_session(session, patch).await
    }

    async fn patch_session(&self, session: &Session, patch: Value) -> Result<Lease, Failure> {
        let name = lease_name(&session.task_uid, &session.key);
        let parameters = PatchParams::default();
        answered(self.leases(&session.namespace).patch(&name, &parameters, &Patch::Merge(patch))).await
    }

    /// Deletes the session's Lease.
    pub(super) async fn delete_session(&self, session: &Session) -> Result<Deleted<Lease>, Failure> {
        let name = lease_name(&session.task_uid, &session.key);
        let parameters = exactly(&session.uid, session.version);
        let answer = answered(self.leases(&session.namespace).delete(&name, &parameters)).await?;
        Ok(answer.left().map_or(Deleted::Gone, Deleted::Waits))
    }

    /// Takes a free instance for a session.
    pub(super) async fn take_instance(
        &self,
        instance: &Instance,
        session: &Session,
    ) -> Result<Body, Failure> {
        let annotations = json!({
            labels::RESERVE_KEY: session.key.as_str(),
            labels::RESERVATION: session.reservation().to_string(),
            labels::LAST_ACTIVE: Timestamp::now().to_string(),
            labels::CREATED_FOR: null,
            labels::RELEASING: null,
        });
        self.annotate(instance, annotations).await
    }

    /// Has a paused instance go on, under the number under which its session rests. Also said to one that goes on: no
    /// pause under this number can follow.
    pub(super) async fn wake(&self, instance: &Instance, number: u64) -> Result<Body, Failure> {
        // Never a lower one: a pause under the last could follow.
        let number = instance.woken.map_or(number, |woken| woken.max(number));
        let annotations = json!({ labels::WOKEN: number.to_string() });
        self.change(instance, annotations, json!({ "paused": false })).await
    }

    /// Notes that a request uses, or has used, the instance; removes any `releasing` mark.
    pub(super) async fn mark_active(&self, instance: &Instance, active: Timestamp) -> Result<Body, Failure> {
        let annotations = json!({ labels::LAST_ACTIVE: active.to_string(), labels::RELEASING: null });
        self.annotate(instance, annotations).await
    }

    /// Says that requests were cut short by the session's end.
    pub(super) async fn interrupt(&self, session: &Session) -> Result<Lease, Failure> {
        let patch = json!({ "metadata": {
            "uid": &*session.uid,
            "resourceVersion": session.version.to_string(),
            "annotations": { labels::INTERRUPTED: &*self.me },
        } });
        self.patch_session(session, patch).await
    }

    /// Removes a `releasing` mark.
    pub(super) async fn keep_instance(&self, instance: &Instance) -> Result<Body, Failure> {
        self.annotate(instance, json!({ labels::RELEASING: null })).await
    }

    async fn annotate(&self, instance: &Instance, annotations: Value) -> Result<Body, Failure> {
        self.change(instance, annotations, Value::Null).await
    }

    /// Changes exactly this version: whatever was thought of it when this was sent still holds when it is done, however
    /// late that is.
    async fn change(&self, instance: &Instance, annotations: Value, spec: Value) -> Result<Body, Failure> {
        let version = instance.version.to_string();
        let mut patch = json!({ "metadata": {
            "uid": &*instance.id.uid, "resourceVersion": version, "annotations": annotations } });
        if !spec.is_null() {
            patch["spec"] = spec;
        }
        let id = &instance.id;
        answered(self.instances.change(id.kind, &instance.namespace, &id.name, patch)).await
    }

    pub(super) async fn create_instance(&self, body: &Body) -> Result<Body, Failure> {
        answered(self.instances.create(body)).await
    }

    pub(super) async fn delete_instance(&self, instance: &Instance) -> Result<Deleted<Body>, Failure> {
        let (id, parameters) = (&instance.id, exactly(&instance.id.uid, instance.version));
        let left =
            answered(self.instances.delete(id.kind, &instance.namespace, &id.name, &parameters)).await?;
        Ok(left.map_or(Deleted::Gone, Deleted::Waits))
    }

    pub(super) async fn read_job(&self, namespace: &str, name: &str) -> Result<Option<Job>, Failure> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), namespace);
        answered(jobs.get_opt(name)).await
    }

    /// Sets the parallelism of exactly this version of a Job.
    pub(super) async fn scale_job(&self, job: &Job, parallelism: u32) -> Result<Job, Failure> {
        let meta = &job.metadata;
        let jobs: Api<Job> =
            Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default());
        let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
            "spec": { "parallelism": parallelism } });
        let name = meta.name.as_deref().unwrap_or_default();
        answered(jobs.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    /// Writes a router's Lease, and creates it where it is missing.
    pub(super) async fn beat(&self, lease: &Lease) -> Result<Lease, Failure> {
        let leases = self.leases(lease.metadata.namespace.as_deref().unwrap_or_default());
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let patched = answered(leases.patch(name, &PatchParams::default(), &Patch::Merge(lease))).await;
        match patched {
            Err(Failure::Gone) => answered(leases.create(&PostParams::default(), lease)).await,
            other => other,
        }
    }

    /// Deletes a router's Lease, in the version in which it is seen to be of this process.
    pub(super) async fn delete_own(&self, namespace: &str, name: &str, process: &str) -> Result<(), Failure> {
        let leases = self.leases(namespace);
        let Some(lease) = answered(leases.get_opt(name)).await? else { return Ok(()) };
        if lease.spec.and_then(|spec| spec.holder_identity).as_deref() != Some(process) {
            return Ok(());
        }
        let ObjectMeta { uid, resource_version, .. } = lease.metadata;
        let preconditions = Some(Preconditions { uid, resource_version });
        match answered(leases.delete(name, &DeleteParams { preconditions, ..DeleteParams::default() })).await
        {
            Ok(_) | Err(Failure::Gone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

fn exactly(uid: &str, version: u64) -> DeleteParams {
    let preconditions =
        Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_string()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// What every change of a session's Lease says: only of this version, active now, not to be released.
fn renewal(session: &Session) -> Value {
    let now = MicroTime(Timestamp::now().max(session.renewed));
    json!({
        "metadata": {
            "uid": &*session.uid,
            "resourceVersion": session.version.to_string(),
            "annotations": { labels::RELEASING: null },
        },
        "spec": { "renewTime": now },
    })
}

fn new_session(task: &TaskView, key: &SessionKey, holder: Option<&InstanceId>, me: &str) -> Lease {
    let now = MicroTime(Timestamp::now());
    let seconds = task.idle_timeout.map(|idle| i32::try_from(idle.as_secs().max(1)).unwrap_or(i32::MAX));
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(&task.id.uid, key)),
            namespace: Some(task.id.namespace.to_string()),
            labels: Some(BTreeMap::from([
                (labels::LEASE.into(), labels::LEASE_OF_SESSION.into()),
                (labels::TASK.into(), label_value(&task.id.name)),
                (labels::TASK_UID.into(), task.id.uid.to_string()),
            ])),
            annotations: Some(BTreeMap::from([
                (labels::RESERVE_KEY.into(), key.to_string()),
                (labels::BINDER.into(), me.into()),
            ])),
            owner_references: Some(vec![owner(&task.id)]),
            finalizers: holder.map(|_| vec![labels::SESSION_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: holder.map(InstanceId::to_string),
            lease_transitions: Some(holder.is_some().into()),
            acquire_time: holder.map(|_| now.clone()),
            renew_time: Some(now),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        }),
    }
}
