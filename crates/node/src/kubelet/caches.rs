//! The objects that a kubelet reads, followed by watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::lookup::Lookup;
use agentcube_operator::cache::Cache;

/// Shared with the other parts of the node; whoever made them runs them.
#[derive(Debug, Clone)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub config_maps: Cache<ConfigMap>,
    pub secrets: Cache<Secret>,
    pub services: Cache<Service>,
    pub claims: Cache<PersistentVolumeClaim>,
    pub volumes: Cache<PersistentVolume>,
    pub runtime_classes: Cache<RuntimeClass>,
}

impl Caches {
    /// Returns when every one has been listed.
    pub async fn synced(&self) {
        tokio::join!(
            self.pods.synced(),
            self.config_maps.synced(),
            self.secrets.synced(),
            self.services.synced(),
            self.claims.synced(),
            self.volumes.synced(),
            self.runtime_classes.synced(),
        );
    }
}

/// The same for the environment and the volumes.
pub(super) struct View {
    caches: Caches,
    allocatable: BTreeMap<String, Quantity>,
}

impl View {
    pub(super) fn new(caches: Caches, allocatable: BTreeMap<String, Quantity>) -> Self {
        Self { caches, allocatable }
    }
}

impl Lookup for View {
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.caches.config_maps.get(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        self.caches.secrets.get(namespace, name)
    }

    fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
        self.caches.services.list(Some(namespace))
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.caches.claims.get(namespace, name)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.caches.volumes.get("", name)
    }

    fn allocatable(&self) -> BTreeMap<String, Quantity> {
        self.allocatable.clone()
    }
}
