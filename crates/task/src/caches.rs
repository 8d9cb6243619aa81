//! What the controllers keep in memory. Of kinds that are not ours only the objects that we made, by their label:
//! others may write into theirs what our types do not know.

use agentcube_api::{SandboxPool, Task, TaskGateway, labels};
use agentcube_operator::cache::{Cache, Object};
use gateway_api::gateways::Gateway;
use gateway_api::httproutes::HttpRoute;
use gateway_api::referencegrants::ReferenceGrant;
use k8s_openapi::api::core::v1::{PodTemplate, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Client;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::child::{MANAGED_BY, MANAGED_BY_US};
use crate::counts::Counts;
use crate::envoy::{
    BackendTrafficPolicy, ClientTrafficPolicy, EnvoyExtensionPolicy, EnvoyPatchPolicy, EnvoyProxy,
    SecurityPolicy,
};
use crate::options::Options;

/// All caches.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) tasks: Cache<Task>,
    pub(crate) gateways: Cache<TaskGateway>,
    pub(crate) api_gateways: Cache<Gateway>,
    pub(crate) routes: Cache<HttpRoute>,
    /// What instances are made from. The provider makes these, and tells of their changes.
    pub(crate) revisions: Cache<PartialObjectMeta<PodTemplate>>,
    pub(crate) runtime_classes: Cache<PartialObjectMeta<RuntimeClass>>,
    pub(crate) pools: Cache<PartialObjectMeta<SandboxPool>>,
    pub(crate) counts: Counts,
    /// What is only made where there is an Envoy Gateway, whose kinds exist only there.
    pub(crate) envoy: Option<EnvoyCaches>,
}

/// The caches of what Envoy Gateway reads.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyCaches {
    pub(crate) security: Cache<SecurityPolicy>,
    pub(crate) traffic: Cache<BackendTrafficPolicy>,
    pub(crate) client: Cache<ClientTrafficPolicy>,
    pub(crate) extension: Cache<EnvoyExtensionPolicy>,
    pub(crate) patch: Cache<EnvoyPatchPolicy>,
    pub(crate) proxies: Cache<EnvoyProxy>,
    pub(crate) services: Cache<Service>,
    pub(crate) grants: Cache<ReferenceGrant>,
}

impl Caches {
    pub(crate) fn new(client: &Client, options: &Options, counts: Counts) -> Caches {
        let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGED_BY_US}"));
        let every = watcher::Config::default();
        let envoy = options.envoy.as_ref().map(|_| EnvoyCaches {
            security: Cache::with_managed_fields(client.clone(), ours.clone()),
            traffic: Cache::with_managed_fields(client.clone(), ours.clone()),
            client: Cache::with_managed_fields(client.clone(), ours.clone()),
            extension: Cache::with_managed_fields(client.clone(), ours.clone()),
            patch: Cache::with_managed_fields(client.clone(), ours.clone()),
            proxies: Cache::with_managed_fields(client.clone(), ours.clone()),
            services: Cache::with_managed_fields(client.clone(), ours.clone()),
            grants: Cache::new(client.clone(), ours.clone()),
        });
        Caches {
            tasks: Cache::new(client.clone(), every.clone()),
            gateways: Cache::new(client.clone(), every.clone()),
            api_gateways: Cache::with_managed_fields(client.clone(), ours.clone()),
            routes: Cache::with_managed_fields(client.clone(), ours),
            revisions: Cache::new(client.clone(), watcher::Config::default().labels(labels::FORM)),
            runtime_classes: Cache::new(client.clone(), every.clone()),
            pools: Cache::new(client.clone(), every),
            counts,
            envoy,
        }
    }

    /// Keeps all of them current until the shutdown.
    pub(crate) fn spawn(&self, client: &Client, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) {
        fn run<K: Object>(cache: &Cache<K>, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) {
            tasks.spawn(cache.clone().run(shutdown.clone()));
        }
        tasks.spawn(self.counts.clone().run(client.clone(), shutdown.clone()));
        run(&self.tasks, tasks, shutdown);
        run(&self.gateways, tasks, shutdown);
        run(&self.api_gateways, tasks, shutdown);
        run(&self.routes, tasks, shutdown);
        run(&self.revisions, tasks, shutdown);
        run(&self.runtime_classes, tasks, shutdown);
        run(&self.pools, tasks, shutdown);
        if let Some(envoy) = &self.envoy {
            run(&envoy.security, tasks, shutdown);
            run(&envoy.traffic, tasks, shutdown);
            run(&envoy.client, tasks, shutdown);
            run(&envoy.extension, tasks, shutdown);
            run(&envoy.patch, tasks, shutdown);
            run(&envoy.proxies, tasks, shutdown);
            run(&envoy.services, tasks, shutdown);
            run(&envoy.grants, tasks, shutdown);
        }
    }
}
