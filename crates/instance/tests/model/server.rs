//! The API server of the model: Leases and Pods under unique names, with versions and conditional writes. It knows
//! nothing of the protocol beyond what a Lease and a Pod hold.

pub(crate) const KEYS: usize = 2;
pub(crate) const SLOTS: usize = 2;

/// Counts the writes to one name; survives the object, so a later one of the same name never has an old version.
pub(crate) type Version = u8;

/// A Pod of a slot. Its UID is the version in which it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instance {
    pub(crate) slot: usize,
    pub(crate) uid: Version,
}

/// A Lease that names an instance. The id stands for Lease UID and `leaseTransitions`: the version in which the Lease
/// was pointed, so it never comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bond {
    pub(crate) instance: Instance,
    pub(crate) id: Version,
}

/// The process that may complete a binding. One that was restarted is nobody's binder.
pub(crate) type Binder = Option<usize>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    pub(crate) version: Version,
    /// With a holder it has the finalizer.
    pub(crate) holder: Option<Bond>,
    pub(crate) binder: Binder,
    pub(crate) releasing: bool,
    pub(crate) ending: bool,
    pub(crate) interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Starting,
    Ready,
    Unready,
    Terminating,
    Dead,
}

/// Whom a Pod says that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) key: usize,
    pub(crate) bond: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pod {
    pub(crate) uid: Version,
    pub(crate) version: Version,
    pub(crate) life: Life,
    pub(crate) hold: Option<Hold>,
    pub(crate) releasing: bool,
}

impl Pod {
    pub(crate) fn is_idle(&self) -> bool {
        self.life == Life::Ready && self.hold.is_none()
    }
}

/// What is changed of a Lease of a known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Change {
    /// Point it at another instance, or at none.
    Point {
        at: Option<Instance>,
        binder: Binder,
    },
    /// Take over, or confirm.
    Bind {
        binder: Binder,
    },
    Mark,
    Unmark,
    Delete,
    Interrupt,
    RemoveFinalizer,
}

/// One write. Everything names what it expects, so that it may arrive late, or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Write {
    CreateLease {
        key: usize,
        at: Option<Instance>,
        binder: Binder,
    },
    ChangeLease {
        key: usize,
        expect: Version,
        change: Change,
    },
    CreatePod {
        slot: usize,
    },
    /// Without a version it only tests that the Pod is free: one of the flaws.
    Hold {
        slot: usize,
        expect: Option<Version>,
        hold: Hold,
    },
    Free {
        slot: usize,
        hold: Hold,
    },
    MarkPod {
        slot: usize,
        expect: Version,
    },
    DeletePod {
        slot: usize,
        expect: Version,
    },
}

/// The truth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) leases: [Option<Lease>; KEYS],
    pub(crate) pods: [Option<Pod>; SLOTS],
    /// The last version under each name.
    pub(crate) lease_versions: [Version; KEYS],
    pub(crate) pod_versions: [Version; SLOTS],
}

impl Server {
    /// Carries a write out, or refuses it.
    pub(crate) fn apply(&mut self, write: Write) -> bool {
        match write {
            Write::CreateLease { key, at, binder } => self.create_lease(key, at, binder),
            Write::ChangeLease { key, expect, change } => self.change_lease(key, expect, change),
            Write::CreatePod { slot } => self.create_pod(slot),
            Write::Hold { slot, expect, hold } => self.change_pod(slot, |pod| {
                let fits = pod.hold.is_none() && expect.is_none_or(|version| version == pod.version);
                (pod.hold, pod.releasing) = (Some(hold), false);
                fits
            }),
            Write::Free { slot, hold } => self.change_pod(slot, |pod| pod.hold.take() == Some(hold)),
            Write::MarkPod { slot, expect } => self.change_pod(slot, |pod| {
                pod.releasing = true;
                pod.version == expect
            }),
            Write::DeletePod { slot, expect } => self.delete_pod(slot, expect),
        }
    }

    fn create_lease(&mut self, key: usize, at: Option<Instance>, binder: Binder) -> bool {
        if self.leases[key].is_some() {
            return false;
        }
        self.lease_versions[key] += 1;
        let version = self.lease_versions[key];
        let holder = at.map(|instance| Bond { instance, id: version });
        let lease = Lease { version, holder, binder, releasing: false, ending: false, interrupted: false };
        self.leases[key] = Some(lease);
        true
    }

    fn change_lease(&mut self, key: usize, expect: Version, change: Change) -> bool {
        let Some(mut lease) = self.leases[key].filter(|lease| lease.version == expect) else { return false };
        self.lease_versions[key] += 1;
        lease.version = self.lease_versions[key];
        let mut gone = false;
        match change {
            Change::Point { at, binder } => {
                lease.holder = at.map(|instance| Bond { instance, id: lease.version });
                (lease.binder, lease.releasing) = (binder, false);
            }
            Change::Bind { binder } => (lease.binder, lease.releasing) = (binder, false),
            Change::Mark => lease.releasing = true,
            Change::Unmark => lease.releasing = false,
            Change::Delete => {
                lease.ending = true;
                gone = lease.holder.is_none();
            }
            Change::Interrupt => lease.interrupted = true,
            Change::RemoveFinalizer => gone = true,
        }
        self.leases[key] = (!gone).then_some(lease);
        true
    }

    fn create_pod(&mut self, slot: usize) -> bool {
        if self.pods[slot].is_some() {
            return false;
        }
        self.pod_versions[slot] += 1;
        let version = self.pod_versions[slot];
        self.pods[slot] =
            Some(Pod { uid: version, version, life: Life::Starting, hold: None, releasing: false });
        true
    }

    /// Changes a Pod if the change says that what it found was what it expected.
    pub(crate) fn change_pod(&mut self, slot: usize, change: impl FnOnce(&mut Pod) -> bool) -> bool {
        let Some(mut pod) = self.pods[slot] else { return false };
        if !change(&mut pod) {
            return false;
        }
        self.pod_versions[slot] += 1;
        pod.version = self.pod_versions[slot];
        self.pods[slot] = Some(pod);
        true
    }

    fn delete_pod(&mut self, slot: usize, expect: Version) -> bool {
        match self.pods[slot] {
            Some(pod) if pod.version == expect && pod.life == Life::Dead => {
                self.pods[slot] = None;
                true
            }
            _ => self.change_pod(slot, |pod| {
                let fits = pod.version == expect && pod.life != Life::Terminating;
                pod.life = Life::Terminating;
                fits
            }),
        }
    }

    /// The Pod of this instance, if it exists.
    pub(crate) fn pod(&self, instance: Instance) -> Option<Pod> {
        self.pods[instance.slot].filter(|pod| pod.uid == instance.uid)
    }

    /// Whether processes of this instance may run.
    pub(crate) fn lives(&self, instance: Instance) -> bool {
        self.pod(instance).is_some_and(|pod| pod.life != Life::Dead)
    }

    /// Whether the session is bound: its Lease and a Pod that is not dead speak of the same bond.
    pub(crate) fn is_bound(&self, key: usize) -> bool {
        let bond = self.leases[key].and_then(|lease| lease.holder);
        bond.is_some_and(|bond| {
            let pod = self.pod(bond.instance).filter(|pod| pod.life != Life::Dead);
            pod.is_some_and(|pod| pod.hold == Some(Hold { key, bond: bond.id }))
        })
    }
}
