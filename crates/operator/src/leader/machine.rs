//! What a candidate does next, given what it knows. No I/O and no clock: instants are told to it.
//!
//! Two rules keep leaders apart. One's own time counts from when a confirmed write was *sent*; another's counts from
//! when its last sign of life was *seen*, which is later than when that was sent, and lasts longer.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::core::ObjectMeta;
use tokio::time::Instant;

use super::Options;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing until then.
    Rest(Instant),
    Read,
    /// Create the Lease, with what [`Machine::claim`] gives.
    Create,
    /// Replace the Lease that was seen by what [`Machine::claim`] gives.
    Write,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Read(Option<Lease>),
    /// What the server now holds.
    Written(Lease),
    /// It may have happened or not.
    Failed,
}

/// What a candidate last saw.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Nothing,
    /// There is no Lease.
    Absent,
    /// The Lease is gone while another held it: it may still lead for as long as if it had just given a sign of life.
    Removed(Instant),
    /// Since when it is as it is, on one's own clock.
    Lease(Box<Lease>, Instant),
}

/// A way to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Create,
    Write,
    /// Another leads; it may be over then.
    StandBy(Instant),
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    options: Options,
    seen: Seen,
    /// What was seen is all that has happened, as far as one can know. Else it is read before anything is decided.
    fresh: bool,
    /// Nothing to do before.
    next: Instant,
    leads_until: Option<Instant>,
}

impl Machine {
    pub(super) fn new(options: Options, now: Instant) -> Machine {
        Machine { options, seen: Seen::Nothing, fresh: false, next: now, leads_until: None }
    }

    /// Until when this candidate leads, if nothing else happens. In the past means that it does not.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.leads_until
    }

    /// The term in which this candidate leads, if it holds the Lease.
    pub(super) fn term(&self) -> Option<u64> {
        let Seen::Lease(lease, _) = &self.seen else { return None };
        let spec = lease.spec.as_ref().filter(|_| holder(lease) == self.options.identity)?;
        u64::try_from(spec.lease_transitions.unwrap_or(0)).ok().map(|transitions| transitions + 1)
    }

    pub(super) fn next(&mut self, now: Instant) -> Action {
        if now < self.next {
            return Action::Rest(self.next);
        }
        if !self.fresh {
            return Action::Read;
        }
        let own = [Some(&self.options.identity), self.options.predecessor.as_ref()];
        let own: Vec<&str> = own.into_iter().flatten().map(String::as_str).collect();
        match decide(&self.seen, &own, self.options.lease_duration, now) {
            Decision::Create => Action::Create,
            Decision::Write => Action::Write,
            Decision::StandBy(until) => {
                self.fresh = false;
                self.next = until.min(now + self.options.retry_period);
                Action::Rest(self.next)
            }
        }
    }

    /// Whether it rests until others have done something.
    pub(super) fn waits_for_others(&self) -> bool {
        !self.fresh
    }

    /// Looks at the Lease next, without waiting any longer.
    pub(super) fn look(&mut self, now: Instant) {
        self.next = self.next.min(now);
    }

    /// Takes in what came of an action that was begun at `sent`.
    pub(super) fn learn(&mut self, answer: Answer, sent: Instant, now: Instant) {
        match answer {
            Answer::Read(lease) => {
                self.observe(lease, now);
                self.fresh = true;
            }
            Answer::Written(lease) => {
                self.observe(Some(lease), now);
                self.fresh = true;
                self.next = sent + self.options.retry_period;
                let until = sent + self.options.renew_deadline;
                self.leads_until = (now < until).then_some(until);
            }
            Answer::Failed => {
                self.fresh = false;
                self.next = now + self.options.retry_period;
            }
        }
    }

    /// Its time has run out. What was under way may have happened or not.
    pub(super) fn expired(&mut self, now: Instant) {
        self.leads_until = None;
        self.fresh = false;
        self.next = now;
    }

    fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        if lease.as_ref().is_none_or(|lease| holder(lease) != self.options.identity) {
            self.leads_until = None;
        }
        self.seen = match (lease, &self.seen) {
            (Some(lease), Seen::Lease(known, since)) if version(&lease) == version(known) => {
                Seen::Lease(Box::new(lease), *since)
            }
            (Some(lease), _) => Seen::Lease(Box::new(lease), now),
            (None, Seen::Removed(since)) => Seen::Removed(*since),
            (None, Seen::Lease(known, _))
                if ![self.options.identity.as_str(), ""].contains(&holder(known)) =>
            {
                Seen::Removed(now)
            }
            (None, _) => Seen::Absent,
        };
    }

    /// The Lease as it has to be for this candidate to lead.
    pub(super) fn claim(&self, now: Timestamp) -> Lease {
        let Options { namespace, name, identity, lease_duration, .. } = &self.options;
        let mut lease = match &self.seen {
            Seen::Lease(lease, _) => (**lease).clone(),
            _ => Lease {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: None,
            },
        };
        let mine = holder(&lease) == identity;
        let first = lease.spec.is_none();
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if !mine {
            spec.acquire_time = Some(MicroTime(now));
            let before = spec.lease_transitions.unwrap_or(0);
            spec.lease_transitions = Some(if first { before } else { before.saturating_add(1) });
        }
        spec.holder_identity = Some(identity.clone());
        // Checked with the options to fit.
        spec.lease_duration_seconds = i32::try_from(lease_duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(now));
        lease
    }

    /// The Lease as it has to be for the next to take it at once; nothing if this candidate does not hold it.
    pub(super) fn release(&self, now: Timestamp) -> Option<Lease> {
        let Seen::Lease(lease, _) = &self.seen else { return None };
        if holder(lease) != self.options.identity {
            return None;
        }
        let mut lease = (**lease).clone();
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(now));
        Some(lease)
    }
}

/// What follows from what was seen.
///
/// `own`: whose Lease may be taken at once.
fn decide(seen: &Seen, own: &[&str], lease_duration: Duration, now: Instant) -> Decision {
    let over = match seen {
        Seen::Nothing | Seen::Absent => return Decision::Create,
        Seen::Removed(since) => *since + lease_duration,
        Seen::Lease(lease, since) => match holder(lease) {
            "" => return Decision::Write,
            me if own.contains(&me) => return Decision::Write,
            _ => *since + duration(lease).unwrap_or(lease_duration),
        },
    };
    match seen {
        _ if now < over => Decision::StandBy(over),
        Seen::Lease(..) => Decision::Write,
        _ => Decision::Create,
    }
}

/// Who holds the Lease; empty if nobody does.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// For how long its holder counts as alive after a sign of life.
fn duration(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.as_ref()?.lease_duration_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn version(lease: &Lease) -> Option<&str> {
    lease.metadata.resource_version.as_deref()
}

#[cfg(test)]
mod tests;
