//! DeleteSandbox. An acknowledged delete lasts: if an object may still come from a create of ours, it is made first, so
//! that there is something to delete, and its name is kept until nothing can come any more.

use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::agent::Why;
use agentcube_protos::refused::retry_after;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::of_api;
use crate::core::Core;
use crate::names::Name;
use crate::object;
use crate::pending::{Create, Fate, Made, allocated_run};

pub(super) async fn delete(core: &Arc<Core>, name: &Name) -> Result<(), Status> {
    let _one = core.locks.lock(name).await;
    let pending = core.pending.get(name);
    let log = core.options.log.as_ref();
    if log.and_then(|log| log.of(name)).is_some_and(|open| open.deleted) {
        // That was promised before.
        return Ok(());
    }
    match &pending {
        Some(create) if create.fate == Fate::Kept && log.is_some() => {
            return delete_logged(core, name, create).await;
        }
        Some(create) if create.fate != Fate::Kept => return Err(unsettled("it is being stopped")),
        Some(create) if !create.doubt => return delete_unmade(core, name, create).await,
        Some(create) => {
            make(core, name, create).await?;
        }
        None => {}
    }
    let known = core.sandboxes.get(&name.namespace, &name.name);
    let object = match known {
        Some(object) => Some(object),
        None => core.refresh(name).await.map_err(of_api)?,
    };
    let object = object.ok_or_else(|| unknown(core, name))?;
    if let Some(create) = pending
        && allocated_run(&object).as_ref() != Some(&create.run)
    {
        // Another one has its name; ours was stopped.
        return Ok(());
    }
    let preconditions = Preconditions { uid: object.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let answer = core.answered(core.api(&name.namespace).delete(&name.name, &parameters)).await;
    match answer {
        Ok(answer) => core.sandboxes.deleted(&object, answer.left()),
        Err(error) if error.is_stale() => {
            // Gone, or another one by now.
            let now = core.refresh(name).await.map_err(of_api)?;
            if now.is_some_and(|now| now.uid() == object.uid()) {
                return Err(of_api(error));
            }
        }
        Err(error) => return Err(of_api(error)),
    }
    core.queue.add(name.clone());
    Ok(())
}

/// That it is deleted is on disk before anybody is told, and lasts whatever comes: an object that was sent, a restart.
async fn delete_logged(core: &Arc<Core>, name: &Name, create: &Create) -> Result<(), Status> {
    let Some(log) = &core.options.log else { return Ok(()) };
    let logged = log.deleted(&create.run).await;
    logged.map_err(|error| {
        retry_after(Code::Unavailable, format!("it is not deleted: {error}"), Duration::from_secs(1))
    })?;
    if create.doubt {
        core.pending.keep_name(name, Instant::now() + core.options.timing.late);
    } else {
        core.pending.born(&create.run);
    }
    core.pending.fate(name, Fate::Stopped(Why::Deleted));
    let claim = Some(object::claim(&create.object));
    if core.stop(&create.agent, &create.run, claim, Why::Deleted).await.is_err() {
        core.abandon(name.clone(), create, Why::Deleted);
        return Ok(());
    }
    core.pending.remove(name, &create.run);
    // No request to make its object was ever sent, and whoever else had this name was settled before it got it.
    if !create.doubt && core.agents.runs_of(name).is_empty() {
        core.pending.grown(&create.run);
        log.done(&create.run);
    }
    core.queue.add(name.clone());
    Ok(())
}

/// No object can come: it is enough to stop the run.
async fn delete_unmade(core: &Arc<Core>, name: &Name, create: &Create) -> Result<(), Status> {
    let claim = Some(object::claim(&create.object));
    match core.stop(&create.agent, &create.run, claim, Why::Deleted).await {
        Ok(()) => {
            core.pending.remove(name, &create.run);
            Ok(())
        }
        Err(status) => {
            core.abandon(name.clone(), create, Why::Deleted);
            Err(unsettled(&format!("its agent has not confirmed that it is stopped: {}", status.message())))
        }
    }
}

/// An object may come: it is made, so that nothing comes later.
async fn make(core: &Arc<Core>, name: &Name, create: &Create) -> Result<(), Status> {
    match core.make_once(name, create).await {
        Made::Over => Ok(()),
        Made::Silence | Made::Refused => {
            core.abandon(name.clone(), create, Why::Deleted);
            Err(unsettled(
                "it is being stopped; its object may still appear, because the API server does not answer",
            ))
        }
    }
}

/// That there is none is only certain when every agent was asked, and nothing that was sent before can come any more.
fn unknown(core: &Core, name: &Name) -> Status {
    let agents = core.agents.all();
    let mut here = agents.iter().filter(|agent| agent.pool.namespace == name.namespace && !agent.place.dead);
    let asked = here.all(|agent| agent.is_synced());
    let logged = core.options.log.as_ref().is_some_and(|log| log.of(name).is_some());
    if logged
        || !asked
        || core.begun.elapsed() < core.options.timing.late
        || core.pending.kept_for(name).is_some()
    {
        return unsettled("there is none that is known, but one may still appear");
    }
    Status::not_found(format!("there is no sandbox {}", name.name))
}

fn unsettled(message: &str) -> Status {
    retry_after(Code::Unavailable, format!("{message}; ask again"), Duration::from_secs(1))
}
