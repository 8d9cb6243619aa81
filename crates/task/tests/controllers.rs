//! The controllers over the embedded API server.

#![allow(clippy::unwrap_used, clippy::panic)]

mod stage;

use std::time::Duration;

use agentcube_api::conditions::task::{EXT_PROC_READY, ROUTE_READY, SPEC_READY};
use agentcube_api::{Task, TaskGateway, labels};
use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_instance::provider::{SpecError, SpecStatus};
use agentcube_operator::leader;
use agentcube_task::{Controllers, Options};
use gateway_api::gateways::Gateway;
use gateway_api::httproutes::HttpRoute;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplate};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use stage::{Stage, condition, gateway_condition, says, until_gone};
use tokio_util::sync::CancellationToken;

async fn server() -> (Server, Stage) {
    let server = Server::builder().memory().embed().await.expect("a server in memory starts");
    let client = Client::new(server.front(), "default");
    stage::install(&client, agentcube_api::crds()).await;
    stage::install(&client, agentcube_task::definitions()).await;
    let stage = Stage::open(client, "agents").await;
    (server, stage)
}

/// What heals has to heal by being told: a look without a reason comes after the end of every test.
fn options() -> Options {
    Options {
        missing_every: Duration::from_secs(3600),
        counts_every: Duration::from_millis(50),
        ..Options::default()
    }
}

fn gateway(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "listeners": [{ "name": "http", "protocol": "HTTP", "port": 80 }] } })
}

fn task(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "deployment": { "type": "pod", "podTemplate": { "spec": {
            "containers": [{ "name": "agent", "image": "agent:1" }] } } } },
    })
}

fn is_serving(task: &Task) -> bool {
    says(task, "Ready", "True", "TaskReady")
}

#[tokio::test]
async fn a_task_comes_to_serve_and_goes_without_a_trace() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    let agent = stage.until_task("agent", is_serving).await;
    let status = agent.status.clone().unwrap();
    assert_eq!(status.spec_id.as_deref(), Some("agent-1"));
    assert_eq!(status.address.as_deref(), Some("http://192.0.2.1/agents/agent"));
    assert_eq!(serde_json::to_value(status.phase).unwrap(), "Serving");
    assert_eq!(status.route_status.unwrap().parent_statuses[0].controller_name, "example.com/pretender");
    for (type_, reason) in [
        (SPEC_READY, "SpecInitialized"),
        (ROUTE_READY, "RouteCreated"),
        (EXT_PROC_READY, "ExtProcConfigured"),
    ] {
        assert_eq!(condition(&agent, type_), ("True".into(), reason.into()));
    }
    assert_eq!(agent.finalizers(), [labels::TASK_FINALIZER]);

    stage.api::<Task>().delete("agent", &DeleteParams::default()).await.unwrap();
    until_gone(&stage.api::<Task>(), "agent").await;
    assert_eq!(stage.books.released(), ["agent-1"]);
    until_gone(&stage.api::<HttpRoute>(), "agent").await;
    stage.close().await;
}

#[tokio::test]
async fn what_is_missing_is_named_and_its_appearance_heals() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    let mut needy = task("needy");
    needy["metadata"]["annotations"] = json!({ "needs": "code" });
    needy["spec"]["deployment"]["podTemplate"]["spec"]["volumes"] =
        json!([{ "name": "code", "configMap": { "name": "code" } }]);
    stage.create::<Task>(needy).await;
    let seen = stage.until_task("needy", |task| says(task, SPEC_READY, "False", "ConfigMapMissing")).await;
    assert_eq!(condition(&seen, ROUTE_READY), ("False".into(), "GatewayMissing".into()));
    let conditions = seen.status.unwrap().conditions;
    let ready = agentcube_api::conditions::find(&conditions, "Ready").unwrap();
    assert!(
        ready.message.contains("there is no TaskGateway default in namespace agents"),
        "{}",
        ready.message
    );
    assert!(ready.message.contains("there is no ConfigMap code"), "{}", ready.message);

    stage.create::<TaskGateway>(gateway("default")).await;
    stage.until_task("needy", |task| says(task, ROUTE_READY, "True", "RouteCreated")).await;
    // By the watch of its name: the next look without it would come after the limit of this test.
    stage.create::<ConfigMap>(json!({ "metadata": { "name": "code" } })).await;
    stage.until_task("needy", is_serving).await;
    stage.close().await;
}

#[tokio::test]
async fn what_somebody_breaks_is_put_right_and_told() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    stage.until_task("agent", is_serving).await;

    let routes = stage.api::<HttpRoute>();
    let first = routes.get("agent").await.unwrap();
    routes.delete("agent", &DeleteParams::default()).await.unwrap();
    stage.until::<HttpRoute>("agent", |route| route.uid() != first.uid()).await;
    stage.until_event("ResourceRecreated", "HTTPRoute agent was deleted").await;
    let repaired = stage.until_task("agent", |task| says(task, ROUTE_READY, "True", "AutoRepaired")).await;
    assert!(is_serving(&repaired) || condition(&repaired, "Ready").0 == "False");

    // A change of what we set, a removal of our label, and something that nobody wanted.
    for patch in [
        json!({ "spec": { "hostnames": ["evil.example.com"] } }),
        json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } }),
        json!({ "spec": { "parentRefs": [] } }),
    ] {
        routes.patch("agent", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        let whole = |route: &HttpRoute| {
            let parents = route.spec.parent_refs.as_ref().map(Vec::len);
            route.spec.hostnames.is_none()
                && parents == Some(1)
                && route.labels().get("app.kubernetes.io/managed-by").is_some()
        };
        stage.until("agent", whole).await;
    }
    stage.until_event("DriftRepaired", "HTTPRoute agent was changed").await;

    stage.api::<PodTemplate>().delete("agent-1", &DeleteParams::default()).await.unwrap();
    stage.until_event("ResourceRecreated", "PodTemplate agent-1").await;
    stage.until_task("agent", |task| says(task, SPEC_READY, "True", "AutoRepaired")).await;

    stage.api::<Gateway>().delete("default", &DeleteParams::default()).await.unwrap();
    stage.until_event("ResourceRecreated", "Gateway default").await;
    let repaired = |gateway: &TaskGateway| {
        gateway_condition(gateway, "GatewayReady") == ("True".into(), "AutoRepaired".into())
    };
    stage.until("default", repaired).await;
    stage.close().await;
}

#[tokio::test]
async fn a_change_of_the_template_drains_the_old_revision() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    stage.until_task("agent", is_serving).await;
    let change = async |patch: Value| {
        let patched =
            stage.api::<Task>().patch("agent", &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.unwrap().metadata.generation.unwrap()
    };

    // Scaling keeps the revision.
    change(json!({ "spec": { "scaling": { "scalingMode": "OnDemand", "maxInstances": 7 } } })).await;
    let scaled =
        stage.until_task("agent", |task| is_serving(task) && task.metadata.generation == Some(2)).await;
    assert_eq!(scaled.status.unwrap().spec_id.as_deref(), Some("agent-1"));
    assert_eq!(stage.books.updates(), ["agent-1"]);

    // Another template is another revision; the old one has an instance, so it stays.
    stage.books.stands("agent-1", SpecStatus { total: 1, reserved: 1, ..SpecStatus::default() });
    let template = json!({ "spec": { "containers": [{ "name": "agent", "image": "agent:2" }] } });
    change(json!({ "spec": { "deployment": { "podTemplate": template } } })).await;
    let drains = |task: &Task| {
        let status = task.status.clone().unwrap_or_default();
        status.spec_id.as_deref() == Some("agent-3") && status.draining_spec_ids == ["agent-1"]
    };
    stage.until_task("agent", drains).await;
    assert_eq!(stage.books.released(), Vec::<String>::new());

    // Its last instance goes: the change of a Pod has the Task looked at.
    stage.books.stands("agent-1", SpecStatus::default());
    let agent = stage.api::<Task>().get("agent").await.unwrap();
    stage.create::<Pod>(pod(&agent, "agent-0", "agent-3", false)).await;
    let drained =
        |task: &Task| task.status.as_ref().is_some_and(|status| status.draining_spec_ids.is_empty());
    stage.until_task("agent", drained).await;
    assert_eq!(stage.books.released(), ["agent-1"]);
    until_gone(&stage.api::<PodTemplate>(), "agent-1").await;
    stage.close().await;
}

#[tokio::test]
async fn a_broken_bundle_leaves_the_revision_that_works() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    let first = stage.until_task("agent", is_serving).await.status.unwrap().spec_id;
    let trouble = Some("the code cannot be prepared: its sha256 is another".to_owned());
    let broken = SpecStatus { preparing: true, trouble, ..SpecStatus::default() };
    stage.books.stands("agent-2", broken);
    let change = json!({ "spec": { "deployment": { "podTemplate": { "spec": { "containers": [
        { "name": "agent", "image": "agent:2" },
    ] } } } } });
    let tasks = stage.api::<Task>();
    tasks.patch("agent", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    let told = stage.until_task("agent", |task| says(task, "SpecReady", "False", "BundleBroken")).await;
    let status = told.status.unwrap();
    assert_eq!((status.spec_id, status.draining_spec_ids), (first, vec![]));
    let said = agentcube_api::conditions::find(&status.conditions, "SpecReady").unwrap();
    assert!(said.message.contains("its sha256 is another"), "{}", said.message);
    // Once it is prepared it takes over. This provider does not tell of changes; a change of the Task does.
    stage.books.stands("agent-2", SpecStatus::default());
    let nudge = json!({ "metadata": { "annotations": { "look": "again" } } });
    tasks.patch("agent", &PatchParams::default(), &Patch::Merge(&nudge)).await.unwrap();
    let current = |task: &Task| task.status.as_ref().is_some_and(|s| s.spec_id.as_deref() == Some("agent-2"));
    stage.until_task("agent", current).await;
    stage.close().await;
}

/// Longer than the test: whatever the watches have to tell comes too late.
const DEAF: Duration = Duration::from_secs(7200);

#[tokio::test(start_paused = true)]
async fn a_full_pass_finds_what_no_watch_told() {
    let (server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    stage.until_task("agent", is_serving).await;
    let deaf = Plan { lag_watch: 1.0, lag_for: DEAF, ..Plan::default() };
    server.api().faults().set(deaf);
    let begun = tokio::time::Instant::now();
    let (routes, gateways) = (stage.api::<HttpRoute>(), stage.api::<Gateway>());
    let change = json!({ "spec": { "hostnames": ["evil.example.com"] } });
    routes.patch("agent", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    gateways.delete("default", &DeleteParams::default()).await.unwrap();
    loop {
        let route = routes.get("agent").await.unwrap();
        if route.spec.hostnames.is_none() && gateways.get_opt("default").await.unwrap().is_some() {
            break;
        }
        // The clock jumps to whatever is next.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(begun.elapsed() < Duration::from_secs(700), "a full pass comes every ten minutes");
    }
    assert!(begun.elapsed() > Duration::from_secs(500), "something told: {:?}", begun.elapsed());
}

/// A process that would run the controllers.
struct Candidate {
    running: tokio::task::JoinHandle<()>,
    shutdown: CancellationToken,
}

fn candidate(stage: &Stage, identity: &str) -> Candidate {
    let (client, books, shutdown) = (stage.client.clone(), stage.books.clone(), CancellationToken::new());
    let elected = leader::Options::new("default", "agentcube", identity);
    let token = shutdown.clone();
    let running = tokio::spawn(async move {
        let work = |token| Controllers::new(client.clone(), books.clone(), options()).run(token);
        leader::lead(client.clone(), elected, token, work).await.expect("the options are right");
    });
    Candidate { running, shutdown }
}

#[tokio::test(start_paused = true)]
async fn another_goes_on_when_the_leader_dies_or_leaves() {
    let (_server, mut stage) = server().await;
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    let leases = Api::<Lease>::namespaced(stage.client.clone(), "default");
    let leads = |identity: &'static str| {
        move |lease: &Lease| {
            lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) == Some(identity)
        }
    };

    let first = candidate(&stage, "first");
    stage::until(&leases, "agentcube", leads("first")).await;
    let second = candidate(&stage, "second");
    stage.create::<Task>(task("one")).await;
    let one = stage.until_task("one", is_serving).await;

    // Killed in the middle of something, without a word.
    stage.create::<Task>(task("two")).await;
    first.running.abort();
    let two = stage.until_task("two", is_serving).await;
    stage::until(&leases, "agentcube", leads("second")).await;
    assert_eq!(two.status.unwrap().spec_id.as_deref(), Some("two-1"));
    // The new leader found nothing to do where all was well.
    let same = stage.api::<Task>().get("one").await.unwrap();
    assert_eq!(same.resource_version(), one.resource_version());

    // An orderly end hands over at once: sooner than a Lease lapses.
    let third = candidate(&stage, "third");
    second.shutdown.cancel();
    second.running.await.unwrap();
    let left = tokio::time::Instant::now();
    stage::until(&leases, "agentcube", leads("third")).await;
    assert!(left.elapsed() < Duration::from_secs(5), "{:?}", left.elapsed());
    stage.api::<Task>().delete("one", &DeleteParams::default()).await.unwrap();
    until_gone(&stage.api::<Task>(), "one").await;
    third.shutdown.cancel();
    third.running.await.unwrap();
    stage.close().await;
}

fn pod(task: &Task, name: &str, spec: &str, reserved: bool) -> Value {
    let (key, reservation) = if reserved { ("user", "l.1") } else { ("", "") };
    json!({
        "metadata": { "name": name,
            "labels": { labels::TASK: task.name_any(), labels::TASK_UID: task.uid(), labels::SPEC_ID: spec },
            "annotations": { labels::RESERVE_KEY: key, labels::RESERVATION: reservation } },
        "spec": { "containers": [{ "name": "agent", "image": "agent" }] },
    })
}

#[tokio::test]
async fn instances_are_counted() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.create::<Task>(task("agent")).await;
    let agent = stage.until_task("agent", is_serving).await;
    stage.create::<Pod>(pod(&agent, "agent-0", "agent-1", false)).await;
    stage.create::<Pod>(pod(&agent, "agent-1", "agent-1", true)).await;
    let ready =
        json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let pods = stage.api::<Pod>();
    for name in ["agent-0", "agent-1"] {
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
    }
    let counted = |task: &Task| {
        let instances = task.status.as_ref().and_then(|status| status.instances).unwrap_or_default();
        (instances.total, instances.ready, instances.reserved, instances.idle) == (2, 2, 1, 1)
    };
    stage.until_task("agent", counted).await;
    stage.close().await;
}

#[tokio::test]
async fn every_failure_says_which_generation_it_is_about() {
    let (_server, mut stage) = server().await;
    stage.start(options());
    stage.pretend(false);
    stage.create::<TaskGateway>(gateway("default")).await;
    stage.books.fail("agent", Some(SpecError::Invalid("entrypoint is not in the bundle".into())));
    stage.create::<Task>(task("agent")).await;
    let failed = stage.until_task("agent", |task| says(task, SPEC_READY, "False", "SpecInvalid")).await;
    assert_eq!(serde_json::to_value(failed.status.clone().unwrap().phase).unwrap(), "Failed");
    // The current revision is none, as none was ever made.
    assert_eq!(failed.status.unwrap().spec_id, None);

    stage.books.fail("agent", Some(SpecError::Transient("the server is busy".into())));
    let change = json!({ "spec": { "scaling": { "minInstances": 2 } } });
    stage.api::<Task>().patch("agent", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    let late = stage.until_task("agent", |task| says(task, SPEC_READY, "False", "InitializeFailed")).await;
    assert_eq!(serde_json::to_value(late.status.unwrap().phase).unwrap(), "Deploying");
    stage.books.fail("agent", None);
    stage.until_task("agent", is_serving).await;

    let trouble = SpecStatus { trouble: Some("Error: no such module".into()), ..SpecStatus::default() };
    stage.books.stands("agent-2", trouble.clone());
    stage.books.stands("agent-1", trouble);
    let change = json!({ "spec": { "scaling": { "minInstances": 3 } } });
    stage.api::<Task>().patch("agent", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    let failing = stage.until_task("agent", |task| says(task, SPEC_READY, "False", "InstancesFailing")).await;
    let conditions = failing.status.unwrap().conditions;
    let ready = agentcube_api::conditions::find(&conditions, "Ready").unwrap();
    assert!(ready.message.contains("Error: no such module"), "{}", ready.message);
    stage.close().await;
}
