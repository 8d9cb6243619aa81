//! The gateway as an implementation of the Gateway API: it accepts the classes that name it, binds the listeners of
//! their Gateways, and says of Gateways and HTTPRoutes how they fare. Requests are routed by Tasks, not by the
//! HTTPRoutes that stand for them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{Task, TaskGateway, labels};
use agentcube_operator::cache::{Cache, Change};
use agentcube_operator::controller::{Controller, Requeue};
use agentcube_operator::queue::Queue;
use gateway_api::gatewayclasses::GatewayClass;
use gateway_api::gateways::{Gateway, GatewayListeners};
use gateway_api::httproutes::{HttpRoute, HttpRouteParentRefs};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::guard::{Guards, Policy};
use crate::ports::{Ports, Spoken, User};
use crate::route::{GatewayId, Listener, Route, Table};
use crate::status::{self, Known, Serving};
use crate::tls::Served;

/// A port that somebody else holds is tried again after this.
const PORT_RETRY: Duration = Duration::from_secs(10);
/// Routes come in crowds; the Gateway counts them once in a while.
const COUNT_DELAY: Duration = Duration::from_millis(200);

/// What there is to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Class(String),
    Gateway(GatewayId),
    Route { namespace: String, name: String },
}

/// The objects that matter here.
#[derive(Clone)]
pub(crate) struct Caches {
    pub(crate) tasks: Cache<Task>,
    pub(crate) classes: Cache<GatewayClass>,
    pub(crate) gateways: Cache<Gateway>,
    pub(crate) routes: Cache<HttpRoute>,
    pub(crate) policies: Cache<TaskGateway>,
    /// Those with certificates of servers.
    pub(crate) secrets: Cache<Secret>,
}

/// Keeps table, ports and statuses as objects say.
pub(crate) struct Classes {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    /// The name by which classes name this gateway.
    pub(crate) controller: String,
    /// What Gateways say their address is.
    pub(crate) address: String,
    pub(crate) table: Arc<RwLock<Table>>,
    pub(crate) guards: Arc<Guards>,
    pub(crate) ports: Arc<Ports>,
}

fn id(gateway: &Gateway) -> GatewayId {
    GatewayId { namespace: gateway.namespace().unwrap_or_default().into(), name: gateway.name_any().into() }
}

fn key_of(route: &HttpRoute) -> Key {
    Key::Route { namespace: route.namespace().unwrap_or_default(), name: route.name_any() }
}

fn now() -> Time {
    Time(k8s_openapi::jiff::Timestamp::now())
}

/// The Gateways that a route names.
fn parents(route: &HttpRoute) -> impl Iterator<Item = (&HttpRouteParentRefs, GatewayId)> {
    let namespace = route.metadata.namespace.as_deref().unwrap_or_default();
    let references = route.spec.parent_refs.iter().flatten();
    references.filter_map(move |reference| Some((reference, status::parent(reference, namespace)?)))
}

impl Classes {
    /// The controller over everything that matters. Tasks enter the table as they come, before any status says so.
    pub(crate) fn controller(&self) -> Controller<Key> {
        let Caches { tasks, classes, gateways, routes, policies, secrets } = self.caches.clone();
        let controller = Controller::new("gateway").concurrency(8);
        let queue = controller.queue();
        let table = self.table.clone();
        let of_task = routes.clone();
        let of_class = gateways.clone();
        let of_gateway = routes.clone();
        let of_secret = gateways.clone();
        let (of_names, of_policy) = (queue.clone(), self.guards.clone());
        let guards = self.guards.clone();
        controller
            .watch(&tasks, move |change| {
                take_in(&table, change);
                for gateway in gateways_to_settle(&guards, change) {
                    of_names.add_after(Key::Gateway(gateway), COUNT_DELAY);
                }
                let uid = change.latest().uid().unwrap_or_default();
                of_task.owned_by(&uid).iter().map(|route| key_of(route)).collect::<Vec<_>>()
            })
            .watch(&classes, move |change| {
                let all = of_class.list(None);
                let gateways = all.iter().map(|gateway| Key::Gateway(id(gateway)));
                gateways.chain([Key::Class(change.latest().name_any())]).collect::<Vec<_>>()
            })
            .watch(&gateways, move |change| {
                let gateway = id(change.latest());
                let routes = if matters_to_routes(change) { of_gateway.list(None) } else { Vec::new() };
                let named = routes.iter().filter(|route| parents(route).any(|(_, named)| named == gateway));
                let keys = named.map(|route| key_of(route));
                keys.chain([Key::Gateway(gateway.clone())]).collect::<Vec<_>>()
            })
            .watch(&policies, move |change| {
                let policy = change.latest();
                let namespace = policy.namespace().unwrap_or_default();
                let gateway = GatewayId { namespace: namespace.into(), name: policy.name_any().into() };
                if change.new.is_none() {
                    // What it set does not become a client's to say because it is gone.
                    of_policy.settle(gateway.clone(), Some(policy));
                }
                [Key::Gateway(gateway)]
            })
            .watch(&secrets, move |change| {
                let secret = change.latest();
                let near = of_secret.list(secret.namespace().as_deref());
                let named = near.into_iter().filter(|gateway| names_secret(gateway, &secret.name_any()));
                named.map(|gateway| Key::Gateway(id(&gateway))).collect::<Vec<_>>()
            })
            .watch(&routes, move |change| {
                for gateway in change.sides().flat_map(|route| parents(route).map(|(_, gateway)| gateway)) {
                    queue.add_after(Key::Gateway(gateway), COUNT_DELAY);
                }
                [key_of(change.latest())]
            })
    }

    /// Reconciles one; the queue is for others that it turns out to concern.
    pub(crate) async fn reconcile(
        self: Arc<Self>,
        key: Key,
        queue: Queue<Key>,
    ) -> Result<Requeue, kube::Error> {
        match key {
            Key::Class(name) => self.class(&name).await,
            Key::Gateway(gateway) => self.gateway(&gateway, &queue).await,
            Key::Route { namespace, name } => self.route(&namespace, &name).await,
        }
    }

    /// Has the statuses of gateways say what their guards do, when that changes by itself.
    pub(crate) async fn follow_guards(self: Arc<Self>, queue: Queue<Key>) {
        loop {
            self.guards.news().await.into_iter().for_each(|gateway| queue.add(Key::Gateway(gateway)));
        }
    }

    /// Finds out which headers a gateway sets that is named by somebody and has no TaskGateway that is known: the one that
    /// is watched may only be late.
    async fn settle(&self, key: &GatewayId) -> Result<(), kube::Error> {
        let wanted = self.caches.gateways.get(&key.namespace, &key.name).is_some()
            || self.table.read().has_task_on(key);
        if !wanted {
            self.guards.forget(key);
        } else if !self.guards.knows(key) {
            let api: Api<TaskGateway> = Api::namespaced(self.client.clone(), &key.namespace);
            let found = api.get_opt(&key.name).await?;
            self.guards.settle(key.clone(), found.as_ref());
        }
        Ok(())
    }

    /// The Gateway of this name, if it is one of ours.
    fn ours(&self, gateway: &GatewayId) -> Option<Arc<Gateway>> {
        let gateway = self.caches.gateways.get(&gateway.namespace, &gateway.name)?;
        let class = self.caches.classes.get("", &gateway.spec.gateway_class_name)?;
        let alive = gateway.metadata.deletion_timestamp.is_none();
        (alive && class.spec.controller_name == self.controller).then_some(gateway)
    }

    /// What the TaskGateway of a Gateway asks for: the one that it belongs to, or else that of its name, whoever made
    /// the Gateway.
    fn policy(&self, key: &GatewayId, gateway: &Gateway) -> Policy {
        let named = self.caches.policies.get(&key.namespace, &key.name);
        let owners = gateway.owner_references();
        let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == "TaskGateway");
        // One that was made for a TaskGateway may have lost its owner; it has not become anybody's for that.
        let made_for = gateway.labels().contains_key(labels::GATEWAY);
        match (named, owner) {
            (Some(named), Some(owner)) if named.metadata.uid.as_ref() != Some(&owner.uid) => Policy::Unknown,
            (Some(named), _) => Policy::Of(named),
            (None, Some(_)) => Policy::Unknown,
            (None, None) if made_for => Policy::Unknown,
            (None, None) => Policy::None,
        }
    }

    async fn class(&self, name: &str) -> Result<Requeue, kube::Error> {
        let Some(class) = self.caches.classes.get("", name) else { return Ok(Requeue::No) };
        if class.spec.controller_name != self.controller {
            return Ok(Requeue::No);
        }
        let mut new = class.status.clone().unwrap_or_default();
        let conditions = new.conditions.get_or_insert_default();
        status::class(conditions, class.metadata.generation, &now());
        if class.status.as_ref() != Some(&new) {
            self.write(Api::all(self.client.clone()), &*class, &new, &self.caches.classes).await?;
        }
        Ok(Requeue::No)
    }

    /// Brings a gateway's listeners into the table. Routes of every gateway on the same ports may fare differently
    /// by it.
    fn take_in_gateway(&self, key: &GatewayId, listeners: Option<Vec<Listener>>, queue: &Queue<Key>) {
        let changed = self.table.write().set_gateway(key.clone(), listeners);
        let Some(ports) = changed else { return };
        let routes = self.caches.routes.list(None);
        let table = self.table.read();
        let affected = |gateway: &GatewayId| {
            let listeners = table.listeners(gateway).unwrap_or_default();
            gateway == key || listeners.iter().any(|listener| ports.contains(&listener.port))
        };
        for route in routes.iter().filter(|route| parents(route).any(|(_, gateway)| affected(&gateway))) {
            queue.add(key_of(route));
        }
    }

    async fn gateway(&self, key: &GatewayId, queue: &Queue<Key>) -> Result<Requeue, kube::Error> {
        self.settle(key).await?;
        let Some(gateway) = self.ours(key) else {
            let gone = User { id: key.clone(), since: 0 };
            self.ports.set(&gone, &BTreeMap::new(), |_| self.take_in_gateway(key, None, queue));
            self.guards.remove(key);
            return Ok(Requeue::No);
        };
        // Before the listeners, so that nobody comes in unguarded. One reading of the policy serves all: another may have
        // come when the status is made.
        let policy = self.policy(key, &gateway);
        let guard = self.guards.set(key, &policy);
        let listeners = &gateway.spec.listeners;
        let mut servings: Vec<Serving> = listeners.iter().map(status::judge).collect();
        let wanted = self.spoken(key, &policy, listeners, &mut servings);
        let sound = listeners.iter().zip(&servings).filter(|(_, serving)| **serving == Serving::Yes);
        let routed: Vec<Listener> = sound.filter_map(|(listener, _)| status::routed(listener)).collect();
        let created = gateway.creation_timestamp().map_or(0, |time| time.0.as_second());
        let user = User { id: key.clone(), since: created };
        let troubles = self.ports.set(&user, &wanted, |taken| {
            // What comes in on a port that another uses otherwise is not for this Gateway: it may have asked for TLS.
            let own = routed.into_iter().filter(|listener| !taken.contains(&listener.port));
            self.take_in_gateway(key, Some(own.collect()), queue);
        });
        for (listener, serving) in listeners.iter().zip(&mut servings) {
            let trouble = u16::try_from(listener.port).ok().and_then(|port| troubles.get(&port));
            if let (Serving::Yes, Some(why)) = (&*serving, trouble) {
                *serving = Serving::Unavailable(why.clone());
            }
        }
        let counts = self.counts(key, &gateway);
        let each: Vec<(Serving, i32)> = servings.into_iter().zip(counts).collect();
        let mut new = status::gateway(&gateway, &each, guard.is_lost(), &self.address, &now());
        status::policy(new.conditions.get_or_insert_default(), &guard, policy.generation(), &now());
        if gateway.status.as_ref() != Some(&new) {
            let api = Api::namespaced(self.client.clone(), &key.namespace);
            self.write(api, &*gateway, &new, &self.caches.gateways).await?;
        }
        Ok(if troubles.is_empty() { Requeue::No } else { Requeue::After(PORT_RETRY) })
    }

    /// What is to be spoken on each port. A listener whose certificates cannot be had is judged by that.
    fn spoken(
        &self,
        key: &GatewayId,
        policy: &Policy,
        listeners: &[GatewayListeners],
        servings: &mut [Serving],
    ) -> BTreeMap<u16, Spoken> {
        let asked = policy.of().map(|policy| policy.spec.listeners.as_slice()).unwrap_or_default();
        let mut wanted = BTreeMap::new();
        for (listener, serving) in listeners.iter().zip(servings) {
            let Some(port) = u16::try_from(listener.port).ok().filter(|_| *serving == Serving::Yes) else {
                continue;
            };
            let made = if listener.protocol == "HTTPS" {
                let tls = asked.iter().find(|one| one.name == listener.name).and_then(|one| one.tls.as_ref());
                let versions = tls.map(|tls| (tls.min_version, tls.max_version)).unwrap_or_default();
                let secret = |name: &str| self.caches.secrets.get(&key.namespace, name);
                let before = self.ports.served(key, port);
                Served::new(listener, &key.namespace, versions, secret, &before)
                    .map(|it| Spoken::Tls(vec![it]))
            } else {
                Ok(Spoken::Plain)
            };
            match (made, wanted.get_mut(&port)) {
                (Err(why), _) => *serving = Serving::Unresolved(why),
                (Ok(made), None) => drop(wanted.insert(port, made)),
                (Ok(Spoken::Tls(made)), Some(Spoken::Tls(all))) => all.extend(made),
                (Ok(Spoken::Plain), Some(Spoken::Plain)) => {}
                (Ok(_), Some(_)) => {
                    let why = "another listener uses the port, and only one of the two with TLS";
                    *serving = Serving::Unavailable(why.into());
                }
            }
        }
        wanted
    }

    /// How many routes are attached to each listener.
    fn counts(&self, key: &GatewayId, gateway: &Gateway) -> Vec<i32> {
        let mut counts = vec![0; gateway.spec.listeners.len()];
        let table = self.table.read();
        for route in self.caches.routes.list(Some(&key.namespace)) {
            let Some(task) = self.task_of(&route, &table).filter(|task| task.unsupported.is_none()) else {
                continue;
            };
            let of_route: Vec<_> = parents(&route).filter(|(_, named)| named == key).collect();
            for (listener, count) in gateway.spec.listeners.iter().zip(&mut counts) {
                let attached =
                    of_route.iter().any(|(reference, _)| status::attaches(&route, reference, listener));
                *count += i32::from(attached && status::admitted(listener, &task, &table));
            }
        }
        counts
    }

    /// The Task that a route stands for.
    fn task_of(&self, route: &HttpRoute, table: &Table) -> Option<Arc<Route>> {
        let owner = route.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let task = table.task(route.metadata.namespace.as_deref()?, &owner.name)?;
        (*task.task.uid == *owner.uid).then(|| task.clone())
    }

    async fn route(&self, namespace: &str, name: &str) -> Result<Requeue, kube::Error> {
        let Some(route) = self.caches.routes.get(namespace, name) else { return Ok(Requeue::No) };
        let named = parents(&route);
        let gateways: Vec<_> =
            named.filter_map(|(reference, id)| Some((reference.clone(), self.ours(&id)?))).collect();
        let new = {
            let table = self.table.read();
            let task = self.task_of(&route, &table);
            let controller = &self.controller;
            let known = Known { task: task.as_deref(), gateways: &gateways, controller, table: &table };
            status::route(&route, &known, &now())
        };
        let unchanged = match &route.status {
            Some(old) => *old == new,
            None => new.parents.is_empty(),
        };
        if !unchanged {
            let api = Api::namespaced(self.client.clone(), namespace);
            self.write(api, &*route, &new, &self.caches.routes).await?;
        }
        Ok(Requeue::No)
    }

    /// Writes a status over the one that was seen. If the object has changed or gone meanwhile, its change comes here
    /// by itself.
    async fn write<K>(
        &self,
        api: Api<K>,
        seen: &K,
        status: &impl Serialize,
        cache: &Cache<K>,
    ) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let version = seen.meta().resource_version.as_deref();
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        match api.patch_status(&seen.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => cache.put(written),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Whether a change of a Gateway is one of what it asks for, or of whether it is there. Statuses are not: the gateway
/// writes them itself, also for every route that comes.
fn matters_to_routes(change: &Change<Gateway>) -> bool {
    let essence = |gateway: &Arc<Gateway>| {
        let meta = &gateway.metadata;
        let class = gateway.spec.gateway_class_name.clone();
        (meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some(), class)
    };
    change.old.as_ref().map(essence) != change.new.as_ref().map(essence)
}

/// Whether a Gateway takes a certificate from this Secret of its namespace.
fn names_secret(gateway: &Gateway, name: &str) -> bool {
    let tls = gateway.spec.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.flat_map(|tls| tls.certificate_refs.iter().flatten()).any(|reference| reference.name == name)
}

/// Gateways of a Task of which it may be to find out, or to forget, which headers they set.
fn gateways_to_settle(guards: &Guards, change: &Change<Task>) -> Vec<GatewayId> {
    let named = |task: &Arc<Task>| {
        let namespace: Arc<str> = task.namespace().unwrap_or_default().into();
        let each = task.spec.routing.gateway_refs.iter();
        each.map(|name| GatewayId { namespace: namespace.clone(), name: name.as_str().into() })
            .collect::<Vec<_>>()
    };
    let new = change.new.as_ref().map(named).unwrap_or_default();
    let left = change.old.as_ref().map(named).unwrap_or_default();
    let left: Vec<GatewayId> = left.into_iter().filter(|gateway| !new.contains(gateway)).collect();
    new.into_iter().filter(|gateway| !guards.knows(gateway)).chain(left).collect()
}

/// Brings a Task's change into the table.
fn take_in(table: &RwLock<Table>, change: &Change<Task>) {
    match &change.new {
        Some(task) => {
            if let Some(route) = Route::read(task) {
                table.write().set_task(route);
            }
        }
        None => {
            let gone = change.latest();
            table.write().remove_task(&gone.namespace().unwrap_or_default(), &gone.name_any());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn gateway(patch: &Value) -> Arc<Gateway> {
        let mut object = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": { "namespace": "a", "name": "default", "uid": "1", "generation": 1, "resourceVersion": "1" },
            "spec": { "gatewayClassName": "agentcube", "listeners": [] },
        });
        for (part, value) in patch.as_object().unwrap() {
            for (key, value) in value.as_object().unwrap() {
                object[part][key] = value.clone();
            }
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn routes_are_looked_at_when_a_gateway_changes_and_not_when_its_status_does() {
        let old = gateway(&json!({}));
        for (patch, matters) in [
            (json!({ "status": { "listeners": [] }, "metadata": { "resourceVersion": "2" } }), false),
            (json!({ "metadata": { "annotations": { "a": "b" } } }), false),
            (json!({ "metadata": { "generation": 2 } }), true),
            (json!({ "metadata": { "uid": "2" } }), true),
            (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), true),
            (json!({ "spec": { "gatewayClassName": "other" } }), true),
        ] {
            let change = Change { old: Some(old.clone()), new: Some(gateway(&patch)) };
            assert_eq!(matters_to_routes(&change), matters, "{patch}");
        }
        assert!(matters_to_routes(&Change { old: Some(old.clone()), new: None }));
        assert!(matters_to_routes(&Change { old: None, new: Some(old) }));
    }
}
