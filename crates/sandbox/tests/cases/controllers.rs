//! What goes well: objects and the fast path, limits and refusals.

use agentcube_api::labels;
use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use crate::stage::{Stage, ask, phase, until, unwanted, wanted};

pub(crate) async fn an_object_comes_to_run_and_goes_without_a_trace() {
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

pub(crate) async fn deleted_on_the_fast_path_it_is_gone_with_or_without_an_object() {
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

pub(crate) async fn the_same_request_gets_the_same_sandbox() {
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

pub(crate) async fn a_full_pool_says_when_to_ask_again() {
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

pub(crate) async fn only_who_has_the_token_gets_in_and_nonsense_is_refused() {
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

pub(crate) async fn created_and_reconciled_at_once_it_is_allocated_once() {
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
