//! What the routers have said of themselves: who is alive, who is silent, and what all of them have seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::labels;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::operation::LeaseRef;
use crate::identity::Kind;
use crate::record::RouterLease;
use crate::timing::Timing;

/// A router's Lease, and since when it is as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenRouter {
    pub(super) reference: LeaseRef,
    pub(super) seen_leases: u64,
    pub(super) seen_pods: u64,
    pub(super) seen_sandboxes: u64,
    pub(super) since: Instant,
}

/// How long a router has said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// Not for long.
    None,
    /// It may be cut off, and still serve from memory.
    Silent,
    /// It does not serve any more.
    Dead,
}

impl SeenRouter {
    /// What the Lease says; nothing if it is not that of a router. One that cannot be read is a router that has seen
    /// nothing.
    pub(super) fn read(lease: &Lease, before: Option<&SeenRouter>, now: Instant) -> Option<SeenRouter> {
        let meta = &lease.metadata;
        if meta.labels.as_ref()?.get(labels::LEASE)? != labels::LEASE_OF_ROUTER {
            return None;
        }
        let reference = LeaseRef {
            namespace: meta.namespace.as_deref()?.into(),
            name: meta.name.as_deref()?.into(),
            uid: meta.uid.as_deref()?.into(),
            version: meta.resource_version.as_ref()?.parse().ok()?,
        };
        let said = RouterLease::read(lease);
        Some(SeenRouter {
            seen_leases: said.as_ref().map_or(0, |said| said.seen_leases),
            seen_pods: said.as_ref().map_or(0, |said| said.seen_pods),
            seen_sandboxes: said.as_ref().map_or(0, |said| said.seen_sandboxes),
            since: before.filter(|before| before.reference == reference).map_or(now, |before| before.since),
            reference,
        })
    }

    pub(super) fn silence(&self, timing: &Timing, now: Instant) -> Silence {
        match now.saturating_duration_since(self.since) {
            long if long >= timing.out_of_touch => Silence::Dead,
            some if some >= timing.silent => Silence::Silent,
            _ => Silence::None,
        }
    }
}

/// What is asked of the routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Whether all respect this revision of Leases.
    Lease(u64),
    /// Whether all respect this revision of instances of this kind.
    Instance(Kind, u64),
}

/// All routers, by the names of their Leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Routers(pub(super) BTreeMap<Arc<str>, SeenRouter>);

impl Routers {
    fn living<'a>(&'a self, timing: &'a Timing, now: Instant) -> impl Iterator<Item = &'a SeenRouter> {
        self.0.values().filter(move |router| router.silence(timing, now) != Silence::Dead)
    }

    /// Whether a router may be serving without our hearing of it.
    pub(super) fn any_silent(&self, timing: &Timing, now: Instant) -> bool {
        self.living(timing, now).any(|router| router.silence(timing, now) == Silence::Silent)
    }

    /// Whether every router that may be serving has said that it has seen this.
    pub(super) fn all_have(&self, seen: Seen, timing: &Timing, now: Instant) -> bool {
        self.living(timing, now).all(|router| router.has(seen))
    }

    /// When the first of the living will count as dead, if it goes on saying nothing.
    pub(super) fn next_death(&self, timing: &Timing, now: Instant) -> Option<Instant> {
        self.living(timing, now).map(|router| router.since + timing.out_of_touch).min()
    }

    /// Those whose Leases are to be removed.
    pub(super) fn dead<'a>(&'a self, timing: &'a Timing, now: Instant) -> impl Iterator<Item = &'a LeaseRef> {
        let dead = move |router: &&SeenRouter| router.silence(timing, now) == Silence::Dead;
        self.0.values().filter(dead).map(|router| &router.reference)
    }
}

impl SeenRouter {
    fn has(&self, seen: Seen) -> bool {
        match seen {
            Seen::Lease(version) => self.seen_leases >= version,
            Seen::Instance(Kind::Pod, version) => self.seen_pods >= version,
            Seen::Instance(Kind::Sandbox, version) => self.seen_sandboxes >= version,
        }
    }
}
