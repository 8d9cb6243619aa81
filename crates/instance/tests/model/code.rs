//! Lets the routers of the model be driven by the very function that drives real ones, [`bind::decide`]: what the model
//! knows is put into its terms, and the step that it takes is taken in the model.

use std::time::Duration;

use agentcube_instance::identity::{InstanceId, SessionKey, SpecId};
use agentcube_instance::record;
use agentcube_instance::reserve::bind::{self, Candidate, HolderView, LeaseView, Situation};
use agentcube_instance::timing::Timing;
use jiff::Timestamp;

use super::Setup;
use super::router::Next;
use super::server::{Bond, Change, Hold, Instance, Lease, Life, Pod, Write};
use super::state::{Clock, Flow, Router};

/// Every clock shows this; what was long ago was at the beginning.
const NOW: Duration = Duration::from_secs(3600);
/// The model counts every pointing of every Lease of a key in one row, so all of them may have one UID.
const LEASE: &str = "lease";

/// What the request for this key may do next, as the code has it.
pub(crate) fn next(it: &Router, me: usize, key: usize, setup: &Setup, abandoned: bool) -> Vec<Next> {
    let Some(flow) = it.flows[key] else { return Vec::new() };
    let idle: Vec<Instance> = it.idle(setup).collect();
    let mut steps: Vec<Next> = match idle.is_empty() {
        true => decided(it, me, key, flow, abandoned, None).into_iter().collect(),
        false => idle.iter().filter_map(|at| decided(it, me, key, flow, abandoned, Some(*at))).collect(),
    };
    // Starting instances is the pool's business, for whoever waits as a binder.
    let waits = it.leases[key].is_some_and(|lease| lease.holder.is_none() && lease.binder == Some(me));
    if waits && !it.leases[key].is_some_and(|lease| lease.ending) {
        let empty = (0..setup.slots).filter(|slot| it.pods[*slot].is_none());
        steps.extend(empty.map(|slot| Next::Write(Write::CreatePod { slot })));
    }
    steps.dedup();
    steps
}

fn decided(
    it: &Router,
    me: usize,
    key: usize,
    flow: Flow,
    abandoned: bool,
    idle: Option<Instance>,
) -> Option<Next> {
    let lease = it.leases[key];
    let session = lease.map(|lease| session(key, lease));
    let bond = lease.and_then(|lease| lease.holder);
    let held = bond.and_then(|bond| it.pod(bond)).map(|pod| instance(bond_slot(bond), pod));
    let given = idle.and_then(|at| it.pods[at.slot].map(|pod| instance(at.slot, pod)));
    let since = if abandoned { Duration::ZERO } else { NOW };
    let situation = Situation {
        me: &name(Some(me)),
        now: NOW,
        timing: &Timing::default(),
        lease: session.as_ref().map_or(LeaseView::Absent, |session| LeaseView::Seen { session, since }),
        holder: match &held {
            Some(instance) => HolderView::Seen { instance, fresh: flow.fresh },
            None if flow.fresh => HolderView::Gone,
            None => HolderView::Unknown,
        },
        candidate: given.as_ref().map_or(Candidate::Awaited, Candidate::Given),
        sent: (flow.clock == Clock::Prompt).then_some(NOW),
        took: flow.took,
    };
    let step = bind::decide(&situation);
    taken(it, step, me, key, idle)
}

/// A step of the code as one of the model's.
fn taken(it: &Router, step: bind::Step, me: usize, key: usize, idle: Option<Instance>) -> Option<Next> {
    let (lease, binder) = (it.leases[key], Some(me));
    let change = |change| {
        let expect = lease?.version;
        Some(Next::Write(Write::ChangeLease { key, expect, change }))
    };
    let bond = lease.and_then(|lease| lease.holder);
    let version = |bond: Bond| it.pods[bond.instance.slot].map(|pod| pod.version);
    match step {
        bind::Step::Serve | bind::Step::Wait { .. } | bind::Step::Ask | bind::Step::ReadLease => None,
        bind::Step::ReadHolder => Some(Next::ReadPod(bond?.instance.slot)),
        bind::Step::Create { holder } => {
            Some(Next::Write(Write::CreateLease { key, at: idle.filter(|_| holder.is_some()), binder }))
        }
        bind::Step::Point { .. } => change(Change::Point { at: idle, binder }),
        bind::Step::Claim { .. } => change(Change::Point { at: None, binder }),
        bind::Step::TakeOver => change(Change::Bind { binder }),
        bind::Step::Confirm => match lease?.binder == binder {
            true => change(Change::Bind { binder }),
            false => change(Change::Unmark),
        },
        bind::Step::TakePod => {
            let (slot, hold) = (bond?.instance.slot, Hold { key, bond: bond?.id });
            Some(Next::Write(Write::Hold { slot, expect: version(bond?), hold }))
        }
        bind::Step::KeepPod => {
            Some(Next::Write(Write::KeepPod { slot: bond?.instance.slot, expect: version(bond?)? }))
        }
        bind::Step::DeleteInstance => {
            Some(Next::Write(Write::DeletePod { slot: bond?.instance.slot, expect: version(bond?)? }))
        }
    }
}

fn bond_slot(bond: Option<Bond>) -> usize {
    bond.map_or(0, |bond| bond.instance.slot)
}

fn name(binder: Option<usize>) -> String {
    binder.map_or_else(String::new, |router| format!("router-{router}"))
}

fn key_of(key: usize) -> SessionKey {
    SessionKey::new(&format!("key-{key}")).expect("this is a key")
}

fn id(slot: usize, uid: u8) -> InstanceId {
    InstanceId { name: format!("agent-{slot}").into(), uid: format!("{slot}.{uid}").into() }
}

fn session(key: usize, lease: Lease) -> record::Session {
    record::Session {
        namespace: "prod".into(),
        task_uid: "task".into(),
        key: key_of(key),
        uid: LEASE.into(),
        version: lease.version.into(),
        holder: lease.holder.map(|bond| id(bond.instance.slot, bond.instance.uid)),
        binding: lease.holder.map_or(-1, |bond| bond.id.into()),
        binder: name(lease.binder).into(),
        created: Timestamp::UNIX_EPOCH,
        renewed: Timestamp::UNIX_EPOCH,
        releasing: lease.releasing,
        ending: lease.ending,
        interrupted: lease.interrupted,
    }
}

fn instance(slot: usize, pod: Pod) -> record::Instance {
    let held = |hold: Hold| record::Hold::Held {
        key: key_of(hold.key),
        reservation: record::Reservation { lease: LEASE.into(), binding: hold.bond.into() },
    };
    record::Instance {
        namespace: "prod".into(),
        id: id(slot, pod.uid),
        version: pod.version.into(),
        task_uid: "task".into(),
        spec_id: SpecId("agent-1".into()),
        slot: u32::try_from(slot).ok(),
        address: Some([10, 0, 0, 1].into()),
        life: match pod.life {
            Life::Starting => record::Life::Starting,
            Life::Ready => record::Life::Ready,
            Life::Unready => record::Life::Unready,
            Life::Terminating => record::Life::Terminating,
            Life::Dead => record::Life::Dead,
        },
        hold: pod.hold.map_or(record::Hold::Free, held),
        releasing: pod.releasing,
        created_for: None,
        created: Timestamp::UNIX_EPOCH,
        last_active: None,
    }
}
