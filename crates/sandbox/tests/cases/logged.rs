//! What the log is for: what FAST has acknowledged outlives the controller and the agent, and what it has deleted stays so.

use agentcube_api::labels;
use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::fastpath::{CreateRequest, FailurePolicy};
use agentcube_sandbox::Options;
use kube::ResourceExt;
use tonic::Code;

use super::deaths::{after_each_effect, alive, strong};
use crate::stage::fuse::{Fuse, Weather};
use crate::stage::{Stage, ask, phase, run_of, until, unwanted, wanted};

/// A create that was answered while its object could not be made.
async fn acknowledged(stage: &Stage, request: CreateRequest) -> String {
    let mut controller = stage.start().await;
    stage.weather(Weather::Down);
    let created = controller.fastpath.create_sandbox(ask(request)).await.unwrap().into_inner();
    controller.crash().await;
    stage.weather(Weather::Fair);
    created.run_id
}

pub(crate) async fn an_acknowledged_create_outlives_controller_and_agent() {
    after_each_effect(1, async |effects| {
        let stage = Stage::open(1).await.logging();
        let fuse = Fuse::after(effects);
        let (mut controller, ready) = stage.start_with(&fuse, Options::default());
        let mut told = None;
        if alive(&fuse, ready).await.is_ok() {
            let created = controller.fastpath.create_sandbox(ask(wanted("one")));
            told = alive(&fuse, created).await.ok().map(|created| created.unwrap().into_inner().run_id);
            let _ = alive(&fuse, stage.until_at_rest(&controller)).await;
        }
        let survived = !fuse.blown.is_cancelled();
        controller.crash().await;
        // Its Pod is gone for good, or it begins anew.
        if effects % 2 == 0 {
            stage.agents.kill(0);
            stage.agents.add(0);
        } else {
            stage.agents.get(0).restart();
        }
        let mut next = stage.start().await;
        if told.is_some() {
            let lost = stage.until_phase("one", SandboxPhase::Lost).await;
            assert_eq!(run_of(&lost), told, "after {effects} effects");
        }
        stage.until_at_rest_with(&next, &[SandboxPhase::Lost]).await;
        assert!(stage.agents.runs().is_empty(), "nobody has started it again");
        // It is like any other: a delete is acknowledged and lasts.
        if told.is_some() {
            next.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
            stage.until_gone("one").await;
        }
        next.stop().await;
        survived
    })
    .await;
}

pub(crate) async fn what_comes_back_by_itself_runs_again_after_both_have_died() {
    let stage = Stage::open(1).await.logging();
    let again = CreateRequest { failure_policy: FailurePolicy::AutoRecreate.into(), ..wanted("one") };
    let first = acknowledged(&stage, again).await;
    stage.agents.kill(0);
    stage.agents.add(0);
    let next = stage.start().await;
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    assert_ne!(run_of(&running), Some(first));
    assert!(running.annotations().contains_key("sandbox.fast.io/adopted"));
    stage.until_event("one", "Adopted").await;
    stage.until_at_rest(&next).await;
    next.stop().await;
    // Nothing is left in the log: the next one does nothing.
    let last = stage.start().await;
    stage.until_at_rest(&last).await;
    assert_eq!((stage.objects().await.len(), stage.agents.book.begun()), (1, 2));
    last.stop().await;
}

pub(crate) async fn a_create_that_was_logged_and_not_started_is_settled() {
    for dies in [false, true] {
        let stage = Stage::open(1).await.logging();
        let fuse = Fuse::never();
        let (controller, ready) = stage.start_with(&fuse, Options::default());
        ready.await;
        stage.agents.get(0).hold_starts(true);
        let before = stage.log_length();
        let mut fastpath = controller.fastpath.clone();
        let create = tokio::spawn(async move { fastpath.create_sandbox(ask(wanted("one"))).await.map(drop) });
        until("it is in the log", async || (stage.log_length() > before).then_some(())).await;
        // The start never arrives.
        fuse.blown.cancel();
        create.abort();
        let _ = create.await;
        controller.crash().await;
        stage.agents.get(0).drop_held_starts();
        if dies {
            stage.agents.get(0).restart();
        }
        let mut next = stage.start().await;
        if dies {
            // Nobody can tell it from one that was answered.
            stage.until_phase("one", SandboxPhase::Lost).await;
            stage.until_at_rest_with(&next, &[SandboxPhase::Lost]).await;
        } else {
            let created = until("its name is free", async || {
                next.fastpath.create_sandbox(ask(wanted("one"))).await.ok()
            });
            let created = created.await.into_inner();
            assert!(!created.existed);
            stage.until_phase("one", SandboxPhase::Running).await;
            stage.until_at_rest(&next).await;
        }
        assert_eq!(stage.agents.book.begun(), u32::from(!dies));
        next.stop().await;
    }
}

pub(crate) async fn a_create_that_was_started_and_not_logged_is_adopted_or_gone() {
    for dies in [false, true] {
        let stage = Stage::open(1).await.logging();
        let fuse = Fuse::never();
        let (controller, ready) = stage.start_with(&fuse, Options::default());
        ready.await;
        stage.trouble.hold(true);
        let mut fastpath = controller.fastpath.clone();
        let create = tokio::spawn(async move { fastpath.create_sandbox(ask(wanted("one"))).await.map(drop) });
        until("it is started", async || (stage.agents.book.begun() == 1).then_some(())).await;
        assert!(!create.is_finished(), "nothing is acknowledged that is not in the log");
        fuse.blown.cancel();
        create.abort();
        let _ = create.await;
        stage.trouble.hold(false);
        controller.crash().await;
        if dies {
            stage.agents.get(0).restart();
        }
        let next = stage.start().await;
        if !dies {
            stage.until_phase("one", SandboxPhase::Running).await;
        }
        stage.until_at_rest(&next).await;
        assert_eq!(stage.objects().await.len(), usize::from(!dies));
        next.stop().await;
    }
}

pub(crate) async fn a_full_disk_refuses_fast_creates_and_leaves_nothing() {
    let stage = Stage::open(1).await.logging();
    let mut controller = stage.start().await;
    stage.trouble.full(true);
    for _ in 0..3 {
        let refused = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    }
    let refused = controller.fastpath.create_sandbox(ask(wanted("two"))).await.unwrap_err();
    assert!(refused.message().contains("log of sandboxes cannot be written"), "{refused}");
    assert!(agentcube_protos::refused::retry_of(&refused).is_some());
    until("nothing runs for nobody", async || stage.agents.runs().is_empty().then_some(())).await;
    // What does not need the log goes on.
    let strong =
        controller.fastpath.create_sandbox(ask(strong(wanted("strong")))).await.unwrap().into_inner();
    stage.until_phase("strong", SandboxPhase::Running).await;
    stage.trouble.full(false);
    let created = until("the disk is tried again", async || {
        controller.fastpath.create_sandbox(ask(wanted("one"))).await.ok()
    });
    let created = created.await.into_inner();
    stage.until_phase("one", SandboxPhase::Running).await;
    stage.until_at_rest(&controller).await;
    controller.crash().await;
    let next = stage.start().await;
    stage.until_at_rest(&next).await;
    let mut runs = [created.run_id, strong.run_id];
    runs.sort();
    assert_eq!(stage.agents.runs(), runs);
    next.stop().await;
}

pub(crate) async fn a_delete_without_an_object_outlives_controller_and_agent() {
    for silent in [false, true] {
        let stage = Stage::open(1).await.logging();
        let mut controller = stage.start().await;
        stage.weather(Weather::Down);
        controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
        let agent = stage.agents.get(0);
        agent.cut(silent);
        // Neither the API server nor, if it is silent, the agent: the log is enough.
        controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
        assert_eq!(agent.runs().len(), usize::from(silent));
        controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.map(drop).or_else(gone).unwrap();
        controller.crash().await;
        stage.weather(Weather::Fair);
        agent.cut(false);
        if !silent {
            agent.restart();
        }
        let next = stage.start().await;
        until("nothing runs", async || stage.agents.runs().is_empty().then_some(())).await;
        stage.until_at_rest(&next).await;
        assert!(stage.objects().await.is_empty(), "back from the dead");
        next.stop().await;
        let last = stage.start().await;
        stage.until_at_rest(&last).await;
        assert!(stage.objects().await.is_empty(), "back from the dead");
        last.stop().await;
    }
}

/// That there is none, or that nobody knows yet, are answers to a delete that is repeated.
fn gone(status: tonic::Status) -> Result<(), tonic::Status> {
    if matches!(status.code(), Code::NotFound | Code::Unavailable) { Ok(()) } else { Err(status) }
}

pub(crate) async fn a_delete_in_doubt_takes_the_object_along() {
    let stage = Stage::open(1).await.logging();
    let mut controller = stage.start().await;
    // The object is made, and nobody hears of it.
    stage.weather(Weather::Losing);
    controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
    let object = stage.until("one", |_| true).await;
    assert!(object.annotations().contains_key(labels::SANDBOX_ALLOCATION));
    let _ = controller.fastpath.delete_sandbox(ask(unwanted("one"))).await;
    controller.crash().await;
    stage.weather(Weather::Fair);
    stage.agents.get(0).restart();
    let mut next = stage.start().await;
    until("its delete is acknowledged", async || {
        let deleted = next.fastpath.delete_sandbox(ask(unwanted("one"))).await;
        matches!(deleted.map_err(|status| status.code()), Ok(_) | Err(Code::NotFound)).then_some(())
    })
    .await;
    stage.until_gone("one").await;
    stage.until_at_rest(&next).await;
    assert!(stage.agents.runs().is_empty());
    next.stop().await;
}

pub(crate) async fn an_open_deletion_blocks_the_name() {
    let stage = Stage::open(2).await.logging();
    let mut controller = stage.start().await;
    stage.weather(Weather::Down);
    let first = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap().into_inner();
    let agent = stage.agents.get(0);
    assert_eq!(agent.runs(), std::slice::from_ref(&first.run_id));
    agent.cut(true);
    controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
    stage.weather(Weather::Fair);
    // It may still run where nobody hears of it: another agent does not get its name.
    for mode in [|request| request, strong] {
        let blocked = controller.fastpath.create_sandbox(ask(mode(wanted("one")))).await.unwrap_err();
        assert_eq!(blocked.code(), Code::Unavailable, "{blocked}");
    }
    controller.crash().await;
    let mut next = stage.start().await;
    let blocked = next.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap_err();
    assert_eq!(blocked.code(), Code::Unavailable, "{blocked}");
    agent.cut(false);
    let again =
        until("its name is free again", async || next.fastpath.create_sandbox(ask(wanted("one"))).await.ok());
    assert_ne!(again.await.into_inner().run_id, first.run_id);
    let running = stage.until_phase("one", SandboxPhase::Running).await;
    assert_eq!(phase(&running), Some(SandboxPhase::Running));
    stage.until_at_rest(&next).await;
    next.stop().await;
}

pub(crate) async fn a_finalizer_waits_until_the_log_has_let_go() {
    let stage = Stage::open(1).await.logging();
    let mut controller = stage.start().await;
    controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
    // That its object is there does not get into the log.
    stage.trouble.full(true);
    stage.until_at_rest(&controller).await;
    controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
    until("it is stopped", async || stage.agents.runs().is_empty().then_some(())).await;
    controller.crash().await;
    stage.agents.get(0).restart();
    stage.trouble.full(false);
    let next = stage.start().await;
    stage.until_gone("one").await;
    stage.until_at_rest(&next).await;
    next.stop().await;
    let last = stage.start().await;
    stage.until_at_rest(&last).await;
    assert!(stage.objects().await.is_empty(), "back from the dead");
    last.stop().await;
}
