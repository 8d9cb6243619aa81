//! The controller of Sandbox: one step after another, each planned anew from what is there, until nothing is left to do.

mod apply;
mod observe;
mod plan;
mod status;

use std::sync::Arc;
use std::time::Duration;

use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use tonic::Status;

use crate::core::{ApiError, Core};
use crate::log::LogError;
use crate::names::Name;
use crate::start::Unresolved;
use plan::Step;

/// More steps than any sandbox needs in a row; what is left has its turn after others.
const STEPS_AT_ONCE: usize = 16;

/// Why a sandbox could not be brought on; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("the agent is in doubt: {0}")]
    Agent(#[from] Status),
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    #[error("the agent refused: {0}")]
    Refused(String),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// Look again.
    Step,
    /// There is nothing to do before something changes, or this time has passed.
    Rest(Option<Duration>),
}

pub(crate) async fn reconcile(core: Arc<Core>, name: Name) -> Result<Requeue, Error> {
    let _one = core.locks.lock(&name).await;
    reconcile_locked(&core, &name).await
}

/// The same for who has the lock already.
async fn reconcile_locked(core: &Arc<Core>, name: &Name) -> Result<Requeue, Error> {
    for _ in 0..STEPS_AT_ONCE {
        let observed = observe::observe(core, name);
        observe::confirm(core, &observed);
        let step = plan::next(&observed, Timestamp::now(), &core.options.timing);
        if !matches!(step, Step::Rest(_)) {
            tracing::debug!(sandbox = %name, ?step, "next");
        }
        match apply::apply(core, name, &observed, step).await? {
            Done::Step => {}
            Done::Rest(None) => return Ok(Requeue::No),
            Done::Rest(Some(after)) => return Ok(Requeue::After(after.max(Duration::from_millis(1)))),
        }
    }
    Ok(Requeue::After(Duration::from_millis(10)))
}

#[cfg(test)]
mod tests;
