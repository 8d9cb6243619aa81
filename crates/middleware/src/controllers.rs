//! The controllers, wired: which change of what has which object looked at again. To be run by the leader only.

use std::collections::HashSet;
use std::sync::Arc;

use agentcube_api::labels::{MIDDLEWARE_BACKUP, MIDDLEWARE_GROUP};
use agentcube_operator::cache::{Change, Object};
use agentcube_operator::controller::Controller;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use kube::{Client, ResourceExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agents::Agents;
use crate::app::plan::plugin_name;
use crate::caches::Caches;
use crate::core::{Core, Name};
use crate::options::Options;
use crate::refusals::Refusals;
use crate::{app, backup, component, group};

/// The controllers of App, Component and Group.
pub struct Controllers {
    client: Client,
    agents: Arc<dyn Agents>,
    options: Options,
    metrics: Registry,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Controllers {
    pub fn new(client: Client, agents: Arc<dyn Agents>, options: Options, metrics: &Registry) -> Controllers {
        Controllers { client, agents, options, metrics: metrics.clone() }
    }

    /// Runs until the shutdown, and then until the writes under way are over.
    pub async fn run(self, shutdown: CancellationToken) {
        let Controllers { client, agents, options, metrics } = self;
        // The caches and the Events outlive the reconciles that use them.
        let after = CancellationToken::new();
        let _ended = after.clone().drop_guard();
        let mut background = JoinSet::new();
        let caches = Caches::new(&client);
        caches.spawn(&mut background, &options, &after);
        let events = Recorder::start(client.clone(), "agentcube-middleware", None, after.clone());
        let settings = options.settings.clone();
        let refused = Refusals::default();
        let begun = jiff::Timestamp::now();
        let core = Arc::new(Core { client, caches, agents, options, events, refused, begun });

        let apps =
            watch_for_apps(Controller::new("app").concurrency(settings.app.workers).metrics(&metrics), &core);
        let components =
            Controller::new("component").concurrency(settings.component.workers).metrics(&metrics);
        let components = watch_for_components(components, &core);
        let most = settings.group.workers.min(settings.group.max_concurrent_reconciles);
        let groups = watch_for_groups(Controller::new("group").concurrency(most).metrics(&metrics), &core);
        let backups = watch_for_backups(Controller::new("backup").metrics(&metrics), &core);
        let (of_apps, of_components, of_groups, of_backups) =
            (core.clone(), core.clone(), core.clone(), core);
        tokio::join!(
            apps.run(shutdown.clone(), move |key| Box::pin(app::reconcile(of_apps.clone(), key))),
            components.run(shutdown.clone(), move |key| {
                Box::pin(component::reconcile(of_components.clone(), key))
            }),
            groups.run(shutdown.clone(), move |key| Box::pin(group::reconcile(of_groups.clone(), key))),
            backups.run(shutdown, move |key| Box::pin(backup::reconcile(of_backups.clone(), key))),
        );
        after.cancel();
        while background.join_next().await.is_some() {}
    }
}

/// Whether somebody else is to look after this namespace.
fn elsewhere(core: &Core, name: &Name) -> bool {
    core.options.watch_namespace.as_ref().is_some_and(|only| *only != name.namespace)
}

fn watch_for_apps(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    let (own, by_plugin) = (core.clone(), core.clone());
    let controller = match core.options.agent_peers {
        Some(_) => controller.watch(&core.caches.policies, |change| owners(change, "App")),
        None => controller,
    };
    controller
        .watch(&core.caches.apps, move |change| {
            let name = Name::of(&**change.latest());
            (!elsewhere(&own, &name)).then_some(name)
        })
        .watch(&core.caches.components, |change| owners(change, "App"))
        .watch(&core.caches.plugins, move |change| {
            let plugin = change.latest().name_any();
            let uses = |app: &Arc<agentcube_api::App>| {
                plugin_name(&app.spec.plugin.name, &app.spec.plugin.version) == plugin
            };
            let apps = by_plugin.caches.apps.list(None);
            apps.iter().filter(|app| uses(app)).map(|app| Name::of(&**app)).collect::<Vec<_>>()
        })
        .watch(&core.caches.secrets, |change| owners(change, "App"))
        .watch(&core.caches.config_maps, |change| owners(change, "App"))
        .needs(&core.caches.groups)
}

fn watch_for_components(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    let own = core.clone();
    controller
        .watch(&core.caches.components, move |change| {
            let name = Name::of(&**change.latest());
            (!elsewhere(&own, &name)).then_some(name)
        })
        .watch(&core.caches.groups, |change| owners(change, "Component"))
        .needs(&core.caches.pods)
}

fn watch_for_groups(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    let (own, by_plugin) = (core.clone(), core.clone());
    let caches = &core.caches;
    controller
        .watch(&caches.groups, move |change| {
            let name = Name::of(&**change.latest());
            (!elsewhere(&own, &name)).then_some(name)
        })
        .watch(&caches.plugins, move |change| {
            let plugin = change.latest().name_any();
            let groups = by_plugin.caches.groups.list(None);
            let users = groups.iter().filter(|group| group.spec.plugin_ref.name == plugin);
            users.map(|group| Name::of(&**group)).collect::<Vec<_>>()
        })
        .watch(&caches.pods, labelled)
        .watch(&caches.sets, labelled)
        .watch(&caches.deployments, labelled)
        .watch(&caches.services, labelled)
        .watch(&caches.config_maps, labelled)
        .watch(&caches.secrets, labelled)
        .watch(&caches.claims, labelled)
        .watch(&caches.revisions, labelled)
}

fn watch_for_backups(controller: Controller<Name>, core: &Arc<Core>) -> Controller<Name> {
    let (own, of_app) = (core.clone(), core.clone());
    let caches = &core.caches;
    controller
        .watch(&caches.backups, move |change| {
            let name = Name::of(&**change.latest());
            (!elsewhere(&own, &name)).then_some(name)
        })
        .watch(&caches.apps, move |change| {
            let app = change.latest();
            let backups = of_app.caches.backups.list(app.namespace().as_deref());
            let of_it = backups.iter().filter(|backup| backup.spec.app_ref.name == app.name_any());
            of_it.map(|backup| Name::of(&**backup)).collect::<Vec<_>>()
        })
        .watch(&caches.backup_jobs, |change| owners(change, "Backup"))
        .watch(&caches.backup_pods, |change| named(change, MIDDLEWARE_BACKUP))
        .needs(&caches.groups)
        .needs(&caches.plugins)
}

/// The Groups that an object says it belongs to, or did before the change.
fn labelled<K: Object>(change: &Change<K>) -> HashSet<Name> {
    named(change, MIDDLEWARE_GROUP)
}

/// What an object names by a label, or did before the change.
fn named<K: Object>(change: &Change<K>, label: &str) -> HashSet<Name> {
    let of = |object: &Arc<K>| {
        let name = object.labels().get(label)?.clone();
        Some(Name { namespace: object.namespace().unwrap_or_default(), name })
    };
    change.sides().filter_map(of).collect()
}

/// The owners of this kind that control an object, or did before the change.
fn owners<K: Object>(change: &Change<K>, kind: &'static str) -> HashSet<Name> {
    let of = |object: &Arc<K>| {
        let mut owners = object.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
        Some(Name { namespace: object.namespace().unwrap_or_default(), name: owner.name.clone() })
    };
    change.sides().filter_map(of).collect()
}
