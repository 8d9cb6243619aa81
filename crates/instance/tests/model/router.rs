//! What a router decides, from its memory alone.

use super::server::{Bond, Change, Hold, Instance, KEYS, Lease, Life, Pod, SLOTS, Write};
use super::state::{Clock, Router};
use super::{Flaw, Setup};

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    Write(Write),
    /// Read the Pod that the Lease names.
    ReadPod(usize),
}

impl Router {
    /// The instance that memory gives for a key, without asking anybody.
    pub(crate) fn hit(&self, key: usize, flaw: Flaw) -> Option<Instance> {
        if !self.serves() {
            return None;
        }
        if flaw == Flaw::NoLease {
            let slot = (0..SLOTS).find(|slot| self.pods[*slot].is_some_and(|pod| is_held(pod, key)))?;
            return self.pods[slot].map(|pod| Instance { slot, uid: pod.uid });
        }
        let lease = self.leases[key].filter(|lease| !lease.ending && !lease.releasing)?;
        let bond = lease.holder?;
        let pod = self.pod(bond)?;
        let bound = is_bound(pod, key, bond, flaw) && pod.life == Life::Ready && !pod.releasing;
        bound.then_some(bond.instance)
    }

    fn pod(&self, bond: Bond) -> Option<Pod> {
        self.pods[bond.instance.slot].filter(|pod| pod.uid == bond.instance.uid)
    }

    fn idle(&self, setup: &Setup) -> impl Iterator<Item = Instance> {
        (0..setup.slots).filter_map(|slot| {
            let pod = self.pods[slot].filter(|pod| pod.is_idle() && !pod.releasing)?;
            Some(Instance { slot, uid: pod.uid })
        })
    }

    /// What the request for this key may do next. `abandoned` tells of a binder that it may be replaced.
    pub(crate) fn next(&self, me: usize, key: usize, setup: &Setup, abandoned: bool) -> Vec<Next> {
        let Some(flow) = self.flows[key] else { return Vec::new() };
        let binder = Some(me);
        if setup.flaw == Flaw::NoLease {
            let hold = Hold { key, bond: 0 };
            return self.idle(setup).map(|instance| self.hold(instance, hold, setup)).collect();
        }
        let Some(lease) = self.leases[key] else {
            let create = |at| Next::Write(Write::CreateLease { key, at, binder });
            return self.targets(setup).into_iter().map(create).collect();
        };
        let change = |change| Next::Write(Write::ChangeLease { key, expect: lease.version, change });
        if lease.ending {
            return Vec::new();
        }
        if lease.releasing {
            return vec![change(Change::Unmark)];
        }
        let mine = lease.binder == binder;
        let Some(bond) = lease.holder else {
            return match mine {
                true => self.await_instance(setup, me, change),
                false if abandoned => vec![change(Change::Bind { binder })],
                false => Vec::new(),
            };
        };
        let point = |at| change(Change::Point { at, binder });
        let Some(pod) = self.pod(bond) else {
            return match flow.fresh || setup.flaw == Flaw::DeathFromMemory {
                true => self.targets(setup).into_iter().map(point).collect(),
                false => vec![Next::ReadPod(bond.instance.slot)],
            };
        };
        if pod.life == Life::Dead {
            return self.targets(setup).into_iter().map(point).collect();
        }
        if is_bound(pod, key, bond, setup.flaw) {
            return self.mend(bond, pod);
        }
        if !mine {
            return abandoned.then(|| change(Change::Bind { binder })).into_iter().collect();
        }
        if pod.is_idle() {
            return match flow.clock == Clock::Prompt || setup.flaw == Flaw::NoConfirm {
                true => vec![self.hold(bond.instance, Hold { key, bond: bond.id }, setup)],
                false => vec![change(Change::Bind { binder })],
            };
        }
        match flow.fresh {
            true => self.targets(setup).into_iter().map(point).collect(),
            false => vec![Next::ReadPod(bond.instance.slot)],
        }
    }

    /// An idle instance, or none if there is none.
    fn targets(&self, setup: &Setup) -> Vec<Option<Instance>> {
        let idle: Vec<_> = self.idle(setup).map(Some).collect();
        if idle.is_empty() { vec![None] } else { idle }
    }

    fn hold(&self, instance: Instance, hold: Hold, setup: &Setup) -> Next {
        let slot = instance.slot;
        let version = self.pods[slot].map(|pod| pod.version);
        let expect = version.filter(|_| !matches!(setup.flaw, Flaw::NoVersion | Flaw::NoLease));
        Next::Write(Write::Hold { slot, expect, hold })
    }

    /// Starts an instance, or points the Lease at one that has become idle.
    fn await_instance(&self, setup: &Setup, me: usize, change: impl Fn(Change) -> Next) -> Vec<Next> {
        let binder = Some(me);
        let idle = self.idle(setup).map(|instance| change(Change::Point { at: Some(instance), binder }));
        let start = (0..setup.slots).filter(|slot| self.pods[*slot].is_none());
        idle.chain(start.map(|slot| Next::Write(Write::CreatePod { slot }))).collect()
    }

    /// The session is bound: nothing to do, unless its instance has failed.
    fn mend(&self, bond: Bond, pod: Pod) -> Vec<Next> {
        match pod.life {
            Life::Unready => {
                vec![Next::Write(Write::DeletePod { slot: bond.instance.slot, expect: pod.version })]
            }
            _ => Vec::new(),
        }
    }

    /// What has to be written before the router may say that it has seen the state of its memory.
    pub(crate) fn objection(&self, key: usize, flaw: Flaw) -> Option<Write> {
        let lease = self.leases[key]?;
        self.in_flight[key]?;
        let change = match lease {
            Lease { ending: true, interrupted: false, .. } if flaw != Flaw::NoInterrupt => Change::Interrupt,
            Lease { ending: false, releasing: true, .. } if flaw != Flaw::NoVeto => Change::Unmark,
            _ => return None,
        };
        Some(Write::ChangeLease { key, expect: lease.version, change })
    }

    /// Takes in the truth of all Leases, as its watch brings it, and says so unless it objects.
    pub(crate) fn watch_leases(&mut self, truth: &[Option<Lease>; KEYS], flaw: Flaw) {
        for (key, truth) in truth.iter().enumerate() {
            if self.leases[key] != *truth {
                self.leases[key] = *truth;
                self.flows[key].iter_mut().for_each(|flow| flow.fresh = false);
            }
            self.acked_leases[key] = self.objection(key, flaw).is_none();
        }
    }

    pub(crate) fn watch_pods(&mut self, truth: &[Option<Pod>; SLOTS]) {
        self.pods = *truth;
        self.acked_pods = [true; SLOTS];
    }
}

fn is_held(pod: Pod, key: usize) -> bool {
    pod.life == Life::Ready && pod.hold.is_some_and(|hold| hold.key == key)
}

fn is_bound(pod: Pod, key: usize, bond: Bond, flaw: Flaw) -> bool {
    match flaw {
        Flaw::NoReservation => pod.hold.is_some_and(|hold| hold.key == key),
        _ => pod.hold == Some(Hold { key, bond: bond.id }),
    }
}
