//! A controller that dies after each of its effects, alone or with its agent, with and without the log: the next one finds
//! everything, and what was acknowledged holds.

use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest};
use agentcube_sandbox::Options;
use kube::ResourceExt;
use serde_json::json;

use crate::stage::fuse::Fuse;
use crate::stage::{self, Stage, ask, run_of, server, unwanted, wanted};

pub(super) fn strong(request: CreateRequest) -> CreateRequest {
    CreateRequest { consistency_mode: ConsistencyMode::Strong.into(), ..request }
}

/// What happens to one sandbox, until somebody dies.
async fn story(
    stage: &Stage,
    controller: &mut stage::Controller,
    fuse: &Fuse,
    request: CreateRequest,
) -> Acknowledged {
    let mut told = Acknowledged::default();
    let name = request.name.clone();
    let created = fuse.effect(controller.fastpath.create_sandbox(ask(request)));
    match Box::pin(alive(fuse, created)).await {
        Ok(created) => told.created = Some(created.unwrap().into_inner().run_id),
        Err(()) => return told,
    }
    // Another one by its object, and the first one away again.
    stage.create("by-object", json!({})).await;
    if alive(fuse, stage.until_phase("by-object", SandboxPhase::Running)).await.is_err() {
        return told;
    }
    told.deleting = true;
    let deleted = fuse.effect(controller.fastpath.delete_sandbox(ask(unwanted(&name))));
    told.deleted = matches!(alive(fuse, deleted).await, Ok(Ok(_)));
    told
}

/// What a client was told.
#[derive(Debug, Default)]
struct Acknowledged {
    created: Option<String>,
    /// It has asked for the end.
    deleting: bool,
    deleted: bool,
}

/// What comes, unless the controller dies first.
pub(super) async fn alive<T>(fuse: &Fuse, work: impl Future<Output = T>) -> Result<T, ()> {
    tokio::select! {
        biased;
        // Nobody hears what was said by the dead.
        done = work => if fuse.blown.is_cancelled() { Err(()) } else { Ok(done) },
        () = fuse.blown.cancelled() => Err(()),
    }
}

/// Who dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deaths {
    Controller,
    Both,
}

/// Has somebody die after each effect in turn, until one survives. On a server that all stages share every third has to
/// be enough; where each has its own, several die at once.
pub(super) async fn after_each_effect(first: u64, one: impl AsyncFn(u64) -> bool) {
    let (at_once, apart) = if server::is_own() { (4, 1) } else { (1, 3) };
    let mut next = if server::is_own() { 1 } else { first };
    loop {
        let some = (0..at_once).map(|number| Box::pin(one(next + number * apart)));
        if futures_util::future::join_all(some).await.contains(&true) {
            return;
        }
        next += at_once * apart;
    }
}

/// Dies after so many effects; then another controller finds everything. Whether the story came to its end before.
async fn dies_after(
    effects: u64,
    mode: fn(CreateRequest) -> CreateRequest,
    logs: bool,
    deaths: Deaths,
) -> bool {
    let stage = Stage::open(1).await;
    let stage = if logs { stage.logging() } else { stage };
    let fuse = Fuse::after(effects);
    let (mut controller, ready) = stage.start_with(&fuse, Options::default());
    let mut told = Acknowledged::default();
    if alive(&fuse, ready).await.is_ok() {
        told = Box::pin(story(&stage, &mut controller, &fuse, mode(wanted("one")))).await;
    }
    if told.deleted {
        let _ = alive(&fuse, stage.until_at_rest(&controller)).await;
    }
    let survived = !fuse.blown.is_cancelled();
    controller.crash().await;
    if deaths == Deaths::Both {
        stage.agents.get(0).restart();
    }
    let next = stage.start().await;
    // Whatever was acknowledged runs, or is lost with its agent.
    let phases = match deaths {
        Deaths::Controller => vec![SandboxPhase::Running],
        Deaths::Both => vec![SandboxPhase::Running, SandboxPhase::Lost],
    };
    // An object that is still to be written from the log is not missed by anybody who only compares.
    let held = told.created.as_ref().filter(|_| !told.deleting);
    if let Some(run) = held {
        stage.until("one", |sandbox| run_of(sandbox).as_ref() == Some(run)).await;
    }
    stage.until_at_rest_with(&next, &phases).await;
    let objects = stage.objects().await;
    let there = objects.iter().find(|object| object.name_any() == "one");
    if told.deleted {
        assert!(there.is_none(), "after {effects} effects: back from the dead");
    } else if let Some(run) = held {
        assert_eq!(there.and_then(run_of).as_ref(), Some(run), "after {effects} effects: lost");
    }
    next.stop().await;
    if survived {
        assert!(told.deleted, "the story came to its end");
        assert!(effects > 8, "the story has more effects than {effects}");
    }
    survived
}

pub(crate) async fn fast_after_each_effect() {
    after_each_effect(1, async |effects| dies_after(effects, plain, false, Deaths::Controller).await).await;
}

pub(crate) async fn fast_after_each_effect_with_the_log() {
    after_each_effect(2, async |effects| dies_after(effects, plain, true, Deaths::Controller).await).await;
}

pub(crate) async fn fast_after_each_effect_of_controller_and_agent_with_the_log() {
    after_each_effect(3, async |effects| dies_after(effects, plain, true, Deaths::Both).await).await;
}

pub(crate) async fn strong_after_each_effect() {
    after_each_effect(1, async |effects| dies_after(effects, strong, false, Deaths::Controller).await).await;
}

pub(crate) async fn strong_after_each_effect_of_controller_and_agent() {
    after_each_effect(3, async |effects| dies_after(effects, strong, false, Deaths::Both).await).await;
}

pub(crate) async fn strong_after_each_effect_with_the_log() {
    after_each_effect(2, async |effects| dies_after(effects, strong, true, Deaths::Controller).await).await;
}

fn plain(request: CreateRequest) -> CreateRequest {
    request
}
