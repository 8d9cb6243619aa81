//! What is reported of a SandboxPool. Pure.

use agentcube_api::SandboxPool;
use agentcube_api::conditions::{self, FALSE, READY, TRUE, Update, sandbox as reasons};
use agentcube_api::sandbox::SandboxPoolStatus;
use agentcube_api::sandbox::pool::{AgentCounts, SandboxCounts};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{Observed, Seen};

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn status(pool: &SandboxPool, seen: &Observed, wanted: u32, now: Timestamp) -> SandboxPoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let alive: Vec<&Seen> = seen.agents.iter().filter(|agent| !agent.dead).collect();
    let count = |which: &dyn Fn(&Seen) -> bool| number(alive.iter().filter(|agent| which(agent)).count());
    let sum = |which: &dyn Fn(&Seen) -> u32| {
        i32::try_from(alive.iter().map(|agent| which(agent)).sum::<u32>()).unwrap_or(i32::MAX)
    };
    let agents = AgentCounts {
        wanted: i32::try_from(wanted).unwrap_or(i32::MAX),
        total: number(alive.len()),
        ready: count(&|agent| agent.ready),
        empty: count(&|agent| agent.used == 0),
        draining: count(&|agent| agent.draining),
    };
    status.agents = Some(agents);
    status.sandboxes = Some(SandboxCounts {
        active: sum(&|agent| agent.used),
        pending: i32::try_from(seen.pending).unwrap_or(i32::MAX),
        free_slots: i32::try_from(seen.free).unwrap_or(i32::MAX),
        paused: sum(&|agent| agent.paused),
        prepared: sum(&|agent| agent.prepared),
    });
    let ready = agents.ready >= agents.wanted;
    let message =
        if ready { String::new() } else { format!("{} of {} agents answer", agents.ready, agents.wanted) };
    let update = Update {
        type_: READY,
        status: if ready { TRUE } else { FALSE },
        reason: if ready { reasons::REASON_RUNNING } else { reasons::REASON_AGENTS_MISSING },
        message,
        observed_generation: pool.metadata.generation,
    };
    conditions::set(&mut status.conditions, update, &Time(now));
    status.observed_generation = pool.metadata.generation;
    status
}
