//! The cases. Each has the server to itself, and leaves nothing behind that would bother the next.

use std::pin::Pin;
use std::time::Duration;

use agentcube_api::conditions::task::{EXT_PROC_READY, ROUTE_READY};
use agentcube_api::{Task, TaskGateway};
use agentcube_task::envoy::{
    BackendTrafficPolicy, ClientTrafficPolicy, EnvoyExtensionPolicy, EnvoyPatchPolicy, EnvoyProxy,
    SecurityPolicy,
};
use agentcube_task::{Envoy, Options, Picking, RateLimits, ServicePort};
use gateway_api::gateways::Gateway;
use gateway_api::httproutes::HttpRoute;
use gateway_api::referencegrants::ReferenceGrant;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::examples;
use crate::stage::{Stage, condition, gateway_condition, says, until_gone};

/// A test.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Client) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$(Case { name: stringify!($name), run: |client| Box::pin($name(client)) }),*]
    };
}

pub(crate) fn all() -> Vec<Case> {
    cases![
        examples_by_patch_policy,
        examples_by_header,
        examples_by_extension_server,
        examples_on_the_built_in_gateway,
        limits_by_each_proxy,
        a_missing_certificate_is_named_and_heals,
        nothing_that_others_add_stays,
        what_is_no_longer_wanted_goes,
    ]
}

fn options(picking: Picking) -> Options {
    let service =
        |name: &str, port| ServicePort { namespace: "agentcube-system".into(), name: name.into(), port };
    Options {
        gateway_class: "envoy-gateway".into(),
        envoy: Some(Envoy {
            ext_proc: service("agentcube-router", 9002),
            placeholder: service("agentcube-router", 9003),
            picking,
            rate_limits: RateLimits::Service,
            access_log: true,
        }),
        // What heals has to heal by being told.
        missing_every: Duration::from_secs(3600),
        ..Options::default()
    }
}

async fn open(client: Client, namespace: &str) -> Stage {
    for name in ["agentcube-system", "certificates"] {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = json!({ "metadata": { "name": name } });
        let _ = namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
    }
    Stage::open(client, namespace).await
}

async fn secret(client: &Client, namespace: &str, name: &str) {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let object = json!({
        "metadata": { "name": name }, "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": "certificate", "tls.key": "key" },
    });
    let _ = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
}

/// Removes what was made, with the controllers' help, and ends.
async fn close(stage: Stage) {
    let (tasks, gateways) = (stage.api::<Task>(), stage.api::<TaskGateway>());
    tasks.delete_collection(&DeleteParams::default(), &Default::default()).await.unwrap();
    for task in tasks.list(&Default::default()).await.unwrap() {
        until_gone(&tasks, &task.name_any()).await;
    }
    gateways.delete_collection(&DeleteParams::default(), &Default::default()).await.unwrap();
    let grants: Api<ReferenceGrant> = Api::namespaced(stage.client.clone(), "agentcube-system");
    until_gone(&grants, &format!("agentcube-{}", stage.namespace)).await;
    // The owner is gone, and so must be all that it owned.
    for gateway in stage.api::<Gateway>().list(&Default::default()).await.unwrap() {
        until_gone(&stage.api::<Gateway>(), &gateway.name_any()).await;
    }
    for policy in stage.api::<EnvoyExtensionPolicy>().list(&Default::default()).await.unwrap() {
        until_gone(&stage.api::<EnvoyExtensionPolicy>(), &policy.name_any()).await;
    }
    stage.close().await;
}

/// All gateways and Tasks of the examples become ready, except what a case says cannot.
async fn serve_examples(stage: &Stage, cannot: &[&str]) {
    for (namespace, name) in [
        (stage.namespace.as_str(), "agent-cert"),
        (&stage.namespace, "wildcard-cert"),
        (&stage.namespace, "company-tls-cert"),
        (&stage.namespace, "agent-tls-cert"),
        ("certificates", "partner-cert"),
    ] {
        secret(&stage.client, namespace, name).await;
    }
    let (gateways, tasks) = (examples("gateways"), examples("tasks"));
    assert!(gateways.len() >= 4 && tasks.len() >= 11, "{} {}", gateways.len(), tasks.len());
    for gateway in &gateways {
        stage.create::<TaskGateway>(gateway.clone()).await;
    }
    for task in &tasks {
        stage.create::<Task>(task.clone()).await;
    }
    for gateway in &gateways {
        let ready = |gateway: &TaskGateway| gateway_condition(gateway, "Ready").0 == "True";
        stage.until(name(gateway), ready).await;
    }
    for task in tasks.iter().filter(|task| !cannot.contains(&name(task))) {
        // The address comes with that of the gateway, in its own time.
        let reached = |task: &Task| {
            let address = task.status.as_ref().and_then(|status| status.address.as_deref());
            says(task, "Ready", "True", "TaskReady") && address.is_some_and(|url| url.starts_with("https://"))
        };
        stage.until_task(name(task), reached).await;
    }
    for name in cannot {
        stage.until_task(name, |task| says(task, ROUTE_READY, "False", "Unsupported")).await;
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("an example has a name")
}

async fn examples_by_patch_policy(client: Client) {
    let mut stage = open(client, "by-patch").await;
    stage.start(options(Picking::PatchPolicy));
    stage.pretend(true);
    // The default gateway's class is named in the example, and that of the others is the default.
    serve_examples(&stage, &["translate"]).await;
    let patch = stage.api::<EnvoyPatchPolicy>().get("default").await.unwrap();
    let patches = patch.spec.0["jsonPatches"].as_array().unwrap();
    let of =
        |kind: &str| patches.iter().filter(|patch| patch["type"].as_str().unwrap().ends_with(kind)).count();
    // Listeners that share a port are one to Envoy; each is asked to tell of requests that last.
    let counts = [of(".Cluster"), of(".RouteConfiguration"), of(".Listener"), patches.len()];
    assert_eq!(counts, [1, 4, 3, 8], "{:#}", patch.spec.0);
    let proxy = stage.api::<EnvoyProxy>().get("default").await.unwrap();
    assert!(
        proxy.spec.0.pointer("/telemetry/accessLog/settings/0/sinks/0/als").is_some(),
        "{:#}",
        proxy.spec.0
    );
    let extension = stage.api::<EnvoyExtensionPolicy>().get("default").await.unwrap();
    let processor = &extension.spec.0["extProc"][0];
    assert_eq!(processor["failOpen"], false);
    assert_eq!(processor["messageTimeout"], "1m");
    assert_eq!(processor["metadata"]["writableNamespaces"], json!(["envoy.lb"]));
    let route = stage.api::<HttpRoute>().get("mcp-tools").await.unwrap();
    assert_eq!(route.labels()["agentcube.io/gateway"], "default");
    let policy = stage.api::<BackendTrafficPolicy>().get("mcp-tools.task").await.unwrap();
    assert_eq!(policy.spec.0["timeout"], json!({ "http": { "streamIdleTimeout": "1m" } }));
    let client_policy = stage.api::<ClientTrafficPolicy>().get("default.https").await.unwrap();
    assert_eq!(client_policy.spec.0["tls"], json!({ "minVersion": "1.2", "maxVersion": "1.3" }));
    let grants: Api<ReferenceGrant> = Api::namespaced(stage.client.clone(), "agentcube-system");
    grants.get("agentcube-by-patch").await.unwrap();
    close(stage).await;
}

async fn examples_by_header(client: Client) {
    let mut stage = open(client, "by-header").await;
    stage.start(options(Picking::Header));
    stage.pretend(true);
    serve_examples(&stage, &["translate"]).await;
    assert!(stage.api::<EnvoyPatchPolicy>().list(&Default::default()).await.unwrap().items.is_empty());
    let route = stage.api::<HttpRoute>().get("customer-support-production").await.unwrap();
    assert_eq!(route.spec.rules.map(|rules| rules.len()), Some(3));
    stage.api::<Service>().get("customer-support-production-instances").await.unwrap();
    let policy = stage.api::<BackendTrafficPolicy>().get("customer-support-production.task").await.unwrap();
    assert!(policy.spec.0["loadBalancer"]["endpointOverride"].is_object(), "{:#}", policy.spec.0);
    close(stage).await;
}

async fn examples_by_extension_server(client: Client) {
    let mut stage = open(client, "by-server").await;
    stage.start(options(Picking::ExtensionServer));
    stage.pretend(true);
    serve_examples(&stage, &["translate"]).await;
    assert!(stage.api::<EnvoyPatchPolicy>().list(&Default::default()).await.unwrap().items.is_empty());
    close(stage).await;
}

async fn examples_on_the_built_in_gateway(client: Client) {
    let mut stage = open(client, "built-in").await;
    stage.start(Options { missing_every: Duration::from_secs(3600), ..Options::default() });
    stage.pretend(true);
    for gateway in examples("gateways") {
        let mut gateway = gateway;
        gateway["spec"]["gatewayClassName"] = json!("agentcube");
        stage.create::<TaskGateway>(gateway).await;
    }
    for name in ["agent-cert", "wildcard-cert", "company-tls-cert", "agent-tls-cert"] {
        secret(&stage.client, &stage.namespace, name).await;
    }
    secret(&stage.client, "certificates", "partner-cert").await;
    for task in examples("tasks") {
        stage.create::<Task>(task).await;
    }
    // The gateway reads the TaskGateway itself: there is a Gateway, and no policy beside it.
    let ready = |gateway: &TaskGateway| {
        ["GatewayReady", "Ready"].iter().all(|type_| gateway_condition(gateway, type_).0 == "True")
    };
    for gateway in ["default", "agent-gateway", "enterprise-gateway", "tls-gateway"] {
        stage.until(gateway, ready).await;
        assert!(stage.api::<Gateway>().get_opt(gateway).await.unwrap().is_some(), "{gateway}");
    }
    for task in examples("tasks") {
        stage.until_task(name(&task), |task| says(task, "Ready", "True", "TaskReady")).await;
    }
    let all_said = |gateway: &TaskGateway| {
        gateway_condition(gateway, "SecurityPolicyReady").0 == "True"
            && gateway_condition(gateway, "RateLimitReady").0 == "True"
    };
    stage.until("default", all_said).await;
    assert!(stage.api::<SecurityPolicy>().list(&Default::default()).await.unwrap().items.is_empty());
    close(stage).await;
}

async fn limits_by_each_proxy(client: Client) {
    let mut stage = open(client, "per-proxy").await;
    let mut per_proxy = options(Picking::PatchPolicy);
    per_proxy.envoy.as_mut().unwrap().rate_limits = RateLimits::PerProxy;
    stage.start(per_proxy);
    stage.pretend(true);
    let gateway = |name: &str, limits: Value| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "listeners": [{ "name": "http", "protocol": "HTTP", "port": 80 }],
                "rateLimiting": limits,
            },
        })
    };
    let limit = json!({ "requestsPerUnit": 5, "unit": "Second" });
    stage.create::<TaskGateway>(gateway("local", json!({ "perRoute": limit }))).await;
    stage.create::<TaskGateway>(gateway("shared", json!({ "global": limit }))).await;
    let ready = |gateway: &TaskGateway| gateway_condition(gateway, "RateLimitReady").0 == "True";
    stage.until("local", ready).await;
    let refused = |gateway: &TaskGateway| {
        gateway_condition(gateway, "RateLimitReady") == ("False".into(), "Unsupported".into())
    };
    stage.until("shared", refused).await;
    close(stage).await;
}

async fn a_missing_certificate_is_named_and_heals(client: Client) {
    let mut stage = open(client, "certificates-missing").await;
    stage.start(options(Picking::PatchPolicy));
    stage.pretend(true);
    let example = examples("gateways").into_iter().find(|gateway| name(gateway) == "tls-gateway");
    stage.create::<TaskGateway>(example.expect("the example")).await;
    let named = |gateway: &TaskGateway| {
        let conditions =
            gateway.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let ready = agentcube_api::conditions::find(conditions, "GatewayReady");
        ready.is_some_and(|one| {
            one.status == "False" && one.message.contains("Secret certificates-missing/agent-tls-cert exists")
        })
    };
    stage.until("tls-gateway", named).await;
    secret(&stage.client, &stage.namespace, "agent-tls-cert").await;
    let ready = |gateway: &TaskGateway| gateway_condition(gateway, "Ready").0 == "True";
    let gateway: TaskGateway = stage.until("tls-gateway", ready).await;
    let status = gateway.status.unwrap();
    assert_eq!(status.addresses[0].value, "192.0.2.1");
    assert_eq!(status.listeners[0].name, "https");
    close(stage).await;
}

async fn nothing_that_others_add_stays(client: Client) {
    let mut stage = open(client, "additions").await;
    stage.start(options(Picking::PatchPolicy));
    stage.pretend(true);
    secret(&stage.client, &stage.namespace, "company-tls-cert").await;
    let example = examples("gateways").into_iter().find(|gateway| name(gateway) == "enterprise-gateway");
    stage.create::<TaskGateway>(example.expect("the example")).await;
    let ready = |gateway: &TaskGateway| gateway_condition(gateway, "Ready").0 == "True";
    stage.until("enterprise-gateway", ready).await;
    // A field that we never set, and that would let everybody in.
    let policies = stage.api::<SecurityPolicy>();
    let open = json!({ "spec": { "jwt": { "failOpen": true } } });
    policies.patch("enterprise-gateway", &PatchParams::default(), &Patch::Merge(&open)).await.unwrap();
    let closed = |policy: &SecurityPolicy| {
        policy.spec.0["jwt"]["failOpen"] != true && policy.spec.0["jwt"].is_object()
    };
    stage.until("enterprise-gateway", closed).await;
    stage.until_event("DriftRepaired", "SecurityPolicy enterprise-gateway was changed").await;
    let repaired = |gateway: &TaskGateway| {
        gateway_condition(gateway, "SecurityPolicyReady") == ("True".into(), "AutoRepaired".into())
    };
    stage.until("enterprise-gateway", repaired).await;

    // Once is enough, and a field of ours is ours again.
    let all = |policy: &SecurityPolicy| {
        policy.managed_fields().iter().all(|entry| {
            entry.subresource.is_some()
                || entry.manager.as_deref() == Some("agentcube-task")
                    && entry.operation.as_deref() == Some("Apply")
        })
    };
    let policy = stage.until("enterprise-gateway", all).await;
    let change = json!({ "spec": { "jwt": { "optional": true } } });
    policies.patch("enterprise-gateway", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    let again = |other: &SecurityPolicy| {
        other.metadata.generation > policy.metadata.generation && other.spec == policy.spec && all(other)
    };
    stage.until("enterprise-gateway", again).await;

    policies.delete("enterprise-gateway", &DeleteParams::default()).await.unwrap();
    stage.until_event("ResourceRecreated", "SecurityPolicy enterprise-gateway was deleted").await;
    stage.until("enterprise-gateway", closed).await;
    close(stage).await;
}

async fn what_is_no_longer_wanted_goes(client: Client) {
    let mut stage = open(client, "unwanted").await;
    stage.start(options(Picking::PatchPolicy));
    stage.pretend(true);
    secret(&stage.client, &stage.namespace, "company-tls-cert").await;
    let example = examples("gateways").into_iter().find(|gateway| name(gateway) == "enterprise-gateway");
    stage.create::<TaskGateway>(example.expect("the example")).await;
    let mut task = json!({
        "metadata": { "name": "agent" },
        "spec": {
            "deployment": { "type": "sandbox", "sandboxTemplate": {} },
            "routing": { "gatewayRefs": ["enterprise-gateway"], "routePolicy": "Oneshot", "reserveTimeout": "2m" },
            "requestHandling": { "timeout": { "http": { "streamIdleTimeout": "30s" } } },
        },
    });
    stage.create::<Task>(task.clone()).await;
    let ready = |task: &Task| says(task, "Ready", "True", "TaskReady");
    stage.until_task("agent", ready).await;
    let extension = stage.api::<EnvoyExtensionPolicy>().get("enterprise-gateway").await.unwrap();
    assert_eq!(extension.spec.0["extProc"][0]["messageTimeout"], "3m");
    stage.api::<BackendTrafficPolicy>().get("agent.task").await.unwrap();

    task["spec"]["requestHandling"]["timeout"] = Value::Null;
    let change = json!({ "spec": { "requestHandling": { "timeout": null } } });
    stage.api::<Task>().patch("agent", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    until_gone(&stage.api::<BackendTrafficPolicy>(), "agent.task").await;
    let change = json!({ "spec": { "rateLimiting": null, "authentication": null } });
    let gateways = stage.api::<TaskGateway>();
    gateways.patch("enterprise-gateway", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    until_gone(&stage.api::<SecurityPolicy>(), "enterprise-gateway").await;
    until_gone(&stage.api::<BackendTrafficPolicy>(), "enterprise-gateway").await;
    let without = |gateway: &TaskGateway| {
        gateway_condition(gateway, "SecurityPolicyReady") == Default::default()
            && gateway_condition(gateway, "Ready").0 == "True"
    };
    stage.until("enterprise-gateway", without).await;

    // Another class: nothing of Envoy's is left, and the Task is served by the built-in gateway.
    let change = json!({ "spec": { "gatewayClassName": "agentcube" } });
    gateways.patch("enterprise-gateway", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    until_gone(&stage.api::<EnvoyExtensionPolicy>(), "enterprise-gateway").await;
    until_gone(&stage.api::<ClientTrafficPolicy>(), "enterprise-gateway").await;
    let built_in = |task: &Task| ready(task) && condition(task, EXT_PROC_READY).0 == "True";
    stage.until_task("agent", built_in).await;
    let unlabelled = |route: &HttpRoute| !route.labels().contains_key("agentcube.io/gateway");
    stage.until("agent", unlabelled).await;
    close(stage).await;
}
