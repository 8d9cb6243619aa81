//! Reads everything that a plan for a Task needs, from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agentcube_api::agentcube::task::InstanceStatistics;
use agentcube_api::{Task, TaskGateway, labels};
use agentcube_instance::SpecId;
use agentcube_instance::provider::{InstanceSpecProvider, SpecError, SpecStatus};
use agentcube_instance::revision::label_value;
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::api::core::v1::{PodTemplate, Service};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use crate::caches::Caches;
use crate::envoy::{BackendTrafficPolicy, EnvoyExtensionPolicy};
use crate::options::{Implementation, Options};

/// What is known of a Task.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) task: Arc<Task>,
    /// The gateways that it names, in its order.
    pub(crate) gateways: Vec<Named>,
    pub(crate) hash: Result<String, SpecError>,
    /// The revisions of which something is there.
    pub(crate) revisions: BTreeSet<SpecId>,
    /// What those are made of that say so.
    pub(crate) hashes: BTreeMap<SpecId, String>,
    /// How each revision stands that is there or that the Task's status names.
    pub(crate) standing: BTreeMap<SpecId, SpecStatus>,
    pub(crate) instances: InstanceStatistics,
    /// The objects of the Task that may have to go.
    pub(crate) policies: Vec<Arc<BackendTrafficPolicy>>,
    pub(crate) services: Vec<Arc<Service>>,
    /// To be compared with what the server has, not with what it told.
    pub(crate) closely: bool,
}

/// A gateway that a Task names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) gateway: Option<Arc<TaskGateway>>,
}

impl Named {
    /// What implements it; nothing is known of one that does not exist.
    pub(crate) fn implementation(&self, options: &Options) -> Option<Implementation> {
        let gateway = self.gateway.as_ref()?;
        let class = gateway.spec.gateway_class_name.as_deref().unwrap_or(&options.gateway_class);
        Some(Implementation::of(class))
    }
}

impl Observed {
    pub(crate) fn new(
        task: Arc<Task>,
        caches: &Caches,
        provider: &dyn InstanceSpecProvider,
        closely: bool,
    ) -> Observed {
        let namespace = task.namespace().unwrap_or_default();
        let uid = task.uid().unwrap_or_default();
        if task.spec.deployment.pool_ref().is_some() {
            caches.counts.want_sandboxes();
        }
        let named = task.spec.routing.gateway_refs.iter();
        let gateways =
            named.map(|name| Named { name: name.clone(), gateway: caches.gateways.get(&namespace, name) });
        let made = caches.revisions.owned_by(&uid);
        let made = made.iter().map(|object| (SpecId(object.name_any().into()), object));
        let revisions: BTreeSet<SpecId> = made.clone().map(|(spec, _)| spec).collect();
        let hash = |object: &PartialObjectMeta<PodTemplate>| {
            object.annotations().get(labels::TEMPLATE_HASH).cloned()
        };
        let hashes = made.filter_map(|(spec, object)| Some((spec, hash(object)?))).collect();
        let status = task.status.clone().unwrap_or_default();
        let told = status.spec_id.iter().chain(&status.draining_spec_ids);
        let told: Vec<SpecId> = told.map(|name| SpecId(name.as_str().into())).collect();
        let standing = revisions.iter().chain(&told);
        let standing = standing.map(|spec| (spec.clone(), provider.spec_status(&task, spec))).collect();
        Observed {
            gateways: gateways.collect(),
            hash: provider.template_hash(&task),
            standing,
            revisions,
            hashes,
            instances: caches.counts.of(&uid),
            policies: caches.envoy.as_ref().map(|envoy| envoy.traffic.owned_by(&uid)).unwrap_or_default(),
            services: caches.envoy.as_ref().map(|envoy| envoy.services.owned_by(&uid)).unwrap_or_default(),
            closely,
            task,
        }
    }
}

/// What others say of what was made; read after the writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) route: Option<Arc<HttpRoute>>,
    /// The policy that is to select the route.
    pub(crate) policy: Option<Arc<EnvoyExtensionPolicy>>,
}

impl Answers {
    pub(crate) fn new(task: &Task, label: Option<&str>, caches: &Caches) -> Answers {
        let namespace = task.namespace().unwrap_or_default();
        let route = caches.routes.get(&namespace, &task.name_any());
        let policies = caches.envoy.as_ref().map(|envoy| envoy.extension.list(Some(&namespace)));
        let selects =
            |policy: &&Arc<EnvoyExtensionPolicy>| Some(label_value(&policy.name_any())).as_deref() == label;
        let policy = policies.unwrap_or_default().iter().find(selects).cloned();
        Answers { route, policy }
    }
}
