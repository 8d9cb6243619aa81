//! Which agent is the best one for a sandbox: the least loaded; one that has to fetch the image first is as bad as a full
//! one, one with a prepared sandbox half a pool better.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{AgentSlots, Want};

const WITHOUT_IMAGE: i64 = 1000;
const PREPARED: i64 = 500;

/// Whether an agent may get new runs at all.
pub(super) fn takes(agent: &AgentSlots) -> bool {
    agent.open.load(Ordering::Acquire) && !agent.draining.load(Ordering::Acquire)
}

/// The best agent with room.
pub(super) fn best<'a>(agents: &'a [Arc<AgentSlots>], want: &Want<'_>) -> Option<&'a Arc<AgentSlots>> {
    let fits = |agent: &&Arc<AgentSlots>| takes(agent) && !want.without.contains(&agent.id);
    let ranked = agents.iter().filter(fits).filter_map(|agent| Some((rank(agent, want.image)?, agent)));
    // Of equals the first by name, so that pools fill from one end and empty at the other.
    ranked.max_by_key(|(rank, agent)| (Reverse(*rank), Reverse(&agent.id))).map(|(_, agent)| agent)
}

/// Less is better; none if there is no room.
fn rank(agent: &AgentSlots, image: &str) -> Option<i64> {
    let (used, capacity) = (agent.used.load(Ordering::Acquire), agent.capacity.load(Ordering::Acquire));
    if used >= capacity {
        return None;
    }
    let load = i64::from(used) * 1000 / i64::from(capacity);
    let fetch = if agent.images.read().contains(image) { 0 } else { WITHOUT_IMAGE };
    let ready = agent.prepared.read().get(image).is_some_and(|count| *count > 0);
    Some(load + fetch - if ready { PREPARED } else { 0 })
}
