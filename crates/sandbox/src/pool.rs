//! The controller of SandboxPool: as many agents as are wanted, never one that is in use taken away, and counts.

mod plan;
mod status;

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::SandboxPool;
use agentcube_api::sandbox::SandboxPhase;
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::agents::Agent;
use crate::core::{ApiError, Core, pool_of};
use crate::fleet::FleetError;
use crate::link;
use crate::names::{AgentId, PoolKey};
use plan::{Observed, Operation, Seen};

/// How often counts are looked at, which change without a change of the pool.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Why a pool could not be brought on; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the agents could not be changed: {0}")]
    Fleet(#[from] FleetError),
    #[error("an agent is in doubt: {0}")]
    Agent(#[from] tonic::Status),
}

pub(crate) async fn reconcile(core: Arc<Core>, key: PoolKey) -> Result<Requeue, Error> {
    if !*core.ready.borrow() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let pool = core.pools.get(&key.namespace, &key.name);
    let observed = observe(&core, &key, pool.as_deref());
    let plan = plan::plan(&observed, pool.as_deref().map(|pool| &pool.spec));
    for operation in &plan.operations {
        apply(&core, &key, pool.as_deref(), operation).await?;
    }
    let Some(pool) = pool else {
        return Ok(if observed.agents.is_empty() { Requeue::No } else { Requeue::After(LOOK_EVERY) });
    };
    let observed = observe(&core, &key, Some(&pool));
    let status = status::status(&pool, &observed, plan.wanted, Timestamp::now());
    if pool.status.as_ref() != Some(&status) {
        let new = SandboxPool { status: Some(status), ..(*pool).clone() };
        let api: Api<SandboxPool> = Api::namespaced(core.client.clone(), &key.namespace);
        match core.answered(api.replace_status(&pool.name_any(), &PostParams::default(), &new)).await {
            Ok(written) => core.pools.put(written),
            Err(error) if error.is_stale() => return Ok(Requeue::After(Duration::from_millis(50))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Requeue::After(LOOK_EVERY))
}

fn observe(core: &Core, key: &PoolKey, pool: Option<&SandboxPool>) -> Observed {
    let mut agents: Vec<Seen> = core.agents.of(key).iter().map(|agent| seen(core, agent)).collect();
    agents.sort_by_key(|agent| agent.index);
    let sandboxes = core.sandboxes.list(Some(&key.namespace));
    let own = sandboxes.iter().filter(|sandbox| pool.is_some() && pool_of(sandbox) == *key);
    let phases =
        own.map(|sandbox| sandbox.status.as_ref().and_then(|status| status.phase).unwrap_or_default());
    let waiting = phases.filter(|phase| *phase == SandboxPhase::Pending).count();
    let pending = waiting.max(core.waiting.count(key)) + core.demand.within(key, core.options.timing.demand);
    Observed { agents, pending: u32::try_from(pending).unwrap_or(u32::MAX), free: core.registry.free(key) }
}

fn seen(core: &Core, agent: &Arc<Agent>) -> Seen {
    let well = agent.is_synced() && agent.silence(core.begun) < core.options.timing.unhealthy;
    let (paused, prepared) = agent.counts();
    Seen {
        id: agent.id().clone(),
        index: agent.place.index,
        ready: well && !agent.place.dead,
        dead: agent.place.dead || core.fleet.is_dead(agent.id()),
        draining: agent.is_draining(),
        used: core.registry.used(&agent.pool, agent.id()),
        paused: u32::try_from(paused).unwrap_or(u32::MAX),
        prepared,
    }
}

async fn apply(
    core: &Arc<Core>,
    key: &PoolKey,
    pool: Option<&SandboxPool>,
    operation: &Operation,
) -> Result<(), Error> {
    match operation {
        Operation::Add(index) => {
            if let Some(pool) = pool {
                core.fleet.add(pool, *index).await?;
                core.look_at_places(key);
            }
        }
        Operation::Undrain(id) => {
            if let Some(agent) = core.agents.get(&id.uid) {
                link::configure(core, &agent, false).await?;
                core.registry.drain(key, id, false);
                core.room(key);
            }
        }
        Operation::Remove(id) => remove(core, key, id).await?,
        Operation::Clear(id) => {
            if let Some(agent) = core.agents.get(&id.uid) {
                core.fleet.remove(&agent.place).await?;
                core.look_at_places(key);
            }
        }
    }
    Ok(())
}

/// Removes an agent that is empty. It says so itself, and takes nothing from then on; the registry does not offer it
/// any more before it is asked.
async fn remove(core: &Arc<Core>, key: &PoolKey, id: &AgentId) -> Result<(), Error> {
    let Some(agent) = core.agents.get(&id.uid) else { return Ok(()) };
    core.registry.drain(key, id, true);
    let empty = match link::configure(core, &agent, true).await {
        Ok(empty) => empty && core.registry.used(key, id) == 0,
        Err(status) => {
            core.registry.drain(key, id, false);
            return Err(status.into());
        }
    };
    if empty {
        core.fleet.remove(&agent.place).await?;
        core.look_at_places(key);
    } else {
        link::configure(core, &agent, false).await?;
        core.registry.drain(key, id, false);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
