//! What the controllers keep in memory. Of kinds that are not ours only the objects that we made, by their labels.

use agentcube_api::{App, Backup, Component, Group, Plugin, labels};
use agentcube_operator::cache::{Cache, Object};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ApiResource, DynamicObject};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::options::Options;

/// All caches.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) apps: Cache<App>,
    pub(crate) components: Cache<Component>,
    pub(crate) groups: Cache<Group>,
    pub(crate) plugins: Cache<Plugin>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) sets: Cache<StatefulSet>,
    pub(crate) deployments: Cache<Deployment>,
    pub(crate) services: Cache<Service>,
    pub(crate) config_maps: Cache<ConfigMap>,
    pub(crate) secrets: Cache<Secret>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) revisions: Cache<ControllerRevision>,
    pub(crate) policies: Cache<NetworkPolicy>,
    pub(crate) backups: Cache<Backup>,
    /// The Jobs that take them, and their Pods.
    pub(crate) backup_jobs: Cache<Job>,
    pub(crate) backup_pods: Cache<Pod>,
}

impl Caches {
    pub(crate) fn new(client: &Client) -> Caches {
        let every = watcher::Config::default();
        let grouped = watcher::Config::default().labels(labels::MIDDLEWARE_GROUP);
        let of_apps = watcher::Config::default().labels(labels::MIDDLEWARE_APP);
        let of_backups = watcher::Config::default().labels(labels::MIDDLEWARE_BACKUP);
        Caches {
            apps: Cache::new(client.clone(), every.clone()),
            components: Cache::with_managed_fields(client.clone(), every.clone()),
            groups: Cache::with_managed_fields(client.clone(), every.clone()),
            plugins: Cache::new(client.clone(), every.clone()),
            pods: Cache::new(client.clone(), grouped.clone()),
            sets: Cache::with_managed_fields(client.clone(), grouped.clone()),
            deployments: Cache::with_managed_fields(client.clone(), grouped.clone()),
            services: Cache::with_managed_fields(client.clone(), grouped.clone()),
            config_maps: Cache::with_managed_fields(client.clone(), of_apps.clone()),
            secrets: Cache::with_managed_fields(client.clone(), of_apps.clone()),
            claims: Cache::with_managed_fields(client.clone(), grouped.clone()),
            revisions: Cache::new(client.clone(), grouped),
            policies: Cache::with_managed_fields(client.clone(), of_apps),
            backups: Cache::new(client.clone(), every),
            backup_jobs: Cache::new(client.clone(), of_backups.clone()),
            backup_pods: Cache::new(client.clone(), of_backups),
        }
    }

    /// Keeps all of them current until the shutdown: those of one namespace, if one is given. Plugins may be in another.
    pub(crate) fn spawn(&self, tasks: &mut JoinSet<()>, options: &Options, shutdown: &CancellationToken) {
        let mut feeding = Feeding { tasks, namespace: options.watch_namespace.clone(), shutdown };
        feeding.tasks.spawn(self.plugins.clone().run(shutdown.clone()));
        feeding.feed(&self.apps);
        feeding.feed(&self.components);
        feeding.feed(&self.groups);
        feeding.feed(&self.pods);
        feeding.feed(&self.sets);
        feeding.feed(&self.deployments);
        feeding.feed(&self.services);
        feeding.feed(&self.config_maps);
        feeding.feed(&self.secrets);
        feeding.feed(&self.claims);
        feeding.feed(&self.revisions);
        feeding.feed(&self.backups);
        feeding.feed(&self.backup_jobs);
        feeding.feed(&self.backup_pods);
        if options.agent_peers.is_some() {
            feeding.feed(&self.policies);
        }
    }

    /// An object that was rendered, as it is on the server.
    pub(crate) fn current(&self, object: &Value) -> Option<Value> {
        fn of<K: Object + Serialize>(cache: &Cache<K>, namespace: &str, name: &str) -> Option<Value> {
            serde_json::to_value(&*cache.get(namespace, name)?).ok()
        }
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        match text("/kind") {
            "StatefulSet" => of(&self.sets, namespace, name),
            "Deployment" => of(&self.deployments, namespace, name),
            "Service" => of(&self.services, namespace, name),
            "ConfigMap" => of(&self.config_maps, namespace, name),
            "Secret" => of(&self.secrets, namespace, name),
            "PersistentVolumeClaim" => of(&self.claims, namespace, name),
            _ => None,
        }
    }

    /// Takes in an object that was written.
    pub(crate) fn put(&self, object: &DynamicObject) {
        fn into<K: Object>(cache: &Cache<K>, object: &DynamicObject) {
            if let Ok(object) = object.clone().try_parse() {
                cache.put(object);
            }
        }
        match object.types.as_ref().map(|types| types.kind.as_str()) {
            Some("StatefulSet") => into(&self.sets, object),
            Some("Deployment") => into(&self.deployments, object),
            Some("Service") => into(&self.services, object),
            Some("ConfigMap") => into(&self.config_maps, object),
            Some("Secret") => into(&self.secrets, object),
            Some("PersistentVolumeClaim") => into(&self.claims, object),
            _ => {}
        }
    }
}

struct Feeding<'a> {
    tasks: &'a mut JoinSet<()>,
    namespace: Option<String>,
    shutdown: &'a CancellationToken,
}

impl Feeding<'_> {
    fn feed<K: Object + Resource<Scope = NamespaceResourceScope>>(&mut self, cache: &Cache<K>) {
        self.tasks.spawn(cache.clone().run_in(self.namespace.clone(), self.shutdown.clone()));
    }
}

/// How objects of a kind that templates may make are reached.
pub(crate) fn resource(kind: &str) -> Option<ApiResource> {
    Some(match kind {
        "StatefulSet" => ApiResource::erase::<StatefulSet>(&()),
        "Deployment" => ApiResource::erase::<Deployment>(&()),
        "Service" => ApiResource::erase::<Service>(&()),
        "ConfigMap" => ApiResource::erase::<ConfigMap>(&()),
        "Secret" => ApiResource::erase::<Secret>(&()),
        "PersistentVolumeClaim" => ApiResource::erase::<PersistentVolumeClaim>(&()),
        _ => return None,
    })
}
