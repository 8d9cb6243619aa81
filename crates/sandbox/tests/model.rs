//! The protocol of the fast path (`docs/decisions/0021-model-of-the-fast-path.md`) as a model: every order of steps of a
//! leader and the one that it has deposed, of two agents, an API server, a janitor and a client is tried for one name,
//! with answers that are lost, writes and calls that arrive late, crashes, cuts in each direction, agents that die or
//! fall silent, and time that passes.

#[path = "model/agent.rs"]
mod agent;
#[path = "model/controller.rs"]
mod controller;
#[path = "model/flaws.rs"]
mod flaws;
#[path = "model/hear.rs"]
mod hear;
#[path = "model/janitor.rs"]
mod janitor;
#[path = "model/reconcile.rs"]
mod reconcile;
#[path = "model/rest.rs"]
mod rest;
#[path = "model/server.rs"]
mod server;
#[path = "model/state.rs"]
mod state;
#[path = "model/step.rs"]
mod step;

use std::time::Duration;

use agent::{Agent, FENCE, WAIT};
use flaws::Flaw;
use server::Phase;
use state::{AGENTS, Budget, Controller, Cut, Known, State, Wanted};
use stateright::{Checker, HasDiscoveries, Model, Property};
use step::Step;

/// What there is, and how much may happen.
#[derive(Clone, Copy, Debug)]
struct Setup {
    flaw: Flaw,
    agents: usize,
    /// `failurePolicy: AutoRecreate`.
    auto: bool,
    /// There is a log.
    wal: bool,
    budget: Budget,
}

impl Setup {
    fn new(agents: usize, budget: Budget) -> Setup {
        Setup { flaw: Flaw::None, agents, auto: false, wal: false, budget }
    }

    fn auto(self) -> Setup {
        Setup { auto: true, ..self }
    }

    fn wal(self) -> Setup {
        Setup { wal: true, ..self }
    }

    fn without(self, flaw: Flaw) -> Setup {
        Setup { flaw, ..self }
    }

    fn starts_first(&self) -> bool {
        self.flaw == Flaw::StartBeforeStatus
    }

    /// Whether agents count the time since they were in contact.
    fn fences(&self) -> bool {
        self.budget.ticks > 0 && self.flaw != Flaw::NoFence
    }

    fn fence(&self, order: bool) -> u8 {
        if order && self.flaw == Flaw::SlowFenceForOrders { WAIT + 1 } else { FENCE }
    }
}

impl Model for Setup {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let known = Known { synced: true, current: true, got: true, heard: 0, run: None };
        let controller = Controller { agents: [known; AGENTS], ..Controller::boot(1) };
        vec![State {
            object: None,
            agents: std::array::from_fn(|_| Agent::new()),
            controllers: vec![controller],
            term: 1,
            log: Vec::new(),
            stray: Vec::new(),
            cuts: [Cut::default(); AGENTS],
            asks: None,
            wanted: Wanted::Nothing,
            forgot: false,
            died: false,
            fast: false,
            made: false,
            acked: None,
            restarted: false,
            good: None,
            robbed: false,
            budget: self.budget,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        step::possible(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Step) -> Option<State> {
        let next = after(self, state, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        vec![
            Property::always(ONE_RUN, |_, state: &State| {
                state.agents.iter().map(Agent::awake).sum::<usize>() <= 1
            }),
            Property::always(NO_LEAK, |setup, state| no_leak(state) || !rests(setup, state)),
            Property::always(NO_RESURRECTION, |setup, state| no_resurrection(state) || !rests(setup, state)),
            Property::always(NOT_LOST, |setup, state: &State| {
                !state.robbed && (not_lost(setup, state) || !rests(setup, state))
            }),
            Property::always(REGISTRY_IS_TRUE, |setup, state| is_true(state) || !rests(setup, state)),
        ]
    }
}

const ONE_RUN: &str = "a name has at most one run that is not frozen";
const NO_LEAK: &str = "in the end everything that runs has its object, and no object hangs";
const NO_RESURRECTION: &str = "what was deleted stays away";
const NOT_LOST: &str = "what was acknowledged is there";
const REGISTRY_IS_TRUE: &str = "in the end the registry, the object and the agents say the same";

fn after(setup: &Setup, state: &State, step: Step) -> State {
    let mut next = state.clone();
    step::take(setup, &mut next, step);
    next.normalize();
    next
}

/// Nothing follows by itself any more. Where time cannot pass although somebody waits for it, that says nothing.
fn rests(setup: &Setup, state: &State) -> bool {
    let Some(leader) = state.controllers.last() else { return false };
    let waits = |agent: usize| !state.agents[agent].pod && leader.agents[agent].heard < WAIT;
    if (0..AGENTS).any(waits) {
        return false;
    }
    let mut steps = Vec::new();
    step::duties(setup, state, &mut steps);
    steps.iter().all(|step| *step == Step::Tick || after(setup, state, *step) == *state)
}

fn no_leak(state: &State) -> bool {
    let right = state.object.filter(|object| !object.deleting).and_then(|object| object.right());
    let owned = |agent: &Agent| {
        agent.orphan.is_none() && agent.run.is_none_or(|held| right.is_some_and(|run| run.id == held.id))
    };
    state.agents.iter().all(owned) && state.object.is_none_or(|object| !object.deleting)
}

fn no_resurrection(state: &State) -> bool {
    let nothing = state.object.is_none() && state.agents.iter().all(|agent| agent.run.is_none());
    state.wanted != Wanted::Deleted || nothing
}

fn not_lost(setup: &Setup, state: &State) -> bool {
    if state.restarted && !setup.auto {
        return false;
    }
    let excused = state.fast && !setup.wal && state.forgot && state.died && !state.made;
    let Some(object) = state.object.filter(|object| !object.deleting) else {
        let made = state.wanted == Wanted::Asked && state.made;
        return excused || !(made || state.wanted == Wanted::There);
    };
    if state.wanted != Wanted::There || excused {
        return true;
    }
    let awake = |agent: &Agent, id| agent.run.is_some_and(|held| held.id == id && !held.fenced);
    let runs = object
        .status
        .is_some_and(|(run, phase)| phase == Phase::Running && awake(&state.agents[run.agent], run.id));
    let room = state.agents[..setup.agents].iter().any(|agent| agent.pod);
    runs || (state.died && !(setup.auto && room))
}

fn is_true(state: &State) -> bool {
    let Some(leader) = state.controllers.last() else { return true };
    let status = state.object.and_then(|object| object.status);
    (0..AGENTS).filter(|agent| state.agents[*agent].pod).all(|agent| {
        let truth = state.agents[agent].run.map(|run| run.id);
        let said = status.filter(|(run, phase)| run.agent == agent && *phase == Phase::Running);
        leader.agents[agent].run == truth && said.map(|(run, _)| run.id) == truth
    }) && leader.abandoned.iter().all(|run| !state.agents[run.agent].pod)
}

/// Tries everything, and fails on the first violation, with the way there.
fn holds(setup: Setup) {
    let checker = setup.checker().threads(1).timeout(Duration::from_secs(600)).spawn_bfs().join();
    eprintln!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    let violated = checker.discoveries().into_iter().map(|(name, path)| format!("{name}\n{}", told(path)));
    assert_eq!(violated.collect::<Vec<_>>().join("\n"), "");
    assert!(checker.is_done(), "not everything was tried");
}

/// The steps of a path, and its end.
fn told(path: stateright::Path<State, Step>) -> String {
    let steps: Vec<_> = path.into_vec();
    let mut text: String = steps.iter().filter_map(|(_, step)| Some(format!("  {:?}\n", (*step)?))).collect();
    if let Some((state, _)) = steps.last() {
        text.push_str(&format!("{state:#?}"));
    }
    text
}

/// Expects that a property is violated.
fn breaks(setup: Setup, name: &'static str) {
    let wanted = HasDiscoveries::AnyOf([name].into());
    let checker =
        setup.checker().threads(1).finish_when(wanted).timeout(Duration::from_secs(300)).spawn_bfs().join();
    let steps = checker.discovery(name).map(|path| path.into_actions());
    eprintln!(
        "{:?}, after {} states, {:?}: {steps:?}",
        setup.flaw,
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(steps.is_some(), "{:?} does no harm: {name}", setup.flaw);
}

const CALM: Budget = Budget {
    fast: 0,
    strong: 0,
    objects: 0,
    deletes: 0,
    resets: 0,
    lost: 0,
    full: 0,
    crashes: 0,
    stale: 0,
    cuts: 0,
    workers: 0,
    keepers: 0,
    pods: 0,
    ticks: 0,
};

/// The client creates and deletes, asks again, and the controller dies or the agent does.
#[test]
fn fast() {
    holds(Setup::new(1, Budget { fast: 1, deletes: 1, lost: 1, crashes: 1, ..CALM }));
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, lost: 2, crashes: 1, ..CALM }));
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, lost: 1, keepers: 1, full: 1, ..CALM }));
    holds(Setup::new(2, Budget { fast: 1, deletes: 1, lost: 1, keepers: 1, crashes: 1, ..CALM }));
}

#[test]
fn strong() {
    holds(Setup::new(2, Budget { strong: 2, deletes: 1, lost: 1, crashes: 1, full: 1, ..CALM }));
    holds(Setup::new(2, Budget { strong: 1, deletes: 1, lost: 1, crashes: 1, keepers: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { fast: 1, strong: 1, deletes: 1, lost: 1, crashes: 1, ..CALM }));
}

#[test]
fn objects_made_by_hand() {
    holds(Setup::new(2, Budget { objects: 1, deletes: 1, resets: 1, lost: 1, crashes: 1, full: 1, ..CALM }));
    holds(Setup::new(2, Budget { objects: 2, deletes: 1, lost: 1, keepers: 1, ..CALM }).auto());
}

#[test]
fn a_log() {
    holds(Setup::new(2, Budget { fast: 1, deletes: 1, lost: 1, crashes: 1, keepers: 1, ..CALM }).wal());
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, lost: 1, crashes: 1, ..CALM }).wal());
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, cuts: 1, ..CALM }).wal());
}

#[test]
fn a_leader_that_is_none_any_more() {
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, lost: 1, stale: 1, ..CALM }));
    holds(Setup::new(2, Budget { strong: 2, deletes: 1, lost: 1, stale: 1, ..CALM }));
    holds(Setup::new(2, Budget { objects: 1, resets: 1, lost: 1, stale: 1, ..CALM }));
}

#[test]
fn a_worker_dies_and_another_adopts() {
    holds(Setup::new(2, Budget { objects: 1, workers: 1, ticks: 3, ..CALM }).auto());
    holds(Setup::new(2, Budget { fast: 1, deletes: 1, lost: 1, crashes: 1, workers: 1, ..CALM }));
}

/// The janitor ends what runs on where the Pod of the agent is gone.
#[test]
fn a_pod_vanishes() {
    holds(Setup::new(2, Budget { objects: 1, deletes: 1, pods: 1, ticks: 2, ..CALM }).auto());
}

#[test]
fn agents_fall_silent() {
    holds(Setup::new(2, Budget { objects: 1, ticks: 3, lost: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { objects: 1, ticks: 2, cuts: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { objects: 1, ticks: 2, lost: 1, crashes: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { fast: 2, ticks: 2, crashes: 1, ..CALM }));
    holds(Setup::new(2, Budget { fast: 1, deletes: 1, ticks: 2, crashes: 1, ..CALM }));
}

/// Larger than what fits into every run, by minutes and a gigabyte or two:
/// `cargo test --release -p agentcube-sandbox --features campaign --test model more_of_everything`.
#[cfg(feature = "campaign")]
#[test]
fn more_of_everything() {
    let rough = Budget { deletes: 1, lost: 1, crashes: 1, ..CALM };
    holds(Setup::new(2, Budget { strong: 2, lost: 2, full: 1, ..rough }));
    holds(Setup::new(2, Budget { objects: 1, resets: 1, lost: 2, full: 1, ..rough }));
    holds(Setup::new(2, Budget { objects: 1, resets: 1, ticks: 2, ..rough }));
    holds(Setup::new(2, Budget { objects: 1, deletes: 1, resets: 1, ticks: 3, cuts: 1, ..CALM }));
    holds(Setup::new(2, Budget { objects: 1, ticks: 3, cuts: 1, keepers: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { objects: 1, ticks: 3, workers: 1, lost: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { fast: 1, ticks: 2, ..rough }).auto());
    holds(Setup::new(2, Budget { fast: 2, ticks: 2, ..rough }).wal());
    holds(Setup::new(2, Budget { fast: 2, lost: 2, keepers: 1, ..rough }).wal());
    holds(Setup::new(2, Budget { fast: 1, resets: 1, full: 1, workers: 1, ..rough }).wal());
    holds(Setup::new(2, Budget { fast: 1, pods: 1, ticks: 2, crashes: 0, ..rough }).auto().wal());
    holds(Setup::new(2, Budget { fast: 1, strong: 1, crashes: 2, ..rough }));
    holds(Setup::new(2, Budget { fast: 2, strong: 1, deletes: 2, keepers: 1, ..rough }));
    holds(Setup::new(2, Budget { strong: 1, ticks: 2, crashes: 0, keepers: 1, ..rough }).auto());
    holds(Setup::new(2, Budget { strong: 1, resets: 1, crashes: 0, stale: 1, keepers: 1, ..rough }));
    holds(Setup::new(2, Budget { fast: 1, deletes: 1, ticks: 2, stale: 1, keepers: 1, ..CALM }).auto());
    holds(Setup::new(2, Budget { fast: 2, deletes: 1, ticks: 2, cuts: 1, lost: 1, ..CALM }));
    holds(Setup::new(2, Budget { fast: 1, ticks: 2, crashes: 0, keepers: 1, ..rough }).auto());
    holds(Setup::new(2, Budget { fast: 2, ticks: 2, lost: 0, workers: 1, ..rough }));
    holds(Setup::new(2, Budget { objects: 1, ticks: 2, crashes: 0, stale: 1, ..rough }));
    holds(Setup::new(2, Budget { objects: 2, ticks: 2, lost: 0, pods: 1, ..rough }).auto());
}
