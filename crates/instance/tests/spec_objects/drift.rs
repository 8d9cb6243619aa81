//! What others do to the objects of a revision does not stay: neither what they add, nor what no watch told.

use std::convert::Infallible;

use agentcube_api::Task;
use agentcube_instance::provider::{InstanceSpecProvider, Repaired, SpecError};
use agentcube_instance::spec::{Config, Providers};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::world::{World, agent, bundle_task, first, pod_task, set_status};

/// A Task whose instances are closed off, and its revision.
async fn closed(world: &World) -> Task {
    let task = world.closed_task().await;
    assert_eq!(world.initialize(&task, false).await.unwrap(), []);
    task
}

fn restored(kind: &str) -> (String, Repaired) {
    (format!("{kind} agent-1"), Repaired::Restored)
}

/// Opens what is closed off: a way out, and the network of the node.
async fn open(world: &World) {
    let way_out = Patch::Merge(json!({ "spec": { "egress": [{}] } }));
    world.api::<NetworkPolicy>().patch("agent-1", &PatchParams::default(), &way_out).await.unwrap();
    let host = Patch::Merge(json!({ "template": { "spec": { "hostNetwork": true } } }));
    world.api::<PodTemplate>().patch("agent-1", &PatchParams::default(), &host).await.unwrap();
}

async fn assert_closed(world: &World) {
    let policy = world.api::<NetworkPolicy>().get("agent-1").await.unwrap();
    assert_eq!(policy.spec.unwrap().egress, None);
    let revision = serde_json::to_value(world.api::<PodTemplate>().get("agent-1").await.unwrap()).unwrap();
    assert_eq!(revision["template"]["spec"]["hostNetwork"], Value::Null);
}

#[tokio::test]
async fn what_others_add_does_not_stay() {
    let world = World::new(|_| ()).await;
    let task = closed(&world).await;
    open(&world).await;
    let mut repairs = Vec::new();
    let seen = &mut repairs;
    world
        .converge(async || {
            seen.extend(world.initialize(&task, true).await.unwrap());
            (seen.len() == 2).then_some(())
        })
        .await;
    repairs.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(repairs, [restored("NetworkPolicy"), restored("PodTemplate")]);
    assert_closed(&world).await;
    assert_eq!(world.initialize(&task, true).await.unwrap(), []);
}

#[tokio::test]
async fn a_full_pass_finds_what_no_watch_told() {
    let world = World::new(|_| ()).await;
    let task = closed(&world).await;
    world.deafen();
    open(&world).await;
    assert_eq!(world.look(&task, true, false).await.unwrap(), []);
    assert_eq!(
        world.look(&task, true, true).await.unwrap(),
        [restored("NetworkPolicy"), restored("PodTemplate")]
    );
    assert_closed(&world).await;
    world.api::<NetworkPolicy>().delete("agent-1", &DeleteParams::default()).await.unwrap();
    let recreated = ("NetworkPolicy agent-1".to_string(), Repaired::Recreated);
    assert_eq!(world.look(&task, true, true).await.unwrap(), [recreated]);
    assert_eq!(world.look(&task, true, true).await.unwrap(), []);
}

#[tokio::test]
async fn what_is_in_the_way_is_waited_for() {
    let world = World::new(|_| ()).await;
    let task = world.task(pod_task(agent())).await;
    let foreign =
        json!({ "metadata": { "name": "agent-1" }, "template": { "spec": { "containers": agent() } } });
    world.create::<PodTemplate>(foreign).await;
    let refused = world.initialize(&task, false).await;
    assert!(
        matches!(&refused, Err(SpecError::Blocked(message)) if message.contains("delete it")),
        "{refused:?}"
    );
    world.api::<PodTemplate>().delete("agent-1", &DeleteParams::default()).await.unwrap();
    world.initialize(&task, false).await.unwrap();
}

#[tokio::test]
async fn a_job_starts_nothing_before_the_code_is_known_to_be_good() {
    let world = World::new(|_| ()).await;
    let mut spec = bundle_task();
    spec["routing"] = json!({ "routePolicy": "Oneshot" });
    spec["scaling"] = json!({ "scalingMode": "OnDemand", "minInstances": 2, "maxInstances": 9 });
    let task = world.task(spec).await;
    world.initialize(&task, false).await.unwrap();
    let jobs: Api<Job> = world.api();
    assert!(world.status(&task).preparing);
    assert!(jobs.get_opt("agent-1").await.unwrap().is_none());
    set_status(&world.api(), "agent-1-prepare", json!({ "phase": "Succeeded", "containerStatuses": [] }))
        .await;
    world
        .converge(async || {
            world.initialize(&task, true).await.unwrap();
            (!world.status(&task).preparing).then_some(())
        })
        .await;
    world.initialize(&task, true).await.unwrap();
    assert_eq!(jobs.get("agent-1").await.unwrap().name_any(), "agent-1");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_is_named() {
    // A server that never answers; and nothing keeps the caches.
    let silence = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let providers = Providers::new(Client::new(silence, "default"), Config::default());
    let task = json!({ "metadata": { "name": "agent", "namespace": "default", "uid": "u1" }, "spec": pod_task(agent()) });
    let task: Task = serde_json::from_value(task).unwrap();
    let outcome = providers.initialize_spec(&task, &first(), true, false).await;
    let Err(SpecError::Transient(message)) = outcome else { panic!("{outcome:?}") };
    assert!(message.starts_with("Pods cannot be listed"), "{message}");
}
