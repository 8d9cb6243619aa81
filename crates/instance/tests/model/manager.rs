//! What the lifecycle manager decides. It judges the truth: a manager that is behind, or one of two, is one whose
//! writes arrive late, and those are among the stray ones.

use super::server::{Bond, Change, Hold, Instance, Lease, Life, Write};
use super::state::{Clock, State};
use super::{Flaw, Setup};

/// Why a write is made; what is counted as idle or ended by hand is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    Idle,
    Hard,
    Reaped,
    /// A step that always follows.
    Duty,
}

pub(crate) fn next(state: &State, setup: &Setup) -> Vec<(Reason, Write)> {
    if setup.flaw == Flaw::NoLease {
        return Vec::new();
    }
    let of_leases = (0..setup.keys).flat_map(|key| of_lease(state, setup, key));
    of_leases.chain((0..setup.slots).flat_map(|slot| of_pod(state, setup, slot))).collect()
}

/// Whether the binder of a Lease has left it alone for GRACE.
pub(crate) fn is_abandoned(state: &State, key: usize, lease: Lease) -> bool {
    lease
        .binder
        .and_then(|router| state.routers[router].flows[key])
        .is_none_or(|flow| flow.clock != Clock::Prompt)
}

fn of_lease(state: &State, setup: &Setup, key: usize) -> Vec<(Reason, Write)> {
    let Some(lease) = state.server.leases[key] else { return Vec::new() };
    let change = |change| Write::ChangeLease { key, expect: lease.version, change };
    let seen = state.all_saw_lease(key) || setup.flaw == Flaw::NoAcknowledgement;
    if lease.ending {
        let give_back = seen.then(|| give_back(state, setup, key, lease)).flatten();
        return give_back.map(|write| (Reason::Duty, write)).into_iter().collect();
    }
    let mut writes = Vec::new();
    if state.budget.hard > 0 {
        writes.push((Reason::Hard, change(Change::Delete)));
    }
    let unused = state.routers.iter().all(|router| router.flows[key].is_none());
    match lease.holder {
        None if unused && is_abandoned(state, key, lease) => {
            writes.push((Reason::Duty, change(Change::Delete)))
        }
        None => {}
        Some(_) if lease.releasing && seen => writes.push((Reason::Duty, change(Change::Delete))),
        Some(_) if lease.releasing => {}
        // What is not bound and wanted by nobody ends for being idle, some time.
        Some(_) if unused && !state.server.is_bound(key) => writes.push((Reason::Duty, change(Change::Mark))),
        Some(_) if state.budget.idle > 0 => writes.push((Reason::Idle, change(Change::Mark))),
        Some(_) => {}
    }
    writes
}

/// The session ends and every router has seen it: the instance, then the finalizer.
fn give_back(state: &State, setup: &Setup, key: usize, lease: Lease) -> Option<Write> {
    let remove = Write::ChangeLease { key, expect: lease.version, change: Change::RemoveFinalizer };
    let Some(Bond { instance, id }) = lease.holder else { return Some(remove) };
    let hold = Hold { key, bond: id };
    let Some(pod) = state.server.pod(instance).filter(|pod| pod.hold == Some(hold)) else {
        return Some(remove);
    };
    match pod.life {
        Life::Dead => Some(remove),
        Life::Terminating => (!lease.interrupted).then_some(remove),
        _ if lease.interrupted || !setup.reuse => {
            Some(Write::DeletePod { slot: instance.slot, expect: pod.version })
        }
        _ => Some(Write::Free { slot: instance.slot, hold }),
    }
}

fn of_pod(state: &State, setup: &Setup, slot: usize) -> Option<(Reason, Write)> {
    let pod = state.server.pods[slot]?;
    let expect = pod.version;
    let instance = Instance { slot, uid: pod.uid };
    let leftover = pod.hold.is_some_and(|hold| {
        let bond = state.server.leases[hold.key].and_then(|lease| lease.holder);
        bond != Some(Bond { instance, id: hold.bond })
    });
    match pod.life {
        Life::Dead => Some((Reason::Duty, Write::DeletePod { slot, expect })),
        Life::Terminating => None,
        _ if pod.releasing && (leftover || pod.hold.is_none()) => {
            let seen = state.all_saw_pod(slot) || setup.flaw == Flaw::NoAcknowledgement;
            seen.then_some((Reason::Duty, Write::DeletePod { slot, expect }))
        }
        _ if leftover => Some((Reason::Duty, Write::MarkPod { slot, expect })),
        Life::Ready if pod.hold.is_none() && state.budget.reaped > 0 => {
            Some((Reason::Reaped, Write::MarkPod { slot, expect }))
        }
        _ => None,
    }
}
