//! Tables over the plan and the status of Tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::agentcube::task::{InstanceStatistics, TaskPhase};
use agentcube_api::{Task, TaskGateway, conditions};
use agentcube_instance::SpecId;
use agentcube_instance::provider::{SpecError, SpecStatus};
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::observe::{Answers, Named, Observed};
use super::plan::{Plan, Revision, Serve, plan};
use super::status::{Outcome, Prepared, status};
use crate::child::{self, Ensured};
use crate::envoy::EnvoyExtensionPolicy;
use crate::options::{Envoy, Options, Picking, RateLimits, ServicePort};

/// What is changed in an example.
type Change = fn(&mut Value);

fn spec_id(name: &str) -> SpecId {
    SpecId(name.into())
}

fn task(change: impl FnOnce(&mut Value)) -> Task {
    let mut task = json!({
        "metadata": { "name": "agent", "namespace": "prod", "uid": "t1", "generation": 5,
            "finalizers": ["agentcube.io/release-instances"] },
        "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} } },
    });
    change(&mut task);
    serde_json::from_value(task).unwrap()
}

fn gateway(class: Option<&str>) -> Arc<TaskGateway> {
    let gateway = json!({
        "metadata": { "name": "default", "namespace": "prod" },
        "spec": { "gatewayClassName": class, "listeners": [{ "name": "http", "protocol": "HTTP", "port": 8080 }] },
        "status": { "addresses": [{ "type": "IPAddress", "value": "192.0.2.7" }] },
    });
    Arc::new(serde_json::from_value(gateway).unwrap())
}

fn observed(task: Task) -> Observed {
    Observed {
        gateways: vec![Named { name: "default".into(), gateway: Some(gateway(None)) }],
        task: Arc::new(task),
        hash: Ok("h1".into()),
        revisions: Default::default(),
        hashes: BTreeMap::new(),
        standing: BTreeMap::new(),
        instances: InstanceStatistics::default(),
        policies: Vec::new(),
        services: Vec::new(),
        closely: false,
    }
}

fn envoy(picking: Picking) -> Options {
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

fn serve(observed: &Observed, options: &Options) -> Serve {
    match plan(observed, options) {
        Plan::Serve(serve) => *serve,
        other => panic!("not served: {other:?}"),
    }
}

#[test]
fn which_revision_is_next() {
    let with = |status: Value| observed(task(|task| task["status"] = status));
    let carried = json!([{ "type": "SpecReady", "status": "True", "reason": "R", "message": "",
        "observedGeneration": 5, "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let revision =
        |spec: &str, known, update| Revision { spec: spec_id(spec), hash: "h1".into(), known, update };
    for (status, expected) in [
        (json!(null), revision("agent-5", false, false)),
        (json!({ "specID": "agent-2", "templateHash": "h1" }), revision("agent-2", true, true)),
        (
            json!({ "specID": "agent-2", "templateHash": "h1", "conditions": carried }),
            revision("agent-2", true, false),
        ),
        (json!({ "specID": "agent-2", "templateHash": "h0" }), revision("agent-5", false, false)),
        // A hash without a revision says nothing.
        (json!({ "templateHash": "h1" }), revision("agent-5", false, false)),
    ] {
        let serve = serve(&with(status.clone()), &Options::default());
        assert_eq!(serve.revision, Ok(expected), "{status}");
    }
}

#[test]
fn which_revisions_drain_and_which_are_over() {
    let names = |specs: &[SpecId]| specs.iter().map(ToString::to_string).collect::<Vec<_>>();
    // Told by the status as current and draining; there; with instances; the next hash.
    for (current, told, there, used, hash, draining, release) in [
        // The current one stays while nothing changes.
        ("agent-2", vec![], vec!["agent-2"], vec![], "h0", vec![], vec![]),
        // It drains when another comes, at first in any case.
        ("agent-2", vec![], vec!["agent-2"], vec![], "h1", vec!["agent-2"], vec![]),
        (
            "agent-5",
            vec!["agent-2"],
            vec!["agent-2", "agent-5"],
            vec!["agent-2"],
            "h0",
            vec!["agent-2"],
            vec![],
        ),
        ("agent-5", vec!["agent-2"], vec!["agent-2", "agent-5"], vec![], "h0", vec![], vec!["agent-2"]),
        // One that was made and never told of.
        ("agent-4", vec![], vec!["agent-3", "agent-4"], vec![], "h0", vec!["agent-3"], vec![]),
    ] {
        let mut observed = observed(task(|task| {
            task["status"] = json!({ "specID": current, "templateHash": "h0", "drainingSpecIDs": told });
        }));
        observed.hash = Ok(hash.into());
        observed.revisions = there.iter().map(|name| spec_id(name)).collect();
        for name in there.iter().chain(&told) {
            let total = i32::from(used.contains(name));
            observed.standing.insert(spec_id(name), SpecStatus { total, ..SpecStatus::default() });
        }
        let serve = serve(&observed, &Options::default());
        assert_eq!(
            (names(&serve.draining), names(&serve.release)),
            (
                draining.into_iter().map(str::to_owned).collect(),
                release.into_iter().map(str::to_owned).collect(),
            ),
            "{current} {told:?} {there:?} {hash}"
        );
    }
}

#[test]
fn a_spec_that_cannot_work_ends_nothing() {
    let mut observed =
        observed(task(|task| task["status"] = json!({ "specID": "agent-2", "templateHash": "h0" })));
    observed.hash = Err(SpecError::Invalid("no".into()));
    observed.revisions = [spec_id("agent-2")].into();
    observed.standing.insert(spec_id("agent-2"), SpecStatus::default());
    let serve = serve(&observed, &Options::default());
    assert_eq!((serve.draining, serve.release), (vec![], vec![]));
}

#[test]
fn a_deleted_task_releases_all_and_waits_for_nobody() {
    let deleted = |change: fn(&mut Value)| {
        let mut observed = observed(task(|task| {
            task["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            change(task);
        }));
        let standing = SpecStatus { total: 3, reserved: 3, ..SpecStatus::default() };
        observed.standing = [("agent-1", &standing), ("agent-4", &standing)]
            .map(|(name, standing)| (spec_id(name), standing.clone()))
            .into();
        plan(&observed, &Options::default())
    };
    assert_eq!(deleted(|_| ()), Plan::End { release: vec![spec_id("agent-1"), spec_id("agent-4")] });
    assert_eq!(deleted(|task| task["metadata"]["finalizers"] = json!(["other"])), Plan::Nothing);
}

/// The rules of the route in short: name, path and headers matched, prefix stripped, time limit, back end.
fn rules(route: &HttpRoute) -> Vec<String> {
    let rules = serde_json::to_value(&route.spec.rules).unwrap();
    rules
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            let matches = &rule["matches"][0];
            let headers = matches["headers"].as_array().cloned().unwrap_or_default();
            let headers: Vec<&str> = headers.iter().map(|header| header["name"].as_str().unwrap()).collect();
            format!(
                "{} {}{headers:?} strip={} {} -> {}",
                rule["name"].as_str().unwrap(),
                matches["path"]["value"].as_str().unwrap(),
                rule["filters"][0]["type"] == "URLRewrite",
                rule["timeouts"]["request"].as_str().unwrap(),
                rule["backendRefs"][0]["name"].as_str().unwrap_or("nothing"),
            )
        })
        .collect()
}

#[test]
fn the_rules_of_a_route() {
    let limited = |task: &mut Value| {
        task["spec"]["requestHandling"] = json!({ "timeout": { "http": { "request": "90s" } } })
    };
    let at_root =
        |task: &mut Value| task["spec"]["routing"] = json!({ "routePolicy": "Oneshot", "pathPrefix": "/" });
    let built_in = Options::default();
    let cases: [(Options, Change, &[&str]); 5] = [
        (built_in.clone(), |_| (), &["agentcube-all /prod/agent[] strip=true 0s -> nothing"]),
        (built_in, at_root, &["agentcube-all /[] strip=false 0s -> nothing"]),
        (envoy(Picking::PatchPolicy), |_| (), &["agentcube-all /prod/agent[] strip=true 0s -> deny"]),
        (
            envoy(Picking::PatchPolicy),
            limited,
            &[
                "agentcube-stream /prod/agent[\"Accept\"] strip=true 0s -> deny",
                "agentcube-request /prod/agent[] strip=true 1m30s -> deny",
            ],
        ),
        (
            envoy(Picking::Header),
            limited,
            &[
                "agentcube-stream /prod/agent[\"Accept\", \"x-gateway-destination-endpoint\"] strip=true 0s -> agent-instances",
                "agentcube-request /prod/agent[\"x-gateway-destination-endpoint\"] strip=true 1m30s -> agent-instances",
                "agentcube-denied /prod/agent[] strip=true 0s -> deny",
            ],
        ),
    ];
    for (options, change, expected) in cases {
        let serve = serve(&observed(task(change)), &options);
        assert_eq!(rules(&serve.route), expected, "{options:?}");
        let route = serde_json::to_value(&serve.route).unwrap();
        for rule in route["spec"]["rules"].as_array().unwrap() {
            // What Envoy passes on without asking must not show a token.
            let removed = &rule["filters"][1]["responseHeaderModifier"]["remove"];
            assert_eq!(*removed == json!(["x-reserved-token"]), options.envoy.is_some(), "{rule}");
        }
        assert_eq!(
            serve.service.is_some(),
            options.envoy.is_some_and(|envoy| envoy.picking == Picking::Header)
        );
    }
}

#[test]
fn the_label_is_that_of_the_first_gateway_of_envoys() {
    let mut observed = observed(task(|_| ()));
    let named = |name: &str, class: &str| Named { name: name.into(), gateway: Some(gateway(Some(class))) };
    observed.gateways = vec![named("own", "agentcube"), named("first", "eg"), named("second", "eg")];
    assert_eq!(serve(&observed, &envoy(Picking::PatchPolicy)).label.as_deref(), Some("first"));
    observed.gateways.truncate(1);
    assert_eq!(serve(&observed, &envoy(Picking::PatchPolicy)).label, None);
}

fn taken(generation: i64) -> Value {
    json!([{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z" }])
}

fn answered(route: &HttpRoute, conditions: Value) -> HttpRoute {
    let mut route = route.clone();
    route.metadata.generation = Some(2);
    let parent =
        json!({ "parentRef": { "name": "default" }, "controllerName": "c", "conditions": conditions });
    route.status = serde_json::from_value(json!({ "parents": [parent] })).unwrap();
    route
}

fn extension(limit: &str, conditions: Value) -> EnvoyExtensionPolicy {
    serde_json::from_value(json!({
        "metadata": { "name": "default", "generation": 3 }, "spec": { "extProc": [{ "messageTimeout": limit }] },
        "status": { "ancestors": [{ "conditions": conditions }] },
    }))
    .unwrap()
}

struct Scene {
    observed: Observed,
    options: Options,
    outcome: Outcome,
    parents: Value,
    policy: Option<EnvoyExtensionPolicy>,
}

impl Scene {
    fn new() -> Scene {
        Scene {
            observed: observed(task(|_| ())),
            options: envoy(Picking::PatchPolicy),
            outcome: Outcome {
                spec: Ok(Prepared::default()),
                route: Ok(Ensured::Unchanged),
                others: Vec::new(),
            },
            parents: taken(2),
            policy: Some(extension("1m", taken(3))),
        }
    }

    /// Phase, and status and reason of each condition.
    fn status(&self) -> (TaskPhase, [String; 4]) {
        let serve = serve(&self.observed, &self.options);
        let route = Some(Arc::new(answered(&serve.route, self.parents.clone())));
        let answers = Answers { route, policy: self.policy.clone().map(Arc::new) };
        let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
        let status = status(&self.observed, &serve, &self.outcome, &answers, &self.options, &now);
        assert_eq!(status.observed_generation, Some(5));
        assert!(status.conditions.iter().all(|one| one.observed_generation == Some(5)));
        let said = ["SpecReady", "RouteReady", "ExtProcReady", "Ready"].map(|type_| {
            let one = conditions::find(&status.conditions, type_).unwrap();
            assert!(one.status == "True" || !one.message.is_empty(), "{one:?}");
            format!("{} {}", one.status, one.reason)
        });
        (status.phase.unwrap(), said)
    }
}

#[test]
fn what_is_said_of_a_task() {
    let missing = SpecError::Missing { reason: "SandboxPoolMissing", message: "no pool".into() };
    let failing = SpecStatus { trouble: Some("log".into()), ..SpecStatus::default() };
    let preparing = SpecStatus { preparing: true, ..SpecStatus::default() };
    let broken = SpecStatus { preparing: true, ..failing.clone() };
    let standing = |standing: SpecStatus| Ok(Prepared { repairs: Vec::new(), standing });
    let serving = (
        TaskPhase::Serving,
        ["True SpecInitialized", "True RouteCreated", "True ExtProcConfigured", "True TaskReady"],
    );
    let deploying = |spec, route, ext_proc| (TaskPhase::Deploying, [spec, route, ext_proc, "False NotReady"]);
    let (spec_ok, route_ok, ext_ok) = ("True SpecInitialized", "True RouteCreated", "True ExtProcConfigured");
    let change = |change: fn(&mut Scene)| {
        let mut scene = Scene::new();
        change(&mut scene);
        scene
    };
    let spec = |spec| {
        let mut scene = Scene::new();
        scene.outcome.spec = spec;
        scene
    };
    for (name, scene, expected) in [
        ("well", Scene::new(), serving),
        ("missing", spec(Err(missing)), deploying("False SandboxPoolMissing", route_ok, ext_ok)),
        (
            "transient",
            spec(Err(SpecError::Transient("x".into()))),
            deploying("False InitializeFailed", route_ok, ext_ok),
        ),
        (
            "invalid",
            spec(Err(SpecError::Invalid("x".into()))),
            (TaskPhase::Failed, ["False SpecInvalid", route_ok, ext_ok, "False NotReady"]),
        ),
        ("failing", spec(standing(failing.clone())), deploying("False InstancesFailing", route_ok, ext_ok)),
        ("some fail", spec(standing(SpecStatus { available: 1, ..failing })), serving),
        ("preparing", spec(standing(preparing)), deploying("False Preparing", route_ok, ext_ok)),
        ("broken", spec(standing(broken)), deploying("False BundleBroken", route_ok, ext_ok)),
        (
            "blocked",
            spec(Err(SpecError::Blocked("x".into()))),
            deploying("False InitializeFailed", route_ok, ext_ok),
        ),
        (
            "no gateway",
            change(|scene| scene.observed.gateways[0].gateway = None),
            deploying(spec_ok, "False GatewayMissing", "False GatewayMissing"),
        ),
        (
            "refused write",
            change(|scene| scene.outcome.route = Err(child::Error::Refused("x".into()))),
            deploying(spec_ok, "False CreationFailed", ext_ok),
        ),
        (
            "old news",
            change(|scene| scene.parents = taken(1)),
            deploying(spec_ok, "False NotAccepted", ext_ok),
        ),
        (
            "nobody",
            change(|scene| scene.parents = json!([])),
            deploying(spec_ok, "False NotAccepted", ext_ok),
        ),
        ("no policy", change(|scene| scene.policy = None), deploying(spec_ok, route_ok, "False NotAccepted")),
        (
            "short policy",
            change(|scene| scene.policy = Some(extension("30s", taken(3)))),
            deploying(spec_ok, route_ok, "False NotAccepted"),
        ),
        (
            "old policy",
            change(|scene| scene.policy = Some(extension("1m", taken(2)))),
            deploying(spec_ok, route_ok, "False NotAccepted"),
        ),
        (
            "built in",
            change(|scene| {
                scene.options = Options::default();
                scene.policy = None;
            }),
            serving,
        ),
        (
            "no Envoy here",
            change(|scene| scene.options.envoy = None),
            deploying(spec_ok, "False Unsupported", "False Unsupported"),
        ),
        (
            "repaired",
            change(|scene| {
                scene.outcome.route = Ok(Ensured::Recreated);
                scene.parents = json!([]);
            }),
            deploying(spec_ok, "False AutoRepaired", ext_ok),
        ),
    ] {
        let (phase, said) = scene.status();
        assert_eq!((phase, said.each_ref().map(String::as_str)), expected, "{name}");
    }
}

#[test]
fn a_next_revision_that_fails_leaves_the_current_one() {
    let mut scene = Scene::new();
    scene.observed =
        observed(task(|task| task["status"] = json!({ "specID": "agent-2", "templateHash": "h0" })));
    scene.observed.revisions = [spec_id("agent-2")].into();
    scene.observed.standing.insert(spec_id("agent-2"), SpecStatus::default());
    let prepared = |trouble: Option<&str>| {
        let standing =
            SpecStatus { preparing: true, trouble: trouble.map(Into::into), ..SpecStatus::default() };
        Ok(Prepared { standing, ..Prepared::default() })
    };
    for (spec, expected) in [
        (Err(SpecError::Transient("x".into())), ("agent-2", "h0", vec![])),
        (prepared(None), ("agent-2", "h0", vec![])),
        (prepared(Some("sha256 differs")), ("agent-2", "h0", vec![])),
        (Ok(Prepared::default()), ("agent-5", "h1", vec!["agent-2".to_owned()])),
    ] {
        let serve = serve(&scene.observed, &scene.options);
        scene.outcome.spec = spec;
        let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
        let answers = Answers::default();
        let status = status(&scene.observed, &serve, &scene.outcome, &answers, &scene.options, &now);
        let (spec, hash) = (status.spec_id.unwrap(), status.template_hash.unwrap());
        assert_eq!((spec.as_str(), hash.as_str(), status.draining_spec_ids), expected);
        assert_eq!(status.address.as_deref(), Some("http://192.0.2.7:8080/prod/agent"));
        if let Ok(Prepared { standing: SpecStatus { trouble: Some(trouble), .. }, .. }) = &scene.outcome.spec
        {
            let said = conditions::find(&status.conditions, "SpecReady").unwrap();
            let expected =
                format!("revision agent-5 is not ready (revision agent-2 serves meanwhile): {trouble}");
            assert_eq!(said.message, expected);
        }
    }
}

#[test]
fn a_first_revision_is_nothing_to_send_requests_to_before_it_is_prepared() {
    let mut scene = Scene::new();
    scene.observed = observed(task(|_| ()));
    let serve = serve(&scene.observed, &scene.options);
    let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
    for (preparing, expected) in [(true, None), (false, Some("agent-5"))] {
        let standing = SpecStatus { preparing, ..SpecStatus::default() };
        scene.outcome.spec = Ok(Prepared { standing, ..Prepared::default() });
        let status =
            status(&scene.observed, &serve, &scene.outcome, &Answers::default(), &scene.options, &now);
        assert_eq!(status.spec_id.as_deref(), expected);
        assert_eq!(status.template_hash.as_deref(), expected.map(|_| "h1"));
    }
}

#[test]
fn what_is_being_prepared_stays_the_next_revision() {
    let status = json!({ "specID": "agent-2", "templateHash": "h0", "drainingSpecIDs": ["agent-3"] });
    let mut observed = observed(task(|task| task["status"] = status));
    let next = |observed: &Observed| serve(observed, &Options::default()).revision.unwrap().spec;
    assert_eq!(next(&observed), spec_id("agent-5"));
    observed.hashes = [(spec_id("agent-4"), "h1".into()), (spec_id("agent-2"), "h0".into())].into();
    assert_eq!(next(&observed), spec_id("agent-4"));
    // Neither one of another template, nor one that was given up.
    observed.hashes = [(spec_id("agent-4"), "h2".into()), (spec_id("agent-3"), "h1".into())].into();
    assert_eq!(next(&observed), spec_id("agent-5"));
}
