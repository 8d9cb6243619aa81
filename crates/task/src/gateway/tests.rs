//! Tables over the plan and the status of TaskGateways.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::{TaskGateway, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::grants::grants;
use super::observe::{Children, Observed};
use super::plan::{Plan, plan};
use super::status::{Outcome, Part, status};
use crate::child;
use crate::options::{Envoy, Options, Picking, RateLimits, ServicePort};

/// What is changed in an example.
type Change = fn(&mut Value);

fn gateway(change: impl FnOnce(&mut Value)) -> TaskGateway {
    let mut gateway = json!({
        "metadata": { "name": "front", "namespace": "prod", "uid": "g1", "generation": 4 },
        "spec": { "listeners": [
            { "name": "http", "protocol": "HTTP", "port": 80 },
            { "name": "chat", "protocol": "WebSocket", "port": 80, "hostname": "chat.example.com" },
            { "name": "https", "protocol": "HTTPS", "port": 443,
                "tls": { "certificateRefs": [{ "name": "cert" }], "minVersion": "1.3" } },
        ] },
    });
    change(&mut gateway);
    serde_json::from_value(gateway).unwrap()
}

fn observed(gateway: TaskGateway) -> Observed {
    Observed {
        gateway: Arc::new(gateway),
        longest_wait: Duration::from_secs(30),
        children: Children::default(),
        closely: false,
    }
}

fn options(picking: Picking) -> Options {
    let service = |name: &str| ServicePort { namespace: "system".into(), name: name.into(), port: 9000 };
    Options {
        gateway_class: "eg".into(),
        envoy: Some(Envoy {
            ext_proc: service("router"),
            placeholder: service("deny"),
            picking,
            rate_limits: RateLimits::Service,
            access_log: true,
        }),
        ..Options::default()
    }
}

#[test]
fn websocket_is_http_and_the_class_may_be_the_default() {
    let plan = plan(&observed(gateway(|_| ())), &options(Picking::PatchPolicy));
    assert_eq!(plan.gateway.spec.gateway_class_name, "eg");
    let protocols: Vec<&str> =
        plan.gateway.spec.listeners.iter().map(|listener| listener.protocol.as_str()).collect();
    assert_eq!(protocols, ["HTTP", "HTTP", "HTTPS"]);
}

#[test]
fn which_policies_there_are() {
    let names = |plan: &Plan| {
        let mut names: Vec<String> =
            plan.policies.client.iter().map(|policy| format!("client {}", policy.name_any())).collect();
        names.extend(plan.policies.extension.iter().map(|_| "extension".into()));
        names.extend(plan.policies.patch.iter().map(|_| "patch".into()));
        names.extend(plan.policies.proxy.iter().map(|_| "proxy".into()));
        names.extend(plan.policies.security.iter().map(|_| "security".into()));
        names.extend(plan.policies.traffic.iter().map(|_| "traffic".into()));
        names.join(", ")
    };
    let everything = |gateway: &mut Value| {
        gateway["spec"]["cors"] = json!({ "allowOrigins": ["*"] });
        gateway["spec"]["rateLimiting"] = json!({ "perRoute": { "requestsPerUnit": 1, "unit": "Hour" } });
    };
    let built_in = |gateway: &mut Value| gateway["spec"]["gatewayClassName"] = json!("agentcube");
    let empty = |gateway: &mut Value| {
        gateway["spec"]["authentication"] = json!({});
        gateway["spec"]["rateLimiting"] = json!({});
    };
    let cases: [(Picking, Change, &str); 5] = [
        (Picking::PatchPolicy, |_| (), "client front, client front.https, extension, patch, proxy"),
        (Picking::Header, |_| (), "client front, client front.https, extension, proxy"),
        (
            Picking::ExtensionServer,
            everything,
            "client front, client front.https, extension, proxy, security, traffic",
        ),
        (Picking::ExtensionServer, empty, "client front, client front.https, extension, proxy"),
        (Picking::PatchPolicy, built_in, ""),
    ];
    for (picking, change, expected) in cases {
        assert_eq!(names(&plan(&observed(gateway(change)), &options(picking))), expected, "{picking:?}");
    }
}

#[test]
fn planning_on_what_was_applied_wants_nothing_to_go() {
    let mut observed = observed(gateway(|_| ()));
    let options = options(Picking::PatchPolicy);
    let first = plan(&observed, &options);
    observed.children.client = first.policies.client.iter().cloned().map(Arc::new).collect();
    observed.children.extension = first.policies.extension.iter().cloned().map(Arc::new).collect();
    observed.children.patch = first.policies.patch.iter().cloned().map(Arc::new).collect();
    observed.children.proxies = first.policies.proxy.iter().cloned().map(Arc::new).collect();
    let again = plan(&observed, &options);
    assert_eq!(again, first);
    assert_eq!(again.stale, Default::default());
    // A Task that lets requests wait longer changes the limit, and its end does not change it back.
    observed.longest_wait = Duration::from_secs(100);
    let longer = plan(&observed, &options).policies.extension.unwrap();
    assert_eq!(longer.spec.0["extProc"][0]["messageTimeout"], "3m");
    observed.children.extension = vec![Arc::new(longer.clone())];
    observed.longest_wait = Duration::ZERO;
    assert_eq!(plan(&observed, &options).policies.extension, Some(longer));
}

#[test]
fn headers_that_only_a_gateway_may_set_are_stripped() {
    let plan = plan(
        &observed(gateway(|gateway| {
            gateway["spec"]["authentication"] = json!({ "jwt": { "providers": [{
                "name": "p", "issuer": "i", "audiences": ["a"], "remoteJWKS": { "uri": "https://k" },
                "claimToHeaders": [{ "claim": "sub", "header": "X-User-ID" }],
            }] } });
        })),
        &options(Picking::PatchPolicy),
    );
    for policy in &plan.policies.client {
        let removed = &policy.spec.0["headers"]["earlyRequestHeaders"]["remove"];
        assert_eq!(
            *removed,
            json!(["x-agentcube-subject", "x-gateway-destination-endpoint", "x-reserved-token", "x-user-id"])
        );
    }
}

#[test]
fn the_patch_names_the_routes_of_each_filter_chain_once() {
    let plan = plan(&observed(gateway(|_| ())), &options(Picking::PatchPolicy));
    let patch = plan.policies.patch.unwrap().spec.0;
    let of = |type_: &str| -> Vec<&str> {
        let patches = patch["jsonPatches"].as_array().unwrap().iter();
        let patches = patches.filter(|patch| patch["type"].as_str().unwrap().ends_with(type_));
        patches.map(|patch| patch["name"].as_str().unwrap()).collect()
    };
    // Plain listeners on one port are one filter chain.
    assert_eq!(of("RouteConfiguration"), ["prod/front/http", "prod/front/https"]);
    assert_eq!(of("Listener"), ["prod/front/http", "prod/front/https"]);
}

#[test]
fn envoy_tells_the_routers_of_the_end_of_requests() {
    let gateway = || gateway(|_| ());
    let named = |plan: &Plan| {
        let infrastructure = plan.gateway.spec.infrastructure.as_ref()?;
        Some(infrastructure.parameters_ref.as_ref()?.name.clone())
    };
    let mut options = options(Picking::PatchPolicy);
    let told = plan(&observed(gateway()), &options);
    let proxy = told.policies.proxy.as_ref().unwrap();
    assert_eq!(named(&told), Some(proxy.name_any()));
    assert_eq!(proxy.spec.0["mergeType"], "StrategicMerge", "what the class says of Envoys stays");
    let sink = &proxy.spec.0["telemetry"]["accessLog"]["settings"][0]["sinks"][0];
    assert_eq!((&sink["type"], &sink["als"]["type"]), (&json!("ALS"), &json!("HTTP")));
    assert_eq!(sink["als"]["backendRefs"][0]["name"], "router");
    options.envoy.as_mut().unwrap().access_log = false;
    let untold = plan(&observed(gateway()), &options);
    assert_eq!((untold.policies.proxy.as_ref(), named(&untold)), (None, None));
    assert!(!untold.policies.patch.unwrap().spec.0.to_string().contains("access_log_options"));
}

#[test]
fn grants_are_only_needed_from_elsewhere() {
    let options = options(Picking::PatchPolicy);
    let envoy = options.envoy.unwrap();
    assert!(grants("system", &envoy).is_empty());
    let grants = grants("prod", &envoy);
    assert_eq!(grants.len(), 1);
    let to: Vec<_> = grants[0].spec.to.iter().filter_map(|to| to.name.as_deref()).collect();
    assert_eq!((grants[0].namespace().as_deref(), to), (Some("system"), vec!["deny", "router"]));
    assert!(grants[0].spec.from.iter().all(|from| from.namespace == "prod"));
}

fn condition(type_: &str, status: &str, message: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": "R", "message": message, "observedGeneration": 2,
        "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// What is there when all has been taken, but for what `change` does to the Gateway's status.
fn children(plan: &Plan, change: impl FnOnce(&mut Value)) -> Children {
    let taken = json!({ "ancestors": [{ "conditions": [condition("Accepted", "True", "")] }] });
    let mut status = json!({
        "conditions": [condition("Accepted", "True", ""), condition("Programmed", "True", "")],
        "listeners": [{ "name": "https", "attachedRoutes": 0, "supportedKinds": [],
            "conditions": [condition("ResolvedRefs", "True", "")] }],
        "addresses": [{ "type": "IPAddress", "value": "192.0.2.7" }],
    });
    change(&mut status);
    let mut made = plan.gateway.clone();
    made.metadata.generation = Some(2);
    made.status = serde_json::from_value(status).unwrap();
    let mut children = Children { gateway: Some(Arc::new(made)), ..Children::default() };
    for policy in &plan.policies.client {
        let mut policy = policy.clone();
        policy.metadata.generation = Some(2);
        policy.status = serde_json::from_value(taken.clone()).unwrap();
        children.client.push(Arc::new(policy));
    }
    if let Some(policy) = &plan.policies.security {
        let mut policy = policy.clone();
        policy.status = serde_json::from_value(taken).unwrap();
        children.security.push(Arc::new(policy));
    }
    children
}

#[test]
fn what_is_said_of_a_gateway() {
    let cors = |gateway: &mut Value| gateway["spec"]["cors"] = json!({ "allowOrigins": ["*"] });
    let observed = observed(gateway(cors));
    let options = options(Picking::PatchPolicy);
    let plan = plan(&observed, &options);
    let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
    let said = |plan: &Plan, outcome: &Outcome, children: &Children| {
        let status = status(&observed, plan, outcome, children, &now);
        assert_eq!(status.observed_generation, Some(4));
        ["GatewayReady", "SecurityPolicyReady", "RateLimitReady", "Ready"].map(|type_| {
            conditions::find(&status.conditions, type_)
                .map(|one| format!("{} {}: {}", one.status, one.reason, one.message))
                .unwrap_or_default()
        })
    };
    let well = Outcome::default();
    let ready = said(&plan, &well, &children(&plan, |_| ()));
    assert_eq!(
        ready,
        [
            "True GatewayCreated: Gateway front is programmed",
            "True PolicyCreated: SecurityPolicy front is accepted",
            "",
            "True AllComponentsReady: All components ready",
        ]
    );
    let secret = |status: &mut Value| {
        status["listeners"][0]["conditions"][0] =
            condition("ResolvedRefs", "False", "Secret cert does not exist.");
    };
    let missing = said(&plan, &well, &children(&plan, secret));
    assert_eq!(
        missing[0],
        "False NotAccepted: listener https: Secret cert does not exist (R): make sure that Secret prod/cert exists, \
         of type kubernetes.io/tls"
    );
    let nobody = said(&plan, &well, &children(&plan, |status| status["conditions"] = json!([])));
    assert!(nobody[0].ends_with("nothing here implements GatewayClass eg"), "{}", nobody[0]);
    let errors = vec![child::Error::Refused("SecurityPolicy front: no".into())];
    let refused = Outcome { security: Part { errors, ..Part::default() }, ..Outcome::default() };
    let refused = said(&plan, &refused, &children(&plan, |_| ()));
    assert_eq!(refused[1], "False CreationFailed: SecurityPolicy front: no");
    assert_eq!(refused[3], "False ComponentsNotReady: SecurityPolicyReady: SecurityPolicy front: no");
    let mut unaccepted = children(&plan, |_| ());
    unaccepted.client.pop();
    assert!(
        said(&plan, &well, &unaccepted)[0]
            .contains("ClientTrafficPolicy front.https has not been accepted yet")
    );
}

#[test]
fn without_envoy_another_class_is_explained() {
    let plan = plan(
        &observed(gateway(|gateway| gateway["spec"]["gatewayClassName"] = json!("eg"))),
        &Options::default(),
    );
    assert!(plan.unsupported.unwrap().contains("class eg needs Envoy Gateway"));
}

/// What is said of a gateway that is as the changes have it, by its conditions.
fn told(change: Change, options: &Options, status_of: Change) -> [(String, String, String); 4] {
    let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
    let observed = observed(gateway(change));
    let plan = plan(&observed, options);
    let served = if plan.withheld.is_some() { Children::default() } else { children(&plan, status_of) };
    let status = status(&observed, &plan, &Outcome::default(), &served, &now);
    ["GatewayReady", "SecurityPolicyReady", "RateLimitReady", "Ready"].map(|type_| {
        let condition = conditions::find(&status.conditions, type_);
        condition.map(|one| (one.status.clone(), one.reason.clone(), one.message.clone())).unwrap_or_default()
    })
}

#[test]
fn what_a_class_cannot_check_is_not_served() {
    let auth: Change = |gateway| {
        let backend =
            json!({ "name": "auth", "port": 80, "caCertificateRef": { "kind": "Secret", "name": "ca" } });
        gateway["spec"]["authentication"] = json!({ "extAuth": { "http": { "backendRef": backend } } });
    };
    let here = options(Picking::PatchPolicy);
    let unsupported = |said: &(String, String, String)| said.0 == "False" && said.1 == "Unsupported";
    // By Envoy Gateway, of what it cannot be told; by nobody that is known.
    let elsewhere: Change = |gateway| {
        gateway["spec"]["authentication"] =
            json!({ "extAuth": { "grpc": { "backendRef": { "name": "a", "port": 1 } } } });
    };
    let nobody = Options { gateway_class: "eg".into(), ..Options::default() };
    for (change, options) in [(auth, &here), (elsewhere, &nobody)] {
        let [served, security, _, ready] = told(change, options, |_| ());
        assert!(unsupported(&served) && served.2.ends_with("until then nothing is served"), "{served:?}");
        assert!(unsupported(&security) && ready.0 == "False", "{security:?} {ready:?}");
    }
}

#[test]
fn the_built_in_gateway_says_itself_what_is_in_force() {
    let everything: Change = |gateway| {
        gateway["spec"]["gatewayClassName"] = json!("agentcube");
        gateway["spec"]["authentication"] = json!({ "jwt": { "providers": [{
            "name": "p", "issuer": "i", "audiences": ["a"], "remoteJWKS": { "uri": "https://k" },
        }] } });
        gateway["spec"]["rateLimiting"] = json!({ "perRoute": { "requestsPerUnit": 1, "unit": "Hour" } });
    };
    let here = options(Picking::PatchPolicy);
    let silent: Change = |_| ();
    let taken_up: Change = |status| {
        let conditions = status["conditions"].as_array_mut().unwrap();
        for (type_, said) in [("Security", "True"), ("RateLimits", "False")] {
            let mut condition = condition(&format!("agentcube.io/{type_}InForce"), said, "because");
            condition["observedGeneration"] = json!(4);
            conditions.push(condition);
        }
    };
    let of_before: Change = |status| {
        let condition = condition("agentcube.io/SecurityInForce", "True", "because");
        status["conditions"].as_array_mut().unwrap().push(condition);
    };
    let short =
        |said: [(String, String, String); 4]| said.map(|(status, reason, _)| format!("{status} {reason}"));
    let waits = ["True GatewayCreated", "False NotAccepted", "False NotAccepted", "False ComponentsNotReady"];
    assert_eq!(short(told(everything, &here, silent)), waits);
    assert_eq!(short(told(everything, &here, of_before)), waits, "it speaks of an older generation");
    assert_eq!(
        short(told(everything, &here, taken_up)),
        ["True GatewayCreated", "True PolicyCreated", "False Unsupported", "False ComponentsNotReady"]
    );
}
