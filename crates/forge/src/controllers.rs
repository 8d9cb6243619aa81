//! The controllers, wired: which change of what has which object looked at again. To be run by the leader only.

use std::collections::HashSet;
use std::sync::Arc;

use agentcube_operator::cache::{Change, Object};
use agentcube_operator::controller::Controller;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use kube::{Client, ResourceExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::core::{Core, Name};
use crate::options::Options;
use crate::{bundle, integration, names};

/// The controllers of FrontendIntegrations and JSBundles.
pub struct Controllers {
    client: Client,
    options: Options,
    metrics: Registry,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Controllers {
    pub fn new(client: Client, options: Options, metrics: &Registry) -> Controllers {
        Controllers { client, options, metrics: metrics.clone() }
    }

    /// Runs until the shutdown, and then until the writes under way are over.
    pub async fn run(self, shutdown: CancellationToken) {
        let Controllers { client, options, metrics } = self;
        // The caches and the Events outlive the reconciles that use them.
        let after = CancellationToken::new();
        let _ended = after.clone().drop_guard();
        let mut background = JoinSet::new();
        let caches = Caches::new(&client);
        caches.spawn(&mut background, options.watch_namespace.as_ref(), &after);
        let events = Recorder::start(client.clone(), "agentcube-forge", None, after.clone());
        let core = Arc::new(Core { client, caches, events, options });
        let integrations =
            watch_for_integrations(Controller::new("frontendintegration").metrics(&metrics), &core);
        let bundles = watch_for_bundles(Controller::new("jsbundle").metrics(&metrics), &core);
        let (of_integrations, of_bundles) = (core.clone(), core);
        tokio::join!(
            integrations.run(shutdown.clone(), move |key| {
                Box::pin(integration::reconcile(of_integrations.clone(), key))
            }),
            bundles.run(shutdown, move |key| Box::pin(bundle::reconcile(of_bundles.clone(), key))),
        );
        after.cancel();
        while background.join_next().await.is_some() {}
    }
}

fn watch_for_integrations(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    let caches = &core.caches;
    let of_pods = core.clone();
    controller
        .watch(&caches.integrations, |change| [Name::of(&**change.latest())])
        .watch(&caches.bundles, owners)
        .watch(&caches.jobs, owners)
        .watch(&caches.pods, move |change| {
            // A Pod belongs to a Job, and that to an integration.
            let of = |pod: &Arc<k8s_openapi::api::core::v1::Pod>| {
                let namespace = pod.namespace().unwrap_or_default();
                let mut owners = pod.owner_references().iter();
                let job = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Job")?;
                let job = of_pods.caches.jobs.get(&namespace, &job.name)?;
                owner(&*job)
            };
            change.sides().filter_map(of).collect::<HashSet<_>>()
        })
}

fn watch_for_bundles(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    controller.watch(&core.caches.bundles, |change| [Name::of(&**change.latest())]).watch(
        &core.caches.integrations,
        |change| {
            let Name { namespace, name } = Name::of(&**change.latest());
            [Name { namespace, name: names::bundle(&name) }]
        },
    )
}

/// The integrations that control an object, or did before the change.
fn owners<K: Object>(change: &Change<K>) -> HashSet<Name> {
    change.sides().filter_map(|object| owner(&**object)).collect()
}

fn owner<K: Object>(object: &K) -> Option<Name> {
    let mut owners = object.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "FrontendIntegration")?;
    Some(Name { namespace: object.namespace().unwrap_or_default(), name: owner.name.clone() })
}
