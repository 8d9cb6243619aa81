//! What a controller does next. It judges the truth, as far as it can hear it: one that is behind is one whose calls and
//! writes arrive late, and those are among the stray ones.

use super::agent::{Agent, Call, WAIT, Why};
use super::server::{Change, Id, Object, Phase, Run, Write};
use super::state::{AGENTS, Ask, Controller, Flow, Known, State, Wanted};
use super::step::Step;
use super::{Flaw, Setup};

/// A controller and what it can see.
pub(crate) struct View<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) state: &'a State,
    pub(crate) by: usize,
}

impl View<'_> {
    pub(crate) fn it(&self) -> &Controller {
        &self.state.controllers[self.by]
    }

    fn known(&self, agent: usize) -> &Known {
        &self.it().agents[agent]
    }

    pub(crate) fn agent(&self, agent: usize) -> &Agent {
        &self.state.agents[agent]
    }

    pub(crate) fn leads(&self) -> bool {
        self.it().term == self.state.term
    }

    /// Whether it has looked at its Lease before it writes.
    pub(crate) fn decides(&self) -> bool {
        self.leads() || self.setup.flaw == Flaw::DeposedWrites
    }

    /// Calls arrive. Only the leader is cut off: the other one is to do its worst.
    pub(crate) fn sends(&self, agent: usize) -> bool {
        let it = self.agent(agent);
        it.up && it.pod && !(self.leads() && self.state.cuts[agent].to)
    }

    /// Calls arrive at the incarnation that is known, and answers come back.
    pub(crate) fn hears(&self, agent: usize) -> bool {
        let known = self.known(agent);
        let cut = self.leads() && self.state.cuts[agent].from;
        self.sends(agent) && known.current && known.heard < WAIT && !cut
    }

    /// Whatever runs there is frozen by now. Only a leader may count on its clock.
    pub(crate) fn silent(&self, agent: usize) -> bool {
        let gone = self.setup.flaw == Flaw::GoneIsDead && !self.agent(agent).pod;
        self.leads() && (self.known(agent).heard >= WAIT || gone)
    }

    pub(crate) fn runs(&self, run: Run) -> bool {
        self.hears(run.agent) && self.agent(run.agent).runs(run.id)
    }

    pub(crate) fn tomb(&self, run: Run) -> Option<Why> {
        self.agent(run.agent).tomb(run.id).filter(|_| self.hears(run.agent))
    }

    /// Nothing of this run can run, or begin to run, any more.
    pub(crate) fn is_over(&self, run: Run) -> bool {
        let absent = self.setup.flaw == Flaw::AbsenceIsDeath && self.hears(run.agent) && !self.runs(run);
        let stopped = self.setup.flaw == Flaw::NoTombstone && self.hears(run.agent) && !self.runs(run);
        self.tomb(run).is_some() || absent || stopped
    }

    /// Every agent was heard since the boot, or is silent for so long that all is frozen there.
    fn is_open(&self) -> bool {
        let open = |agent| self.known(agent).synced || self.silent(agent);
        self.setup.flaw == Flaw::NoInventoryFirst || (0..AGENTS).all(open)
    }

    /// No agent can offer another run of this name for adoption.
    pub(crate) fn is_alone(&self, right: Option<Run>) -> bool {
        let gone = |agent: usize| !self.agent(agent).pod;
        let other = |id: Id| right.is_none_or(|run| run.id != id);
        let clear =
            |agent| gone(agent) || (self.known(agent).synced && !self.known(agent).run.is_some_and(other));
        let settled = |run: &Run| gone(run.agent) || !other(run.id);
        let alone = (0..AGENTS).all(clear) && self.it().abandoned.iter().all(settled);
        alone || self.setup.flaw == Flaw::OthersOutliveDelete
    }

    /// No run of this name is known that may be awake.
    pub(crate) fn is_free(&self) -> bool {
        let settled = |run: &Run| self.silent(run.agent) || self.setup.flaw == Flaw::AbandonedDoesNotBlock;
        let empty = |agent| self.known(agent).run.is_none() || self.silent(agent);
        self.is_open() && self.it().abandoned.iter().all(settled) && (0..AGENTS).all(empty)
    }

    /// No other run of the name is awake, or may come to be.
    pub(crate) fn is_quiet(&self, right: Run) -> bool {
        let settled = |run: &Run| run.id == right.id || self.silent(run.agent);
        let own = |agent| self.silent(agent) || self.known(agent).run.is_none_or(|id| id == right.id);
        let quiet = self.it().abandoned.iter().all(settled) && (0..AGENTS).all(own);
        quiet || self.setup.flaw == Flaw::StartsBesideOthers
    }

    /// New runs, one at each agent that can have one. A second try is another run.
    pub(crate) fn fresh(&self, old: Option<Run>) -> Vec<Run> {
        let id = match old {
            Some(run) if self.setup.flaw == Flaw::SameRunAgain => run.id,
            _ => self.state.mint(),
        };
        let able = |agent: &usize| {
            let known = self.known(*agent);
            let abandoned = self.it().abandoned.iter().any(|run| run.agent == *agent);
            known.synced && known.heard < WAIT && self.agent(*agent).pod && !abandoned
        };
        let agents = (0..self.setup.agents).filter(able);
        agents.map(|agent| Run { id, agent }).collect()
    }

    pub(crate) fn plan(&self, steps: &mut Vec<Step>) {
        if self.leads() || self.setup.flaw == Flaw::DeposedSyncs {
            steps.extend(
                (0..AGENTS).filter(|at| self.news(*at)).map(|agent| Step::Sync { by: self.by, agent }),
            );
        }
        for run in &self.it().abandoned {
            let right = self.state.object.as_ref().and_then(|object| object.right());
            if self.sends(run.agent) && right.is_none_or(|right| right.id != run.id) {
                self.stop(*run, Why::Abandoned, steps);
            }
        }
        if !self.is_open() {
            return;
        }
        (0..AGENTS).for_each(|agent| self.leftover(agent, steps));
        self.flow(steps);
        let pending = self.it().flow != Flow::Idle && !self.setup.starts_first();
        match &self.state.object {
            // What is pending is settled first.
            Some(_) if pending && self.setup.flaw != Flaw::PendingBesideObject => {}
            Some(object) if object.deleting => self.ends(object, steps),
            Some(object) => self.keeps(object, steps),
            None => {}
        }
        if self.leads() {
            self.client(steps);
            self.log(steps);
        }
    }

    pub(crate) fn call(&self, agent: usize, call: Call, steps: &mut Vec<Step>) {
        steps.push(Step::Call { by: self.by, agent, call });
    }

    fn stop(&self, run: Run, why: Why, steps: &mut Vec<Step>) {
        self.call(run.agent, Call::Stop { id: run.id, why }, steps);
    }

    /// Stops it unless that is known to have happened.
    pub(crate) fn end(&self, run: Run, why: Why, steps: &mut Vec<Step>) {
        if self.sends(run.agent) && !self.is_over(run) {
            self.stop(run, why, steps);
        }
    }

    pub(crate) fn write(&self, write: Write, steps: &mut Vec<Step>) {
        steps.push(Step::Write { by: self.by, write });
    }

    pub(crate) fn change(&self, change: Change, steps: &mut Vec<Step>) {
        self.write(Write::change(change), steps);
    }

    pub(crate) fn turn(&self, to: Flow, steps: &mut Vec<Step>) {
        steps.push(Step::Turn { by: self.by, to });
    }

    pub(crate) fn assign(&self, old: Option<Run>, steps: &mut Vec<Step>) {
        self.fresh(old).into_iter().for_each(|run| self.change(Change::Assign(run), steps));
    }

    /// A Sync that brings nothing new is no step.
    fn news(&self, agent: usize) -> bool {
        let (known, it) = (self.known(agent), self.agent(agent));
        let truth = it.run.map(|run| run.id);
        let renews = known.heard > 0 || !known.got || it.contact > it.sent || it.sent > 0;
        let fresh = !known.current || !known.synced || known.run != truth;
        self.sends(agent) && (fresh || (self.setup.budget.ticks > 0 && renews))
    }

    /// What an agent runs that is not the right run.
    fn leftover(&self, agent: usize, steps: &mut Vec<Step>) {
        let Some(held) = self.agent(agent).run.filter(|_| self.hears(agent)) else { return };
        let run = Run { id: held.id, agent };
        if self.it().flow.run().is_some_and(|mine| mine.id == held.id) {
            return;
        }
        let deleted = self.state.log.iter().any(|entry| entry.deleted);
        match &self.state.object {
            Some(object) if object.right().is_some_and(|right| right.id == held.id) => {
                // A thaw follows the write that makes every recreate under way fail.
                let first = object.is(Phase::Running);
                if held.fenced && first && !object.deleting && self.is_quiet(run) {
                    self.call(agent, Call::Thaw { id: held.id }, steps);
                }
            }
            Some(_) => self.stop(run, Why::Replaced, steps),
            None if deleted || !held.order => self.stop(run, Why::Deleted, steps),
            None if self.it().flow != Flow::Idle => self.stop(run, Why::Abandoned, steps),
            None if self.it().abandoned.contains(&run) => {}
            None if self.leads() => self.turn(Flow::Object { run }, steps),
            None => {}
        }
    }

    /// Only a leader creates: its successor counts on that whatever it finds is all there is, but for what is under way.
    fn create(&self, run: Run, started: bool, steps: &mut Vec<Step>) {
        if self.leads() {
            self.write(Write::Create { annotation: Some(run), started }, steps);
        }
    }

    /// No create of this name is under way, or will be sent.
    pub(crate) fn is_born(&self) -> bool {
        let done = !matches!(self.it().flow, Flow::Object { .. }) && !self.state.is_late();
        let deposed = !self.leads() && self.setup.flaw == Flaw::DeposedWrites;
        (self.leads() && done) || deposed || self.setup.flaw == Flaw::BirthIsForgotten
    }

    fn flow(&self, steps: &mut Vec<Step>) {
        let object = self.state.object.as_ref();
        let named = |run: Run| {
            object.is_some_and(|it| [it.right(), it.annotation].iter().flatten().any(|is| is.id == run.id))
        };
        let taken = object.is_some() && !self.setup.starts_first();
        match self.it().flow {
            Flow::Idle if self.leads() && object.is_none() => self.begin(steps),
            Flow::Idle => {}
            Flow::Start { .. } if taken => self.turn(Flow::Idle, steps),
            Flow::Start { run } => self.call(run.agent, Call::Start { id: run.id, order: true }, steps),
            Flow::Doubt { run } => self.stop(run, Why::Abandoned, steps),
            Flow::Started { run } if taken => self.turn(Flow::Doubt { run }, steps),
            Flow::Started { run } if object.is_some() => self.change(Change::Assign(run), steps),
            Flow::Started { .. } => {}
            Flow::Object { run } if named(run) => self.turn(Flow::Idle, steps),
            Flow::Object { run } if object.is_some() => self.turn(Flow::Doubt { run }, steps),
            Flow::Object { run } => self.create(run, true, steps),
            Flow::Delete { run, stopped } if object.is_some() && (stopped || named(run)) => {
                self.turn(Flow::Idle, steps);
            }
            Flow::Delete { run, .. } if object.is_some() => self.turn(Flow::Doubt { run }, steps),
            Flow::Delete { run, stopped: false } => self.end(run, Why::Deleted, steps),
            Flow::Delete { run, stopped: true } => {
                let late = self.state.is_late() && self.setup.flaw != Flaw::AckDeleteInDoubt;
                if late || !self.is_alone(Some(run)) {
                    self.create(run, true, steps);
                } else if self.leads() {
                    steps.push(Step::Answer { wanted: Wanted::Deleted });
                }
            }
        }
    }

    /// A create of a name that has nothing yet.
    fn begin(&self, steps: &mut Vec<Step>) {
        let blocked = !self.state.log.is_empty() && self.setup.flaw != Flaw::LogDoesNotBlock;
        if !self.is_free() || blocked {
            return;
        }
        for run in self.fresh(None) {
            match self.state.asks {
                Some(Ask::Fast) => self.turn(Flow::Start { run }, steps),
                Some(Ask::Strong) => self.create(run, false, steps),
                _ => {}
            }
        }
    }

    /// Answers, and the delete that was asked for.
    fn client(&self, steps: &mut Vec<Step>) {
        let there = Step::Answer { wanted: Wanted::There };
        let object = self.state.object.as_ref();
        let alive = object.filter(|object| !object.deleting);
        let flow = self.it().flow;
        match self.state.asks {
            Some(Ask::Fast) => {
                let logged = |run| !self.setup.wal || self.logged(run);
                let started = matches!(flow, Flow::Started { run } if logged(run)) && object.is_none();
                let existed = alive.is_some_and(|object| object.is(Phase::Running));
                if started || (flow == Flow::Idle && existed && self.state.log.is_empty()) {
                    steps.push(there);
                }
            }
            Some(Ask::Strong) if alive.is_some_and(|object| object.is(Phase::Running)) => steps.push(there),
            Some(Ask::Delete) => match (object, flow) {
                (Some(object), _) if object.deleting => {
                    steps.push(Step::Answer { wanted: Wanted::Deleted });
                }
                (Some(_), _) => self.write(Write::Delete { live: true }, steps),
                (None, Flow::Idle) if self.is_nowhere() => {
                    steps.push(Step::Answer { wanted: Wanted::Deleted });
                }
                (None, Flow::Object { run } | Flow::Started { run }) => {
                    self.turn(Flow::Delete { run, stopped: false }, steps);
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn logged(&self, run: Run) -> bool {
        self.state.log.iter().any(|entry| entry.run == run)
    }

    /// Whether it is certain that there is nothing of this name.
    fn is_nowhere(&self) -> bool {
        let nothing = |agent| {
            !self.agent(agent).pod
                || (self.hears(agent) && self.agent(agent).run.is_none())
                || (self.setup.flaw == Flaw::UnheardIsAbsent && self.known(agent).run.is_none())
        };
        let late = self.state.is_late() && self.setup.flaw != Flaw::AbsentIsDeleted;
        (0..AGENTS).all(nothing) && !late && self.state.log.is_empty() && self.it().abandoned.is_empty()
    }

    fn log(&self, steps: &mut Vec<Step>) {
        let flow = self.it().flow;
        if let (true, Flow::Start { run } | Flow::Started { run }) = (self.setup.wal, flow)
            && !self.logged(run)
        {
            steps.push(Step::Log { run });
        }
        let apart = self.state.object.is_none() || self.setup.flaw == Flaw::PendingBesideObject;
        if let (true, Flow::Delete { run, .. }) = (self.setup.wal && apart, flow) {
            steps.push(Step::LogDeleted { run });
        }
        for entry in &self.state.log {
            let run = entry.run;
            if flow.run() == Some(run) {
                continue;
            }
            let hears = self.hears(run.agent);
            let named = |object: &Object| [object.right(), object.annotation].contains(&Some(run));
            let is_named = self.state.object.as_ref().is_some_and(named);
            if entry.deleted {
                let over = hears && (self.is_over(run) || !entry.current);
                if entry.current {
                    self.end(run, Why::Deleted, steps);
                }
                if over && !is_named && !self.state.is_late() && self.is_alone(Some(run)) {
                    steps.push(Step::Forget { run });
                }
            } else if self.state.object.is_some() {
                steps.push(Step::Forget { run });
            } else if flow == Flow::Idle && !self.runs(run) && !self.it().abandoned.contains(&run) {
                match (hears, entry.current) {
                    (true, true) => steps.push(Step::Forget { run }),
                    (true, false) => self.turn(Flow::Object { run }, steps),
                    _ if self.silent(run.agent) => self.turn(Flow::Object { run }, steps),
                    _ => {}
                }
            }
        }
    }

    /// Whether a run was given up only because its agent is silent.
    pub(crate) fn gives_up(&self, id: Option<Id>) -> Option<Run> {
        let right = self.state.object.as_ref()?.right()?;
        (self.silent(right.agent) && id != Some(right.id) && !self.is_over(right)).then_some(right)
    }
}
