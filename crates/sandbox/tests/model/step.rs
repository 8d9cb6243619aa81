//! The steps of the model: which are possible in a state, and what each does.

use super::agent::{Answer, Call, Sent};
use super::controller::View;
use super::server::{Id, Run, Write};
use super::state::{AGENTS, Ask, Controller, Cut, Entry, Flow, State, Stray, Wanted};
use super::{Setup, hear, janitor};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The client asks the leader.
    Ask(Ask),
    /// An object is made by hand.
    Make,
    Reset,
    Answer {
        wanted: Wanted,
    },
    /// A controller writes, and hears what became of it; or not.
    Write {
        by: usize,
        write: Write,
    },
    LoseWrite {
        by: usize,
        write: Write,
    },
    Call {
        by: usize,
        agent: usize,
        call: Call,
    },
    LoseCall {
        by: usize,
        agent: usize,
        call: Call,
    },
    /// The agent has no room.
    Full {
        by: usize,
        id: Id,
    },
    Sync {
        by: usize,
        agent: usize,
    },
    Turn {
        by: usize,
        to: Flow,
    },
    Log {
        run: Run,
    },
    LogDeleted {
        run: Run,
    },
    Forget {
        run: Run,
    },
    Arrive {
        index: usize,
    },
    Drop {
        index: usize,
    },
    Crash,
    /// The leader has lost its Lease and goes on.
    Depose,
    /// It has noticed.
    Resign,
    Boot,
    Cut {
        agent: usize,
        cut: Cut,
    },
    Heal {
        agent: usize,
    },
    WorkerDies {
        agent: usize,
    },
    WorkerStarts {
        agent: usize,
    },
    KeeperDies {
        agent: usize,
    },
    PodVanishes {
        agent: usize,
    },
    Freeze {
        agent: usize,
    },
    Janitor {
        agent: usize,
    },
    Tick,
}

/// What follows by itself, sooner or later.
pub(crate) fn duties(setup: &Setup, state: &State, steps: &mut Vec<Step>) {
    for by in 0..state.controllers.len() {
        let view = View { setup, state, by };
        view.plan(steps);
        if !view.leads() {
            steps.push(Step::Resign);
        }
    }
    if !state.controllers.iter().any(|it| it.term == state.term) {
        steps.push(Step::Boot);
    }
    for (index, stray) in state.stray.iter().enumerate() {
        let up = |sent: &Sent| state.agents[sent.agent].up;
        if !matches!(stray, Stray::Call(sent) if !up(sent)) {
            steps.push(Step::Arrive { index });
        }
        steps.push(Step::Drop { index });
    }
    for agent in 0..AGENTS {
        let it = &state.agents[agent];
        if state.cuts[agent] != Cut::default() {
            steps.push(Step::Heal { agent });
        }
        if !it.up {
            steps.push(Step::WorkerStarts { agent });
        }
        if it.is_late(setup) {
            steps.push(Step::Freeze { agent });
        }
    }
    steps.extend(janitor::due(setup, state).into_iter().map(|agent| Step::Janitor { agent }));
    if state.budget.ticks > 0 && !state.agents.iter().any(|agent| agent.is_late(setup)) {
        steps.push(Step::Tick);
    }
}

pub(crate) fn possible(setup: &Setup, state: &State, steps: &mut Vec<Step>) {
    duties(setup, state, steps);
    let budget = &state.budget;
    if budget.lost > 0 {
        let lose = |step: &Step| match *step {
            Step::Write { by, write } => Some(Step::LoseWrite { by, write }),
            Step::Call { by, agent, call } => Some(Step::LoseCall { by, agent, call }),
            _ => None,
        };
        let lost: Vec<Step> = steps.iter().filter_map(lose).collect();
        steps.extend(lost);
    }
    if budget.full > 0 {
        let full = |step: &Step| match *step {
            Step::Call { by, call: Call::Start { id, .. }, agent } => {
                state.agents[agent].run.is_none().then_some(Step::Full { by, id })
            }
            _ => None,
        };
        let full: Vec<Step> = steps.iter().filter_map(full).collect();
        steps.extend(full);
    }
    asks(state, steps);
    let leads = state.controllers.last().is_some_and(|it| it.term == state.term);
    if budget.crashes > 0 && leads {
        steps.push(Step::Crash);
    }
    if budget.stale > 0 && leads && state.controllers.len() == 1 {
        steps.push(Step::Depose);
    }
    (0..setup.agents).for_each(|agent| faults(state, agent, steps));
}

fn asks(state: &State, steps: &mut Vec<Step>) {
    let budget = &state.budget;
    let idle = state.asks.is_none();
    let fresh = matches!(state.wanted, Wanted::Nothing | Wanted::Deleted);
    let leads = state.controllers.last().is_some_and(|it| it.term == state.term);
    if idle && leads && (fresh || state.wanted == Wanted::Asked) {
        if budget.fast > 0 {
            steps.push(Step::Ask(Ask::Fast));
        }
        if budget.strong > 0 {
            steps.push(Step::Ask(Ask::Strong));
        }
    }
    if idle && leads && budget.deletes > 0 && !fresh {
        steps.push(Step::Ask(Ask::Delete));
    }
    if budget.objects > 0 && fresh && idle && state.object.is_none() {
        steps.push(Step::Make);
    }
    let resets = state.object.is_some_and(|it| it.status.is_some() && !it.reset && !it.deleting);
    if budget.resets > 0 && resets {
        steps.push(Step::Reset);
    }
}

fn faults(state: &State, agent: usize, steps: &mut Vec<Step>) {
    let (budget, it) = (&state.budget, &state.agents[agent]);
    if budget.cuts > 0 && state.cuts[agent] == Cut::default() && it.pod {
        for (to, from) in [(true, true), (false, true), (true, false)] {
            steps.push(Step::Cut { agent, cut: Cut { to, from } });
        }
    }
    if budget.workers > 0 && it.up {
        steps.push(Step::WorkerDies { agent });
    }
    if budget.keepers > 0 {
        steps.push(Step::KeeperDies { agent });
    }
    if budget.pods > 0 && it.pod {
        steps.push(Step::PodVanishes { agent });
    }
}

pub(crate) fn take(setup: &Setup, state: &mut State, step: Step) {
    match step {
        Step::Ask(ask) => asked(state, ask),
        Step::Make => {
            state.budget.objects -= 1;
            state.write(Write::Create { annotation: None, started: false });
            (state.wanted, state.made) = (Wanted::There, true);
            (state.forgot, state.died, state.fast) = (false, false, false);
        }
        Step::Reset => {
            state.budget.resets -= 1;
            state.object.iter_mut().for_each(|object| object.reset = true);
            state.judge();
            // Another version.
            for stray in &mut state.stray {
                if let Stray::Write(Write::Change { live, .. }) = stray {
                    *live = false;
                }
            }
        }
        Step::Answer { wanted } => answered(state, wanted),
        Step::Write { by, write } => hear::written(setup, state, by, write),
        Step::LoseWrite { by, write } => hear::lost_write(setup, state, by, write),
        Step::Call { by, agent, call } => hear::called(setup, state, by, agent, call),
        Step::LoseCall { by, agent, call } => {
            state.budget.lost -= 1;
            let it = &state.controllers[by];
            let sent = Sent { agent, term: it.term, current: it.agents[agent].current, call };
            state.stray.push(Stray::Call(sent));
            hear::heard(setup, state, by, agent, call, Answer::Doubt);
        }
        Step::Full { by, id } => hear::full(state, by, id),
        Step::Sync { by, agent } => hear::sync(setup, state, by, agent),
        Step::Turn { by, to } => state.controllers[by].flow = to,
        Step::Arrive { index } => match state.stray.remove(index) {
            Stray::Call(sent) => {
                state.deliver(setup, sent);
            }
            Stray::Write(write) => {
                state.write(write);
            }
        },
        Step::Drop { index } => {
            state.stray.remove(index);
        }
        other => log(setup, state, other),
    }
}

fn leader(state: &mut State) -> &mut Controller {
    state.controllers.last_mut().expect("only a leader does this")
}

fn asked(state: &mut State, ask: Ask) {
    state.asks = Some(ask);
    match ask {
        Ask::Fast => state.budget.fast -= 1,
        Ask::Strong => state.budget.strong -= 1,
        Ask::Delete => state.budget.deletes -= 1,
    }
    if ask == Ask::Delete {
        state.wanted = Wanted::Ending;
        return;
    }
    if state.wanted != Wanted::Asked {
        (state.forgot, state.died, state.made, state.fast) = (false, false, false, false);
    }
    (state.wanted, state.fast) = (Wanted::Asked, state.fast || ask == Ask::Fast);
}

fn answered(state: &mut State, wanted: Wanted) {
    (state.asks, state.wanted) = (None, wanted);
    if let Flow::Started { run } = leader(state).flow {
        state.acked = Some(run.id);
    }
    let it = leader(state);
    it.flow = match it.flow {
        Flow::Started { run } => Flow::Object { run },
        Flow::Delete { .. } => Flow::Idle,
        other => other,
    };
}

/// Steps that the log survives.
fn log(setup: &Setup, state: &mut State, step: Step) {
    match step {
        Step::Log { run } => {
            let it = leader(state);
            let started = matches!(it.flow, Flow::Started { .. });
            let known = it.agents[run.agent].current;
            let current = if started { state.agents[run.agent].runs(run.id) } else { known };
            state.log.push(Entry { run, deleted: false, current });
        }
        Step::LogDeleted { run } => {
            let known = leader(state).agents[run.agent].current;
            let current =
                state.log.iter().find(|entry| entry.run == run).map_or(known, |entry| entry.current);
            state.log.retain(|entry| entry.run != run);
            state.log.push(Entry { run, deleted: true, current });
            answered(state, Wanted::Deleted);
            leader(state).flow = Flow::Idle;
        }
        Step::Forget { run } => state.log.retain(|entry| entry.run != run),
        other => fate(setup, state, other),
    }
}

/// What nobody decides.
fn fate(setup: &Setup, state: &mut State, step: Step) {
    match step {
        Step::Crash => {
            state.budget.crashes -= 1;
            state.controllers.pop();
            (state.asks, state.forgot) = (None, true);
        }
        Step::Depose => {
            state.budget.stale -= 1;
            (state.asks, state.forgot) = (None, true);
            boot(state);
        }
        Step::Resign => {
            state.controllers.remove(0);
        }
        Step::Boot => boot(state),
        Step::Cut { agent, cut } => {
            state.budget.cuts -= 1;
            state.cuts[agent] = cut;
        }
        Step::Heal { agent } => state.cuts[agent] = Cut::default(),
        Step::WorkerDies { agent } => {
            state.budget.workers -= 1;
            state.agents[agent].up = false;
        }
        Step::WorkerStarts { agent } => state.agents[agent].adopt(setup),
        Step::KeeperDies { agent } => {
            state.budget.keepers -= 1;
            keeper_dies(state, agent);
        }
        Step::PodVanishes { agent } => {
            state.budget.pods -= 1;
            state.agents[agent].pod = false;
            state.died = true;
        }
        Step::Freeze { agent } => {
            state.agents[agent].run.iter_mut().for_each(|run| run.fenced = true);
        }
        Step::Janitor { agent } => {
            let it = &mut state.agents[agent];
            state.robbed |= it.pod && it.run.is_some_and(|held| state.good == Some(held.id));
            (it.run, it.orphan) = (None, None);
        }
        Step::Tick => {
            state.budget.ticks -= 1;
            let ages = state.agents.iter_mut().flat_map(|it| [&mut it.contact, &mut it.sent]);
            let heard = state.controllers.iter_mut().flat_map(|it| &mut it.agents).map(|it| &mut it.heard);
            ages.chain(heard).for_each(|age| *age = (*age + 1).min(3));
        }
        _ => {}
    }
}

fn boot(state: &mut State) {
    state.term += 1;
    state.controllers.push(Controller::boot(state.term));
}

fn keeper_dies(state: &mut State, agent: usize) {
    state.died = true;
    state.agents[agent].end();
    for stray in &mut state.stray {
        if let Stray::Call(sent) = stray
            && sent.agent == agent
        {
            sent.current = false;
        }
    }
    let known = state.controllers.iter_mut().map(|it| &mut it.agents[agent]);
    known.for_each(|known| known.current = false);
    let entries = state.log.iter_mut().filter(|entry| entry.run.agent == agent);
    entries.for_each(|entry| entry.current = false);
}
