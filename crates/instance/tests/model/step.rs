//! The steps of the model: which are possible in a state, and what each does.

use super::manager::{self, Reason};
use super::router::Next;
use super::server::{Bond, Change, Instance, Life, Write};
use super::state::{Clock, Flow, Presence, ROUTERS, State};
use super::{Flaw, Setup};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A request arrives at a router.
    Request {
        router: usize,
        key: usize,
    },
    /// It is sent to the instance that memory gives.
    Serve {
        router: usize,
        key: usize,
    },
    Finish {
        router: usize,
        key: usize,
    },
    /// The router writes, and hears what became of it.
    Write {
        router: usize,
        key: usize,
        write: Write,
    },
    /// The router writes, and does not hear of it any more.
    Lose {
        router: usize,
        key: usize,
        write: Write,
    },
    ReadPod {
        router: usize,
        key: usize,
        slot: usize,
    },
    /// The router objects to the end of a session that it serves.
    Object {
        router: usize,
        key: usize,
        write: Write,
    },
    WatchLeases {
        router: usize,
    },
    WatchPods {
        router: usize,
    },
    Late {
        router: usize,
        key: usize,
    },
    Crash {
        router: usize,
    },
    Restart {
        router: usize,
    },
    Register {
        router: usize,
    },
    Cut {
        router: usize,
    },
    Heal {
        router: usize,
    },
    /// It serves no longer, since it was not heard of.
    Expire {
        router: usize,
    },
    /// The others take it for dead.
    GiveUp {
        router: usize,
    },
    Return {
        router: usize,
    },
    Manage {
        reason: Reason,
        write: Write,
    },
    LoseManage {
        reason: Reason,
        write: Write,
    },
    /// A stray write arrives.
    Arrive {
        index: usize,
    },
    Live {
        slot: usize,
        life: Option<Life>,
    },
}

pub(crate) fn possible(setup: &Setup, state: &State, steps: &mut Vec<Step>) {
    for router in 0..ROUTERS {
        for key in 0..setup.keys {
            requests(setup, state, router, key, steps);
        }
        presence(setup, state, router, steps);
    }
    for (reason, write) in manager::next(state, setup) {
        steps.push(Step::Manage { reason, write });
        if state.budget.lost > 0 {
            steps.push(Step::LoseManage { reason, write });
        }
    }
    steps.extend((0..state.stray.len()).map(|index| Step::Arrive { index }));
    (0..setup.slots).for_each(|slot| lives(state, slot, steps));
}

fn requests(setup: &Setup, state: &State, router: usize, key: usize, steps: &mut Vec<Step>) {
    let it = &state.routers[router];
    let hit = it.hit(key, setup.flaw);
    let flow = it.flows[key];
    if state.budget.requests[key] > 0 && flow.is_none() && it.serves() {
        steps.push(Step::Request { router, key });
    }
    if it.in_flight[key].is_some() {
        steps.push(Step::Finish { router, key });
    }
    if let (Some(_), Some(instance)) = (flow, hit)
        && it.in_flight[key].is_none_or(|other| other == instance)
    {
        steps.push(Step::Serve { router, key });
    }
    if !it.reaches() {
        return;
    }
    if hit.is_none() {
        let lease = state.server.leases[key];
        let abandoned = lease.is_some_and(|lease| manager::is_abandoned(state, key, lease));
        for next in it.next(router, key, setup, abandoned || setup.flaw == Flaw::NoGrace) {
            match next {
                Next::ReadPod(slot) => steps.push(Step::ReadPod { router, key, slot }),
                Next::Write(write) => {
                    steps.push(Step::Write { router, key, write });
                    if state.budget.lost > 0 {
                        steps.push(Step::Lose { router, key, write });
                    }
                }
            }
        }
    }
    if let Some(write) = it.objection(key, setup.flaw) {
        steps.push(Step::Object { router, key, write });
    }
    if state.budget.late > 0 && flow.is_some_and(|flow| flow.clock == Clock::Prompt) {
        steps.push(Step::Late { router, key });
    }
}

fn presence(setup: &Setup, state: &State, router: usize, steps: &mut Vec<Step>) {
    let it = &state.routers[router];
    match it.presence {
        Presence::Up => {
            watches(setup, state, router, steps);
            if state.budget.crashes > 0 {
                steps.push(Step::Crash { router });
            }
            if state.budget.cuts > 0 {
                steps.push(Step::Cut { router });
            }
            if it.dead {
                steps.push(Step::Register { router });
            }
        }
        Presence::Cut => steps.extend([Step::Heal { router }, Step::Expire { router }]),
        Presence::Expired => steps.push(Step::Return { router }),
        Presence::Down => steps.push(Step::Restart { router }),
    }
    if matches!(it.presence, Presence::Expired | Presence::Down) && !it.dead {
        steps.push(Step::GiveUp { router });
    }
}

/// Watching that would bring nothing new is no step: it does not keep a state from being the last.
fn watches(setup: &Setup, state: &State, router: usize, steps: &mut Vec<Step>) {
    let it = &state.routers[router];
    let due = |key: usize| state.server.leases[key].is_some_and(|lease| lease.releasing || lease.ending);
    let news = |key: usize| due(key) && !it.acked_leases[key] && it.objection(key, setup.flaw).is_none();
    if it.leases != state.server.leases || (0..setup.keys).any(news) {
        steps.push(Step::WatchLeases { router });
    }
    let marked = |slot: usize| state.server.pods[slot].is_some_and(|pod| pod.releasing);
    if it.pods != state.server.pods || (0..setup.slots).any(|slot| marked(slot) && !it.acked_pods[slot]) {
        steps.push(Step::WatchPods { router });
    }
}

fn lives(state: &State, slot: usize, steps: &mut Vec<Step>) {
    let Some(pod) = state.server.pods[slot] else { return };
    let mut live = |life| steps.push(Step::Live { slot, life });
    match pod.life {
        Life::Starting | Life::Unready => live(Some(Life::Ready)),
        Life::Terminating => live(None),
        Life::Ready | Life::Dead => {}
    }
    if pod.life == Life::Ready && state.budget.unready > 0 {
        live(Some(Life::Unready));
    }
    if matches!(pod.life, Life::Ready | Life::Unready) && state.budget.deaths > 0 {
        live(Some(Life::Dead));
    }
}

pub(crate) fn take(setup: &Setup, state: &mut State, step: Step) {
    match step {
        Step::Request { router, key } => {
            state.budget.requests[key] -= 1;
            state.routers[router].flows[key] = Some(Flow { clock: Clock::Unset, fresh: false });
        }
        Step::Serve { router, key } => {
            let it = &mut state.routers[router];
            it.in_flight[key] = it.hit(key, setup.flaw);
            it.flows[key] = None;
        }
        Step::Finish { router, key } => state.routers[router].in_flight[key] = None,
        Step::Write { router, key, write } => written(state, router, key, write),
        Step::Lose { router, key, write } => lost(setup, state, router, key, write),
        Step::ReadPod { router, key, slot } => read(state, router, key, slot),
        Step::Object { router, key, write } => {
            state.server.apply(write);
            state.past.vetoed |= matches!(write, Write::ChangeLease { change: Change::Unmark, .. });
            state.past.interrupted |= matches!(write, Write::ChangeLease { change: Change::Interrupt, .. });
            state.routers[router].leases[key] = state.server.leases[key];
        }
        Step::WatchLeases { router } => {
            state.routers[router].watch_leases(&state.server.leases, setup.flaw);
        }
        Step::WatchPods { router } => state.routers[router].watch_pods(&state.server.pods),
        Step::Late { router, key } => {
            state.budget.late -= 1;
            state.routers[router].flows[key].iter_mut().for_each(|flow| flow.clock = Clock::Late);
        }
        Step::Manage { reason, write } => manage(state, reason, write),
        Step::LoseManage { reason, write } => {
            charge(state, reason);
            state.budget.lost -= 1;
            state.stray.push(write);
        }
        Step::Arrive { index } => {
            let write = state.stray.remove(index);
            arrive(state, write);
        }
        Step::Live { slot, life } => live(state, slot, life),
        Step::Crash { router } => crash(state, router),
        other => come_and_go(setup, state, other),
    }
}

/// A router writes and takes in the answer; after a refusal it reads what is there.
fn written(state: &mut State, router: usize, key: usize, write: Write) {
    let before = state.server.clone();
    let done = state.server.apply(write);
    let State { server, routers, past, .. } = state;
    let it = &mut routers[router];
    let Some(flow) = &mut it.flows[key] else { return };
    match write {
        Write::CreateLease { .. } | Write::ChangeLease { .. } => {
            it.leases[key] = server.leases[key];
            flow.fresh = false;
            if done && !matches!(write, Write::ChangeLease { change: Change::Unmark, .. }) {
                flow.clock = Clock::Prompt;
            }
        }
        Write::CreatePod { slot } | Write::Hold { slot, .. } | Write::DeletePod { slot, .. } => {
            it.pods[slot] = server.pods[slot];
            flow.fresh = !done && matches!(write, Write::Hold { .. });
        }
        Write::Free { .. } | Write::MarkPod { .. } => {}
    }
    if let (Write::ChangeLease { change, .. }, true) = (write, done) {
        let old = before.leases[key].and_then(|lease| lease.holder);
        past.rescued |= change == Change::Unmark;
        past.rebound |=
            matches!(change, Change::Point { .. }) && old.is_some_and(|bond| !before.lives(bond.instance));
        past.took_over |= matches!(change, Change::Bind { .. })
            && before.leases[key].is_some_and(|lease| lease.binder != Some(router));
    }
}

/// A router writes and never hears of it: the write may arrive at any time. If it was one to the Lease, only another
/// that succeeds tells what the Lease says.
fn lost(setup: &Setup, state: &mut State, router: usize, key: usize, write: Write) {
    state.budget.lost -= 1;
    state.stray.push(write);
    let Some(flow) = &mut state.routers[router].flows[key] else { return };
    flow.fresh = false;
    let of_lease = matches!(write, Write::CreateLease { .. } | Write::ChangeLease { .. });
    if of_lease && setup.flaw != Flaw::NoDoubt {
        flow.clock = Clock::Late;
    }
}

fn read(state: &mut State, router: usize, key: usize, slot: usize) {
    let it = &mut state.routers[router];
    it.pods[slot] = state.server.pods[slot];
    it.flows[key].iter_mut().for_each(|flow| flow.fresh = true);
}

fn charge(state: &mut State, reason: Reason) {
    match reason {
        Reason::Idle => state.budget.idle -= 1,
        Reason::Hard => state.budget.hard -= 1,
        Reason::Reaped => state.budget.reaped -= 1,
        Reason::Duty => {}
    }
}

fn manage(state: &mut State, reason: Reason, write: Write) {
    charge(state, reason);
    if reason == Reason::Duty {
        note_idle_end(state, write);
    }
    arrive(state, write);
}

/// An end for being idle must not meet a request in flight.
fn note_idle_end(state: &mut State, write: Write) {
    state.past.cut_short |= match write {
        Write::ChangeLease { key, change: Change::Delete, .. } => {
            let bond = state.server.leases[key].and_then(|lease| lease.holder);
            let used = |bond: Bond| state.routers.iter().any(|it| it.in_flight[key] == Some(bond.instance));
            bond.is_some_and(|bond| state.server.lives(bond.instance) && used(bond))
        }
        Write::DeletePod { slot, .. } => {
            let marked = state.server.pods[slot].filter(|pod| pod.releasing && pod.life != Life::Dead);
            let used = |instance| state.routers.iter().any(|it| it.in_flight.contains(&Some(instance)));
            marked.is_some_and(|pod| used(Instance { slot, uid: pod.uid }))
        }
        _ => false,
    };
}

/// A write of the manager, or a stray one, reaches the API server.
fn arrive(state: &mut State, write: Write) {
    if !state.server.apply(write) {
        return;
    }
    match write {
        Write::ChangeLease { key, change: Change::Mark | Change::Delete, .. } => {
            state.routers.iter_mut().for_each(|router| router.acked_leases[key] = false);
        }
        Write::MarkPod { slot, .. } => {
            state.routers.iter_mut().for_each(|router| router.acked_pods[slot] = false);
        }
        Write::Free { .. } => state.past.reused = true,
        _ => {}
    }
}

fn live(state: &mut State, slot: usize, life: Option<Life>) {
    match life {
        None => state.server.pods[slot] = None,
        Some(life) => {
            state.budget.unready -= u8::from(life == Life::Unready);
            state.budget.deaths -= u8::from(life == Life::Dead);
            state.server.change_pod(slot, |pod| {
                pod.life = life;
                true
            });
        }
    }
}

/// The process is gone, and with it whatever binder it was.
fn crash(state: &mut State, router: usize) {
    state.budget.crashes -= 1;
    state.routers[router].presence = Presence::Down;
    state.routers[router].forget();
    let State { server, routers, stray, .. } = state;
    let memories = routers.iter_mut().flat_map(|router| &mut router.leases);
    for lease in server.leases.iter_mut().chain(memories).flatten() {
        lease.binder = lease.binder.filter(|binder| *binder != router);
    }
    for write in stray {
        if let Write::CreateLease { binder, .. }
        | Write::ChangeLease { change: Change::Bind { binder } | Change::Point { binder, .. }, .. } = write
        {
            *binder = binder.filter(|binder| *binder != router);
        }
    }
}

fn come_and_go(setup: &Setup, state: &mut State, step: Step) {
    let State { server, routers, budget, .. } = state;
    match step {
        Step::Restart { router } => {
            let it = &mut routers[router];
            it.presence = Presence::Up;
            it.list(server);
            it.dead &= setup.flaw == Flaw::ListFirst;
        }
        Step::Register { router } => routers[router].dead = false,
        Step::Cut { router } => {
            budget.cuts -= 1;
            routers[router].presence = Presence::Cut;
        }
        Step::Heal { router } => routers[router].presence = Presence::Up,
        Step::Expire { router } => {
            let it = &mut routers[router];
            it.presence = Presence::Expired;
            it.flows = Default::default();
            if setup.flaw != Flaw::NoRevocation {
                it.in_flight = Default::default();
            }
        }
        Step::GiveUp { router } => routers[router].dead = true,
        Step::Return { router } => {
            let it = &mut routers[router];
            (it.presence, it.dead) = (Presence::Up, false);
            if setup.flaw != Flaw::NoRelist {
                it.list(server);
            }
        }
        _ => {}
    }
}
