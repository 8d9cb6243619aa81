//! What happens because time passes: runs expire, also without a controller, and stand still when the controller has
//! been out of reach for too long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::agent::{Inner, unix_ms};
use crate::machine::Ending;
use crate::run::{Ask, GRACE};
use crate::table::Due;

/// Clocks are set and machines sleep: no wait is longer than this before the time is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(crate) async fn run(inner: Weak<Inner>, sooner: Arc<Notify>, closing: CancellationToken) {
    loop {
        let Some(wait) = inner.upgrade().map(|inner| look(&inner)) else { return };
        tokio::select! {
            () = closing.cancelled() => return,
            () = sooner.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Tells runs what is due; how long nothing will be.
fn look(inner: &Inner) -> Duration {
    let now = tokio::time::Instant::now().into_std();
    let (due, next) = inner.read(|state| {
        let (due, next) = state.table.due(unix_ms(), now, &state.lease);
        let due: Vec<_> =
            due.into_iter().filter_map(|(id, due)| Some((state.runs.get(&id)?.clone(), id, due))).collect();
        (due, next)
    });
    for (run, id, due) in due {
        let ask = match due {
            Due::Expire => Ask::End { ending: Ending::Expired, grace: GRACE },
            Due::Fence => {
                tracing::warn!(
                    run = id,
                    "the controller is out of reach: it stands still until that is settled"
                );
                let (done, _) = oneshot::channel();
                Ask::Freeze { paused: None, fenced: Some(true), done }
            }
        };
        // One that ends just now needs nothing of this.
        let _gone = run.asks.send(ask);
    }
    next.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
}
