//! What the environment and the volumes of a Pod are made of, besides the Pod itself. Answered from caches, so that
//! nothing here waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The cluster as the kubelet sees it.
pub trait Lookup: Send + Sync {
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>>;
    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>>;
    /// The Services of a namespace.
    fn services(&self, namespace: &str) -> Vec<Arc<Service>>;
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// What this node has for Pods.
    fn allocatable(&self) -> BTreeMap<String, Quantity>;
}

#[cfg(test)]
pub(crate) mod fixed {
    //! A cluster that holds what a test puts into it.

    use serde_json::Value;

    use super::*;

    #[derive(Default, Clone)]
    pub(crate) struct Fixed {
        objects: BTreeMap<(String, String, String), Value>,
    }

    impl Fixed {
        pub(crate) fn with(mut self, object: Value) -> Self {
            self.put(object);
            self
        }

        pub(crate) fn put(&mut self, object: Value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let meta = &object["metadata"];
            let key = (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]));
            self.objects.insert(key, object);
        }

        fn get<K: serde::de::DeserializeOwned>(
            &self,
            kind: &str,
            namespace: &str,
            name: &str,
        ) -> Option<Arc<K>> {
            let value = self.objects.get(&(kind.to_owned(), namespace.to_owned(), name.to_owned()))?;
            Some(Arc::new(serde_json::from_value(without_kind(value)).unwrap()))
        }
    }

    fn without_kind(value: &Value) -> Value {
        let mut value = value.clone();
        value.as_object_mut().unwrap().remove("kind");
        value
    }

    impl Lookup for Fixed {
        fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
            self.get("ConfigMap", namespace, name)
        }

        fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
            self.get("Secret", namespace, name)
        }

        fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
            let services =
                self.objects.iter().filter(|((kind, ns, _), _)| kind == "Service" && ns == namespace);
            services
                .map(|(_, value)| Arc::new(serde_json::from_value(without_kind(value)).unwrap()))
                .collect()
        }

        fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
            self.get("PersistentVolumeClaim", namespace, name)
        }

        fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
            self.get("PersistentVolume", "", name)
        }

        fn allocatable(&self) -> BTreeMap<String, Quantity> {
            [("cpu", "2"), ("memory", "1Gi")].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into()
        }
    }
}
