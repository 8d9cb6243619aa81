//! One request through the built-in gateway, as it is seen on its way. It is told of when nobody carries it any more: the
//! body of the response, or the connection that came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentcube_instance::SessionKey;
use agentcube_instance::provider::Reserved;
use http::StatusCode;
use http::header::HeaderValue;
use http::request::Parts;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::counts::InFlight;
use super::{Observer, Outcome, Record, Target, TraceId, Trouble};
use crate::body;
use crate::refusal::Refusal;
use crate::route::{GatewayId, Route};
use crate::upload::Progress;

/// A longer path is not shown.
const LONGEST_PATH: usize = 16 << 10;

/// A request that is seen.
pub(crate) struct Sight {
    observer: Arc<Observer>,
    begun: Instant,
    sent: AtomicU64,
    /// Of this request alone: nobody waits for it but whoever carries the same request.
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    record: Record,
    progress: Option<Arc<Progress>>,
    received: u64,
    /// It is known what became of it.
    settled: bool,
    in_flight: Option<InFlight>,
}

impl Sight {
    pub(crate) fn begin(observer: &Arc<Observer>) -> Arc<Sight> {
        let (observer, begun) = (observer.clone(), Instant::now());
        Arc::new(Sight { observer, begun, sent: AtomicU64::new(0), facts: Mutex::default() })
    }

    /// The head of the request.
    pub(crate) fn arrived(&self, parts: &Parts, id: &HeaderValue) {
        if !self.observer.logs() {
            return;
        }
        let record = &mut self.facts.lock().record;
        record.method = parts.method.clone();
        // Copied: what the head of a request is sliced from would live for as long as the line waits.
        let path = parts.uri.path();
        record.target = Target(if path.len() <= LONGEST_PATH { path.into() } else { String::new() });
        record.request_id = HeaderValue::from_bytes(id.as_bytes()).ok();
        record.trace = TraceId::of(&parts.headers);
    }

    /// Its Task, and the gateway by which it came.
    pub(crate) fn found(&self, route: &Arc<Route>, gateway: Option<GatewayId>) {
        let mut facts = self.facts.lock();
        facts.in_flight = route.counts.as_ref().map(|counts| counts.begin());
        facts.record.route = Some(route.clone());
        facts.record.gateway = gateway;
    }

    /// An instance was asked for, by this session.
    pub(crate) fn reserved(
        &self,
        took: Duration,
        key: Option<&SessionKey>,
        reserved: &Result<Reserved, Refusal>,
    ) {
        let record = &mut self.facts.lock().record;
        record.key = key.cloned();
        record.reserving = Some(record.reserving.unwrap_or_default() + took);
        if let Ok(reserved) = reserved {
            record.path = Some(reserved.path);
            record.instance = Some(reserved.instance.name.clone());
        }
    }

    /// Its body goes to the instance.
    pub(crate) fn uploading(&self, progress: &Arc<Progress>) {
        self.facts.lock().progress = Some(progress.clone());
    }

    /// The instance has begun to answer.
    pub(crate) fn answering(&self) {
        self.facts.lock().record.first_byte = Some(self.begun.elapsed());
    }

    /// The head of the response of an instance.
    pub(crate) fn head(&self, status: StatusCode) {
        self.facts.lock().record.status = Some(status.as_u16());
    }

    /// The gateway answers by itself.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        let mut facts = self.facts.lock();
        facts.record.refused(refusal);
        facts.settled = true;
    }

    /// The gateway answers a question of browsers.
    pub(crate) fn preflight(&self) {
        let mut facts = self.facts.lock();
        (facts.record.outcome, facts.record.reason) = (Outcome::Answered, "Preflight".into());
        facts.record.status = Some(StatusCode::NO_CONTENT.as_u16());
        facts.settled = true;
    }

    /// Bytes of the response go to the client.
    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes came on a connection that is no longer HTTP.
    pub(crate) fn received(&self, bytes: u64) {
        self.facts.lock().received += bytes;
    }

    /// The client has got all of the response.
    pub(crate) fn whole(&self) {
        let mut facts = self.facts.lock();
        if !facts.settled {
            facts.record.outcome = Outcome::Passed;
            facts.settled = true;
        }
    }

    /// The response broke off.
    pub(crate) fn broke(&self, error: &(dyn std::error::Error + 'static)) {
        let trouble = match error.downcast_ref::<body::Error>() {
            Some(body::Error::Silent(_) | body::Error::TooLong) => Some(Trouble::Timeout),
            Some(body::Error::Http(_)) => Some(Trouble::Broken),
            _ => None,
        };
        if let Some(trouble) = trouble {
            self.trouble(trouble);
        }
        let mut facts = self.facts.lock();
        if !facts.settled {
            facts.record.outcome = Outcome::Broken;
            facts.settled = true;
        }
    }

    /// The instance could not be talked to.
    pub(crate) fn trouble(&self, trouble: Trouble) {
        let route = {
            let facts = self.facts.lock();
            // Then it is the client's doing.
            if facts.progress.as_ref().is_some_and(|progress| progress.stalled().is_some()) {
                return;
            }
            facts.record.route.clone()
        };
        self.observer.trouble(route.as_ref(), trouble);
    }
}

impl Drop for Sight {
    fn drop(&mut self) {
        let facts = std::mem::take(self.facts.get_mut());
        let mut record = facts.record;
        let uploaded = facts.progress.map_or(0, |progress| progress.received());
        record.received = facts.received + uploaded;
        record.sent = self.sent.load(Ordering::Relaxed);
        record.total = self.begun.elapsed();
        drop(facts.in_flight);
        self.observer.ended(record);
    }
}
