//! The allocation as an annotation: written with the object, moved to status, removed; and never trusted when it does not
//! fit. Names are those of the seed's lists.

use agentcube_api::labels;
use agentcube_api::sandbox::{AllocationInfo, Sandbox, SandboxPhase};
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch};
use serde_json::json;

use crate::stage::{History, NAMESPACE, Stage, ask, phase, run_of, wanted};

fn strong(request: CreateRequest) -> CreateRequest {
    CreateRequest { consistency_mode: ConsistencyMode::Strong.into(), ..request }
}

fn annotated(sandbox: &Sandbox) -> bool {
    sandbox.annotations().contains_key(labels::SANDBOX_ALLOCATION)
}

/// The object is made with its allocation and without a status; then status has the allocation; then the annotation is
/// gone. Nothing of it happens in another order.
async fn goes_step_by_step(history: &mut History, run: &str) {
    let made = history.next(|_| true).await;
    let info = AllocationInfo::from_annotations(Some(made.annotations())).unwrap().expect("it is allocated");
    assert_eq!((info.assigned_pod.as_str(), info.assigned_node.as_str()), ("pool-agent-0", "node-1"));
    assert_eq!(
        (info.sandbox_id.as_str(), info.pool.as_str(), info.namespace.as_str()),
        (run, "pool", NAMESPACE)
    );
    assert!(info.allocated_at.parse::<jiff::Timestamp>().is_ok(), "{info:?}");
    assert_eq!(made.finalizers(), [labels::SANDBOX_FINALIZER]);
    assert!(made.status.as_ref().is_none_or(|status| status.sandbox_id.is_none()), "{:?}", made.status);
    let moved = history.next(|state| run_of(state).is_some()).await;
    assert_eq!((run_of(&moved).as_deref(), annotated(&moved)), (Some(run), true), "status comes first");
    let status = moved.status.unwrap();
    assert_eq!(status.assigned_pod.as_deref(), Some("pool-agent-0"));
    assert_eq!(status.node_name.as_deref(), Some("node-1"));
    let rested = history.next(|state| !annotated(state)).await;
    assert_eq!((run_of(&rested).as_deref(), phase(&rested)), (Some(run), Some(SandboxPhase::Running)));
}

pub(crate) async fn fast_mode_sets_allocation_annotation() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let mut history = stage.history("one").await;
    let created = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap().into_inner();
    assert_eq!((created.sandbox_id.as_str(), created.agent_pod.as_str()), ("one", "pool-agent-0"));
    assert_eq!(created.endpoints, ["192.0.2.1:80"]);
    assert_eq!(stage.agents.runs(), std::slice::from_ref(&created.run_id));
    goes_step_by_step(&mut history, &created.run_id).await;
    stage.until_at_rest(&controller).await;
    assert_eq!((stage.agents.book.begun(), controller.registry.audit().used), (1, 1));
    controller.stop().await;
}

pub(crate) async fn strong_mode_sets_allocation_annotation() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let mut history = stage.history("one").await;
    let created = controller.fastpath.create_sandbox(ask(strong(wanted("one")))).await.unwrap().into_inner();
    // The object was there before the answer.
    stage.sandboxes().get("one").await.unwrap();
    goes_step_by_step(&mut history, &created.run_id).await;
    stage.until_at_rest(&controller).await;
    assert_eq!((stage.agents.book.begun(), controller.registry.audit().used), (1, 1));
    controller.stop().await;
}

pub(crate) async fn move_allocation_to_status() {
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

/// What a condition and an Event say of an allocation.
async fn distrusted(stage: &Stage, name: &str, reason: &str) -> Sandbox {
    let running = stage.until_phase(name, SandboxPhase::Running).await;
    let conditions = &running.status.as_ref().unwrap().conditions;
    let valid = agentcube_api::conditions::find(conditions, "AllocationValid").expect("it is marked");
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", reason));
    assert!(!valid.message.is_empty());
    let event = stage.until_event(name, reason).await;
    assert_eq!((event.type_.as_deref(), event.message.as_ref()), (Some("Warning"), Some(&valid.message)));
    running
}

pub(crate) async fn clear_invalid_allocation_annotation() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    for (name, text) in [("one", "{"), ("two", "null"), ("three", r#"{"assignedPod":"pool-agent-0"}"#)] {
        let annotations = json!({ labels::SANDBOX_ALLOCATION: text, "mine": "1" });
        stage
            .create(name, json!({ "metadata": { "annotations": annotations, "labels": { "mine": "2" } } }))
            .await;
        // Fails closed: it is marked, everybody is asked, and only then is it placed again.
        distrusted(&stage, name, "AllocationCorrupt").await;
    }
    stage.until_at_rest(&controller).await;
    for object in stage.objects().await {
        assert!(!annotated(&object));
        assert_eq!((object.annotations()["mine"].as_str(), object.labels()["mine"].as_str()), ("1", "2"));
    }
    assert_eq!(stage.agents.book.begun(), 3);
    controller.stop().await;
}

pub(crate) async fn forged_allocation_annotation() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.create("one", json!({})).await;
    let first = stage.until_phase("one", SandboxPhase::Running).await;
    let (run, uid) = (run_of(&first).unwrap(), stage.agents.get(0).uid.clone());
    let forge = |pool: &str, uid: &str, run: &str| {
        let info = json!({ "assignedPod": "pool-agent-0", "assignedNode": "", "allocatedAt": "", "pool": pool,
            "namespace": NAMESPACE, "assignedPodUID": uid, "sandboxID": run });
        json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: info.to_string(), "mine": "1" } } })
    };
    // It can choose nothing outside of its pool, nor take another's run, nor be without one.
    for (name, forged) in [
        ("pool", forge("other", &uid, "another")),
        ("run", forge("pool", &uid, &run)),
        ("nameless", forge("pool", "", "another")),
    ] {
        stage.create(name, forged).await;
        let placed = distrusted(&stage, name, "AllocationMismatch").await;
        assert_ne!(run_of(&placed).as_deref(), Some(run.as_str()));
        assert_eq!(placed.annotations()["mine"], "1");
    }
    stage.until_at_rest(&controller).await;
    stage.sandboxes().delete("run", &DeleteParams::default()).await.unwrap();
    stage.until_gone("run").await;
    stage.until_at_rest(&controller).await;
    assert_eq!(run_of(&stage.sandboxes().get("one").await.unwrap()), Some(run));
    assert_eq!(stage.agents.book.begun(), 4);
    controller.stop().await;
}

pub(crate) async fn allocation_already_in_status() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.create("one", json!({})).await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let other = json!({ "assignedPod": "pool-agent-0", "assignedNode": "", "allocatedAt": "", "pool": "pool",
        "namespace": "boxes", "assignedPodUID": stage.agents.get(0).uid, "sandboxID": "another" });
    let patch = json!({ "metadata": { "annotations": { labels::SANDBOX_ALLOCATION: other.to_string(), "mine": "1" } } });
    stage.sandboxes().patch("one", &Default::default(), &Patch::Merge(patch)).await.unwrap();
    let rested = stage
        .until("one", |sandbox| {
            let said = sandbox.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            !sandbox.annotations().contains_key(labels::SANDBOX_ALLOCATION)
                && said.iter().any(|one| one.reason == "AllocationMismatch")
        })
        .await;
    assert_eq!(run_of(&rested), run_of(&running), "status does not follow it");
    assert_eq!(rested.annotations()["mine"], "1");
    stage.until_event("one", "AllocationMismatch").await;
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

pub(crate) async fn foreign_annotations_and_labels_survive_everything() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    let mine = json!({ "annotations": { "mine": "1" }, "labels": { "mine": "2" }, "finalizers": ["example.com/mine"] });
    stage.create("one", json!({ "metadata": mine })).await;
    stage.until_phase("one", SandboxPhase::Running).await;
    stage.agents.get(0).restart();
    stage.until_phase("one", SandboxPhase::Lost).await;
    stage.sandboxes().delete("one", &DeleteParams::default()).await.unwrap();
    let left = stage.until("one", |now| now.finalizers() == ["example.com/mine"]).await;
    assert_eq!((left.annotations()["mine"].as_str(), left.labels()["mine"].as_str()), ("1", "2"));
    let free = json!({ "metadata": { "finalizers": [] } });
    stage.sandboxes().patch("one", &Default::default(), &Patch::Merge(free)).await.unwrap();
    stage.until_gone("one").await;
    assert!(!left.annotations().contains_key(labels::SANDBOX_ALLOCATION));
    controller.stop().await;
}
