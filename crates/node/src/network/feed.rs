//! Keeps the network's view current with the caches. Decides nothing.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio_util::sync::CancellationToken;

use super::Network;
use agentcube_operator::cache::Cache;

/// The objects of which the network must know.
#[derive(Debug, Clone)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub namespaces: Cache<Namespace>,
    pub services: Cache<Service>,
    pub slices: Cache<EndpointSlice>,
    pub policies: Cache<NetworkPolicy>,
}

impl Caches {
    async fn synced(&self) {
        self.pods.synced().await;
        self.namespaces.synced().await;
        self.services.synced().await;
        self.slices.synced().await;
        self.policies.synced().await;
    }
}

impl Network {
    /// Follows the caches until the shutdown. Pods are served once all that the caches hold has been taken in.
    pub async fn follow(&self, caches: Caches, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = caches.synced() => {}
        }
        for pod in caches.pods.list(None) {
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
            address.into_iter().for_each(|address| self.shared.pool.lock().skip(address));
        }
        let mut pods = caches.pods.subscribe();
        let mut namespaces = caches.namespaces.subscribe();
        let mut services = caches.services.subscribe();
        let mut slices = caches.slices.subscribe();
        let mut policies = caches.policies.subscribe();
        let view = &self.shared.view;
        loop {
            // In this order, and only when nothing waits is the view complete: policies come before what they bind.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                change = policies.recv() => {
                    view.write().change_policy(change.old.as_deref(), change.new.as_deref());
                }
                change = namespaces.recv() => {
                    view.write().namespace(change.old.as_deref(), change.new.as_deref());
                }
                change = pods.recv() => {
                    if let Some(pod) = &change.new {
                        view.write().pod(pod);
                    }
                }
                change = slices.recv() => {
                    view.write().change_slice(change.old.as_deref(), change.new.as_ref());
                }
                change = services.recv() => {
                    view.write().change_service(change.old.as_deref(), change.new.as_ref());
                    if change.new.is_none() && let Some((namespace, name)) = change.old.as_deref().and_then(key) {
                        self.shared.balancer.lock().forget(&(namespace, name));
                    }
                }
                () = std::future::ready(()), if !*self.shared.synced.borrow() => {
                    self.shared.synced.send_replace(true);
                }
            }
        }
    }
}

fn key(service: &Service) -> Option<(String, String)> {
    service.metadata.namespace.clone().zip(service.metadata.name.clone())
}
