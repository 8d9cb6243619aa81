//! The providers at work: compares what a revision should have with what is there, and puts it right. All three types
//! of Tasks go this way; they differ in what they render to.

mod jobs;
mod kept;
mod preparation;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Sandbox, Task, conditions, labels};
use agentcube_operator::cache::Cache;
use agentcube_operator::children::{self, Ensured};
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, PodTemplate, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::children as wanted;
use super::config::Config;
use super::references::{Reference, references};
use super::render::{Child, render};
use super::{health, lookup, wakes};
use crate::identity::{SpecId, TaskId};
use crate::late::LateCache;
use crate::provider::{InstanceSpecProvider, Repair, SpecError, SpecStatus, TaskName};
use crate::revision::{self, label_value};
use crate::token::{Keys, MASTER_SECRET, ensure_master_keys};
use kept::{Alone, Kept, Look, Repairs, failed, refused};

/// The name under which we own fields.
const MANAGER: &str = "agentcube-instances";
/// How long a pass waits for what is not listed yet; it is tried again after that.
const LISTING: Duration = Duration::from_secs(5);

/// The providers of all types of Tasks. Cheap to clone.
#[derive(Clone)]
pub struct Providers {
    client: Client,
    config: Arc<Config>,
    pods: Cache<Pod>,
    /// Filled when the first Task has its instances on a pool.
    sandboxes: LateCache<Sandbox>,
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

impl Providers {
    pub fn new(client: Client, config: Config) -> Providers {
        let of_tasks = || watcher::Config::default().labels(labels::TASK_UID);
        let preparing = watcher::Config::default().labels(labels::PREPARES);
        let masters = watcher::Config::default().fields(&format!("metadata.name={MASTER_SECRET}"));
        Providers {
            pods: Cache::new(client.clone(), of_tasks()),
            sandboxes: LateCache::new(Cache::new(client.clone(), of_tasks())),
            preparations: Cache::new(client.clone(), preparing),
            revisions: Cache::with_managed_fields(client.clone(), of_tasks()),
            jobs: Cache::new(client.clone(), of_tasks()),
            policies: Cache::with_managed_fields(client.clone(), of_tasks()),
            maps: Cache::with_managed_fields(client.clone(), of_tasks()),
            claims: Cache::with_managed_fields(client.clone(), of_tasks()),
            secrets: Cache::with_managed_fields(client.clone(), of_tasks()),
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
            self.sandboxes.run(stop()),
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

    /// The same, but not for ever: a kind that cannot be listed must not hold up the pass over every Task.
    async fn listed(&self) -> Result<(), SpecError> {
        let waits: [(&str, BoxFuture<'_, ()>); 9] = [
            ("Pods", Box::pin(self.pods.synced())),
            ("Pods that prepare", Box::pin(self.preparations.synced())),
            ("PodTemplates", Box::pin(self.revisions.synced())),
            ("Jobs", Box::pin(self.jobs.synced())),
            ("NetworkPolicies", Box::pin(self.policies.synced())),
            ("ConfigMaps", Box::pin(self.maps.synced())),
            ("PersistentVolumeClaims", Box::pin(self.claims.synced())),
            ("Secrets", Box::pin(self.secrets.synced())),
            ("Secrets of the operator", Box::pin(self.masters.synced())),
        ];
        let until = Instant::now() + LISTING;
        for (kind, wait) in waits {
            let listed = tokio::time::timeout_at(until, wait).await;
            listed.map_err(|_| {
                SpecError::Transient(format!(
                    "{kind} cannot be listed: see the log of the controller for why"
                ))
            })?;
        }
        Ok(())
    }

    /// The same for the Sandboxes of a Task that has some.
    async fn sandboxes_listed(&self, task: &Task) -> Result<(), SpecError> {
        if task.spec.deployment.pool_ref().is_none() {
            return Ok(());
        }
        self.sandboxes.want();
        let listed = tokio::time::timeout(LISTING, self.sandboxes.synced()).await;
        let message = "Sandboxes cannot be listed: see the log of the controller for why";
        listed.map_err(|_| SpecError::Transient(message.into()))
    }

    /// What the Task names that others have to provide.
    pub fn references(&self, task: &Task) -> Result<BTreeSet<Reference>, SpecError> {
        Ok(references(task, &render(task, &self.config)?))
    }

    async fn initialize(&self, task: &Task, spec: &SpecId, look: Look) -> Result<Vec<Repair>, SpecError> {
        self.listed().await?;
        let id = wanted::identify(task)?;
        let rendered = render(task, &self.config)?;
        if look.closely || !look.known || !is_ready(task) {
            let named = references(task, &rendered);
            let named = named.iter().map(|reference| lookup::find(&self.client, &id.namespace, reference));
            try_join_all(named).await?;
            if let Some(pool) = task.spec.deployment.pool_ref() {
                let template = task.spec.deployment.sandbox_template.as_ref();
                let runtime = template.and_then(|template| template.runtime.as_deref());
                lookup::fits(&self.client, &id.namespace, pool, runtime).await?;
            }
        }
        self.sandboxes_listed(task).await?;
        let mut repairs = Repairs { look, made: Vec::new() };
        let keys = self.keys().await?.for_task(&id.uid).to_secret(&id);
        self.ensure(&self.secrets, &keys, &mut repairs).await?;
        // What closes instances off, or what they need, is there before they can be started.
        for child in &rendered.children {
            self.child(&id, spec, child, &mut repairs).await?;
        }
        let revision = wanted::revision(&id, spec, &rendered);
        self.ensure(&self.revisions, &revision, &mut repairs).await?;
        self.prepare(&id, spec, &rendered).await?;
        // A Job starts instances by itself: not before what they need is known to be good.
        if wanted::is_job(&rendered) && self.is_prepared(&id, spec, &rendered) {
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
                self.ensure(&self.policies, &policy, repairs).await?;
            }
            Child::Code { name, files } => {
                let map = wanted::code(task, name, files);
                self.ensure(&self.maps, &map, repairs).await?;
            }
            Child::Cache { name } => {
                // A claim can hardly be changed, and what is in it can be had again: it is only made.
                let held = self.claims.get(&task.namespace, name);
                if let (None, Some(cache)) = (held, &self.config.bundle_cache) {
                    let claim = wanted::cache(task, name, cache);
                    self.ensure(&self.claims, &claim, repairs).await?;
                }
            }
        }
        Ok(())
    }

    async fn ensure<K: Alone>(
        &self,
        cache: &Cache<K>,
        desired: &K,
        repairs: &mut Repairs,
    ) -> Result<(), SpecError> {
        let (namespace, name) = (desired.namespace().unwrap_or_default(), desired.name_any());
        let api: Api<K> = Api::namespaced(self.client.clone(), &namespace);
        let held = match repairs.look.closely {
            false => cache.get(&namespace, &name),
            true => api.get_opt(&name).await.map_err(|error| failed::<K>(&name, &error))?.map(Arc::new),
        };
        let ensured = children::ensure_alone(&api, MANAGER, desired, held.as_deref(), K::ROOTS).await;
        let ensured = ensured.map_err(|error| refused::<K>(&error))?;
        if let Some(written) = ensured.written() {
            cache.put(written.clone());
        }
        if matches!(ensured, Ensured::Ending) {
            let kind = K::kind(&());
            return Err(SpecError::Transient(format!(
                "{kind} {name} is being deleted; it will be made again"
            )));
        }
        repairs.add(desired, ensured);
        Ok(())
    }

    async fn release(&self, task: &Task, spec: &SpecId) -> Result<(), SpecError> {
        let id = wanted::identify(task)?;
        self.listed().await?;
        self.sandboxes_listed(task).await?;
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
        let mut sandboxes = self.sandboxes.owned_by(&id.uid);
        sandboxes.retain(|sandbox| sandbox.labels().get(labels::SPEC_ID) == Some(&value));
        for sandbox in &sandboxes {
            self.remove(&self.sandboxes, sandbox).await?;
        }
        let ending = instances.len() + sandboxes.len();
        // Instances are closed off as long as there are any.
        if ending == 0 {
            self.remove_named(&self.policies, &id, &spec.0).await?;
        }
        let left = self.revisions.owned_by(&id.uid);
        for map in self.maps.owned_by(&id.uid) {
            let name = map.name_any();
            if !left.iter().any(|revision| mounts(revision, &name)) {
                self.remove(&self.maps, &map).await?;
            }
        }
        match ending {
            0 => Ok(()),
            _ => Err(SpecError::Transient(format!("{ending} instances of {spec} are ending"))),
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
        let pods = self.instances(&id, spec);
        let mut sandboxes = self.sandboxes.owned_by(&id.uid);
        sandboxes.retain(|sandbox| sandbox.labels().get(labels::SPEC_ID) == Some(&label_value(&spec.0)));
        let pods = pods.iter().filter_map(|pod| health::look(&**pod));
        let instances = pods.chain(sandboxes.iter().filter_map(|sandbox| health::look(&**sandbox)));
        let mut status = health::stand(instances, desired);
        // Only code is prepared; of all others there is nothing to render.
        status.preparing = task.spec.deployment.code_bundle.is_some()
            && render(task, &self.config).is_ok_and(|rendered| !self.is_prepared(&id, spec, &rendered));
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
        closely: bool,
    ) -> BoxFuture<'a, Result<Vec<Repair>, SpecError>> {
        Box::pin(self.initialize(task, spec, Look { known, closely }))
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
            wakes::of_sandboxes(&self.sandboxes),
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

/// Whether the last word on the Task, as it is now, was that instances can be made.
fn is_ready(task: &Task) -> bool {
    let (status, generation) = (task.status.as_ref(), task.metadata.generation.unwrap_or(1));
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::is_true_for(conditions, conditions::task::SPEC_READY, generation)
}

/// Whether instances of the revision have this ConfigMap.
fn mounts(revision: &PodTemplate, map: &str) -> bool {
    let sandbox = revision.template.as_ref().and_then(revision::sandbox);
    let files = sandbox.iter().flat_map(|sandbox| &sandbox.files);
    if files.into_iter().any(|file| file.config_map_key_ref.as_ref().is_some_and(|from| from.name == map)) {
        return true;
    }
    let spec = revision.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.config_map.as_ref().is_some_and(|source| source.name == map))
}
