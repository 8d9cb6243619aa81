//! One task per agent: asks what it runs, again and again, and passes on what changed. A long poll: the agent answers
//! when there is news, at the latest after a while, which is its sign of life and ours.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::SandboxPool;
use agentcube_protos::agent::{ConfigureRequest, Confirmed, Reason, Shape, SyncRequest, SyncResponse};
use tokio::time::Instant;
use tonic::Status;

use crate::agents::Agent;
use crate::core::Core;
use crate::object;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// How long it is silent, as far as anybody acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Well,
    Unhealthy,
    Dropped,
}

/// Talks to an agent until it is gone.
pub(crate) async fn follow(core: Arc<Core>, agent: Arc<Agent>) {
    let gone = agent.gone.clone();
    tokio::select! {
        biased;
        () = gone.cancelled() => {}
        () = async { tokio::join!(ask(&core, &agent), watch_health(&core, &agent)); } => {}
    }
}

async fn ask(core: &Arc<Core>, agent: &Arc<Agent>) {
    let mut retry = FIRST_RETRY;
    loop {
        match ask_once(core, agent).await {
            Ok(()) => retry = FIRST_RETRY,
            Err(status) => {
                tracing::debug!(agent = agent.id().name, "an agent does not answer: {status}");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LONGEST_RETRY);
            }
        }
    }
}

async fn ask_once(core: &Arc<Core>, agent: &Arc<Agent>) -> Result<(), Status> {
    core.leads()?;
    let timing = &core.options.timing;
    let (seq, known_version) = agent.known();
    let (ack, was_synced) = (if agent.has_given_up() { 0 } else { seq }, agent.is_synced());
    // The first answers are needed at once: an agent starts nothing before one of its answers was acknowledged.
    let settled = was_synced && agent.is_admitted();
    let wait = if settled { timing.sync } else { Duration::ZERO };
    let confirmed = agent.confirmations();
    let asked = agent.ask();
    let request = SyncRequest {
        fence: Some(agent.fence(core.options.term)),
        ack,
        known_version,
        wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        confirmed: confirmed.clone(),
    };
    let asking = tokio::time::timeout(wait + timing.call, agent.place.link.sync(request));
    let answer = tokio::select! {
        biased;
        answer = asking => answer,
        // What is to be told does not wait for news.
        () = agent.has_to_tell(), if settled => return Ok(()),
    };
    let response = answer.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
    if let Some(refusal) = &response.refusal {
        return refused(core, agent, refusal.reason(), &refusal.message);
    }
    heard(core, agent, &response, &confirmed, asked);
    if was_synced && !settled {
        agent.admitted();
        configure(core, agent, false).await?;
        core.registry.take_in(&agent.pool, agent.id(), &agent.inventory(asked));
        core.registry.open(&agent.pool, agent.id(), true);
        core.room(&agent.pool);
    }
    Ok(())
}

fn refused(core: &Core, agent: &Agent, reason: Reason, message: &str) -> Result<(), Status> {
    core.registry.open(&agent.pool, agent.id(), false);
    match reason {
        Reason::OtherIncarnation => {
            // It has ended all it ran and begun anew: ask for all of it.
            agent.names().into_iter().for_each(|name| core.queue.add(name));
            agent.forget();
        }
        Reason::StaleTerm => tracing::error!(
            agent = agent.id().name,
            "an agent obeys a later leader; this one must not lead: {message}"
        ),
        _ => {}
    }
    Err(Status::failed_precondition(format!("{reason:?}: {message}")))
}

fn heard(core: &Core, agent: &Agent, response: &SyncResponse, confirmed: &[Confirmed], asked: u64) {
    let known = agent.confirmed(confirmed);
    let was_lost = agent.silence(core.begun) >= core.options.timing.dropped;
    let mut names = agent.take_in(response, asked);
    if was_lost {
        names = agent.names();
    }
    core.registry.take_in(&agent.pool, agent.id(), &agent.inventory(asked));
    if agent.is_synced() && agent.is_admitted() {
        core.registry.open(&agent.pool, agent.id(), true);
    }
    known.into_iter().for_each(|name| core.queue.add(name));
    if !names.is_empty() {
        names.into_iter().for_each(|name| core.queue.add(name));
        core.room(&agent.pool);
    }
}

/// Says to an agent what its pool wants of it. Of a pool that is gone it only hears whether it goes as well.
pub(crate) async fn configure(core: &Core, agent: &Agent, drain: bool) -> Result<bool, Status> {
    let pool = core.pools.get(&agent.pool.namespace, &agent.pool.name);
    let wanted = pool.as_deref().map(wanted).unwrap_or_default();
    let capacity = wanted.capacity;
    let request = ConfigureRequest { fence: Some(agent.fence(core.options.term)), drain, ..wanted };
    let answer = tokio::time::timeout(core.options.timing.call, agent.place.link.configure(request)).await;
    let response = answer.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
    if let Some(refusal) = response.refusal {
        return Err(Status::failed_precondition(format!("{:?}: {}", refusal.reason(), refusal.message)));
    }
    // It says so itself with its next answer; until then nobody has to wait for it.
    if pool.is_some() {
        agent.configured(capacity, drain);
    }
    Ok(response.empty)
}

fn wanted(pool: &SandboxPool) -> ConfigureRequest {
    let spec = &pool.spec;
    let prepared = spec.prepared.iter().map(|prepared| Shape {
        image: prepared.image.clone(),
        count: prepared.count.max(0).unsigned_abs(),
        resources: object::resources(
            prepared.resources.as_ref().or(object::defaults(pool).resources.as_ref()),
        ),
        read_only_root: prepared.read_only_root,
        egress: object::egress(None, pool).into(),
    });
    ConfigureRequest {
        capacity: spec.max_sandboxes_per_pod.max(0).unsigned_abs(),
        images: spec.images.clone(),
        prepared: prepared.collect(),
        ..ConfigureRequest::default()
    }
}

/// Closes the gate of an agent that is silent, and has its sandboxes looked at.
async fn watch_health(core: &Arc<Core>, agent: &Arc<Agent>) {
    let timing = &core.options.timing;
    let mut was = Health::Well;
    loop {
        let silence = agent.silence(core.begun);
        let (health, next) = match silence {
            silence if silence < timing.unhealthy => (Health::Well, timing.unhealthy - silence),
            silence if silence < timing.dropped => (Health::Unhealthy, timing.dropped - silence),
            _ => (Health::Dropped, timing.sync),
        };
        if health > was {
            core.registry.open(&agent.pool, agent.id(), false);
            core.pool_queue.add(agent.pool.clone());
        }
        if health != was && (health == Health::Dropped || was == Health::Dropped) {
            agent.names().into_iter().for_each(|name| core.queue.add(name));
        }
        was = health;
        tokio::time::sleep_until(Instant::now() + next.max(Duration::from_millis(1))).await;
    }
}
