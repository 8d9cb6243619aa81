//! What to do next for one key of one Task. Pure: no I/O, no clock, no randomness; a router carries out the step and
//! asks again with what it has learnt. `docs/decisions/0011-reservation.md` has the reasons.
//!
//! Never says to serve from views that do not name the same bond, and never points a session away from an instance
//! that may still run for it.

use std::time::Duration;

use crate::identity::InstanceId;
use crate::provider::Which;
use crate::record::{Hold, Instance, Life, Session};
use crate::timing::Timing;

/// What is known of the key's Lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LeaseView<'a> {
    /// Nothing: it has to be read.
    Unknown,
    /// There is none.
    Absent,
    /// There is one, but somebody has spoilt it. Nobody serves from it, and its name is taken.
    Spoilt,
    /// What it says, and since when (on the router's own clock) this version of it has been known.
    Seen { session: &'a Session, since: Duration },
}

/// What is known of the instance that the Lease names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HolderView<'a> {
    /// Nothing: it has to be read.
    Unknown,
    /// Read: there is no object of this name, or it is another one.
    Gone,
    /// What it says; `fresh` if it was read from the server since this version of the Lease has been known.
    Seen { instance: &'a Instance, fresh: bool },
}

/// What is known of an instance to bind the key to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Candidate<'a> {
    /// Nobody has asked for one.
    Unasked,
    /// There is none as yet; it has been asked for.
    Awaited,
    /// This one is set aside for the key.
    Given(&'a Instance),
}

/// Everything that a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The process that decides: a router that was restarted is another.
    pub me: &'a str,
    /// Its monotonic clock.
    pub now: Duration,
    pub timing: &'a Timing,
    pub lease: LeaseView<'a>,
    pub holder: HolderView<'a>,
    pub candidate: Candidate<'a>,
    /// When I sent the write that made the Lease what it is, if it was me.
    pub sent: Option<Duration>,
    /// I have sent a patch that takes the instance for the present reservation, and not confirmed since.
    pub took: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The session is bound: use its instance.
    Serve,
    /// Read the Lease from the server.
    ReadLease,
    /// Read the instance that the Lease names from the server.
    ReadHolder,
    /// Ask for an instance; take part in the waiting if there is none.
    Ask,
    /// Create the Lease, pointed at the candidate or at nothing, with me as its binder.
    Create { holder: Option<InstanceId> },
    /// Point the Lease at the candidate, with me as its binder, if it is still as I know it. `lost` if the session
    /// had an instance.
    Point { holder: InstanceId, lost: bool },
    /// Point the Lease at nothing, with me as its binder, if it is still as I know it. `lost` as above.
    Claim { lost: bool },
    /// Make me the binder and change nothing else, if the Lease is still as I know it.
    TakeOver,
    /// Renew the Lease and remove any `releasing` mark, if it is still as I know it.
    Confirm,
    /// Say that the session rests no longer, renew it and remove any `releasing` mark, if it is still as I know it.
    Resume,
    /// Have the instance go on, under the number under which the session rests, if it is still as I know it.
    Wake,
    /// Patch the instance that the Lease names from free to held, if it is still as I know it.
    TakeInstance,
    /// Remove the `releasing` mark from the session's instance, if it is still as I know it.
    KeepInstance,
    /// Delete the instance that the Lease names, if it is still as I know it: it cannot serve, and must not run on.
    DeleteInstance,
    /// Wait for a change, at the longest until then.
    Wait { until: Option<Duration>, why: Why },
}

/// What a key waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// An instance, from the pool.
    Instance,
    /// Another router binds it.
    Binder,
    /// The old session ends.
    Ending,
    /// The old instance ends.
    OldInstance,
    /// The instance goes on again.
    Waking,
    /// The instance has no address yet.
    Address,
    /// The Lease cannot be read.
    Spoilt,
}

/// The next step for a key.
pub fn decide(situation: &Situation<'_>) -> Step {
    match situation.lease {
        LeaseView::Unknown => Step::ReadLease,
        LeaseView::Spoilt => Step::Wait { until: None, why: Why::Spoilt },
        LeaseView::Absent => match situation.candidate {
            Candidate::Unasked => Step::Ask,
            Candidate::Awaited => Step::Create { holder: None },
            Candidate::Given(instance) => Step::Create { holder: Some(instance.id.clone()) },
        },
        LeaseView::Seen { session, .. } if session.ending => Step::Wait { until: None, why: Why::Ending },
        LeaseView::Seen { session, since } => of_session(situation, session, since),
    }
}

fn of_session(situation: &Situation<'_>, session: &Session, since: Duration) -> Step {
    if session.holder.is_none() {
        return match &*session.binder == situation.me {
            true => wait_as_binder(situation, since),
            false => leave_to_binder(situation, since, true),
        };
    }
    match situation.holder {
        HolderView::Unknown => Step::ReadHolder,
        HolderView::Gone => elsewhere(situation, true),
        HolderView::Seen { instance, .. } if instance.life == Life::Dead => elsewhere(situation, true),
        HolderView::Seen { instance, .. } if instance.is_bound_to(session) => {
            bound(situation, session, instance)
        }
        HolderView::Seen { instance, fresh } if &*session.binder == situation.me => {
            complete(situation, instance, fresh)
        }
        HolderView::Seen { fresh, .. } => leave_to_binder(situation, since, fresh),
    }
}

/// Both sides name the same bond.
fn bound(situation: &Situation<'_>, session: &Session, instance: &Instance) -> Step {
    match instance.life {
        Life::Terminating => Step::Wait { until: None, why: Why::OldInstance },
        Life::Unready | Life::Starting => Step::DeleteInstance,
        // Also if it goes on at present: whoever is about to pause it does so only if it was not woken under the
        // number under which the session rests, or a later one, and only in the version that it has seen.
        Life::Ready | Life::Paused if instance.woken < session.rests => Step::Wake,
        Life::Paused if instance.paused => Step::Wake,
        Life::Paused => Step::Wait { until: None, why: Why::Waking },
        Life::Ready if session.rests.is_some() => Step::Resume,
        // Whoever makes an end of the session does it under the version that carries the mark; so this write or
        // that one wins, and not both.
        Life::Ready if session.releasing => Step::Confirm,
        // The same for the mark on the instance.
        Life::Ready if instance.releasing => Step::KeepInstance,
        Life::Ready if instance.address.is_none() => Step::Wait { until: None, why: Why::Address },
        Life::Ready if situation.took && late(situation) => Step::Confirm,
        Life::Ready | Life::Dead => Step::Serve,
    }
}

/// My own binding, half made.
fn complete(situation: &Situation<'_>, instance: &Instance, fresh: bool) -> Step {
    if late(situation) {
        return Step::Confirm;
    }
    match (&instance.hold, instance.life) {
        (Hold::Free, Life::Ready) => Step::TakeInstance,
        // A patch of mine whose answer was lost may have come first: only the server knows.
        (Hold::Held { .. }, _) if !fresh => Step::ReadHolder,
        // Somebody else's. No patch that was sent for this reservation can succeed any more: each tests a version of
        // the instance that is older than this one.
        (Hold::Held { .. }, _) => elsewhere(situation, false),
        // It may be the session's own, and somebody has spoilt the annotations: it must end first.
        (_, Life::Terminating) => Step::Wait { until: None, why: Why::OldInstance },
        (Hold::Free | Hold::Spoilt, _) => Step::DeleteInstance,
    }
}

/// The session needs another instance than the one that its Lease names.
fn elsewhere(situation: &Situation<'_>, lost: bool) -> Step {
    match situation.candidate {
        Candidate::Unasked => Step::Ask,
        Candidate::Awaited => Step::Claim { lost },
        Candidate::Given(instance) => Step::Point { holder: instance.id.clone(), lost },
    }
}

/// I am the binder and there was no instance when I became it.
fn wait_as_binder(situation: &Situation<'_>, since: Duration) -> Step {
    let renew_at = since + situation.timing.prompt();
    match situation.candidate {
        Candidate::Unasked => Step::Ask,
        Candidate::Given(instance) => Step::Point { holder: instance.id.clone(), lost: false },
        Candidate::Awaited if situation.now >= renew_at => Step::Confirm,
        Candidate::Awaited => Step::Wait { until: Some(renew_at), why: Why::Instance },
    }
}

/// Somebody else is the binder and has not finished; `fresh` if the server itself said so.
fn leave_to_binder(situation: &Situation<'_>, since: Duration, fresh: bool) -> Step {
    let until = since + situation.timing.grace;
    match situation.now >= until {
        false => Step::Wait { until: Some(until), why: Why::Binder },
        true if fresh => Step::TakeOver,
        true => Step::ReadHolder,
    }
}

/// Whether so much time has passed since my write to the Lease that somebody may have taken over.
fn late(situation: &Situation<'_>) -> bool {
    situation.sent.is_none_or(|sent| situation.now.saturating_sub(sent) >= situation.timing.prompt())
}

/// Whether the session that a request may have does not exist, by what the server says: the next step would begin one, or
/// do without the instance that it has.
pub fn is_missing(which: &Which, session: Option<&Session>, step: &Step) -> bool {
    if *which == Which::OrNew {
        return false;
    }
    let Some(session) = session else { return true };
    let other = !which.fits(session);
    let replaced = matches!(
        step,
        Step::Ask
            | Step::Create { .. }
            | Step::Point { .. }
            | Step::Claim { .. }
            | Step::DeleteInstance
            | Step::Wait { why: Why::OldInstance, .. }
    );
    let lost = session.holder.is_none() || replaced;
    session.ending || other || (lost && matches!(which, Which::Intact { .. }))
}

#[cfg(test)]
mod tests;
