//! What the log asks for: to make an object that was promised, to keep deleted what is deleted, to be told that it is over.

use std::time::Duration;

use agentcube_protos::agent::Why;

use super::{SOON, Step};
use crate::agents::{Contact, Seen};
use crate::core::is_deleted;
use crate::options::Timing;
use crate::pending::{allocated_run, annotated_run};
use crate::sandbox::observe::{Logged, Observed};

/// The next step for the log; none if there is nothing, or if what runs comes first.
pub(super) fn next(seen: &Observed, timing: &Timing) -> Option<Step> {
    let logged = seen.logged.as_ref()?;
    if logged.deleted {
        return deleted(seen, logged, timing);
    }
    // The fast path sees to its own.
    if seen.pending.as_ref() == Some(&logged.run) {
        return None;
    }
    if seen.object.is_some() {
        return Some(forget(logged, false));
    }
    if seen.pending.is_some() || seen.runs.iter().any(|run| run.silent.is_none()) {
        return None;
    }
    if !logged.open {
        return Some(Step::Rest(Some(SOON)));
    }
    Some(match &logged.contact {
        Contact::Heard(Seen::Absent) if logged.condemned => stop(logged, Why::Abandoned),
        // It was never started, or somebody has stopped it: nobody was told of it.
        Contact::Heard(Seen::Absent | Seen::Stopped(_) | Seen::Foreign) => forget(logged, false),
        Contact::Heard(Seen::Entry(_)) => Step::Rest(Some(SOON)),
        Contact::Silent { ago, .. } if *ago < timing.dropped => Step::Rest(Some(timing.dropped - *ago)),
        Contact::Silent { .. } | Contact::Dead => Step::Recover,
    })
}

fn stop(logged: &Logged, why: Why) -> Step {
    Step::Stop { agent: logged.agent.clone(), run: logged.run.clone(), why }
}

fn forget(logged: &Logged, proved: bool) -> Step {
    Step::Forget { run: logged.run.clone(), proved }
}

/// It stays open, and its name taken, until nothing of it can come back.
fn deleted(seen: &Observed, logged: &Logged, timing: &Timing) -> Option<Step> {
    let object = seen.object.as_deref();
    if let Some(object) = object {
        let names = [allocated_run(object), annotated_run(object)].contains(&Some(logged.run.clone()));
        if names {
            return (!is_deleted(object)).then_some(Step::Delete);
        }
    }
    if seen.pending.as_ref() == Some(&logged.run) {
        return None;
    }
    let mut heard = seen.runs.iter().filter(|run| run.silent.is_none());
    if let Some(run) = heard.find(|run| object.is_none() || run.run() == logged.run) {
        return Some(Step::Stop { agent: run.agent.clone(), run: run.run(), why: Why::Deleted });
    }
    let wait = |time: Duration| Some(Step::Rest(Some(time)));
    match &logged.contact {
        Contact::Heard(Seen::Entry(_) | Seen::Absent) => return Some(stop(logged, Why::Deleted)),
        Contact::Heard(Seen::Stopped(_) | Seen::Foreign) | Contact::Dead => {}
        // What nobody knows any more stands still by then, and the janitor ends it.
        Contact::Silent { ago, .. } if !logged.known && *ago >= timing.dropped => {}
        Contact::Silent { .. } => return wait(timing.dropped),
    }
    if let Some(late) = logged.late {
        return wait(late);
    }
    let right = object.and_then(allocated_run);
    let alone = seen.runs.iter().all(|run| run.entry.object.is_empty() || right == Some(run.run()));
    if !logged.all_asked || !alone {
        return wait(SOON);
    }
    Some(forget(logged, object.is_none()))
}
