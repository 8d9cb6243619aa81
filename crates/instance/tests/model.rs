//! The reservation protocol of `docs/decisions/0011-reservation.md` as a model: every order of steps of two routers,
//! a lifecycle manager, an API server and a node is tried, with memories that lag, writes that arrive late, crashes and
//! cuts. Its properties are the invariants 1 to 5. Each rule of the protocol is taken out once, and the model has to
//! find what goes wrong then.

#[path = "model/manager.rs"]
mod manager;
#[path = "model/router.rs"]
mod router;
#[path = "model/server.rs"]
mod server;
#[path = "model/state.rs"]
mod state;
#[path = "model/step.rs"]
mod step;

use std::time::Duration;

use server::{Instance, KEYS, Life, Pod, SLOTS, Server};
use state::{Budget, Past, Presence, Router, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use step::Step;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Routers only annotate Pods, as the seed has it.
    NoLease,
    /// Steps towards the end of a session do not wait until routers have seen them.
    NoAcknowledgement,
    /// A late binder patches without confirming.
    NoConfirm,
    /// A Pod names its key, not its reservation.
    NoReservation,
    /// A binder patches although it does not know what became of its last write to the Lease.
    NoDoubt,
    /// Others take over without waiting.
    NoGrace,
    /// The patch of the Pod tests that it is free, not its version.
    NoVersion,
    /// A router with a request in flight lets a session end at once without saying so.
    NoInterrupt,
    /// A router with a request in flight does not object to the release.
    NoVeto,
    /// An instance that memory does not have is taken for dead.
    DeathFromMemory,
    /// A router that was out of touch leaves its requests in flight.
    NoRevocation,
    /// A router that was out of touch serves from its old memory again as soon as it is heard of.
    NoRelist,
    /// A router lists and serves before its own Lease is there.
    ListFirst,
}

/// What there is, and how much may happen.
#[derive(Clone, Copy, Debug)]
struct Setup {
    flaw: Flaw,
    keys: usize,
    slots: usize,
    /// `reusePolicy: Always`.
    reuse: bool,
    /// Instances that are idle from the beginning.
    idle: usize,
    budget: Budget,
}

impl Setup {
    fn new(keys: usize, slots: usize, budget: Budget) -> Setup {
        Setup { flaw: Flaw::None, keys, slots, reuse: true, idle: slots, budget }
    }

    fn without(self, flaw: Flaw) -> Setup {
        Setup { flaw, ..self }
    }
}

impl Model for Setup {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let pod = Pod { uid: 1, version: 1, life: Life::Ready, hold: None, releasing: false };
        let server = Server {
            leases: [None; KEYS],
            pods: std::array::from_fn(|slot| (slot < self.idle).then_some(pod)),
            lease_versions: [0; KEYS],
            pod_versions: [1; SLOTS],
        };
        let mut router = Router {
            presence: Presence::Up,
            dead: false,
            leases: [None; KEYS],
            pods: [None; SLOTS],
            acked_leases: [false; KEYS],
            acked_pods: [false; SLOTS],
            flows: [None; KEYS],
            in_flight: [None; KEYS],
        };
        router.list(&server);
        let routers = std::array::from_fn(|_| router.clone());
        let mut state =
            State { server, routers, stray: Vec::new(), budget: self.budget, past: Past::default() };
        state.normalize();
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        step::possible(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Step) -> Option<State> {
        let mut next = state.clone();
        step::take(self, &mut next, action);
        next.fail_requests();
        next.normalize();
        next.past = Past { cut_short: next.past.cut_short, ..Past::default() };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        vec![
            Property::always(ONE_INSTANCE, one_instance),
            Property::always(ONE_SESSION, one_session),
            Property::always(NOT_WHILE_IN_USE, |_, state: &State| !state.past.cut_short),
            Property::always(NO_ORPHANS, no_orphans),
        ]
    }
}

const ONE_INSTANCE: &str = "a key has at most one instance";
const ONE_SESSION: &str = "an instance serves at most one session";
const NOT_WHILE_IN_USE: &str = "an instance with a request in flight is not given up as idle";
const NO_ORPHANS: &str = "in the end everything has its reason";

fn one_instance(setup: &Setup, state: &State) -> bool {
    (0..KEYS).all(|key| {
        let mut instances = serving(setup, state, key);
        let first = instances.next();
        instances.all(|instance| Some(instance) == first)
    })
}

fn one_session(setup: &Setup, state: &State) -> bool {
    serving(setup, state, 0).all(|instance| serving(setup, state, 1).all(|other| instance != other))
}

fn no_orphans(setup: &Setup, state: &State) -> bool {
    is_settled(setup, state) || {
        let mut steps = Vec::new();
        step::possible(setup, state, &mut steps);
        !steps.is_empty()
    }
}

/// The living instances at which routers serve a key, or would from memory.
fn serving<'a>(setup: &'a Setup, state: &'a State, key: usize) -> impl Iterator<Item = Instance> + 'a {
    let of = move |router: &'a Router| [router.hit(key, setup.flaw), router.in_flight[key]];
    let all = state.routers.iter().flat_map(of).flatten();
    all.filter(|instance| state.server.lives(*instance))
}

/// Nobody waits who could be served; every Lease and every held Pod is half of a bond.
fn is_settled(setup: &Setup, state: &State) -> bool {
    let full = (0..setup.slots).all(|slot| {
        let hold = state.server.pods[slot].and_then(|pod| pod.hold);
        hold.is_some_and(|hold| state.server.is_bound(hold.key))
    });
    let waiting = state.routers.iter().any(|router| router.flows.iter().any(Option::is_some));
    let leases =
        (0..KEYS).all(|key| state.server.is_bound(key) || state.server.leases[key].is_none() || waiting);
    let pods = state.server.pods.iter().flatten().all(|pod| {
        let held = pod.hold.is_none_or(|hold| state.server.is_bound(hold.key));
        held && pod.life == Life::Ready && !pod.releasing
    });
    (full || !waiting) && leases && pods && state.stray.is_empty()
}

/// Tries everything, and fails on the first violation, with the way there.
fn holds(setup: Setup) {
    let checker = setup.checker().timeout(Duration::from_secs(600)).spawn_bfs().join();
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
    let checker = setup.checker().finish_when(wanted).timeout(Duration::from_secs(300)).spawn_bfs().join();
    let steps = checker.discovery(name).map(|path| path.into_actions());
    eprintln!("{:?}, after {} states: {steps:#?}", setup.flaw, checker.unique_state_count());
    assert!(steps.is_some(), "{:?} does no harm: {name}", setup.flaw);
}

/// Expects that something happens on some way.
fn happens(setup: Setup, what: fn(&Past) -> bool) {
    let checker = Reaches { setup, what }.checker().spawn_bfs().join();
    assert!(checker.discovery("it happens").is_some(), "it never happens");
}

/// The same model with the one question whether something is possible.
#[derive(Clone)]
struct Reaches {
    setup: Setup,
    what: fn(&Past) -> bool,
}

impl Model for Reaches {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        self.setup.init_states()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        self.setup.actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Step) -> Option<State> {
        let mut next = state.clone();
        next.past = Past::default();
        step::take(&self.setup, &mut next, action);
        next.fail_requests();
        next.normalize();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Reaches>> {
        vec![Property::sometimes("it happens", |model: &Reaches, state: &State| (model.what)(&state.past))]
    }
}

const CALM: Budget = Budget {
    requests: [0; KEYS],
    lost: 0,
    late: 0,
    crashes: 0,
    cuts: 0,
    deaths: 0,
    unready: 0,
    idle: 0,
    hard: 0,
    reaped: 0,
};

/// Two routers bind one key: stalls, answers that are lost, writes that arrive late.
#[test]
fn one_key_through_two_routers() {
    holds(Setup::new(1, 2, Budget { requests: [2, 0], lost: 2, late: 1, ..CALM }));
}

#[test]
fn an_instance_that_fails_while_it_is_bound() {
    holds(Setup::new(1, 2, Budget { requests: [2, 0], late: 1, unready: 1, ..CALM }));
    holds(Setup::new(1, 2, Budget { requests: [1, 0], lost: 2, unready: 1, ..CALM }));
    holds(Setup::new(1, 2, Budget { requests: [2, 0], late: 1, deaths: 1, ..CALM }));
}

#[test]
fn a_router_dies_between_any_two_writes() {
    holds(Setup::new(1, 2, Budget { requests: [2, 0], lost: 1, late: 1, crashes: 1, ..CALM }));
    let cold = Setup::new(1, 1, Budget { requests: [2, 0], late: 1, crashes: 1, ..CALM });
    holds(Setup { idle: 0, ..cold });
}

#[test]
fn two_keys_race_for_instances() {
    holds(Setup::new(2, 2, Budget { requests: [2, 1], ..CALM }));
    holds(Setup::new(2, 1, Budget { requests: [1, 1], lost: 1, late: 1, ..CALM }));
}

#[test]
fn sessions_end_and_instances_are_used_again() {
    holds(Setup::new(2, 1, Budget { requests: [1, 1], hard: 1, ..CALM }));
    holds(Setup::new(2, 1, Budget { requests: [1, 1], idle: 1, ..CALM }));
    holds(Setup::new(1, 1, Budget { requests: [2, 0], idle: 1, lost: 1, ..CALM }));
    holds(Setup::new(1, 1, Budget { requests: [2, 0], hard: 1, lost: 1, ..CALM }));
}

#[test]
fn instances_are_deleted_with_their_sessions() {
    let setup = Setup::new(1, 1, Budget { requests: [2, 0], hard: 1, idle: 1, ..CALM });
    holds(Setup { reuse: false, ..setup });
    holds(Setup::new(1, 2, Budget { requests: [2, 0], reaped: 1, late: 1, ..CALM }));
}

#[test]
fn a_router_is_cut_off() {
    holds(Setup::new(1, 2, Budget { requests: [2, 0], hard: 1, cuts: 1, ..CALM }));
    holds(Setup::new(1, 1, Budget { requests: [2, 0], idle: 1, cuts: 1, ..CALM }));
}

/// Larger than what fits into every run, by tens of minutes and gigabytes:
/// `cargo test --release -p agentcube-instance --features campaign --test model`.
#[cfg(feature = "campaign")]
#[test]
fn more_of_everything() {
    let cold = Setup::new(1, 2, Budget { requests: [2, 0], late: 1, crashes: 1, ..CALM });
    holds(Setup { idle: 0, ..cold });
    holds(Setup::new(2, 1, Budget { requests: [1, 1], hard: 1, cuts: 1, ..CALM }));
    holds(Setup::new(2, 2, Budget { requests: [2, 1], late: 1, ..CALM }));
    holds(Setup::new(2, 1, Budget { requests: [2, 1], idle: 1, ..CALM }));
    holds(Setup::new(1, 2, Budget { requests: [3, 0], lost: 1, late: 2, unready: 1, ..CALM }));
    holds(Setup::new(1, 2, Budget { requests: [2, 0], lost: 1, late: 1, deaths: 1, crashes: 1, ..CALM }));
    holds(Setup::new(2, 1, Budget { requests: [2, 1], idle: 1, cuts: 1, ..CALM }));
    holds(Setup::new(2, 1, Budget { requests: [2, 1], hard: 1, late: 1, lost: 1, ..CALM }));
}

/// What the model is for: each rule is left out in turn, and something breaks.
#[test]
fn every_rule_is_needed() {
    let races = Setup::new(1, 2, Budget { requests: [2, 0], ..CALM });
    let stalls = Setup::new(1, 2, Budget { requests: [2, 0], late: 1, unready: 1, ..CALM });
    let loses = Setup::new(1, 2, Budget { requests: [1, 0], lost: 1, unready: 1, ..CALM });
    let ends = Setup::new(2, 1, Budget { requests: [2, 1], hard: 1, ..CALM });
    let idles = Setup::new(1, 1, Budget { requests: [1, 0], idle: 1, ..CALM });
    let cuts = Setup::new(2, 1, Budget { requests: [1, 1], hard: 1, cuts: 1, ..CALM });
    let restarts = Setup::new(2, 1, Budget { requests: [1, 1], hard: 1, crashes: 1, ..CALM });
    breaks(races.without(Flaw::NoLease), ONE_INSTANCE);
    breaks(Setup { idle: 0, ..races }.without(Flaw::DeathFromMemory), ONE_INSTANCE);
    breaks(stalls.without(Flaw::NoConfirm), ONE_INSTANCE);
    breaks(stalls.without(Flaw::NoGrace), ONE_INSTANCE);
    breaks(loses.without(Flaw::NoVersion), ONE_INSTANCE);
    breaks(loses.without(Flaw::NoDoubt), ONE_INSTANCE);
    breaks(ends.without(Flaw::NoAcknowledgement), ONE_SESSION);
    breaks(ends.without(Flaw::NoReservation), ONE_SESSION);
    breaks(ends.without(Flaw::NoInterrupt), ONE_SESSION);
    breaks(idles.without(Flaw::NoVeto), NOT_WHILE_IN_USE);
    breaks(cuts.without(Flaw::NoRevocation), ONE_SESSION);
    breaks(cuts.without(Flaw::NoRelist), ONE_SESSION);
    breaks(restarts.without(Flaw::ListFirst), ONE_SESSION);
}

/// That nothing goes wrong says little if nothing happens.
#[test]
fn everything_happens() {
    let dies = Setup::new(1, 2, Budget { requests: [2, 0], deaths: 1, ..CALM });
    happens(dies, |past| past.rebound);
    let stalls = Setup::new(1, 2, Budget { requests: [2, 0], late: 1, ..CALM });
    happens(stalls, |past| past.took_over);
    let ends = Setup::new(1, 1, Budget { requests: [2, 0], hard: 1, idle: 1, ..CALM });
    happens(ends, |past| past.reused);
    happens(ends, |past| past.vetoed);
    happens(ends, |past| past.rescued);
    happens(ends, |past| past.interrupted);
}
