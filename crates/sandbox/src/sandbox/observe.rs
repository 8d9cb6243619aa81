//! What is known of one sandbox, from memory: its object, its allocation, and what agents say.

use std::sync::Arc;
use std::time::Duration;

use agentcube_api::Sandbox;
use agentcube_api::sandbox::AllocationInfo;
use agentcube_protos::agent::Entry;
use kube::ResourceExt;

use crate::agents::{Agent, Contact, Run, Seen, name_of};
use crate::core::{Core, pool_of};
use crate::log::Open;
use crate::names::{AgentId, Name, PoolKey, RunId};

/// Everything that a plan goes by.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) object: Option<Arc<Sandbox>>,
    /// The pool exists.
    pub(super) pool: bool,
    /// Every agent of the pool was asked what it runs, or given up.
    pub(super) open: bool,
    /// Every agent of the pool answers, or is dead.
    pub(super) all_heard: bool,
    /// By status.
    pub(super) assigned: Option<Allocated>,
    /// By annotation.
    pub(super) annotated: Annotated,
    /// Runs for this name, wherever, without those that the fast path sees to.
    pub(super) runs: Vec<Claimed>,
    /// A run of this name that the fast path sees to.
    pub(super) pending: Option<RunId>,
    /// Every agent of the pool was asked what it runs by this controller, or is dead.
    pub(super) all_asked: bool,
    /// No create of what the annotation names is under way any more, as far as this controller knows.
    pub(super) born: bool,
    /// The name has to be kept for so long, because a late create of ours may come.
    pub(super) kept_for: Option<Duration>,
    /// How long this controller has been listening.
    pub(super) listening: Duration,
    /// What the log has still to see to.
    pub(super) logged: Option<Logged>,
}

/// An open entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Logged {
    pub(super) agent: AgentId,
    pub(super) run: RunId,
    /// It is to stay deleted; otherwise its object is to be made.
    pub(super) deleted: bool,
    /// Dead if the agent lives another life than the one that the run was meant for.
    pub(super) contact: Contact,
    /// There is such an agent, as far as the fleet knows.
    pub(super) known: bool,
    /// A stop of it was sent, and not answered yet.
    pub(super) condemned: bool,
    /// Every agent of its pool was asked, or given up.
    pub(super) open: bool,
    /// Every agent of its pool was asked.
    pub(super) all_asked: bool,
    /// A create of its object may be under way for so long.
    pub(super) late: Option<Duration>,
}

/// A run at an agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Allocated {
    pub(super) agent: AgentId,
    pub(super) node: String,
    pub(super) run: RunId,
    pub(super) contact: Contact,
    /// It is known to have been started once.
    pub(super) started: bool,
}

/// What the annotation says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Annotated {
    #[default]
    None,
    /// It cannot be read.
    Corrupt(String),
    /// It names what does not fit; `unknown` if it may name an agent that nobody here knows.
    Strange {
        message: String,
        unknown: bool,
    },
    Fits(Allocated),
}

/// A run that an agent says is for this name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claimed {
    pub(super) agent: AgentId,
    pub(super) node: String,
    /// Its pool is that of the agent: its record is believed.
    pub(super) fits: bool,
    /// A stop of it was sent, and not answered yet.
    pub(super) condemned: bool,
    /// For how long its agent has been silent, if for too long.
    pub(super) silent: Option<Duration>,
    pub(super) entry: Entry,
}

impl Claimed {
    pub(super) fn run(&self) -> RunId {
        self.entry.run_id.as_str().into()
    }
}

pub(super) fn observe(core: &Core, name: &Name) -> Observed {
    let object = core.sandboxes.get(&name.namespace, &name.name);
    let pending = core.pending.get(name);
    let runs = core.agents.runs_of(name);
    let own = |run: &Run| pending.as_ref().is_none_or(|create| create.run.as_str() != run.entry.run_id);
    let mut observed = Observed {
        runs: runs.into_iter().filter(own).map(|run| claimed(core, run)).collect(),
        pending: pending.map(|create| create.run),
        logged: logged(core, name),
        kept_for: core.pending.kept_for(name),
        listening: core.begun.elapsed(),
        ..Observed::default()
    };
    if let Some(object) = object {
        let key = pool_of(&object);
        observed.pool = core.pools.get(&key.namespace, &key.name).is_some();
        observed.open = core.is_open(&key);
        observed.all_heard = core.agents.of(&key).iter().all(|agent| is_heard(core, agent));
        observed.all_asked = all_asked(core, &key);
        observed.assigned = assigned(core, &object);
        observed.annotated = annotated(core, &object);
        observed.born = is_born(core, name, &observed.annotated);
        observed.object = Some(object);
    }
    observed
}

fn all_asked(core: &Core, pool: &PoolKey) -> bool {
    core.agents.of(pool).iter().all(|agent| agent.is_synced() || is_dead(core, agent))
}

fn logged(core: &Core, name: &Name) -> Option<Logged> {
    let Open { run, agent, incarnation, deleted, pool, .. } = core.options.log.as_ref()?.of(name)?;
    let known = core.agents.get(&agent.uid);
    let contact = match (core.contact(&agent, &run), &known) {
        (Contact::Heard(_), Some(known)) if known.fence(0).incarnation != incarnation => Contact::Dead,
        (contact, _) => contact,
    };
    let timing = &core.options.timing;
    let since_boot = timing.late.saturating_sub(core.begun.elapsed());
    let born = core.pending.is_born(&run) || since_boot.is_zero();
    Some(Logged {
        contact,
        known: known.is_some(),
        condemned: known.is_some_and(|known| known.is_condemned(&run)),
        open: core.is_open(&pool),
        all_asked: all_asked(core, &pool),
        late: core.pending.kept_for(name).max((!born).then_some(since_boot)),
        agent,
        run,
        deleted,
    })
}

fn is_born(core: &Core, name: &Name, annotated: &Annotated) -> bool {
    let run = match annotated {
        Annotated::Fits(at) => &at.run,
        // It was not made by a create of ours, or somebody has spoilt it since.
        Annotated::None | Annotated::Corrupt(_) | Annotated::Strange { .. } => return true,
    };
    let certain = core.pending.is_born(run) || core.begun.elapsed() >= core.options.timing.late;
    certain && core.pending.get(name).is_none() && core.pending.kept_for(name).is_none()
}

fn is_dead(core: &Core, agent: &Agent) -> bool {
    agent.place.dead || core.fleet.is_dead(agent.id())
}

fn is_heard(core: &Core, agent: &Agent) -> bool {
    is_dead(core, agent) || (agent.is_synced() && agent.silence(core.begun) < core.options.timing.dropped)
}

fn claimed(core: &Core, run: Run) -> Claimed {
    let Run { agent, entry } = run;
    let silence = agent.silence(core.begun);
    Claimed {
        agent: agent.id().clone(),
        node: agent.node(),
        fits: entry.claim.as_ref().is_some_and(|claim| claim.pool == agent.pool.name),
        condemned: agent.is_condemned(&entry.run_id.as_str().into()),
        silent: (silence >= core.options.timing.dropped).then_some(silence),
        entry,
    }
}

fn assigned(core: &Core, object: &Sandbox) -> Option<Allocated> {
    let status = object.status.as_ref()?;
    let run = RunId::from(status.sandbox_id.as_deref()?);
    let name = status.assigned_pod.clone().unwrap_or_default();
    let agent = AgentId { name, uid: status.assigned_pod_uid.clone().unwrap_or_default() };
    let contact = own(core.contact(&agent, &run), object);
    let node = status.node_name.clone().unwrap_or_default();
    Some(Allocated { agent, node, run, contact, started: status.started_at.is_some() })
}

/// A run that another sandbox has is none of this one.
fn own(contact: Contact, object: &Sandbox) -> Contact {
    match contact {
        Contact::Heard(Seen::Entry(entry)) if name_of(entry.claim.as_ref()) != Name::of(object) => {
            Contact::Heard(Seen::Foreign)
        }
        contact => contact,
    }
}

fn annotated(core: &Core, object: &Sandbox) -> Annotated {
    let info = match AllocationInfo::from_annotations(Some(object.annotations())) {
        Ok(None) => return Annotated::None,
        Ok(Some(info)) => info,
        Err(error) => return Annotated::Corrupt(error.to_string()),
    };
    let strange = |message: &str| Annotated::Strange { message: message.into(), unknown: false };
    let key = pool_of(object);
    if info.sandbox_id.is_empty() || info.assigned_pod_uid.is_empty() {
        return strange("it names no run, or no uid of its agent");
    }
    if info.namespace != key.namespace || info.pool != key.name {
        return strange("its pool or namespace is not that of the sandbox");
    }
    let agent = AgentId { name: info.assigned_pod, uid: info.assigned_pod_uid };
    match core.agents.get(&agent.uid) {
        Some(known) if known.pool != key => return strange("its agent belongs to another pool"),
        Some(_) => {}
        None if core.fleet.is_dead(&agent) => {}
        None => {
            let message = format!("nobody knows its agent {}", agent.name);
            return Annotated::Strange { message, unknown: true };
        }
    }
    let run = RunId::from(info.sandbox_id.as_str());
    let contact = own(core.contact(&agent, &run), object);
    if contact == Contact::Heard(Seen::Foreign) {
        return strange("its run belongs to another sandbox");
    }
    Annotated::Fits(Allocated { agent, node: info.assigned_node, run, contact, started: info.started })
}

/// Agents whose runs have an object are told, so that they need not keep its record.
pub(super) fn confirm(core: &Core, observed: &Observed) {
    let (Some(object), Some(assigned)) = (&observed.object, &observed.assigned) else { return };
    if let Contact::Heard(Seen::Entry(entry)) = &assigned.contact
        && !entry.object.is_empty()
        && let Some(agent) = core.agents.get(&assigned.agent.uid)
    {
        agent.confirm(&assigned.run, &object.uid().unwrap_or_default());
    }
}
