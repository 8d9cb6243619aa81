//! How a session is paused and woken (`docs/decisions/0023-tasks-on-pools.md`) as a model: one bound session, its Sandbox,
//! two routers and a lifecycle manager, in every order of steps, with memories that lag, writes that arrive late or never,
//! and answers that are lost. A request is never at a Sandbox that stands still. Each rule is left out once, and the model
//! has to find what goes wrong then.

use stateright::{Checker, HasDiscoveries, Model, Property};

const ROUTERS: usize = 2;
/// The manager among those who remember.
const MANAGER: usize = ROUTERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The session rests before all routers have seen the mark.
    NoAcknowledgement,
    /// A router with a request in flight does not object to the mark.
    NoVeto,
    /// What was woken under a number may be paused under it again.
    NoNumber,
    /// What was woken under a number may be paused under any other.
    AnyOther,
    /// A Sandbox that is not paused yet is not woken.
    OnlyIfPaused,
    /// A pause does not test the version of the Sandbox.
    NoVersion,
    /// The session is resumed although its Sandbox was not woken.
    ResumeFirst,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Lease {
    version: u8,
    marked: bool,
    rests: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sandbox {
    version: u8,
    paused: bool,
    woken: Option<u8>,
    /// Its processes stand still, as its status says.
    frozen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    Mark,
    Unmark,
    Rest,
    Resume,
    Pause,
    Wake(u8),
}

/// A write that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    by: usize,
    change: Change,
    expects: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct View {
    lease: Lease,
    sandbox: Sandbox,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    lease: Lease,
    sandbox: Sandbox,
    views: [View; ROUTERS + 1],
    /// Up to which version of the Lease a router respects every change.
    seen: [u8; ROUTERS],
    in_flight: [bool; ROUTERS],
    under_way: Vec<Write>,
    writes: u8,
    requests: u8,
    /// A request was served after a rest.
    woke: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    HearLease(usize),
    HearSandbox(usize),
    Send(Write),
    /// The write arrives; the answer is lost, or not.
    Arrive {
        number: usize,
        answered: bool,
    },
    Vanish(usize),
    /// The agent does what the Sandbox says.
    Settle,
    Serve(usize),
    End(usize),
}

#[derive(Clone, Copy, Debug)]
struct Pausing {
    flaw: Flaw,
    writes: u8,
    requests: u8,
}

impl Pausing {
    fn of_manager(self, state: &State) -> Option<Change> {
        let View { lease, sandbox } = state.views[MANAGER];
        let agreed = state.seen.iter().all(|seen| *seen >= lease.version);
        match lease.rests {
            None if !lease.marked => Some(Change::Mark),
            None => (agreed || self.flaw == Flaw::NoAcknowledgement).then_some(Change::Rest),
            // Sooner than it would: it does no harm.
            Some(_) if self.flaw == Flaw::NoNumber => (!sandbox.paused).then_some(Change::Pause),
            Some(number) if sandbox.woken == Some(number) => Some(Change::Rest),
            Some(number) if sandbox.woken > Some(number) && self.flaw != Flaw::AnyOther => None,
            Some(_) => (!sandbox.paused).then_some(Change::Pause),
        }
    }

    /// What a router does for a request that it cannot serve from memory.
    fn of_router(self, View { lease, sandbox }: View) -> Option<Change> {
        let Some(number) = lease.rests else { return lease.marked.then_some(Change::Unmark) };
        let woken = match self.flaw {
            Flaw::OnlyIfPaused => !sandbox.paused,
            Flaw::ResumeFirst => true,
            _ => sandbox.woken >= Some(number) && !sandbox.paused,
        };
        match woken {
            false => Some(Change::Wake(number)),
            true => (!sandbox.frozen || self.flaw == Flaw::ResumeFirst).then_some(Change::Resume),
        }
    }

    fn arrive(self, state: &mut State, write: Write) {
        let Write { change, expects, .. } = write;
        let unchecked = self.flaw == Flaw::NoVersion && change == Change::Pause;
        match change {
            Change::Pause | Change::Wake(_) => {
                if state.sandbox.version != expects && !unchecked {
                    return;
                }
                state.sandbox.version += 1;
                state.sandbox.paused = change == Change::Pause;
                if let Change::Wake(number) = change {
                    state.sandbox.woken = state.sandbox.woken.max(Some(number));
                }
            }
            Change::Mark | Change::Unmark | Change::Rest | Change::Resume => {
                if state.lease.version != expects {
                    return;
                }
                state.lease.rests = match change {
                    Change::Rest => Some(state.lease.version),
                    Change::Resume => None,
                    _ => state.lease.rests,
                };
                state.lease.version += 1;
                state.lease.marked = change == Change::Mark;
            }
        }
    }

    fn hear_lease(self, state: &mut State, who: usize) {
        state.views[who].lease = state.lease;
        self.acknowledge(state, who);
    }

    /// A router says what it has seen, unless it has a request for what is marked: then it removes the mark first.
    fn acknowledge(self, state: &mut State, who: usize) {
        if who == MANAGER {
            return;
        }
        let lease = state.views[who].lease;
        if !(lease.marked && state.in_flight[who]) || self.flaw == Flaw::NoVeto {
            state.seen[who] = lease.version;
        }
    }

    fn serves(view: View) -> bool {
        !view.lease.marked && view.lease.rests.is_none() && !view.sandbox.paused && !view.sandbox.frozen
    }
}

impl Model for Pausing {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        for who in 0..=ROUTERS {
            let view = state.views[who];
            actions.extend((view.lease != state.lease).then_some(Step::HearLease(who)));
            actions.extend((view.sandbox != state.sandbox).then_some(Step::HearSandbox(who)));
            let wanted = match who {
                MANAGER => self.of_manager(state),
                _ if state.requests < self.requests || state.in_flight[who] => self.of_router(view),
                _ => None,
            };
            if let Some(change) = wanted.filter(|_| state.writes < self.writes) {
                let expects = match change {
                    Change::Pause | Change::Wake(_) => view.sandbox.version,
                    _ => view.lease.version,
                };
                let write = Write { by: who, change, expects };
                actions.extend((!state.under_way.contains(&write)).then_some(Step::Send(write)));
            }
        }
        for number in 0..state.under_way.len() {
            let arrive = |answered| Step::Arrive { number, answered };
            actions.extend([arrive(true), arrive(false), Step::Vanish(number)]);
        }
        actions.extend((state.sandbox.frozen != state.sandbox.paused).then_some(Step::Settle));
        for who in 0..ROUTERS {
            let room = !state.in_flight[who] && state.requests < self.requests;
            actions.extend((room && Self::serves(state.views[who])).then_some(Step::Serve(who)));
            actions.extend(state.in_flight[who].then_some(Step::End(who)));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::HearLease(who) => self.hear_lease(&mut state, who),
            Step::HearSandbox(who) => state.views[who].sandbox = state.sandbox,
            Step::Send(write) => {
                state.writes += 1;
                state.under_way.push(write);
            }
            Step::Arrive { number, answered } => {
                let write = state.under_way.remove(number);
                self.arrive(&mut state, write);
                if answered {
                    match write.change {
                        Change::Pause | Change::Wake(_) => state.views[write.by].sandbox = state.sandbox,
                        _ => self.hear_lease(&mut state, write.by),
                    }
                }
            }
            Step::Vanish(number) => drop(state.under_way.remove(number)),
            Step::Settle => {
                state.sandbox.frozen = state.sandbox.paused;
                state.sandbox.version += 1;
            }
            Step::Serve(who) => {
                state.in_flight[who] = true;
                state.requests += 1;
                state.woke |= state.sandbox.woken.is_some();
            }
            Step::End(who) => {
                state.in_flight[who] = false;
                self.acknowledge(&mut state, who);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing stands still under a request", |_, state: &State| {
                !(state.sandbox.frozen && state.in_flight.contains(&true))
            }),
            Property::sometimes("what rests is woken", |_, state: &State| state.woke),
        ]
    }
}

#[test]
fn nothing_is_paused_under_a_request() {
    for (writes, requests) in [(7, 1), (6, 2)] {
        let checker = Pausing { flaw: Flaw::None, writes, requests }.checker().spawn_bfs().join();
        eprintln!("{} states", checker.unique_state_count());
        checker.assert_properties();
        assert!(checker.is_done(), "not everything was tried");
    }
}

#[test]
fn each_rule_is_needed() {
    for flaw in [
        Flaw::NoAcknowledgement,
        Flaw::NoVeto,
        Flaw::NoNumber,
        Flaw::AnyOther,
        Flaw::OnlyIfPaused,
        Flaw::NoVersion,
        Flaw::ResumeFirst,
    ] {
        let wanted = HasDiscoveries::AnyFailures;
        let checker =
            Pausing { flaw, writes: 7, requests: 1 }.checker().finish_when(wanted).spawn_bfs().join();
        let found = checker.discovery("nothing stands still under a request").map(|path| path.into_actions());
        assert!(found.is_some(), "{flaw:?} does no harm");
    }
}
