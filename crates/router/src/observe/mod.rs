//! What operators see of requests: counts for Prometheus, and a line in the access log for each. Both fronts tell it what
//! became of a request. It never holds a request up: counts are atomics that a Task's route holds, lines go into a bounded
//! queue and are dropped when that is full.

pub mod admin;
mod counts;
mod hide;
mod line;
mod log;
mod sessions;
mod shown;
mod sight;
mod trace;

use std::borrow::Cow;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::SessionKey;
use agentcube_instance::provider::Path;
use agentcube_operator::metrics::Registry;
use http::Method;
use http::header::HeaderValue;
use jiff::Timestamp;

use crate::refusal::{NO_ROUTE, Refusal};
use crate::route::{GatewayId, Route};

pub use counts::{Counts, InFlight, OfTask, Trouble};
pub use hide::Hiding;
pub use log::{AccessLog, Destination};
pub use sessions::page as sessions;
pub(crate) use sight::Sight;
pub use trace::TraceId;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The instance answered, and the client got all of it.
    Passed,
    /// The router answered by itself, as it should: an agent card, say.
    Answered,
    /// It was not let through to an instance.
    Refused,
    /// The instance did not answer.
    Failed,
    /// The answer broke off in the middle.
    Broken,
    /// The client left before the end.
    Left,
    /// Envoy answered by itself.
    Gateway,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Answered => "answered",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Broken => "broken",
            Outcome::Left => "left",
            Outcome::Gateway => "gateway",
        }
    }

    /// What it means that a router answered by itself, with this code.
    fn of(status: u16, code: &str) -> Outcome {
        match code {
            _ if status < 400 => Outcome::Answered,
            "InstanceUnreachable" | "InstanceFailed" | "RequestTimeout" | "SessionNotNoted" => {
                Outcome::Failed
            }
            "RequestBroken" => Outcome::Left,
            _ => Outcome::Refused,
        }
    }
}

/// The target of a request, as it came: path and query. Empty if it is not to be shown.
#[derive(Clone, Debug, Default)]
pub struct Target(pub String);

impl Target {
    /// Without the query, which may hold anything.
    fn path(&self) -> &str {
        self.0.split(['?', '#']).next().unwrap_or_default()
    }
}

/// All that is told of a request. Cheap to fill in: nothing is copied but counted references.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it came; if that is not said, it has ended just now.
    pub begun: Option<Timestamp>,
    pub method: Method,
    pub target: Target,
    pub request_id: Option<HeaderValue>,
    pub trace: Option<TraceId>,
    pub route: Option<Arc<Route>>,
    pub gateway: Option<GatewayId>,
    pub key: Option<SessionKey>,
    /// The name of its instance.
    pub instance: Option<Arc<str>>,
    /// How it came by the instance, and how long that took, or its refusal.
    pub path: Option<Path>,
    pub reserving: Option<Duration>,
    pub status: Option<u16>,
    pub outcome: Outcome,
    /// The code of a refusal.
    pub reason: Cow<'static, str>,
    /// What Envoy says of it.
    pub detail: Option<String>,
    pub total: Duration,
    /// Until the first byte of the instance's answer.
    pub first_byte: Option<Duration>,
    /// Bytes of bodies, from the client and to it.
    pub received: u64,
    pub sent: u64,
}

impl Default for Record {
    fn default() -> Record {
        Record {
            begun: None,
            method: Method::GET,
            target: Target::default(),
            request_id: None,
            trace: None,
            route: None,
            gateway: None,
            key: None,
            instance: None,
            path: None,
            reserving: None,
            status: None,
            outcome: Outcome::Left,
            reason: Cow::Borrowed(""),
            detail: None,
            total: Duration::ZERO,
            first_byte: None,
            received: 0,
            sent: 0,
        }
    }
}

impl Record {
    /// It ended in a refusal.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.answered_with(refusal.status.as_u16(), refusal.code.into());
    }

    /// A router answered by itself, with this status and this code.
    pub fn answered_with(&mut self, status: u16, code: Cow<'static, str>) {
        if self.route.is_none() && code != NO_ROUTE {
            // Nobody has looked where in it a session may stand.
            self.target = Target::default();
        }
        self.outcome = Outcome::of(status, &code);
        self.reason = code;
        self.status = Some(status);
    }
}

/// Sees requests of one front.
pub struct Observer {
    front: &'static str,
    counts: Arc<Counts>,
    /// Of requests for no Task.
    nobody: Arc<OfTask>,
    log: Option<AccessLog>,
}

impl Debug for Observer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("front", &self.front).finish_non_exhaustive()
    }
}

impl Observer {
    pub fn new(front: &'static str, metrics: &Registry, log: Option<AccessLog>) -> Arc<Observer> {
        let counts = Counts::new(metrics);
        let nobody = counts.of("", "");
        Arc::new(Observer { front, counts, nobody, log })
    }

    /// Where routes count.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Whether anybody reads more than counts.
    pub fn logs(&self) -> bool {
        self.log.is_some()
    }

    fn of<'a>(&'a self, route: Option<&'a Arc<Route>>) -> &'a Arc<OfTask> {
        route.and_then(|route| route.counts.as_ref()).unwrap_or(&self.nobody)
    }

    /// A request has ended.
    pub fn ended(&self, record: Record) {
        self.of(record.route.as_ref()).ended(&record);
        if let Some(log) = &self.log {
            let begun = record.begun.unwrap_or_else(|| {
                let now = Timestamp::now();
                now.checked_sub(record.total).unwrap_or(now)
            });
            log.put(begun, self.front, record);
        }
    }

    /// An instance could not be talked to; the request may go on with another try.
    pub fn trouble(&self, route: Option<&Arc<Route>>, trouble: Trouble) {
        self.of(route).trouble(trouble);
    }
}
