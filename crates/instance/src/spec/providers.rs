//! The providers at work: compares what a revision should have with what is there, and puts it right. All three types
//! of Tasks go this way; they differ in what they render to.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use agentcube_api::{Task, labels};
use agentcube_operator::cache::{Cache, Object};
use agentcube_operator::children::{self, Ensured};
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, PodTemplate, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::children as wanted;
use super::config::Config;
use super::references::{Reference, pool, references};
use super::render::{Child, Rendered, render};
use super::{health, lookup, wakes};
use crate::identity::{SpecId, TaskId};
use crate::provider::{InstanceSpecProvider, Repair, Repaired, SpecError, SpecStatus, TaskName};
use crate::revision::label_value;
use crate::token::{Keys, MASTER_SECRET, ensure_master_keys};

/// The name under which we own fields.
const MANAGER: &str = "agentcube-instances";

/// The providers of all types of Tasks. Cheap to clone.
#[derive(Clone)]
pub struct Providers {
    client: Client,
    config: Arc<Config>,
    pods: Cache<Pod>,
    preparations: Cache<Pod>,
    revisions: Cache<PodTemplate>,
    jobs: Cache<Job>,
    policies: Cache<NetworkPolicy>,
    maps: Cache<ConfigMap>,
    claims: Cache<PersistentVolumeClaim>,
    /// Keys of Tasks, and those of the operator that they are derived from.
    secrets: Cache<Secret>,
    masters: Cache<Secret>,
}

impl Debug for Providers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Providers").finish_non_exhaustive()
    }
}

/// What is kept in memory of one Task and made by us.
trait Kept: Object + Serialize + Resource<Scope = NamespaceResourceScope> {}
impl<K: Object + Serialize + Resource<Scope = NamespaceResourceScope>> Kept for K {}

impl Providers {
    pub fn new(client: Client, config: Config) -> Providers {
        let of_tasks = || watcher::Config::default().labels(labels::TASK_UID);
        let preparing = watcher::Config::default().labels(labels::PREPARES);
        let masters = watcher::Config::default().fields(&format!("metadata.name={MASTER_SECRET}"));
        Providers {
            pods: Cache::new(client.clone(), of_tasks()),
            preparations: Cache::new(client.clone(), preparing),
            revisions: Cache::new(client.clone(), of_tasks()),
            jobs: Cache::new(client.clone(), of_tasks()),
            policies: Cache::new(client.clone(), of_tasks()),
            maps: Cache::new(client.clone(), of_tasks()),
            claims: Cache::new(client.clone(), of_tasks()),
            secrets: Cache::new(client.clone(), of_tasks()),
            masters: Cache::new(client.clone(), masters),
            config: Arc::new(config),
            client,
        }
    }

    /// Keeps the caches until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let stop = || shutdown.clone();
        tokio::join!(
            self.pods.run(stop()),
            self.preparations.run(stop()),
            self.revisions.run(stop()),
            self.jobs.run(stop()),
            self.policies.run(stop()),
            self.maps.run(stop()),
            self.claims.run(stop()),
            self.secrets.run(stop()),
            self.masters.run(stop()),
        );
    }

    /// Waits until the caches are filled.
    pub async fn synced(&self) {
        self.pods.synced().await;
        self.preparations.synced().await;
        self.revisions.synced().await;
        self.jobs.synced().await;
        self.policies.synced().await;
        self.maps.synced().await;
        self.claims.synced().await;
        self.secrets.synced().await;
        self.masters.synced().await;
    }

    /// What the Task names that others have to provide.
    pub fn references(&self, task: &Task) -> Result<BTreeSet<Reference>, SpecError> {
        Ok(references(task, &render(task, &self.config)?))
    }

    async fn initialize(&self, task: &Task, spec: &SpecId, known: bool) -> Result<Vec<Repair>, SpecError> {
        self.synced().await;
        let id = wanted::identify(task)?;
        let rendered = render(task, &self.config)?;
        let named = references(task, &rendered);
        let named = named.iter().map(|reference| lookup::find(&self.client, &id.namespace, reference));
        try_join_all(named).await?;
        if let Some(pool) = pool(task) {
            return Err(SpecError::Invalid(format!(
                "poolRef {pool:?}: instances on a SandboxPool are not supported yet; leave poolRef out to run them as \
                 Pods"
            )));
        }
        let mut repairs = Repairs { known, made: Vec::new() };
        let keys = self.keys().await?.for_task(&id.uid).to_secret(&id);
        repairs.add(&keys, self.ensure(&self.secrets, &keys).await?);
        // What closes instances off, or what they need, is there before they can be started.
        for child in &rendered.children {
            self.child(&id, spec, child, &mut repairs).await?;
        }
        let revision = wanted::revision(&id, spec, &rendered);
        repairs.add(&revision, self.ensure(&self.revisions, &revision).await?);
        self.prepare(&id, spec, &rendered).await?;
        if wanted::is_job(&rendered) {
            self.job(task, &id, spec, &rendered, &mut repairs).await?;
        }
        Ok(repairs.made)
    }

    /// The operator's keys, made if there are none yet.
    async fn keys(&self) -> Result<Keys, SpecError> {
        let namespace = &self.config.namespace;
        if let Some(secret) = self.masters.get(namespace, MASTER_SECRET)
            && let Ok(keys) = Keys::read(&secret)
        {
            return Ok(keys);
        }
        let keys = ensure_master_keys(self.client.clone(), namespace).await;
        keys.map_err(|error| SpecError::Transient(error.to_string()))
    }

    async fn child(
        &self,
        task: &TaskId,
        spec: &SpecId,
        child: &Child,
        repairs: &mut Repairs,
    ) -> Result<(), SpecError> {
        match child {
            Child::Closed { port } => {
                let policy = wanted::closed(task, spec, *port, &self.config);
                repairs.add(&policy, self.ensure(&self.policies, &policy).await?);
            }
            Child::Code { name, files } => {
                let map = wanted::code(task, name, files);
                repairs.add(&map, self.ensure(&self.maps, &map).await?);
            }
            Child::Cache { name } => {
                // A claim can hardly be changed, and what is in it can be had again: it is only made.
                let held = self.claims.get(&task.namespace, name);
                if let (None, Some(cache)) = (held, &self.config.bundle_cache) {
                    let claim = wanted::cache(task, name, cache);
                    repairs.add(&claim, self.ensure(&self.claims, &claim).await?);
                }
            }
        }
        Ok(())
    }

    async fn ensure<K: Kept>(&self, cache: &Cache<K>, desired: &K) -> Result<Ensured<K>, SpecError> {
        let namespace = desired.namespace().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), &namespace);
        let held = cache.get(&namespace, &desired.name_any());
        let ensured = children::ensure(&api, MANAGER, desired, held.as_deref()).await;
        let ensured = ensured.map_err(|error| refused::<K>(&error))?;
        if let Some(written) = ensured.written() {
            cache.put(written.clone());
        }
        match ensured {
            Ensured::Ending => Err(SpecError::Transient(format!(
                "{} {} is being deleted; it will be made again",
                K::kind(&()),
                desired.name_any()
            ))),
            ensured => Ok(ensured),
        }
    }

    /// Has done once what instances would fail at, and notes on the revision that it was done.
    async fn prepare(&self, task: &TaskId, spec: &SpecId, rendered: &Rendered) -> Result<(), SpecError> {
        let Some(desired) = wanted::preparation(task, spec, rendered) else { return Ok(()) };
        let revision = self.revisions.get(&task.namespace, &spec.0);
        let done = revision.as_deref().is_some_and(wanted::is_prepared);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &task.namespace);
        let held = self.preparations.get(&task.namespace, &wanted::preparation_name(spec));
        match held {
            None if done => Ok(()),
            None => match api.create(&PostParams::default(), &desired).await {
                Ok(pod) => {
                    self.preparations.put(pod);
                    Ok(())
                }
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(failed::<Pod>(&desired.name_any(), &error)),
            },
            Some(pod) if is_outdated(&pod, &desired) || evicted(&pod) => {
                self.remove(&self.preparations, &pod).await
            }
            Some(pod) if succeeded(&pod) => {
                if !done {
                    self.note_prepared(task, spec, &rendered.hash()).await?;
                }
                self.remove(&self.preparations, &pod).await
            }
            Some(_) => Ok(()),
        }
    }

    async fn note_prepared(&self, task: &TaskId, spec: &SpecId, hash: &str) -> Result<(), SpecError> {
        let api: Api<PodTemplate> = Api::namespaced(self.client.clone(), &task.namespace);
        let patch = Patch::Merge(wanted::prepared(hash));
        let noted = api.patch(&spec.0, &PatchParams::default(), &patch).await;
        self.revisions.put(noted.map_err(|error| failed::<PodTemplate>(&spec.0, &error))?);
        Ok(())
    }

    /// Makes the Job, or mends what may be changed of it. How many Pods it has is for routers to say.
    async fn job(
        &self,
        task: &Task,
        id: &TaskId,
        spec: &SpecId,
        rendered: &Rendered,
        repairs: &mut Repairs,
    ) -> Result<(), SpecError> {
        let mut desired = wanted::job(id, spec, &rendered.template, wanted::least(task));
        desired.annotations_mut().insert(labels::TEMPLATE_HASH.into(), rendered.hash());
        let api: Api<Job> = Api::namespaced(self.client.clone(), &id.namespace);
        let failed = |error: kube::Error| failed::<Job>(&spec.0, &error);
        let held = match self.jobs.get(&id.namespace, &spec.0) {
            Some(job) => Some((*job).clone()),
            // It may be there without our labels, and then it is not in the cache.
            None => api.get_opt(&spec.0).await.map_err(failed)?,
        };
        let hash = |job: &Job| job.annotations().get(labels::TEMPLATE_HASH).cloned();
        let Some(job) = held else {
            let made = api.create(&PostParams::default(), &desired).await.map_err(failed)?;
            self.jobs.put(made.clone());
            repairs.add(&desired, Ensured::Created(made));
            return Ok(());
        };
        if !job.owner_references().iter().any(|owner| owner.uid == *id.uid) {
            return Err(SpecError::Invalid(format!(
                "Job {spec} exists and does not belong to this Task: delete it, or give the Task another name"
            )));
        }
        if job.metadata.deletion_timestamp.is_some() || hash(&job) != hash(&desired) {
            // What a Job makes cannot be changed: another one takes its place.
            self.remove(&self.jobs, &job).await?;
            return Err(SpecError::Transient(format!("Job {spec} is being replaced")));
        }
        if wanted::spoilt(&job) {
            let patch = Patch::Merge(wanted::mended());
            let object = api.patch(&spec.0, &PatchParams::default(), &patch).await.map_err(failed)?;
            self.jobs.put(object.clone());
            repairs.add(&desired, Ensured::Repaired { object, at: "/spec".into() });
        }
        Ok(())
    }

    /// Never scales down: the Job would choose what to end, and might choose an instance that is in use.
    async fn update(&self, task: &Task, spec: &SpecId) -> Result<(), SpecError> {
        let id = wanted::identify(task)?;
        self.synced().await;
        let Some(job) = self.jobs.get(&id.namespace, &spec.0) else { return Ok(()) };
        let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(0);
        let least = wanted::least(task);
        if parallelism >= least {
            return Ok(());
        }
        let api: Api<Job> = Api::namespaced(self.client.clone(), &id.namespace);
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": job.resource_version() },
            "spec": { "parallelism": least },
        });
        let scaled = api.patch(&spec.0, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.jobs.put(scaled.map_err(|error| failed::<Job>(&spec.0, &error))?);
        Ok(())
    }

    async fn release(&self, task: &Task, spec: &SpecId) -> Result<(), SpecError> {
        let id = wanted::identify(task)?;
        self.synced().await;
        // Without the revision nobody starts anything; then what was started ends.
        self.remove_named(&self.revisions, &id, &spec.0).await?;
        self.remove_named(&self.jobs, &id, &spec.0).await?;
        self.remove_named(&self.preparations, &id, &wanted::preparation_name(spec)).await?;
        // The Job of some may be gone already.
        let mut instances = self.pods.list(Some(&id.namespace));
        let value = label_value(&spec.0);
        instances.retain(|pod| {
            let label = |name| pod.labels().get(name).map(String::as_str);
            label(labels::TASK_UID) == Some(&id.uid) && label(labels::SPEC_ID) == Some(&value)
        });
        for pod in &instances {
            self.remove(&self.pods, pod).await?;
        }
        // Instances are closed off as long as there are any.
        if instances.is_empty() {
            self.remove_named(&self.policies, &id, &spec.0).await?;
        }
        let left = self.revisions.owned_by(&id.uid);
        for map in self.maps.owned_by(&id.uid) {
            let name = map.name_any();
            if !left.iter().any(|revision| mounts(revision, &name)) {
                self.remove(&self.maps, &map).await?;
            }
        }
        match instances.is_empty() {
            true => Ok(()),
            false => Err(SpecError::Transient(format!("{} instances of {spec} are ending", instances.len()))),
        }
    }

    async fn remove_named<K: Kept>(
        &self,
        cache: &Cache<K>,
        task: &TaskId,
        name: &str,
    ) -> Result<(), SpecError> {
        match cache.get(&task.namespace, name) {
            Some(object) if object.owner_references().iter().any(|owner| owner.uid == *task.uid) => {
                self.remove(cache, &object).await
            }
            _ => Ok(()),
        }
    }

    /// Deletes exactly this object, and what it owns after it.
    async fn remove<K: Kept>(&self, cache: &Cache<K>, object: &K) -> Result<(), SpecError> {
        if object.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::background() };
        match api.delete(&object.name_any(), &parameters).await {
            Ok(rest) => cache.deleted(object, rest.left()),
            // Gone, or another of the same name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => cache.gone(object),
            Err(error) => return Err(failed::<K>(&object.name_any(), &error)),
        }
        Ok(())
    }

    /// The instances of a revision that are there, as slots or as Pods of its Job.
    fn instances(&self, task: &TaskId, spec: &SpecId) -> Vec<Arc<Pod>> {
        let job = self.jobs.get(&task.namespace, &spec.0).and_then(|job| job.uid());
        let of_job = job.map(|uid| self.pods.owned_by(&uid)).unwrap_or_default();
        let mut pods = self.pods.owned_by(&task.uid);
        pods.extend(of_job);
        let value = label_value(&spec.0);
        pods.retain(|pod| pod.labels().get(labels::SPEC_ID) == Some(&value));
        pods
    }

    fn status(&self, task: &Task, spec: &SpecId) -> SpecStatus {
        let Ok(id) = wanted::identify(task) else { return SpecStatus::default() };
        let current = task.status.as_ref().and_then(|status| status.spec_id.as_deref());
        let job = self.jobs.get(&id.namespace, &spec.0);
        let desired = match job.and_then(|job| job.spec.as_ref()?.parallelism) {
            Some(parallelism) => parallelism,
            None if current.is_none_or(|current| current == &*spec.0) => wanted::least(task),
            None => 0,
        };
        let instances = self.instances(&id, spec);
        let mut status = health::stand(instances.iter().map(|pod| &**pod), desired);
        let revision = self.revisions.get(&id.namespace, &spec.0);
        let prepares = render(task, &self.config).is_ok_and(|rendered| !rendered.prepare.is_empty());
        status.preparing = prepares && !revision.as_deref().is_some_and(wanted::is_prepared);
        if status.preparing
            && let Some(pod) = self.preparations.get(&id.namespace, &wanted::preparation_name(spec))
            && let Some(trouble) = health::trouble(&pod)
        {
            status.trouble = Some(format!("the code cannot be prepared: {trouble}"));
        }
        status
    }
}

impl InstanceSpecProvider for Providers {
    fn template_hash(&self, task: &Task) -> Result<String, SpecError> {
        Ok(render(task, &self.config)?.hash())
    }

    fn initialize_spec<'a>(
        &'a self,
        task: &'a Task,
        spec: &'a SpecId,
        known: bool,
    ) -> BoxFuture<'a, Result<Vec<Repair>, SpecError>> {
        Box::pin(self.initialize(task, spec, known))
    }

    fn update_spec<'a>(&'a self, task: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>> {
        Box::pin(self.update(task, spec))
    }

    fn release_spec<'a>(&'a self, task: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>> {
        Box::pin(self.release(task, spec))
    }

    fn spec_status(&self, task: &Task, spec: &SpecId) -> SpecStatus {
        self.status(task, spec)
    }

    fn changes(&self) -> BoxStream<'static, TaskName> {
        stream::select_all([
            wakes::of_instances(&self.pods, &self.jobs),
            wakes::of_keys(&self.masters, &self.secrets),
            wakes::of_owned(&self.preparations),
            wakes::of_owned(&self.revisions),
            wakes::of_owned(&self.jobs),
            wakes::of_owned(&self.policies),
            wakes::of_owned(&self.maps),
            wakes::of_owned(&self.claims),
            wakes::of_owned(&self.secrets),
        ])
        .boxed()
    }
}

/// What had to be put right.
struct Repairs {
    known: bool,
    made: Vec<Repair>,
}

impl Repairs {
    fn add<K: Kept>(&mut self, desired: &K, ensured: Ensured<K>) {
        let what = match ensured {
            Ensured::Created(_) if self.known => Repaired::Recreated,
            Ensured::Repaired { .. } => Repaired::Restored,
            _ => return,
        };
        let kind = match K::kind(&()) {
            std::borrow::Cow::Borrowed(kind) => kind,
            std::borrow::Cow::Owned(_) => "object",
        };
        self.made.push(Repair { kind, name: desired.name_any(), what });
    }
}

fn succeeded(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
}

/// The node gave it up; nobody runs it again.
fn evicted(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed")
}

/// Whether it prepares something else than is wanted now.
fn is_outdated(pod: &Pod, desired: &Pod) -> bool {
    let commands = |pod: &Pod| -> Vec<_> {
        let spec = pod.spec.iter();
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
            .map(|container| (container.image.clone(), container.command.clone()))
            .collect()
    };
    commands(pod) != commands(desired)
}

/// Whether instances of the revision have this ConfigMap.
fn mounts(revision: &PodTemplate, map: &str) -> bool {
    let spec = revision.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.config_map.as_ref().is_some_and(|source| source.name == map))
}

/// What a failed write means: the server's word that an object is wrong stays until the Task changes, everything else
/// may pass.
fn refused<K: Kept>(error: &children::Error) -> SpecError {
    match error {
        children::Error::Write { name, source, .. } => failed::<K>(name, source),
        other => SpecError::Invalid(other.to_string()),
    }
}

fn failed<K: Resource<DynamicType = ()>>(name: &str, error: &kube::Error) -> SpecError {
    let kind = K::kind(&());
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
            SpecError::Invalid(format!("{kind} {name} was refused: {}", status.message))
        }
        kube::Error::Api(status) => {
            SpecError::Transient(format!("{kind} {name} could not be written: {}", status.message))
        }
        other => SpecError::Transient(format!("{kind} {name} could not be written: {other}")),
    }
}
