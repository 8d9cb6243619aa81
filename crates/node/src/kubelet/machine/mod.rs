//! The life of one Pod as a state machine: a [`State`], a [`plan`](plan()) of what to do next, and [`Report`]s of what
//! came of it. Synchronous and total; it never reads a clock, a file or the network.

mod back_off;
mod plan;
mod policy;
mod probes;
mod report;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

pub(crate) use back_off::BackOff;
pub(crate) use plan::{Operation, crash_message, crash_wait, is_ending, plan, printed_pod, runs_again};
pub(crate) use policy::{is_sidecar, restarts};
pub(crate) use probes::{Kind, Verdict};
pub(crate) use report::Report;
pub(crate) use state::{Container, Ended, Phase, State, specs};

/// The durations of a kubelet; only tests have others than the default.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The first wait before a container is started again, and an image pulled again.
    pub back_off: Duration,
    /// The waits double up to this.
    pub back_off_limit: Duration,
    /// A container that ran this long starts over with the first wait.
    pub back_off_reset: Duration,
    /// The wait before volumes, sandboxes and configurations that failed are tried again.
    pub retry: Duration,
    /// What a container gets to end itself in any case.
    pub least_grace: Duration,
    /// What all containers get when the node itself stops.
    pub drain: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            back_off: seconds(10),
            back_off_limit: seconds(300),
            back_off_reset: seconds(600),
            retry: seconds(10),
            least_grace: seconds(2),
            drain: seconds(5),
        }
    }
}

/// `time` and a duration, at most the end of time.
pub(crate) fn after(time: Timestamp, wait: Duration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The same in whole seconds as the API writes them; negative ones are none.
pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}
