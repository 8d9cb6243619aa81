//! An agent: what it runs, what it remembers of runs that were stopped, and how long ago it was in contact.

use super::server::Id;
use super::{Flaw, Setup};

/// How often time has to pass until an agent freezes what it runs, counted from the sending of the last answer that
/// was acknowledged.
pub(crate) const FENCE: u8 = 1;
/// And until a controller takes that for granted, counted from the last answer that it has received.
pub(crate) const WAIT: u8 = 2;

/// Why a run was stopped; kept with its tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Why {
    Deleted,
    Abandoned,
    Replaced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Call {
    /// With the order: the object is to be made from it if nobody has.
    Start {
        id: Id,
        order: bool,
    },
    Stop {
        id: Id,
        why: Why,
    },
    /// The object exists: the order is not needed any more.
    Confirm {
        id: Id,
    },
    Thaw {
        id: Id,
    },
}

/// A call with its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sent {
    pub(crate) agent: usize,
    pub(crate) term: u8,
    /// It names the incarnation that lives.
    pub(crate) current: bool,
    pub(crate) call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Doubt,
    Done,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) id: Id,
    pub(crate) order: bool,
    pub(crate) fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    /// Its worker lives.
    pub(crate) up: bool,
    /// Its Pod is in the API.
    pub(crate) pod: bool,
    pub(crate) term: u8,
    /// The one run of the name: a second one is refused.
    pub(crate) run: Option<Held>,
    /// Runs that it does not know of.
    pub(crate) orphan: Option<Held>,
    pub(crate) tombs: Vec<(Id, Why)>,
    /// Since it sent the last answer that was acknowledged; and the last one.
    pub(crate) contact: u8,
    pub(crate) sent: u8,
}

impl Agent {
    pub(crate) fn new() -> Agent {
        Agent {
            up: true,
            pod: true,
            term: 1,
            run: None,
            orphan: None,
            tombs: Vec::new(),
            contact: 0,
            sent: 0,
        }
    }

    pub(crate) fn tomb(&self, id: Id) -> Option<Why> {
        self.tombs.iter().find(|(tomb, _)| *tomb == id).map(|(_, why)| *why)
    }

    pub(crate) fn runs(&self, id: Id) -> bool {
        self.run.is_some_and(|run| run.id == id)
    }

    /// What runs and is not frozen.
    pub(crate) fn awake(&self) -> usize {
        [self.run, self.orphan].iter().flatten().filter(|run| !run.fenced).count()
    }

    pub(crate) fn receive(&mut self, setup: &Setup, sent: Sent) -> Answer {
        if sent.term < self.term && setup.flaw != Flaw::NoTerm {
            return Answer::Refused;
        }
        if !sent.current && setup.flaw != Flaw::NoIncarnation {
            return Answer::Refused;
        }
        self.term = self.term.max(sent.term);
        match sent.call {
            Call::Start { id, order } => self.start(setup, id, order),
            Call::Stop { id, why } => {
                self.run = self.run.filter(|run| run.id != id);
                if setup.flaw != Flaw::NoTombstone && self.tomb(id).is_none() {
                    self.tombs.push((id, why));
                }
                Answer::Done
            }
            Call::Confirm { id } => {
                self.run.iter_mut().filter(|run| run.id == id).for_each(|run| run.order = false);
                Answer::Done
            }
            Call::Thaw { .. } if self.is_silent(setup) && setup.flaw != Flaw::ThawsInSilence => {
                Answer::Refused
            }
            Call::Thaw { id } => {
                self.run.iter_mut().filter(|run| run.id == id).for_each(|run| run.fenced = false);
                Answer::Done
            }
        }
    }

    fn is_silent(&self, setup: &Setup) -> bool {
        self.contact >= FENCE && setup.fences()
    }

    fn start(&mut self, setup: &Setup, id: Id, order: bool) -> Answer {
        let silent = self.is_silent(setup) && setup.flaw != Flaw::StartsInSilence;
        match self.run {
            Some(run) if run.id == id => Answer::Done,
            Some(_) => Answer::Refused,
            None if self.tomb(id).is_some() || silent => Answer::Refused,
            None => {
                self.run = Some(Held { id, order, fenced: false });
                Answer::Done
            }
        }
    }

    /// Time passes only when everything that has to be frozen is.
    pub(crate) fn is_late(&self, setup: &Setup) -> bool {
        let guarded = self.up || setup.flaw != Flaw::FenceDiesWithWorker;
        let run = self.run.filter(|run| !run.fenced && self.contact >= setup.fence(run.order));
        setup.fences() && guarded && run.is_some()
    }

    /// A sign of life. The answer under way replaces the one before it.
    pub(crate) fn sync(&mut self, setup: &Setup, term: u8, acked: bool) {
        self.term = self.term.max(term);
        if acked {
            self.contact = self.contact.min(self.sent);
        }
        if setup.flaw == Flaw::LeaseByReceipt {
            self.contact = 0;
        }
        if setup.flaw == Flaw::ThawOnContact && self.contact < FENCE {
            self.run.iter_mut().for_each(|run| run.fenced = false);
        }
        self.sent = 0;
    }

    /// A new worker adopts what the spawner has kept.
    pub(crate) fn adopt(&mut self, setup: &Setup) {
        self.up = true;
        match setup.flaw {
            Flaw::AdoptNothing => self.orphan = self.run.take().or(self.orphan),
            Flaw::ContactFromAdoption => self.contact = 0,
            Flaw::TermDiesWithWorker => self.term = 0,
            Flaw::TombsDieWithWorker => self.tombs.clear(),
            _ => {}
        }
        // It does not know when its predecessor answered.
        self.sent = WAIT;
    }

    /// The kernel ends everything with the keeper; another incarnation begins.
    pub(crate) fn end(&mut self) {
        *self = Agent { pod: self.pod, term: 0, contact: WAIT, sent: WAIT, ..Agent::new() };
    }
}
