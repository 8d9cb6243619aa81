//! A fault layer for tests: seeded, reproducible, and nothing at all unless a plan is set.
//!
//! Faults strike at the boundary a client sees: requests refused, delayed, answered with an error although the
//! write was done, watches cut or lagging. What the store holds is never touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::RwLock;

use crate::status::Status;

/// How often each fault strikes, as a probability between 0 and 1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub seed: u64,
    /// A write is refused with 409 Conflict before it happens.
    pub conflict: f64,
    /// 429 with `Retry-After`.
    pub throttle: f64,
    /// 500 before anything happened.
    pub internal: f64,
    /// 503 before anything happened.
    pub unavailable: f64,
    /// The write is done, but the client hears 500.
    pub lost_reply: f64,
    /// The request waits for `delay_for` first.
    pub delay: f64,
    pub delay_for: Duration,
    /// Each batch of events: the watch is cut instead.
    pub drop_watch: f64,
    /// Each batch of events: it arrives `lag_for` late.
    pub lag_watch: f64,
    pub lag_for: Duration,
}

/// A handle through which a test changes the plan while the server runs.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    plan: RwLock<Option<Arc<Plan>>>,
    drawn: AtomicU64,
}

/// What befalls one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFault {
    None,
    Refuse(Refusal),
    /// Serve it, then lose the answer.
    LoseReply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Conflict,
    Throttle,
    Internal,
    Unavailable,
}

impl Refusal {
    pub fn status(self) -> Status {
        let injected = "injected by the fault plan";
        match self {
            Self::Conflict => Status::new(StatusCode::CONFLICT, "Conflict", injected),
            Self::Throttle => {
                let mut status = Status::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", injected);
                status.details.insert("retryAfterSeconds".into(), 1.into());
                status
            }
            Self::Internal => Status::internal(injected),
            Self::Unavailable => Status::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", injected),
        }
    }
}

impl Faults {
    pub fn set(&self, plan: Plan) {
        self.shared.drawn.store(0, Ordering::Relaxed);
        *self.shared.plan.write() = Some(Arc::new(plan));
    }

    pub fn clear(&self) {
        *self.shared.plan.write() = None;
    }

    fn plan(&self) -> Option<Arc<Plan>> {
        self.shared.plan.read().clone()
    }

    /// A number in [0, 1) that depends on the seed and on how many were drawn before.
    fn draw(&self, plan: &Plan) -> f64 {
        let n = self.shared.drawn.fetch_add(1, Ordering::Relaxed);
        let mut x = plan.seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        #[allow(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let unit = (x >> 11) as f64 / (1_u64 << 53) as f64;
        unit
    }

    /// Decides the fate of a request; waits if that is its fate.
    pub async fn request(&self, writes: bool) -> RequestFault {
        let Some(plan) = self.plan() else { return RequestFault::None };
        if self.draw(&plan) < plan.delay {
            tokio::time::sleep(plan.delay_for).await;
        }
        let mut chance = self.draw(&plan);
        let mut table = vec![
            (plan.throttle, RequestFault::Refuse(Refusal::Throttle)),
            (plan.internal, RequestFault::Refuse(Refusal::Internal)),
            (plan.unavailable, RequestFault::Refuse(Refusal::Unavailable)),
        ];
        if writes {
            table.push((plan.conflict, RequestFault::Refuse(Refusal::Conflict)));
            table.push((plan.lost_reply, RequestFault::LoseReply));
        }
        for (probability, fault) in table {
            if chance < probability {
                return fault;
            }
            chance -= probability;
        }
        RequestFault::None
    }

    pub(crate) fn watch(&self) -> WatchFault {
        WatchFault { faults: self.clone() }
    }
}

/// What befalls one watch.
#[derive(Debug)]
pub(crate) struct WatchFault {
    faults: Faults,
}

impl WatchFault {
    pub(crate) fn drops(&self) -> bool {
        self.faults.plan().is_some_and(|plan| self.faults.draw(&plan) < plan.drop_watch)
    }

    pub(crate) async fn lag(&self) {
        if let Some(plan) = self.faults.plan()
            && self.faults.draw(&plan) < plan.lag_watch
        {
            tokio::time::sleep(plan.lag_for).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn fates(seed: u64) -> Vec<RequestFault> {
        let faults = Faults::default();
        faults.set(Plan { seed, conflict: 0.2, lost_reply: 0.2, unavailable: 0.2, ..Plan::default() });
        let mut fates = Vec::new();
        for _ in 0..200 {
            fates.push(faults.request(true).await);
        }
        fates
    }

    #[tokio::test]
    async fn a_seed_repeats_and_every_fault_strikes() {
        let first = fates(7).await;
        assert_eq!(first, fates(7).await);
        assert_ne!(first, fates(8).await);
        for fate in [
            RequestFault::None,
            RequestFault::LoseReply,
            RequestFault::Refuse(Refusal::Conflict),
            RequestFault::Refuse(Refusal::Unavailable),
        ] {
            assert!(first.contains(&fate), "{fate:?}");
        }
    }

    #[tokio::test]
    async fn no_plan_no_faults() {
        assert_eq!(Faults::default().request(true).await, RequestFault::None);
    }
}
