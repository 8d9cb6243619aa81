//! Pretends to be a gateway: takes every Gateway, route and policy, and says so in its status. A listener whose Secret
//! does not exist is refused, as a real gateway does.

use agentcube_api::TaskGateway;
use agentcube_api::conditions::gateway::{LIMITS_IN_FORCE, SECURITY_IN_FORCE};
use agentcube_operator::cache::{Cache, Object};
use agentcube_task::envoy::{
    BackendTrafficPolicy, ClientTrafficPolicy, EnvoyExtensionPolicy, EnvoyPatchPolicy, SecurityPolicy,
};
use gateway_api::gateways::Gateway;
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const NAME: &str = "example.com/pretender";

pub(crate) fn spawn(client: &Client, envoy: bool, running: &mut JoinSet<()>, shutdown: &CancellationToken) {
    let secrets: Cache<Secret> = Cache::new(client.clone(), watcher::Config::default());
    running.spawn(secrets.clone().run(shutdown.clone()));
    let gateways = follow::<Gateway>(client, running, shutdown);
    let policies = follow::<TaskGateway>(client, running, shutdown);
    running.spawn(answer_gateways(client.clone(), gateways, secrets, policies, shutdown.clone()));
    answer::<HttpRoute>(client, route_status, running, shutdown);
    if envoy {
        answer::<SecurityPolicy>(client, policy_status, running, shutdown);
        answer::<BackendTrafficPolicy>(client, policy_status, running, shutdown);
        answer::<ClientTrafficPolicy>(client, policy_status, running, shutdown);
        answer::<EnvoyExtensionPolicy>(client, policy_status, running, shutdown);
        answer::<EnvoyPatchPolicy>(client, policy_status, running, shutdown);
    }
}

fn follow<K: Object>(client: &Client, running: &mut JoinSet<()>, shutdown: &CancellationToken) -> Cache<K> {
    let cache: Cache<K> = Cache::new(client.clone(), watcher::Config::default());
    running.spawn(cache.clone().run(shutdown.clone()));
    cache
}

/// Gives every object of a kind the status that `status` makes, whenever it does not have it.
fn answer<K>(
    client: &Client,
    status: fn(&Value) -> Value,
    running: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) where
    K: Object + Serialize + Resource<Scope = NamespaceResourceScope>,
{
    let cache = follow::<K>(client, running, shutdown);
    let (client, shutdown) = (client.clone(), shutdown.clone());
    running.spawn(async move {
        let mut changes = cache.subscribe();
        loop {
            let change = tokio::select! {
                () = shutdown.cancelled() => return,
                change = changes.recv() => change,
            };
            let Some(object) = change.new else { continue };
            let seen = serde_json::to_value(&*object).expect("an object is JSON");
            write(&client, &*object, &seen, status(&seen)).await;
        }
    });
}

async fn answer_gateways(
    client: Client,
    cache: Cache<Gateway>,
    secrets: Cache<Secret>,
    policies: Cache<TaskGateway>,
    shutdown: CancellationToken,
) {
    let (mut changes, mut of_secrets) = (cache.subscribe(), secrets.subscribe());
    let mut of_policies = policies.subscribe();
    secrets.synced().await;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = changes.recv() => {}
            _ = of_secrets.recv() => {}
            _ = of_policies.recv() => {}
        }
        for gateway in cache.list(None) {
            let seen = serde_json::to_value(&*gateway).expect("an object is JSON");
            let mut status = gateway_status(&gateway, &secrets);
            if gateway.spec.gateway_class_name == "agentcube" {
                let policy = policies.get(&gateway.namespace().unwrap_or_default(), &gateway.name_any());
                let generation = json!(policy.and_then(|policy| policy.metadata.generation));
                let said = status["conditions"].as_array_mut().expect("there are some");
                said.push(condition(SECURITY_IN_FORCE, true, "InForce", "", &generation));
                said.push(condition(LIMITS_IN_FORCE, true, "InForce", "", &generation));
            }
            write(&client, &*gateway, &seen, status).await;
        }
    }
}

async fn write<K>(client: &Client, object: &K, seen: &Value, status: Value)
where
    K: Object + Serialize + Resource<Scope = NamespaceResourceScope>,
{
    if seen["status"] == status || object.meta().deletion_timestamp.is_some() {
        return;
    }
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({ "status": status }));
    let written = api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await;
    if let Err(error) = written {
        assert!(matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code)), "{error}");
    }
}

fn condition(type_: &str, holds: bool, reason: &str, message: &str, generation: &Value) -> Value {
    json!({
        "type": type_, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn taken(type_: &str, generation: &Value) -> Value {
    condition(type_, true, type_, "", generation)
}

fn gateway_status(gateway: &Gateway, secrets: &Cache<Secret>) -> Value {
    let generation = json!(gateway.metadata.generation);
    let own = gateway.namespace().unwrap_or_default();
    let listeners = gateway.spec.listeners.iter().map(|listener| {
        let certificates = listener.tls.iter().flat_map(|tls| tls.certificate_refs.iter().flatten());
        let missing = certificates.into_iter().find(|certificate| {
            let namespace = certificate.namespace.as_ref().unwrap_or(&own);
            secrets.get(namespace, &certificate.name).is_none()
        });
        let resolved = match missing {
            None => taken("ResolvedRefs", &generation),
            Some(missing) => {
                let message = format!("Secret {} does not exist.", missing.name);
                condition("ResolvedRefs", false, "InvalidCertificateRef", &message, &generation)
            }
        };
        json!({
            "name": listener.name, "attachedRoutes": 0,
            "supportedKinds": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute" }],
            "conditions": [taken("Accepted", &generation), taken("Programmed", &generation), resolved],
        })
    });
    json!({
        "addresses": [{ "type": "IPAddress", "value": "192.0.2.1" }],
        "conditions": [taken("Accepted", &generation), taken("Programmed", &generation)],
        "listeners": listeners.collect::<Vec<_>>(),
    })
}

fn route_status(route: &Value) -> Value {
    let generation = &route["metadata"]["generation"];
    let parents = route["spec"]["parentRefs"].as_array().cloned().unwrap_or_default();
    let parents = parents.into_iter().map(|parent| {
        json!({
            "parentRef": parent, "controllerName": NAME,
            "conditions": [taken("Accepted", generation), taken("ResolvedRefs", generation)],
        })
    });
    json!({ "parents": parents.collect::<Vec<_>>() })
}

fn policy_status(policy: &Value) -> Value {
    let generation = &policy["metadata"]["generation"];
    let gateway = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gateway" });
    json!({ "ancestors": [{
        "ancestorRef": gateway, "controllerName": NAME, "conditions": [taken("Accepted", generation)],
    }] })
}
