//! The janitor of a node ends what it can prove to be nobody's.

use super::state::{AGENTS, State};
use super::{Flaw, Setup};

/// The agents whose runs it would end.
pub(crate) fn due(setup: &Setup, state: &State) -> Vec<usize> {
    let due = |agent: &usize| {
        let it = &state.agents[*agent];
        let Some(held) = it.run.or(it.orphan) else { return false };
        let right = state.object.as_ref().and_then(|object| object.right());
        let guess = setup.flaw == Flaw::JanitorGuesses && right.is_none_or(|run| run.id != held.id);
        !it.pod || guess
    };
    (0..AGENTS).filter(due).collect()
}
