//! What a controller takes in: answers to its calls and writes, and what agents say of themselves.

use super::agent::{Answer, Call, Sent};
use super::controller::View;
use super::server::{Change, Id, Phase, Run, Write};
use super::state::{Ask, Flow, State, Stray, Wanted};
use super::{Flaw, Setup};

/// What is given up since its agent is silent is stopped as soon as that is heard again.
fn give_up(setup: &Setup, state: &mut State, by: usize, write: Write) {
    let id = match write {
        Write::Change { change: Change::Assign(run), .. } => Some(run.id),
        Write::Change { change: Change::Finalize, .. } => None,
        _ => return,
    };
    let view = View { setup, state, by };
    if let Some(run) = view.gives_up(id) {
        state.controllers[by].abandon(run);
    }
}

pub(crate) fn written(setup: &Setup, state: &mut State, by: usize, write: Write) {
    give_up(setup, state, by, write);
    let done = state.write(write);
    if done && matches!(write, Write::Delete { .. }) && state.asks == Some(Ask::Delete) {
        (state.asks, state.wanted) = (None, Wanted::Deleted);
    }
    let right = state.object.and_then(|object| object.right());
    let it = &mut state.controllers[by];
    match (write, it.flow) {
        (Write::Change { change: Change::Phase(Phase::Running), .. }, _) if done => {
            it.abandoned.retain(|run| Some(*run) != right);
        }
        (Write::Create { annotation: Some(made), .. }, Flow::Object { run }) if done && made == run => {
            it.flow = Flow::Idle;
            state.log.retain(|entry| entry.run != run);
        }
        (Write::Change { change: Change::Assign(made), .. }, flow) if done => {
            it.refused = None;
            if flow.run() == Some(made) {
                it.flow = Flow::Idle;
            }
        }
        _ => {}
    }
}

pub(crate) fn lost_write(setup: &Setup, state: &mut State, by: usize, write: Write) {
    give_up(setup, state, by, write);
    state.budget.lost -= 1;
    state.stray.push(Stray::Write(write));
    if matches!(write, Write::Create { .. }) && state.asks == Some(Ask::Strong) {
        state.asks = None;
    }
}

pub(crate) fn called(setup: &Setup, state: &mut State, by: usize, agent: usize, call: Call) {
    let view = View { setup, state, by };
    let (sends, leads) = (view.sends(agent), view.leads());
    let cut = leads && state.cuts[agent].from;
    let it = &state.controllers[by];
    let sent = Sent { agent, term: it.term, current: it.agents[agent].current, call };
    let answer = if sends { state.deliver(setup, sent) } else { Answer::Doubt };
    heard(setup, state, by, agent, call, if cut { Answer::Doubt } else { answer });
}

/// A controller takes in what a call has brought.
pub(crate) fn heard(setup: &Setup, state: &mut State, by: usize, agent: usize, call: Call, answer: Answer) {
    let it = &mut state.controllers[by];
    let known = &mut it.agents[agent];
    match (call, answer) {
        (Call::Start { id, .. }, answer) => {
            if answer == Answer::Done {
                known.run = Some(id);
            }
            let Flow::Start { run } = it.flow else { return };
            if run.id != id {
                return;
            }
            it.flow = match answer {
                Answer::Done => Flow::Started { run },
                Answer::Doubt if setup.flaw != Flaw::DoubtIsRefusal => Flow::Doubt { run },
                Answer::Doubt | Answer::Refused => Flow::Idle,
            };
            if it.flow == Flow::Idle {
                state.log.retain(|entry| entry.run.id != id);
            }
        }
        (Call::Stop { id, .. }, Answer::Done) => {
            known.run = known.run.filter(|run| *run != id);
            it.abandoned.retain(|run| run.id != id);
            state.log.retain(|entry| entry.run.id != id || entry.deleted);
            it.flow = match it.flow {
                Flow::Doubt { run } if run.id == id => Flow::Idle,
                Flow::Delete { run, .. } if run.id == id => Flow::Delete { run, stopped: true },
                other => other,
            };
        }
        (Call::Stop { id, .. }, Answer::Doubt) => {
            let right = state.object.and_then(|object| object.right());
            let run = Run { id, agent };
            let deletes = matches!(it.flow, Flow::Delete { run: mine, .. } if mine == run);
            if right.is_none_or(|right| right.id != id) && !deletes && setup.flaw != Flaw::StoppedIsAdopted {
                it.abandon(run);
            }
            if let Flow::Doubt { run } = it.flow
                && run.id == id
            {
                it.abandon(run);
                it.flow = Flow::Idle;
                if it.term == state.term {
                    state.asks = None;
                }
            }
        }
        _ => {}
    }
}

pub(crate) fn full(state: &mut State, by: usize, id: Id) {
    state.budget.full -= 1;
    let it = &mut state.controllers[by];
    match it.flow {
        Flow::Start { run } if run.id == id => {
            it.flow = Flow::Idle;
            state.log.retain(|entry| entry.run.id != id);
        }
        _ => it.refused = Some(id),
    }
}

pub(crate) fn sync(setup: &Setup, state: &mut State, by: usize, agent: usize) {
    let State { controllers, agents, cuts, log, .. } = state;
    let it = &mut controllers[by];
    // A start names the incarnation that its slot was reserved in.
    if let Flow::Start { run } = it.flow
        && run.agent == agent
        && !it.agents[agent].current
    {
        it.flow = Flow::Idle;
        log.retain(|entry| entry.run != run);
    }
    let given_up = it.abandoned.iter().any(|run| run.agent == agent);
    let known = &mut it.agents[agent];
    if it.term < agents[agent].term {
        return;
    }
    let withheld = given_up && setup.flaw != Flaw::AckWhileAbandoned;
    agents[agent].sync(setup, it.term, known.got && known.current && !withheld);
    known.got = !cuts[agent].from;
    if known.got {
        (known.synced, known.current, known.heard) = (true, true, 0);
        known.run = agents[agent].run.map(|run| run.id);
    }
}
