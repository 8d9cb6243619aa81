//! How many agents a pool should have, and what to do about it. Pure.

use agentcube_api::sandbox::SandboxPoolSpec;

use crate::names::AgentId;

/// What is known of a pool's agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Observed {
    /// In the order of their places.
    pub(super) agents: Vec<Seen>,
    /// Sandboxes that wait for a slot, and creates that were refused lately.
    pub(super) pending: u32,
    pub(super) free: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: AgentId,
    pub(super) index: u32,
    pub(super) ready: bool,
    pub(super) dead: bool,
    pub(super) draining: bool,
    pub(super) used: u32,
    pub(super) paused: u32,
    pub(super) prepared: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Has an agent in this place.
    Add(u32),
    /// Has an agent take sandboxes again.
    Undrain(AgentId),
    /// Removes an agent, if it is empty.
    Remove(AgentId),
    /// Clears away what is left of a dead one.
    Clear(AgentId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) wanted: u32,
    pub(super) operations: Vec<Operation>,
}

/// How many agents there should be.
pub(super) fn wanted(spec: &SandboxPoolSpec, active: u32, pending: u32) -> u32 {
    let number = |value: i32| value.max(0).unsigned_abs();
    let capacity = &spec.capacity;
    let needed = active.saturating_add(pending).saturating_add(number(capacity.buffer_min));
    let agents = needed.div_ceil(number(spec.max_sandboxes_per_pod).max(1));
    let (least, most) = (number(capacity.pool_min), number(capacity.pool_max));
    agents.clamp(least.min(most), most)
}

/// What to do. Without a spec the pool is gone, and so are its agents as soon as they are empty.
pub(super) fn plan(seen: &Observed, spec: Option<&SandboxPoolSpec>) -> Plan {
    let dead = seen.agents.iter().filter(|agent| agent.dead).map(|agent| Operation::Clear(agent.id.clone()));
    let mut operations: Vec<Operation> = dead.collect();
    let alive: Vec<&Seen> = seen.agents.iter().filter(|agent| !agent.dead).collect();
    let Some(spec) = spec else {
        let empty = alive.iter().filter(|agent| agent.ready && agent.used == 0);
        operations.extend(empty.map(|agent| Operation::Remove(agent.id.clone())));
        return Plan { wanted: 0, operations };
    };
    let active: u32 = alive.iter().map(|agent| agent.used).sum();
    let wanted = wanted(spec, active, seen.pending);
    let mut there = u32::try_from(alive.len()).unwrap_or(u32::MAX);
    // Who was about to go and is needed again, or never got empty, takes sandboxes again.
    let back = alive.iter().filter(|agent| agent.ready && agent.draining);
    let back = back.filter(|agent| agent.used > 0 || there <= wanted);
    operations.extend(back.map(|agent| Operation::Undrain(agent.id.clone())));
    let most = spec.capacity.pool_max.max(0).unsigned_abs();
    for index in 0..most {
        if there >= wanted {
            break;
        }
        if seen.agents.iter().all(|agent| agent.index != index) {
            operations.push(Operation::Add(index));
            there += 1;
        }
    }
    operations.extend(shrink(seen, &alive, spec, wanted).map(Operation::Remove));
    Plan { wanted, operations }
}

/// The one agent that goes next: empty, in the highest place, while there are more free slots than are to be kept.
fn shrink(seen: &Observed, alive: &[&Seen], spec: &SandboxPoolSpec, wanted: u32) -> Option<AgentId> {
    let number = |value: i32| value.max(0).unsigned_abs();
    let capacity = &spec.capacity;
    let keep = number(capacity.buffer_max.unwrap_or(capacity.buffer_min)).max(number(capacity.buffer_min));
    let each = number(spec.max_sandboxes_per_pod);
    let there = u32::try_from(alive.len()).unwrap_or(u32::MAX);
    if seen.pending > 0 || there <= wanted || seen.free <= keep {
        return None;
    }
    // With one fewer there still have to be as many as are to be kept at least.
    let enough = seen.free.saturating_sub(each) >= number(capacity.buffer_min);
    let highest = alive.iter().rev().find(|agent| agent.ready && agent.used == 0);
    highest.filter(|_| enough).map(|agent| agent.id.clone())
}
