//! What goes wrong: agents that fall silent, die or lose their answers; an API server that does not answer. Afterwards
//! objects, agents and the registry say the same, and nothing ran twice.

use std::sync::Arc;

use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::agent::Reason;
use agentcube_protos::fastpath::CreateRequest;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use crate::stage::fuse::{Fuse, Weather};
use crate::stage::{NAMESPACE, Stage, ask, phase, run_of, until, unwanted, wanted};

pub(crate) async fn manual_waits_for_somebody() {
    let stage = Stage::open(2).await;
    let mut controller = stage.start().await;
    stage.create("one", json!({})).await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let first = run_of(&running).unwrap();
    stage.agents.get(0).restart();
    let lost = stage.until_phase("one", SandboxPhase::Lost).await;
    assert!(lost.status.unwrap().lost_since.is_some());
    assert_eq!(stage.agents.book.begun(), 1, "nobody decided anything");
    let reset = agentcube_protos::fastpath::UpdateRequest {
        sandbox_id: "one".into(),
        namespace: NAMESPACE.into(),
        change: Some(agentcube_protos::fastpath::update_request::Change::ResetRevision(1)),
        ..Default::default()
    };
    controller.fastpath.update_sandbox(ask(reset)).await.unwrap();
    let again = stage.until_phase("one", SandboxPhase::Running).await;
    assert_ne!(run_of(&again), Some(first));
    assert_eq!(again.status.unwrap().accepted_reset_revision, Some(1));
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn what_is_recreated_runs_elsewhere_and_the_old_run_ends() {
    let stage = Stage::open(2).await;
    let controller = stage.start().await;
    let spec = json!({ "spec": { "failurePolicy": "AutoRecreate", "recoveryTimeoutSeconds": 0 } });
    stage.create("one", spec).await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    let (first, agent) = (run_of(&running), stage.agents.get(0));
    // Out of contact it has its runs stand still, before anybody may start them elsewhere.
    agent.cut(true);
    agent.fence_all();
    let again =
        stage.until("one", |now| run_of(now) != first && phase(now) == Some(SandboxPhase::Running)).await;
    assert_eq!(again.status.as_ref().unwrap().assigned_pod.as_deref(), Some("pool-agent-1"));
    assert!(again.status.unwrap().lost_since.is_none());
    agent.cut(false);
    until("the old run is stopped", async || agent.runs().is_empty().then_some(())).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn heard_again_it_goes_on() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.create("one", json!({ "spec": { "recoveryTimeoutSeconds": 0 } })).await;
    let first = run_of(&stage.until_phase("one", SandboxPhase::Running).await);
    let agent = stage.agents.get(0);
    agent.cut(true);
    agent.fence_all();
    stage.until_phase("one", SandboxPhase::Lost).await;
    agent.cut(false);
    let again = stage.until_phase("one", SandboxPhase::Running).await;
    assert_eq!(run_of(&again), first);
    stage.until_at_rest(&controller).await;
    assert!(agent.entries().iter().all(|entry| !entry.fenced));
    controller.stop().await;
}

pub(crate) async fn every_end_frees_the_slot() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    for (name, reason, wanted) in
        [("exits", "Exited", SandboxPhase::Failed), ("expires", "Expired", SandboxPhase::Expired)]
    {
        stage.create(name, json!({})).await;
        let run = run_of(&stage.until_phase(name, SandboxPhase::Running).await).unwrap();
        stage.agents.get(0).exit(&run, 3, reason);
        let ended = stage.until_phase(name, wanted).await;
        let status = ended.status.unwrap();
        assert_eq!((status.sandbox_id, status.endpoints), (None, vec![]));
        assert_eq!(status.exit_code, (reason == "Exited").then_some(3));
    }
    until("its agent need not remember them", async || {
        stage.agents.get(0).entries().is_empty().then_some(())
    })
    .await;
    until("no slot is held", async || (controller.registry.audit().used == 0).then_some(())).await;
    for name in ["exits", "expires"] {
        stage.sandboxes().delete(name, &DeleteParams::default()).await.unwrap();
        stage.until_gone(name).await;
    }
    controller.stop().await;
}

pub(crate) async fn a_dead_agent_s_sandboxes_come_back_only_if_asked_to() {
    let stage = Stage::open(2).await;
    let controller = stage.start().await;
    stage.create("manual", json!({})).await;
    stage.until_phase("manual", SandboxPhase::Running).await;
    stage.create("auto", json!({ "spec": { "failurePolicy": "AutoRecreate" } })).await;
    let auto = stage.until_phase("auto", SandboxPhase::Running).await;
    stage.agents.kill(0);
    stage.agents.kill(1);
    stage.until_phase("manual", SandboxPhase::Lost).await;
    stage.agents.add(0);
    let again =
        stage.until("auto", |now| run_of(now) != run_of(&auto) && phase(now) == Some(SandboxPhase::Running));
    again.await;
    assert_eq!(phase(&stage.sandboxes().get("manual").await.unwrap()), Some(SandboxPhase::Lost));
    stage.sandboxes().delete("manual", &DeleteParams::default()).await.unwrap();
    stage.until_gone("manual").await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn the_same_request_hears_that_its_sandbox_is_lost() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let request = CreateRequest { request_id: "r1".into(), ..wanted("one") };
    controller.fastpath.create_sandbox(ask(request.clone())).await.unwrap();
    stage.until_phase("one", SandboxPhase::Running).await;
    stage.agents.kill(0);
    stage.until_phase("one", SandboxPhase::Lost).await;
    // Nobody starts it again but its owner: waiting for it would last for ever.
    let lost = controller.fastpath.create_sandbox(ask(request)).await.unwrap_err();
    assert_eq!(lost.code(), Code::FailedPrecondition, "{lost}");
    assert!(lost.message().contains("Lost"), "{lost}");
    controller.stop().await;
}

pub(crate) async fn a_refusal_tries_the_next_and_doubt_tries_nothing() {
    let stage = Stage::open(2).await;
    let mut controller = stage.start().await;
    stage.agents.get(0).refuse(Reason::Full);
    let created = controller.fastpath.create_sandbox(ask(wanted("refused"))).await.unwrap().into_inner();
    assert_eq!(created.agent_pod, "pool-agent-1");
    stage.agents.get(0).lose_answers(1);
    let doubt = controller.fastpath.create_sandbox(ask(wanted("doubtful"))).await.unwrap_err();
    assert_eq!(doubt.code(), Code::Unavailable);
    until("what was in doubt is stopped", async || stage.agents.get(0).runs().is_empty().then_some(())).await;
    let retried = until("its name is free again", async || {
        controller.fastpath.create_sandbox(ask(wanted("doubtful"))).await.ok()
    });
    retried.await;
    until("both are there", async || (stage.objects().await.len() == 2).then_some(())).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn an_object_whose_start_is_in_doubt_is_started_once() {
    let stage = Stage::open(1).await;
    let controller = stage.start().await;
    stage.agents.get(0).lose_answers(2);
    stage.create("one", json!({})).await;
    stage.until_phase("one", SandboxPhase::Running).await;
    stage.until_at_rest(&controller).await;
    assert_eq!(stage.agents.book.begun(), 1);
    controller.stop().await;
}

pub(crate) async fn while_the_api_is_down_fast_creates_go_on_and_objects_follow() {
    let stage = Stage::open(2).await;
    let mut controller = stage.start().await;
    stage.create("before", json!({})).await;
    stage.until_phase("before", SandboxPhase::Running).await;
    stage.weather(Weather::Down);
    for number in 0..4 {
        controller.fastpath.create_sandbox(ask(wanted(&format!("down-{number}")))).await.unwrap();
    }
    let deleted = controller.fastpath.delete_sandbox(ask(unwanted("down-0"))).await;
    let running = stage.agents.book.running();
    for name in ["before", "down-1", "down-2", "down-3"] {
        assert!(running.contains_key(name), "{name} was reclaimed: {running:?}");
    }
    stage.weather(Weather::Fair);
    until("objects follow", async || {
        let named =
            stage.objects().await.iter().filter(|object| object.name_any().starts_with("down")).count();
        (named >= 3).then_some(())
    })
    .await;
    until("what is deleted goes", async || {
        if deleted.is_err() {
            let _ = controller.fastpath.delete_sandbox(ask(unwanted("down-0"))).await;
        }
        stage.sandboxes().get_opt("down-0").await.unwrap().is_none().then_some(())
    })
    .await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn a_new_controller_makes_the_objects_that_are_missing() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    stage.weather(Weather::Down);
    let created = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap().into_inner();
    controller.crash().await;
    stage.weather(Weather::Fair);
    let next = stage.start().await;
    let adopted = stage.until_phase("one", SandboxPhase::Running).await;
    assert_eq!(run_of(&adopted), Some(created.run_id));
    assert!(adopted.annotations().contains_key("sandbox.fast.io/adopted"));
    stage.until_at_rest(&next).await;
    assert_eq!(stage.agents.book.begun(), 1);
    next.stop().await;
}

pub(crate) async fn a_late_create_does_not_bring_back_what_was_deleted() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    // The object is made, and nobody hears of it.
    stage.weather(Weather::Losing);
    controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
    let _ = controller.fastpath.delete_sandbox(ask(unwanted("one"))).await;
    stage.weather(Weather::Fair);
    until("its delete is acknowledged", async || {
        let deleted = controller.fastpath.delete_sandbox(ask(unwanted("one"))).await;
        matches!(deleted.map_err(|status| status.code()), Ok(_) | Err(Code::NotFound)).then_some(())
    })
    .await;
    stage.until_gone("one").await;
    stage.until_at_rest(&controller).await;
    assert!(stage.agents.runs().is_empty());
    controller.stop().await;
}

/// Whoever waits for an agent takes no place: neither from those who wait as well nor from those who need not.
pub(crate) async fn an_agent_that_takes_its_time_keeps_nobody_waiting() {
    let stage = Stage::open(2).await;
    let options = agentcube_sandbox::Options { concurrency: 1, ..Default::default() };
    let (controller, ready) = stage.start_with(&Fuse::never(), options);
    ready.await;
    let slow = stage.agents.get(0);
    slow.hold_starts(true);
    let names: Vec<String> = (0..8).map(|number| format!("box-{number}")).collect();
    for name in &names {
        stage.create(name, json!({})).await;
    }
    until("four wait for the one agent", async || (Arc::strong_count(&slow.held) == 1 + 4).then_some(()))
        .await;
    let quick = stage.agents.get(1);
    until("others run at the other", async || (!quick.runs().is_empty()).then_some(())).await;
    slow.hold_starts(false);
    for name in &names {
        stage.until_phase(name, SandboxPhase::Running).await;
    }
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}
