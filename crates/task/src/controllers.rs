//! The controllers, wired: which change of what has which object looked at again. To be run by the leader only.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Task, TaskGateway};
use agentcube_instance::provider::{InstanceSpecProvider, TaskName};
use agentcube_operator::cache::{Cache, Change, Object};
use agentcube_operator::controller::Controller;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry;
use agentcube_operator::queue::Queue;
use futures_util::stream::{BoxStream, StreamExt};
use kube::{Client, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Name;
use crate::caches::Caches;
use crate::counts::{Changed, Counts};
use crate::envoy::EnvoyExtensionPolicy;
use crate::gateway::{self, Key};
use crate::missing::Missing;
use crate::options::Options;
use crate::passes::Passes;
use crate::task::{self, Reference};

/// The controllers of Task and TaskGateway.
pub struct Controllers {
    client: Client,
    provider: Arc<dyn InstanceSpecProvider>,
    options: Arc<Options>,
    metrics: Registry,
    caches: Caches,
    pods: mpsc::UnboundedReceiver<Changed>,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Controllers {
    pub fn new(client: Client, provider: Arc<dyn InstanceSpecProvider>, options: Options) -> Controllers {
        Controllers::counted(client, provider, options, &Registry::new())
    }

    /// The same, with its counts among these metrics.
    pub fn counted(
        client: Client,
        provider: Arc<dyn InstanceSpecProvider>,
        options: Options,
        metrics: &Registry,
    ) -> Controllers {
        let (counts, pods) = Counts::new();
        let caches = Caches::new(&client, &options, counts);
        Controllers { client, provider, options: Arc::new(options), metrics: metrics.clone(), caches, pods }
    }

    /// Runs until the shutdown, and then until the writes under way are over.
    pub async fn run(self, shutdown: CancellationToken) {
        let Controllers { client, provider, options, metrics, caches, pods } = self;
        // The caches and the Events outlive the reconciles that use them.
        let after = CancellationToken::new();
        let mut background = JoinSet::new();
        caches.spawn(&client, &mut background, &after);
        let events = Recorder::start(client.clone(), "agentcube-task", None, after.clone());

        let controller: Controller<Name> =
            Controller::new("task").concurrency(options.concurrency).metrics(&metrics);
        let queue = controller.queue();
        let missing = Missing::new(client.clone(), queue.clone());
        let controller = watch_for_tasks(controller, &caches, &missing);
        let told = background.spawn(forward_changes(provider.changes(), queue.clone()));
        let forwarding = forward_pods(pods, caches.tasks.clone(), queue, options.counts_every);
        let forwarding = background.spawn(forwarding);
        let gateways = gateway::Reconciler {
            client: client.clone(),
            caches: caches.clone(),
            options: options.clone(),
            events: events.clone(),
            passes: Passes::default(),
        };
        let of_gateways = watch_for_gateways(Controller::new("taskgateway").metrics(&metrics), &caches);
        let of_gateways =
            of_gateways.run(shutdown.clone(), move |key| Box::pin(gateways.clone().reconcile(key)));
        let tasks = task::Reconciler {
            client,
            caches,
            provider,
            options,
            events,
            missing,
            passes: Passes::default(),
        };
        let of_tasks = controller.run(shutdown, move |key| Box::pin(tasks.clone().reconcile(key)));
        tokio::join!(of_gateways, of_tasks);
        forwarding.abort();
        told.abort();
        after.cancel();
        while background.join_next().await.is_some() {}
    }
}

fn watch_for_gateways(controller: Controller<Key>, caches: &Caches) -> Controller<Key> {
    let of_task = |change: &Change<Task>| {
        let seen = |task: &Task| {
            (task.spec.routing.gateway_refs.clone(), task.spec.routing.reserve_timeout.to_std())
        };
        let news = change.old.as_deref().map(seen) != change.new.as_deref().map(seen);
        let sides = change.sides().filter(move |_| news);
        let named = sides.flat_map(|task| {
            let namespace = task.namespace().unwrap_or_default();
            let named = task.spec.routing.gateway_refs.iter();
            let keys =
                named.map(|name| Key::Gateway(Name { namespace: namespace.clone(), name: name.clone() }));
            keys.collect::<Vec<_>>()
        });
        named.collect::<HashSet<_>>()
    };
    let mut controller = controller
        .watch(&caches.gateways, |change| {
            let name = name_of(change.latest());
            [Key::Grants(name.namespace.clone()), Key::Gateway(name)]
        })
        .watch(&caches.api_gateways, gateways)
        .watch(&caches.tasks, of_task);
    if let Some(envoy) = &caches.envoy {
        controller = controller
            .watch(&envoy.security, gateways)
            .watch(&envoy.traffic, gateways)
            .watch(&envoy.client, gateways)
            .watch(&envoy.extension, gateways)
            .watch(&envoy.patch, gateways)
            .watch(&envoy.proxies, gateways)
            .watch(&envoy.grants, |change| {
                change
                    .sides()
                    .filter_map(|grant| gateway::namespace_of(grant))
                    .map(Key::Grants)
                    .collect::<Vec<_>>()
            });
    }
    controller
}

fn gateways<K: Object>(change: &Change<K>) -> impl IntoIterator<Item = Key> + use<K> {
    owners(change, "TaskGateway").into_iter().map(Key::Gateway)
}

fn watch_for_tasks(controller: Controller<Name>, caches: &Caches, missing: &Missing) -> Controller<Name> {
    let tasks = caches.tasks.clone();
    let of_gateway = move |change: &Change<TaskGateway>| {
        let seen = |gateway: &TaskGateway| {
            let addresses = gateway.status.as_ref().map(|status| status.addresses.clone());
            (gateway.metadata.generation, gateway.metadata.uid.clone(), addresses.unwrap_or_default())
        };
        // Most changes are of how many routes are attached, and nothing to any one of them.
        let news = change.old.as_deref().map(seen) != change.new.as_deref().map(seen);
        if news { tasks_of(&tasks, change.latest()) } else { Vec::new() }
    };
    let (pools, classes) = (missing.clone(), missing.clone());
    let mut controller = controller
        .watch(&caches.tasks, |change| is_news(change).then(|| name_of(change.latest())))
        .watch(&caches.gateways, of_gateway)
        .watch(&caches.routes, |change| {
            // A route that we have just made is nothing to look at before somebody says something of it.
            let bare = change.old.is_none() && change.new.as_ref().is_some_and(|new| new.status.is_none());
            owners(change, "Task").into_iter().filter(move |_| !bare)
        })
        .watch(&caches.revisions, |change| owners(change, "Task"))
        .watch(&caches.pools, move |change| {
            let pool = name_of(change.latest());
            pools.waiting_for(|reference| {
                matches!(reference, Reference::Pool { namespace, name }
                    if *namespace == pool.namespace && *name == pool.name)
            })
        })
        .watch(&caches.runtime_classes, move |_| {
            classes.waiting_for(|reference| *reference == Reference::RuntimeClass)
        });
    if let Some(envoy) = &caches.envoy {
        let tasks = caches.tasks.clone();
        controller = controller
            .watch(&envoy.traffic, |change| owners(change, "Task"))
            .watch(&envoy.services, |change| owners(change, "Task"))
            .watch(&envoy.extension, move |change: &Change<EnvoyExtensionPolicy>| {
                tasks_of(&tasks, change.latest())
            });
    }
    controller
}

/// Whether a change of a Task is more than what we report of it ourselves. Of that only the revisions count: one that is
/// reported to drain may be released after that.
fn is_news(change: &Change<Task>) -> bool {
    let seen = |task: &Arc<Task>| {
        let mut metadata = task.metadata.clone();
        (metadata.resource_version, metadata.managed_fields) = (None, None);
        let status = task.status.clone().unwrap_or_default();
        (metadata, status.spec_id, status.template_hash, status.draining_spec_ids)
    };
    change.old.as_ref().map(seen) != change.new.as_ref().map(seen)
}

/// The Tasks that are served by a gateway of this name.
fn tasks_of<K: Object>(tasks: &Cache<Task>, gateway: &Arc<K>) -> Vec<Name> {
    let gateway = name_of(gateway);
    let tasks = tasks.list(Some(&gateway.namespace));
    let named = tasks.iter().filter(|task| task.spec.routing.gateway_refs.contains(&gateway.name));
    named.map(name_of).collect()
}

fn name_of<K: Object>(object: &Arc<K>) -> Name {
    Name { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

/// The owners of this kind that control an object, or did before the change.
fn owners<K: Object>(change: &Change<K>, kind: &'static str) -> impl IntoIterator<Item = Name> + use<K> {
    let of = |object: &Arc<K>| {
        let owners = object.owner_references().iter();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
        Some(Name { namespace: object.namespace().unwrap_or_default(), name: owner.name.clone() })
    };
    change.sides().filter_map(of).collect::<HashSet<_>>()
}

/// Has a Task looked at when its provider says so.
async fn forward_changes(mut changes: BoxStream<'static, TaskName>, queue: Queue<Name>) {
    while let Some(task) = changes.next().await {
        queue.add(Name { namespace: task.namespace.to_string(), name: task.name.to_string() });
    }
}

/// Has a Task looked at when its instances change, but not more often than this.
async fn forward_pods(
    mut pods: mpsc::UnboundedReceiver<Changed>,
    tasks: Cache<Task>,
    queue: Queue<Name>,
    every: Duration,
) {
    while let Some(changed) = pods.recv().await {
        let is_it = |task: &Arc<Task>| task.metadata.uid.as_deref() == Some(&*changed.uid);
        // A long name is cut in the label.
        let by_name = tasks.get(&changed.namespace, &changed.task).filter(is_it);
        let task = by_name.or_else(|| tasks.list(Some(&changed.namespace)).into_iter().find(is_it));
        if let Some(task) = task {
            queue.add_after(name_of(&task), every);
        }
    }
}
