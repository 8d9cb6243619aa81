//! What a controller does for an object: one plan for all ways that it came to be.

use super::Flaw;
use super::agent::{Call, Why};
use super::controller::View;
use super::server::{Change, Object, Phase, Run, Write};
use super::state::Flow;
use super::step::Step;

impl View<'_> {
    /// An object that is being deleted.
    pub(crate) fn ends(&self, object: &Object, steps: &mut Vec<Step>) {
        let runs = [object.right(), object.annotation];
        runs.iter().flatten().for_each(|run| self.end(*run, Why::Deleted, steps));
        let forgets = self.setup.flaw == Flaw::AnnotationNeedNotBeConfirmed;
        // By the wait goes only what no agent would offer for adoption: its Pod is gone, or it knows of the object.
        let waited = |run: Run, known: bool| {
            self.silent(run.agent) && (known || forgets || !self.agent(run.agent).pod)
        };
        let stopped =
            object.right().is_none_or(|run| self.is_over(run) || waited(run, object.annotation.is_none()));
        let unheld = |run: Run| (self.is_over(run) || waited(run, false)) && self.is_born();
        let closed = self.state.log.iter().all(|entry| entry.deleted);
        let logged = closed || self.setup.flaw == Flaw::DoneIsNotWaitedFor;
        let alone = self.is_alone(object.right());
        if self.decides() && stopped && alone && logged && object.annotation.is_none_or(unheld) {
            self.change(Change::Finalize, steps);
        }
    }

    pub(crate) fn keeps(&self, object: &Object, steps: &mut Vec<Step>) {
        let Some(right) = object.right() else {
            if self.setup.starts_first() && self.it().flow == Flow::Idle {
                self.fresh(None).into_iter().for_each(|run| self.turn(Flow::Start { run }, steps));
            } else if self.is_free() && !self.setup.starts_first() {
                self.assign(None, steps);
            }
            return;
        };
        if self.state.log.iter().any(|entry| entry.run.id == right.id && entry.deleted) {
            return self.write(Write::Delete { live: true }, steps);
        }
        match object.status {
            None => self.moves(right, object.started, steps),
            Some((_, phase)) => {
                object.annotation.iter().for_each(|run| self.clears(*run, right, phase, steps));
                self.ensures(object, right, phase, steps);
            }
        }
    }

    /// An annotation and no status yet.
    fn moves(&self, run: Run, started: bool, steps: &mut Vec<Step>) {
        match self.tomb(run) {
            Some(Why::Deleted) => self.write(Write::Delete { live: true }, steps),
            Some(_) if self.setup.flaw == Flaw::TombstoneWithoutWhy => {
                self.write(Write::Delete { live: true }, steps);
            }
            Some(_) => self.assign(Some(run), steps),
            None if started && self.setup.flaw != Flaw::StartedIsBound => {
                if self.runs(run) {
                    self.change(Change::Move(Phase::Running), steps);
                } else if self.hears(run.agent) || self.silent(run.agent) {
                    self.change(Change::Move(Phase::Lost), steps);
                }
            }
            None => {
                self.change(Change::Move(Phase::Bound), steps);
                if self.it().refused == Some(run.id) {
                    return self.end(run, Why::Abandoned, steps);
                }
                if self.sends(run.agent) && !self.runs(run) && self.is_quiet(run) {
                    self.call(run.agent, Call::Start { id: run.id, order: false }, steps);
                }
            }
        }
    }

    /// An annotation beside the status: it goes when its agent will not offer the run for adoption.
    fn clears(&self, run: Run, right: Run, phase: Phase, steps: &mut Vec<Step>) {
        let held = self.agent(run.agent).run.filter(|held| held.id == run.id && self.hears(run.agent));
        let dead = run == right && phase != Phase::Bound && self.hears(run.agent) && held.is_none();
        if self.setup.flaw == Flaw::AnnotationOverStatus && run != right {
            self.change(Change::Move(Phase::Bound), steps);
        } else if run != right {
            self.end(run, Why::Replaced, steps);
        } else if held.is_some_and(|held| held.order) {
            self.call(run.agent, Call::Confirm { id: run.id }, steps);
        }
        let known = held.is_some_and(|held| !held.order && run == right);
        let forgets = self.setup.flaw == Flaw::AnnotationNeedNotBeConfirmed;
        let gone = self.silent(run.agent) && !self.agent(run.agent).pod;
        let kept = self.setup.flaw == Flaw::AnnotationOverStatus && phase == Phase::Running;
        if !kept && self.is_born() && (known || dead || gone || forgets || self.is_over(run)) {
            self.change(Change::Clear, steps);
        }
    }

    /// The run that the status names.
    fn ensures(&self, object: &Object, run: Run, phase: Phase, steps: &mut Vec<Step>) {
        let (hears, silent) = (self.hears(run.agent), self.silent(run.agent));
        if silent && phase != Phase::Lost {
            self.change(Change::Phase(Phase::Lost), steps);
        }
        if object.reset {
            self.end(run, Why::Replaced, steps);
            if self.is_over(run) || (silent && phase == Phase::Lost) {
                self.assign(Some(run), steps);
            }
            return;
        }
        let recreates = self.setup.auto || !object.ran;
        match phase {
            Phase::Bound if self.it().refused == Some(run.id) => {
                self.end(run, Why::Abandoned, steps);
                if self.is_over(run) || self.setup.flaw == Flaw::RefusalIsFinal {
                    self.assign(Some(run), steps);
                }
            }
            Phase::Bound if self.is_over(run) && self.tomb(run).is_some() => self.assign(Some(run), steps),
            Phase::Bound if self.runs(run) => self.change(Change::Phase(Phase::Running), steps),
            Phase::Bound if self.sends(run.agent) && self.is_quiet(run) => {
                self.call(run.agent, Call::Start { id: run.id, order: false }, steps);
            }
            Phase::Running if hears && !self.runs(run) => self.change(Change::Phase(Phase::Lost), steps),
            Phase::Lost if self.runs(run) => self.change(Change::Phase(Phase::Running), steps),
            Phase::Lost if recreates && hears => {
                self.end(run, Why::Replaced, steps);
                if self.is_over(run) {
                    self.assign(Some(run), steps);
                }
            }
            Phase::Lost if recreates && silent => self.assign(Some(run), steps),
            _ => {}
        }
    }
}
