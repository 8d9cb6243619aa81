//! The time limits of the reservation protocol, in one place, so that routers and the lifecycle manager agree.
//! `docs/decisions/0011-reservation.md` says what each is for.

use std::time::Duration;

/// Time limits. All are counted on monotonic clocks, each process on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long an unfinished binding is left to its binder.
    pub grace: Duration,
    /// How often a router writes its Lease when nothing else makes it.
    pub heartbeat: Duration,
    /// After which silence a router counts as cut off.
    pub silent: Duration,
    /// After which silence a router counts as dead, and itself no longer serves from memory.
    pub out_of_touch: Duration,
}

impl Timing {
    /// The time within which a binder may serve without confirming.
    pub fn prompt(&self) -> Duration {
        self.grace / 4
    }

    /// After which silence a router stops serving from memory: sooner than others take it for dead.
    pub fn serves_until(&self) -> Duration {
        self.out_of_touch - self.out_of_touch / 10
    }

    /// How often the activity of sessions is written, given their idle timeout.
    pub fn activity(&self, idle_timeout: Duration) -> Duration {
        (idle_timeout / 4).clamp(Duration::from_millis(250), Duration::from_secs(30))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            grace: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            silent: Duration::from_secs(15),
            out_of_touch: Duration::from_secs(600),
        }
    }
}
