//! Reads everything that a plan for a TaskGateway needs, from memory.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::TaskGateway;
use agentcube_operator::cache::{Cache, Object};
use gateway_api::gateways::Gateway;
use kube::ResourceExt;

use crate::caches::Caches;
use crate::envoy::{
    BackendTrafficPolicy, ClientTrafficPolicy, EnvoyExtensionPolicy, EnvoyPatchPolicy, EnvoyProxy,
    SecurityPolicy,
};

/// What is known of a TaskGateway.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) gateway: Arc<TaskGateway>,
    /// The longest that a request may wait for an instance of a Task that this gateway serves.
    pub(crate) longest_wait: Duration,
    pub(crate) children: Children,
    /// To be compared with what the server has, not with what it told.
    pub(crate) closely: bool,
}

/// The objects that a TaskGateway has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    pub(crate) gateway: Option<Arc<Gateway>>,
    pub(crate) security: Vec<Arc<SecurityPolicy>>,
    pub(crate) traffic: Vec<Arc<BackendTrafficPolicy>>,
    pub(crate) client: Vec<Arc<ClientTrafficPolicy>>,
    pub(crate) extension: Vec<Arc<EnvoyExtensionPolicy>>,
    pub(crate) patch: Vec<Arc<EnvoyPatchPolicy>>,
    pub(crate) proxies: Vec<Arc<EnvoyProxy>>,
}

impl Children {
    pub(crate) fn new(gateway: &TaskGateway, caches: &Caches) -> Children {
        fn owned<K: Object>(cache: Option<&Cache<K>>, uid: &str) -> Vec<Arc<K>> {
            cache.map(|cache| cache.owned_by(uid)).unwrap_or_default()
        }
        let (namespace, uid) = (gateway.namespace().unwrap_or_default(), gateway.uid().unwrap_or_default());
        let envoy = caches.envoy.as_ref();
        Children {
            gateway: caches.api_gateways.get(&namespace, &gateway.name_any()),
            security: owned(envoy.map(|envoy| &envoy.security), &uid),
            traffic: owned(envoy.map(|envoy| &envoy.traffic), &uid),
            client: owned(envoy.map(|envoy| &envoy.client), &uid),
            extension: owned(envoy.map(|envoy| &envoy.extension), &uid),
            patch: owned(envoy.map(|envoy| &envoy.patch), &uid),
            proxies: owned(envoy.map(|envoy| &envoy.proxies), &uid),
        }
    }
}

impl Observed {
    pub(crate) fn new(gateway: Arc<TaskGateway>, caches: &Caches, closely: bool) -> Observed {
        let (namespace, name) = (gateway.namespace().unwrap_or_default(), gateway.name_any());
        let tasks = caches.tasks.list(Some(&namespace));
        let served = tasks.iter().filter(|task| task.spec.routing.gateway_refs.contains(&name));
        let longest = served.map(|task| task.spec.routing.reserve_timeout.to_std()).max();
        Observed {
            longest_wait: longest.unwrap_or_default(),
            children: Children::new(&gateway, caches),
            gateway,
            closely,
        }
    }
}
