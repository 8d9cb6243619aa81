//! The API server: one object, and what writes do to it. Writes name the version that they replace; a version is not
//! counted: each write under way knows whether the object is still the one that it was meant for.

pub(crate) type Id = u8;

/// A run: its id, and the one agent that it is offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) id: Id,
    pub(crate) agent: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    Bound,
    Running,
    Lost,
}

/// The `Sandbox`. It always has the finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub(crate) annotation: Option<Run>,
    /// The annotation says that the run was started before the object was made.
    pub(crate) started: bool,
    pub(crate) status: Option<(Run, Phase)>,
    /// `startedAt`: the run of the status was seen to run.
    pub(crate) ran: bool,
    pub(crate) deleting: bool,
    /// `resetRevision` is above `acceptedResetRevision`.
    pub(crate) reset: bool,
}

impl Object {
    /// The run that is the right one.
    pub(crate) fn right(&self) -> Option<Run> {
        self.status.map(|(run, _)| run).or(self.annotation)
    }

    pub(crate) fn is(&self, phase: Phase) -> bool {
        self.status.is_some_and(|(_, is)| is == phase)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The annotation into the status.
    Move(Phase),
    /// The annotation away.
    Clear,
    /// Status: Bound to this run.
    Assign(Run),
    Phase(Phase),
    /// The finalizer away.
    Finalize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Write {
    Create {
        annotation: Option<Run>,
        started: bool,
    },
    Change {
        change: Change,
        live: bool,
    },
    /// With the UID as precondition.
    Delete {
        live: bool,
    },
}

impl Write {
    pub(crate) fn change(change: Change) -> Write {
        Write::Change { change, live: true }
    }
}

/// What a write has done to the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    Changed,
    Gone,
}

pub(crate) fn apply(object: &mut Option<Object>, write: Write) -> Done {
    match (write, object.as_mut()) {
        (Write::Create { annotation, started }, None) => {
            *object =
                Some(Object { annotation, started, status: None, ran: false, deleting: false, reset: false });
            Done::Changed
        }
        (Write::Delete { live: true }, Some(it)) if !it.deleting => {
            it.deleting = true;
            Done::Changed
        }
        (Write::Change { change: Change::Finalize, live: true }, Some(it)) if it.deleting => {
            *object = None;
            Done::Gone
        }
        (Write::Change { change, live: true }, Some(it)) => {
            let before = *it;
            change_object(it, change);
            if *it == before { Done::Nothing } else { Done::Changed }
        }
        _ => Done::Nothing,
    }
}

fn change_object(it: &mut Object, change: Change) {
    match change {
        Change::Move(phase) => {
            it.status = it.annotation.map(|run| (run, phase));
            it.ran = phase != Phase::Bound;
        }
        Change::Clear => (it.annotation, it.started) = (None, false),
        Change::Assign(run) => {
            (it.status, it.reset, it.ran) = (Some((run, Phase::Bound)), false, false);
        }
        Change::Phase(phase) => {
            it.status = it.status.map(|(run, _)| (run, phase));
            it.ran |= phase == Phase::Running;
        }
        Change::Finalize => {}
    }
}
