//! The controllers and the fast path over the embedded API server and agents in memory. Names are those of the seed's
//! lists where it has one.

#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code, reason = "shared with the tests of what goes wrong, which use more of it")]
mod stage;

use agentcube_api::labels;
use agentcube_api::sandbox::{AllocationInfo, SandboxPhase};
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use stage::{Stage, ask, phase, run_of, until, unwanted, wanted};
use tonic::Code;

#[tokio::test]
async fn an_object_comes_to_run_and_goes_without_a_trace() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.create("one", json!({ "spec": { "exposedPorts": [80] } })).await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let status = running.status.clone().unwrap();
    assert_eq!(status.endpoints, ["192.0.2.1:80"]);
    assert_eq!(status.assigned_pod.as_deref(), Some("pool-agent-0"));
    assert_eq!(running.finalizers(), [labels::SANDBOX_FINALIZER]);
    stage.until_at_rest(&controller).await;
    stage.sandboxes().delete("one", &DeleteParams::default()).await.unwrap();
    stage.until_gone("one").await;
    stage.until_at_rest(&controller).await;
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn fast_mode_sets_allocation_annotation() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    // While its agent does not say that it has heard of the object, the annotation stays.
    let created = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap().into_inner();
    assert_eq!((created.sandbox_id.as_str(), created.agent_pod.as_str()), ("one", "pool-agent-0"));
    assert_eq!(created.endpoints, ["192.0.2.1:80"]);
    assert_eq!(stage.agents.runs(), std::slice::from_ref(&created.run_id));
    let object = stage.until("one", |_| true).await;
    assert_eq!(object.finalizers(), [labels::SANDBOX_FINALIZER]);
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    assert_eq!(run_of(&running), Some(created.run_id));
    stage.until_at_rest(&controller).await;
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn strong_mode_sets_allocation_annotation() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let request = CreateRequest { consistency_mode: ConsistencyMode::Strong.into(), ..wanted("one") };
    let created = controller.fastpath.create_sandbox(ask(request)).await.unwrap().into_inner();
    let object = stage.sandboxes().get("one").await.unwrap();
    let annotated = AllocationInfo::from_annotations(Some(object.annotations())).unwrap();
    // The object was there before the answer, with its allocation in one place or the other.
    let run = annotated.map(|info| info.sandbox_id).or(run_of(&object));
    assert_eq!(run, Some(created.run_id));
    stage.until_at_rest(&controller).await;
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn deleted_on_the_fast_path_it_is_gone_with_or_without_an_object() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    for name in ["one", "two", "three"] {
        controller.fastpath.create_sandbox(ask(wanted(name))).await.unwrap();
        controller.fastpath.delete_sandbox(ask(unwanted(name))).await.unwrap();
    }
    until("nothing runs", async || stage.agents.runs().is_empty().then_some(())).await;
    until("no object is left", async || stage.objects().await.is_empty().then_some(())).await;
    stage.until_at_rest(&controller).await;
    let unknown = controller.fastpath.delete_sandbox(ask(unwanted("never"))).await.unwrap_err();
    assert!(matches!(unknown.code(), Code::NotFound | Code::Unavailable), "{unknown}");
    controller.stop().await;
}

#[tokio::test]
async fn move_allocation_to_status() {
    let stage = Stage::open(2).await;
    let agent = stage.agents.get(1);
    let allocation = json!({ "assignedPod": "pool-agent-1", "assignedNode": "node-1", "allocatedAt": "2026-01-01T00:00:00Z",
        "assignedPodUID": agent.uid, "pool": "pool", "namespace": "boxes", "sandboxID": "0123456789abcdef0123456789abcdef" });
    let annotations = json!({ labels::SANDBOX_ALLOCATION: allocation.to_string(), "mine": "1" });
    stage.create("one", json!({ "metadata": { "annotations": annotations } })).await;
    let controller = stage.start().await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    assert_eq!(run_of(&running).as_deref(), Some("0123456789abcdef0123456789abcdef"));
    assert_eq!(running.status.as_ref().unwrap().assigned_pod.as_deref(), Some("pool-agent-1"));
    stage.until_at_rest(&controller).await;
    let rested = stage.sandboxes().get("one").await.unwrap();
    assert_eq!(rested.annotations()["mine"], "1", "what others wrote stays");
    controller.stop().await;
}

#[tokio::test]
async fn invalid_allocation_annotation() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    let corrupt = json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: "{" } } });
    stage.create("one", corrupt).await;
    // Fails closed: it is marked, everybody is asked, and only then is it placed again.
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let conditions = &running.status.as_ref().unwrap().conditions;
    let valid = agentcube_api::conditions::find(conditions, "AllocationValid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "AllocationCorrupt"));
    stage.until_at_rest(&controller).await;
    // A forged one can choose nothing outside of its pool.
    let forged = json!({ "assignedPod": "pool-agent-0", "assignedNode": "", "allocatedAt": "", "pool": "other",
        "namespace": "boxes", "assignedPodUID": stage.agents.get(0).uid, "sandboxID": run_of(&running).unwrap() });
    let forged = json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: forged.to_string() } } });
    stage.create("two", forged).await;
    let second = stage.until_phase("two", SandboxPhase::Running).await;
    assert_ne!(run_of(&second), run_of(&running));
    stage.until_at_rest(&controller).await;
    // Nor can it take another's run.
    let taken = json!({ "assignedPod": "pool-agent-0", "assignedNode": "", "allocatedAt": "", "pool": "pool",
        "namespace": "boxes", "assignedPodUID": stage.agents.get(0).uid, "sandboxID": run_of(&running).unwrap() });
    let taken = json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: taken.to_string() } } });
    stage.create("three", taken).await;
    let third = stage.until_phase("three", SandboxPhase::Running).await;
    assert_ne!(run_of(&third), run_of(&running));
    stage.sandboxes().delete("three", &DeleteParams::default()).await.unwrap();
    stage.until_gone("three").await;
    stage.until_at_rest(&controller).await;
    assert_eq!(run_of(&stage.sandboxes().get("one").await.unwrap()), run_of(&running));
    assert_eq!(stage.agents.book.begun(), 3);
    controller.stop().await;
}

#[tokio::test]
async fn allocation_already_in_status() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.create("one", json!({})).await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let other = json!({ "assignedPod": "pool-agent-0", "assignedNode": "", "allocatedAt": "", "pool": "pool",
        "namespace": "boxes", "assignedPodUID": stage.agents.get(0).uid, "sandboxID": "another" });
    let patch = json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: other.to_string() } } });
    stage.sandboxes().patch("one", &Default::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    let rested = stage
        .until("one", |sandbox| {
            let said = sandbox.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            !sandbox.annotations().contains_key(labels::SANDBOX_ALLOCATION)
                && said.iter().any(|one| one.reason == "AllocationMismatch")
        })
        .await;
    assert_eq!(run_of(&rested), run_of(&running), "status does not follow it");
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn the_same_request_gets_the_same_sandbox() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let request = CreateRequest { request_id: "r1".into(), ..wanted("") };
    let first = controller.fastpath.create_sandbox(ask(request.clone())).await.unwrap().into_inner();
    let again = controller.fastpath.create_sandbox(ask(request.clone())).await.unwrap().into_inner();
    assert_eq!((&again.sandbox_id, &again.run_id, again.existed), (&first.sandbox_id, &first.run_id, true));
    stage.until_at_rest(&controller).await;
    let later = controller.fastpath.create_sandbox(ask(request.clone())).await.unwrap().into_inner();
    assert_eq!((later.run_id, later.existed), (first.run_id, true));
    let other = CreateRequest { image: "another".into(), ..request };
    let refused = controller.fastpath.create_sandbox(ask(other)).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn a_full_pool_says_when_to_ask_again() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    for _ in 0..4 {
        controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap();
    }
    let full = controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(agentcube_protos::refused::retry_of(&full).is_some());
    // An object waits, and has its turn when there is room.
    stage.create("waits", json!({})).await;
    stage.until_phase("waits", SandboxPhase::Pending).await;
    let first =
        stage.objects().await.into_iter().find(|object| object.name_any() != "waits").unwrap().name_any();
    controller.fastpath.delete_sandbox(ask(unwanted(&first))).await.unwrap();
    stage.until_phase("waits", SandboxPhase::Running).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

#[tokio::test]
async fn only_who_has_the_token_gets_in_and_nonsense_is_refused() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let refused = controller.fastpath.create_sandbox(tonic::Request::new(wanted("one"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    for request in [
        CreateRequest { image: String::new(), ..wanted("one") },
        CreateRequest { ports: vec![0], ..wanted("one") },
        wanted("Not A Name"),
        CreateRequest { expire_seconds: -1, ..wanted("one") },
    ] {
        let refused = controller.fastpath.create_sandbox(ask(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    let missing = CreateRequest { pool_ref: "none".into(), ..wanted("one") };
    assert_eq!(controller.fastpath.create_sandbox(ask(missing)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(stage.agents.book.begun(), 0);
    controller.stop().await;
}

#[tokio::test]
async fn created_and_reconciled_at_once_it_is_allocated_once() {
    let stage = Stage::open(3).await;
    let controller = stage.start().await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..10 {
        let mut fastpath = controller.fastpath.clone();
        calls.spawn(async move {
            let mut request = wanted(&format!("box-{number}"));
            if number % 2 == 0 {
                request.consistency_mode = ConsistencyMode::Strong.into();
            }
            fastpath.create_sandbox(ask(request)).await.map(drop)
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    until("all objects are there", async || (stage.objects().await.len() == 10).then_some(())).await;
    stage.until_at_rest(&controller).await;
    assert_eq!((stage.agents.book.begun(), controller.registry.audit().used), (10, 10));
    assert!(stage.objects().await.iter().all(|object| phase(object) == Some(SandboxPhase::Running)));
    controller.stop().await;
}
