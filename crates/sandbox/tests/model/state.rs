//! A state of the model: the truth, what controllers have in memory, and what is still under way.

use super::Setup;
use super::agent::{Agent, Answer, Call, Sent, Why};
use super::server::{self, Change, Done, Id, Object, Phase, Run, Write};

pub(crate) const AGENTS: usize = 2;

/// What the client has asked for and not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Fast,
    Strong,
    Delete,
}

/// What the client may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    Nothing,
    /// A create was asked for; nobody has answered.
    Asked,
    /// A create was acknowledged.
    There,
    /// A delete was asked for; nobody has answered.
    Ending,
    /// A delete was acknowledged.
    Deleted,
}

/// What a controller is doing for a name that has no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flow {
    Idle,
    Start {
        run: Run,
    },
    /// Nobody knows whether it runs: it is stopped first.
    Doubt {
        run: Run,
    },
    Started {
        run: Run,
    },
    /// The object is to be made.
    Object {
        run: Run,
    },
    Delete {
        run: Run,
        stopped: bool,
    },
}

impl Flow {
    pub(crate) fn run(self) -> Option<Run> {
        match self {
            Flow::Idle => None,
            Flow::Start { run }
            | Flow::Doubt { run }
            | Flow::Started { run }
            | Flow::Object { run }
            | Flow::Delete { run, .. } => Some(run),
        }
    }
}

/// What a controller knows of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    /// It was heard since this controller booted.
    pub(crate) synced: bool,
    /// The incarnation that was heard lives.
    pub(crate) current: bool,
    /// The last answer was received.
    pub(crate) got: bool,
    /// Since the last answer that was received, or the boot.
    pub(crate) heard: u8,
    /// The registry: what runs there.
    pub(crate) run: Option<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    pub(crate) term: u8,
    pub(crate) agents: [Known; AGENTS],
    pub(crate) flow: Flow,
    /// Runs that are to be stopped; nobody knows whether they run.
    pub(crate) abandoned: Vec<Run>,
    /// The right run was refused.
    pub(crate) refused: Option<Id>,
}

impl Controller {
    pub(crate) fn boot(term: u8) -> Controller {
        let known = Known { synced: false, current: false, got: false, heard: 0, run: None };
        Controller { term, agents: [known; AGENTS], flow: Flow::Idle, abandoned: Vec::new(), refused: None }
    }

    pub(crate) fn abandon(&mut self, run: Run) {
        if !self.abandoned.contains(&run) {
            self.abandoned.push(run);
        }
    }
}

/// What the log says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) run: Run,
    pub(crate) deleted: bool,
    /// The incarnation that it was meant for lives.
    pub(crate) current: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stray {
    Call(Sent),
    Write(Write),
}

/// Which directions between the leader and an agent are broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    pub(crate) to: bool,
    pub(crate) from: bool,
}

/// How much may still be asked for, or go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) fast: u8,
    pub(crate) strong: u8,
    /// Objects made by hand.
    pub(crate) objects: u8,
    pub(crate) deletes: u8,
    pub(crate) resets: u8,
    /// Calls and writes whose answer is lost; they arrive at any later time, or never.
    pub(crate) lost: u8,
    /// Starts that agents refuse for want of room.
    pub(crate) full: u8,
    pub(crate) crashes: u8,
    /// Leaders that lose their Lease and do not know.
    pub(crate) stale: u8,
    pub(crate) cuts: u8,
    pub(crate) workers: u8,
    pub(crate) keepers: u8,
    /// Pods of agents that vanish from the API while they run on.
    pub(crate) pods: u8,
    pub(crate) ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) object: Option<Object>,
    pub(crate) agents: [Agent; AGENTS],
    /// The last one leads.
    pub(crate) controllers: Vec<Controller>,
    pub(crate) term: u8,
    pub(crate) log: Vec<Entry>,
    pub(crate) stray: Vec<Stray>,
    pub(crate) cuts: [Cut; AGENTS],
    pub(crate) asks: Option<Ask>,
    pub(crate) wanted: Wanted,
    /// Since the create was asked for: a controller died, an agent died; it was made by FAST.
    pub(crate) forgot: bool,
    pub(crate) died: bool,
    pub(crate) fast: bool,
    /// And its object was there once.
    pub(crate) made: bool,
    /// The run whose start was acknowledged, and whether it was started once more.
    pub(crate) acked: Option<Id>,
    pub(crate) restarted: bool,
    /// The run that the object said to be Running, and has not taken back; and whether it was ended all the same.
    pub(crate) good: Option<Id>,
    pub(crate) robbed: bool,
    pub(crate) budget: Budget,
}

impl State {
    /// Writes, and makes what is under way for older versions fail.
    pub(crate) fn write(&mut self, write: Write) -> bool {
        let done = server::apply(&mut self.object, write);
        self.judge();
        let gone = |run: Run| {
            let logged = self.log.iter().any(|entry| entry.run == run && entry.deleted);
            logged || self.agents[run.agent].tomb(run.id) == Some(Why::Deleted)
        };
        if let (Write::Create { annotation, .. }, Done::Changed) = (write, done) {
            let wanted = matches!(self.wanted, Wanted::Asked | Wanted::There);
            self.made |= wanted && !annotation.is_some_and(gone);
        }
        for stray in &mut self.stray {
            match stray {
                Stray::Write(Write::Change { live, .. }) if done != Done::Nothing => *live = false,
                Stray::Write(Write::Delete { live }) if done == Done::Gone => *live = false,
                _ => {}
            }
        }
        done != Done::Nothing
    }

    /// Creates that are under way. Whoever waits for LATE waits until there is none.
    pub(crate) fn is_late(&self) -> bool {
        self.stray.iter().any(|stray| matches!(stray, Stray::Write(Write::Create { .. })))
    }

    /// Which run nobody may end.
    pub(crate) fn judge(&mut self) {
        let kept = |object: &Object| !object.deleting && !object.reset && !object.is(Phase::Lost);
        let Some(object) = self.object.filter(kept) else {
            self.good = None;
            return;
        };
        if object.is(Phase::Running) {
            self.good = object.right().map(|run| run.id);
        }
    }

    /// A call reaches its agent.
    pub(crate) fn deliver(&mut self, setup: &Setup, sent: Sent) -> Answer {
        let before = self.agents[sent.agent].run;
        let answer = self.agents[sent.agent].receive(setup, sent);
        let after = self.agents[sent.agent].run.filter(|_| before.is_none());
        let ended = before.filter(|held| !self.agents[sent.agent].runs(held.id));
        self.robbed |= ended.is_some_and(|held| self.good == Some(held.id)) && self.wanted == Wanted::There;
        self.restarted |= after.is_some_and(|held| self.acked == Some(held.id));
        answer
    }

    /// Numbers runs anew by where they stand, so that states that differ in nothing else are one. A tombstone that
    /// nothing else speaks of is of no use to anybody.
    pub(crate) fn normalize(&mut self) {
        self.acked = self.acked.filter(|_| self.wanted == Wanted::There);
        let mut names: Vec<Id> = Vec::new();
        self.visit(&mut |id| {
            if !names.contains(id) {
                names.push(*id);
            }
        });
        let number = |id: Id| names.iter().position(|name| *name == id).map(|at| at as Id);
        for agent in &mut self.agents {
            agent.tombs.retain_mut(|(id, _)| number(*id).map(|new| *id = new).is_some());
            agent.tombs.sort();
        }
        self.visit(&mut |id| *id = number(*id).expect("it was visited"));
        self.stray.retain(|stray| !is_void(stray));
        self.stray.sort();
        self.controllers.iter_mut().for_each(|it| it.abandoned.sort());
        self.log.sort_by_key(|entry| entry.run);
    }

    /// Every place that names a run, but for tombstones.
    fn visit(&mut self, see: &mut impl FnMut(&mut Id)) {
        if let Some(object) = &mut self.object {
            object.status.iter_mut().for_each(|(run, _)| see(&mut run.id));
            object.annotation.iter_mut().for_each(|run| see(&mut run.id));
        }
        for agent in &mut self.agents {
            [&mut agent.run, &mut agent.orphan].into_iter().flatten().for_each(|run| see(&mut run.id));
        }
        for it in &mut self.controllers {
            match &mut it.flow {
                Flow::Idle => {}
                Flow::Start { run }
                | Flow::Doubt { run }
                | Flow::Started { run }
                | Flow::Object { run }
                | Flow::Delete { run, .. } => see(&mut run.id),
            }
            it.abandoned.iter_mut().for_each(|run| see(&mut run.id));
            it.refused.iter_mut().for_each(&mut *see);
            it.agents.iter_mut().filter_map(|known| known.run.as_mut()).for_each(&mut *see);
        }
        self.log.iter_mut().for_each(|entry| see(&mut entry.run.id));
        self.acked.iter_mut().chain(&mut self.good).for_each(&mut *see);
        for stray in &mut self.stray {
            match stray {
                Stray::Call(sent) => match &mut sent.call {
                    Call::Start { id, .. }
                    | Call::Stop { id, .. }
                    | Call::Confirm { id }
                    | Call::Thaw { id } => see(id),
                },
                Stray::Write(Write::Create { annotation: Some(run), .. })
                | Stray::Write(Write::Change { change: Change::Assign(run), .. }) => see(&mut run.id),
                Stray::Write(_) => {}
            }
        }
    }

    /// An id that nothing speaks of.
    pub(crate) fn mint(&self) -> Id {
        let mut next = 0;
        let mut state = self.clone();
        state.visit(&mut |id| next = next.max(*id + 1));
        let tombs = self.agents.iter().flat_map(|agent| &agent.tombs);
        tombs.fold(next, |next, (id, _)| next.max(*id + 1))
    }
}

/// A write that can change nothing any more.
fn is_void(stray: &Stray) -> bool {
    matches!(
        stray,
        Stray::Write(Write::Change { live: false, .. }) | Stray::Write(Write::Delete { live: false })
    )
}
