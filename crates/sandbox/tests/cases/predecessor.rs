//! What the public system that the seeds describe has got wrong, one case each. Others are in `faults`
//! (`manual_waits_for_somebody`) and `annotations` (`foreign_annotations_and_labels_survive_everything`).

use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::agent::Reason;
use agentcube_protos::fastpath::{CreateRequest, FailurePolicy};
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use super::deaths::strong;
use super::pools::{members, resize};
use crate::stage::fuse::{Fuse, Weather};
use crate::stage::{Stage, ask, phase, run_of, until, unwanted, wanted};

/// There the annotation is never removed.
pub(crate) async fn recovery_does_not_bind_to_the_dead_agent() {
    for mode in [|request| request, strong] {
        let stage = Stage::open(2).await;
        let mut controller = stage.start().await;
        let request = CreateRequest { failure_policy: FailurePolicy::AutoRecreate.into(), ..wanted("one") };
        let created = controller.fastpath.create_sandbox(ask(mode(request))).await.unwrap().into_inner();
        assert_eq!(created.agent_pod, "pool-agent-0");
        stage.until_at_rest(&controller).await;
        let dead = stage.agents.get(0).uid.clone();
        stage.agents.kill(0);
        let again = stage.until("one", |now| {
            run_of(now).as_ref() != Some(&created.run_id) && phase(now) == Some(SandboxPhase::Running)
        });
        assert_ne!(again.await.status.unwrap().assigned_pod_uid, Some(dead));
        stage.until_at_rest(&controller).await;
        controller.stop().await;
    }
}

/// There it is never read.
pub(crate) async fn the_recovery_timeout_is_honoured() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    for (name, seconds) in [("patient", 3600), ("hasty", 0)] {
        let spec = json!({ "failurePolicy": "AutoRecreate", "recoveryTimeoutSeconds": seconds });
        stage.create(name, json!({ "spec": spec })).await;
        stage.until_phase(name, SandboxPhase::Running).await;
    }
    let (patient, hasty) =
        (stage.sandboxes().get("patient").await.unwrap(), stage.sandboxes().get("hasty").await.unwrap());
    resize(&stage, json!({ "poolMin": 2, "poolMax": 2 })).await;
    until("there is another agent", async || (stage.agents.count() == 2).then_some(())).await;
    let agent = stage.agents.get(0);
    agent.cut(true);
    agent.fence_all();
    let moved = stage
        .until("hasty", |now| run_of(now) != run_of(&hasty) && phase(now) == Some(SandboxPhase::Running));
    assert_eq!(moved.await.status.unwrap().assigned_pod.as_deref(), Some("pool-agent-1"));
    let waits = stage.until_phase("patient", SandboxPhase::Lost).await;
    assert_eq!(run_of(&waits), run_of(&patient));
    agent.cut(false);
    let back = stage.until_phase("patient", SandboxPhase::Running).await;
    assert_eq!(run_of(&back), run_of(&patient));
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

/// There an agent crashes. What an agent itself says to it is `unknown_ids_are_answered` of the agent.
pub(crate) async fn deleting_what_nobody_knows_harms_nobody() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
    until("it is certain that there is none", async || {
        let answer = controller.fastpath.delete_sandbox(ask(unwanted("never"))).await.unwrap_err();
        assert!(matches!(answer.code(), Code::NotFound | Code::Unavailable), "{answer}");
        (answer.code() == Code::NotFound).then_some(())
    })
    .await;
    // And twice, of one that was there.
    controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
    stage.until_gone("one").await;
    until("it stays gone", async || {
        let answer = controller.fastpath.delete_sandbox(ask(unwanted("one"))).await;
        (answer.unwrap_err().code() == Code::NotFound).then_some(())
    })
    .await;
    controller.fastpath.create_sandbox(ask(wanted("two"))).await.unwrap();
    stage.until_phase("two", SandboxPhase::Running).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

/// There agents in use are deleted.
pub(crate) async fn scaling_down_spares_agents_in_use() {
    let stage = Stage::open(0).await;
    resize(&stage, json!({ "poolMin": 3, "poolMax": 3, "bufferMin": 0, "bufferMax": 0 })).await;
    let (mut controller, ready) = stage.start_with(&Fuse::never(), members());
    ready.await;
    until("there are three", async || (stage.agents.count() == 3).then_some(())).await;
    let mut used = std::collections::BTreeSet::new();
    until("two agents are in use", async || {
        let created = controller.fastpath.create_sandbox(ask(wanted(""))).await.ok();
        used.extend(created.map(|created| created.into_inner().agent_pod));
        (used.len() >= 2).then_some(())
    })
    .await;
    let before = stage.agents.book.begun();
    resize(&stage, json!({ "poolMin": 0, "poolMax": 1, "bufferMin": 0, "bufferMax": 0 })).await;
    until("whoever is empty goes", async || (stage.agents.count() == used.len()).then_some(())).await;
    stage.until_at_rest(&controller).await;
    let runs = stage.agents.runs().len();
    assert_eq!(
        (stage.agents.count(), runs, stage.agents.book.begun()),
        (used.len(), before as usize, before)
    );
    controller.stop().await;
}

/// There its slot is lost.
pub(crate) async fn deleting_a_failed_sandbox_frees_its_slot() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    // More often than there are slots.
    for number in 0..6 {
        let name = format!("box-{number}");
        if number % 2 == 0 {
            let created = controller.fastpath.create_sandbox(ask(wanted(&name))).await.unwrap().into_inner();
            stage.until_phase(&name, SandboxPhase::Running).await;
            stage.agents.get(0).exit(&created.run_id, 1, "Exited");
        } else {
            stage.agents.get(0).refuse(Reason::StartFailed);
            stage.create(&name, json!({})).await;
        }
        stage.until_phase(&name, SandboxPhase::Failed).await;
        stage.sandboxes().delete(&name, &DeleteParams::default()).await.unwrap();
        stage.until_gone(&name).await;
    }
    until("no slot is held", async || (controller.registry.audit().used == 0).then_some(())).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

/// There it is given back twice, and the agent gets more than it has room for.
pub(crate) async fn a_failed_strong_create_frees_its_slot_once() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    controller.fastpath.create_sandbox(ask(wanted("stays"))).await.unwrap();
    stage.until_at_rest(&controller).await;
    // The agent refuses; and the API server does.
    stage.agents.get(0).refuse(Reason::StartFailed);
    let failed = controller.fastpath.create_sandbox(ask(strong(wanted("refused")))).await;
    assert!(
        failed.is_err()
            || phase(&stage.sandboxes().get("refused").await.unwrap()) != Some(SandboxPhase::Failed)
    );
    stage.weather(Weather::Down);
    let unmade = controller.fastpath.create_sandbox(ask(strong(wanted("unmade")))).await.unwrap_err();
    assert_eq!(unmade.code(), Code::Unavailable, "{unmade}");
    stage.weather(Weather::Fair);
    controller.fastpath.delete_sandbox(ask(unwanted("refused"))).await.unwrap();
    stage.until_gone("refused").await;
    until("one slot is held", async || (controller.registry.audit().used == 1).then_some(())).await;
    for _ in 0..3 {
        controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap();
    }
    let full = controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "it has room for four");
    until("all objects are there", async || (stage.objects().await.len() == 4).then_some(())).await;
    stage.until_at_rest(&controller).await;
    let audit = controller.registry.audit();
    assert_eq!((audit.used, audit.mismatched), (4, 0));
    controller.stop().await;
}
