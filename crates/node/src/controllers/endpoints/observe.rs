//! What there is of one Service: itself, the Pods that it selects, and what is written about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

use super::super::{Caches, Key};
use super::desired::{MANAGED_BY, MANAGER, SERVICE_NAME};

const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// Absent once it is deleted.
    pub(super) service: Option<Arc<Service>>,
    pub(super) pods: Vec<Arc<Pod>>,
    /// The slices that this controller keeps for the Service's name, without those that are being deleted.
    pub(super) slices: Vec<Arc<EndpointSlice>>,
    pub(super) endpoints: Option<Arc<Endpoints>>,
    /// The nodes that there are, with their zones.
    pub(super) nodes: BTreeMap<String, Option<String>>,
}

pub(super) fn observe(caches: &Caches, key: &Key) -> Observed {
    let service = caches.services.get(&key.namespace, &key.name);
    let selected = |pod: &Arc<Pod>| service.as_ref().is_some_and(|service| selects(service, pod));
    let mut slices = caches.endpoint_slices.list(Some(&key.namespace));
    slices.retain(|slice| {
        let labels = slice.labels();
        labels.get(SERVICE_NAME) == Some(&key.name)
            && labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
            && slice.metadata.deletion_timestamp.is_none()
    });
    let nodes = caches.nodes.list(None);
    Observed {
        pods: caches.pods.list(Some(&key.namespace)).into_iter().filter(selected).collect(),
        slices,
        endpoints: caches.endpoints.get(&key.namespace, &key.name),
        nodes: nodes.iter().map(|node| (node.name_any(), node.labels().get(ZONE).cloned())).collect(),
        service,
    }
}

/// Whether a Service selects a Pod. Without a selector it selects none, with an empty one all.
pub(super) fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value)))
}
