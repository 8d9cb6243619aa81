//! A state of the model: the truth, what each router knows and does, and writes that are still under way.

use super::server::{Bond, Change, Instance, KEYS, Lease, Pod, SLOTS, Server, Version, Write};

pub(crate) const ROUTERS: usize = 2;

/// What a router's clock says of its last write to the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Clock {
    /// This request has written nothing yet.
    Unset,
    /// Less than GRACE/4 ago: nobody can have taken over.
    Prompt,
    /// Longer ago, so that somebody may have; or it is not known what became of it.
    Late,
}

/// A request that waits for an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) clock: Clock,
    /// The Pod that the Lease names was read after the last write that can have changed it.
    pub(crate) fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Presence {
    Up,
    /// Out of reach of the API server; serves from memory.
    Cut,
    /// Cut off for so long that it serves nothing.
    Expired,
    Down,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Router {
    pub(crate) presence: Presence,
    /// Others need not wait for it: it has been silent for longer than OUT_OF_TOUCH.
    pub(crate) dead: bool,
    /// Its memory. Leases and Pods grow old apart from each other.
    pub(crate) leases: [Option<Lease>; KEYS],
    pub(crate) pods: [Option<Pod>; SLOTS],
    /// It has said that it has seen the last step towards the end of this session, or instance.
    pub(crate) acked_leases: [bool; KEYS],
    pub(crate) acked_pods: [bool; SLOTS],
    pub(crate) flows: [Option<Flow>; KEYS],
    pub(crate) in_flight: [Option<Instance>; KEYS],
}

impl Router {
    pub(crate) fn reaches(&self) -> bool {
        self.presence == Presence::Up
    }

    pub(crate) fn serves(&self) -> bool {
        matches!(self.presence, Presence::Up | Presence::Cut)
    }

    /// Lists everything anew.
    pub(crate) fn list(&mut self, server: &Server) {
        (self.leases, self.pods) = (server.leases, server.pods);
        (self.acked_leases, self.acked_pods) = ([true; KEYS], [true; SLOTS]);
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        (self.leases, self.pods) = ([None; KEYS], [None; SLOTS]);
        (self.acked_leases, self.acked_pods) = ([false; KEYS], [false; SLOTS]);
        (self.flows, self.in_flight) = ([None; KEYS], [None; KEYS]);
    }
}

/// How much may still go wrong, or be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) requests: [u8; KEYS],
    /// Writes whose answer is lost, and which may arrive at any later time.
    pub(crate) lost: u8,
    /// How often a router's clock passes GRACE/4.
    pub(crate) late: u8,
    pub(crate) crashes: u8,
    /// Routers cut off from the API server.
    pub(crate) cuts: u8,
    pub(crate) deaths: u8,
    pub(crate) unready: u8,
    /// Sessions found idle, and sessions ended at once.
    pub(crate) idle: u8,
    pub(crate) hard: u8,
    /// Idle instances given back.
    pub(crate) reaped: u8,
}

/// What happened on the way here, for the properties that say that something can happen at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Past {
    pub(crate) rebound: bool,
    pub(crate) took_over: bool,
    pub(crate) reused: bool,
    pub(crate) vetoed: bool,
    pub(crate) rescued: bool,
    pub(crate) interrupted: bool,
    /// An instance was given up as idle with a request in flight.
    pub(crate) cut_short: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) routers: [Router; ROUTERS],
    /// Writes that nobody waits for any more.
    pub(crate) stray: Vec<Write>,
    pub(crate) budget: Budget,
    pub(crate) past: Past,
}

impl State {
    /// Whether every router that may serve has seen the last step towards the end of this session.
    pub(crate) fn all_saw_lease(&self, key: usize) -> bool {
        self.routers.iter().all(|router| router.dead || router.acked_leases[key])
    }

    pub(crate) fn all_saw_pod(&self, slot: usize) -> bool {
        self.routers.iter().all(|router| router.dead || router.acked_pods[slot])
    }

    /// Requests at an instance that is no more have failed.
    pub(crate) fn fail_requests(&mut self) {
        let server = &self.server;
        for request in self.routers.iter_mut().flat_map(|router| &mut router.in_flight) {
            *request = request.filter(|instance| server.lives(*instance));
        }
    }

    /// Numbers versions anew, closely and in the same order, so that states that differ in nothing else are one.
    pub(crate) fn normalize(&mut self) {
        let mut leases = [0u128; KEYS];
        let mut pods = [0u128; SLOTS];
        self.versions(&mut |name, version| match name {
            Name::Lease(key) => leases[key] |= 1 << *version,
            Name::Pod(slot) => pods[slot] |= 1 << *version,
        });
        self.versions(&mut |name, version| {
            let used = match name {
                Name::Lease(key) => leases[key],
                Name::Pod(slot) => pods[slot],
            };
            let below = used & ((1 << *version) - 1);
            *version = Version::try_from(below.count_ones()).expect("at most 128 versions");
        });
        self.stray.sort();
        for key in 0..KEYS {
            let counts = self.server.leases[key].is_some_and(|lease| lease.releasing || lease.ending);
            self.routers.iter_mut().for_each(|router| router.acked_leases[key] &= counts);
        }
        for slot in 0..SLOTS {
            let counts = self.server.pods[slot].is_some_and(|pod| pod.releasing);
            self.routers.iter_mut().for_each(|router| router.acked_pods[slot] &= counts);
        }
    }

    fn versions(&mut self, visit: &mut impl FnMut(Name, &mut Version)) {
        let Server { leases, pods, lease_versions, pod_versions } = &mut self.server;
        lease_versions.iter_mut().enumerate().for_each(|(key, version)| visit(Name::Lease(key), version));
        pod_versions.iter_mut().enumerate().for_each(|(slot, version)| visit(Name::Pod(slot), version));
        visit_leases(leases, visit);
        visit_pods(pods, visit);
        for router in &mut self.routers {
            visit_leases(&mut router.leases, visit);
            visit_pods(&mut router.pods, visit);
            router.in_flight.iter_mut().flatten().for_each(|instance| visit_instance(instance, visit));
        }
        self.stray.iter_mut().for_each(|write| visit_write(write, visit));
    }
}

/// What a version counts the writes of.
enum Name {
    Lease(usize),
    Pod(usize),
}

fn visit_instance(instance: &mut Instance, visit: &mut impl FnMut(Name, &mut Version)) {
    visit(Name::Pod(instance.slot), &mut instance.uid);
}

fn visit_leases(leases: &mut [Option<Lease>], visit: &mut impl FnMut(Name, &mut Version)) {
    for (key, lease) in leases.iter_mut().enumerate() {
        let Some(lease) = lease else { continue };
        visit(Name::Lease(key), &mut lease.version);
        if let Some(Bond { instance, id }) = &mut lease.holder {
            visit_instance(instance, visit);
            visit(Name::Lease(key), id);
        }
    }
}

fn visit_pods(pods: &mut [Option<Pod>], visit: &mut impl FnMut(Name, &mut Version)) {
    for (slot, pod) in pods.iter_mut().enumerate() {
        let Some(pod) = pod else { continue };
        visit(Name::Pod(slot), &mut pod.uid);
        visit(Name::Pod(slot), &mut pod.version);
        if let Some(hold) = &mut pod.hold {
            visit(Name::Lease(hold.key), &mut hold.bond);
        }
    }
}

fn visit_write(write: &mut Write, visit: &mut impl FnMut(Name, &mut Version)) {
    match write {
        Write::CreateLease { at, .. } => at.iter_mut().for_each(|instance| visit_instance(instance, visit)),
        Write::ChangeLease { key, expect, change } => {
            visit(Name::Lease(*key), expect);
            if let Change::Point { at: Some(instance), .. } = change {
                visit_instance(instance, visit);
            }
        }
        Write::CreatePod { .. } => {}
        Write::Hold { slot, expect, hold } => {
            expect.iter_mut().for_each(|version| visit(Name::Pod(*slot), version));
            visit(Name::Lease(hold.key), &mut hold.bond);
        }
        Write::Free { hold, .. } => visit(Name::Lease(hold.key), &mut hold.bond),
        Write::MarkPod { slot, expect } | Write::DeletePod { slot, expect } => {
            visit(Name::Pod(*slot), expect)
        }
    }
}
