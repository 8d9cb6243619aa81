//! Decides what a StatefulSet needs next: ordinals in order, one step at a time unless it asks for all at once.
//! Pure: what is observed and the time go in, operations come out. Never acts on a Pod whose predecessors are unwell,
//! except where the set says `Parallel`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::claims::{self, Owner, Policy};
use super::identity;
use super::revisions::{self, Versions};
use super::status;
use crate::controllers::pods::{self, Availability};

/// Everything that bears on one set.
#[derive(Debug, Clone, Default)]
pub(super) struct Observed {
    pub(super) set: StatefulSet,
    /// The set's own Pods that it still selects.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Pods that it selects and nobody controls.
    pub(super) orphans: Vec<Arc<Pod>>,
    /// Its own Pods that it no longer selects, or that bear another set's name.
    pub(super) strays: Vec<Arc<Pod>>,
    /// The revisions that it controls.
    pub(super) revisions: Vec<Arc<ControllerRevision>>,
    /// Those that it selects and nobody controls.
    pub(super) orphan_revisions: Vec<Arc<ControllerRevision>>,
    /// All others of the namespace.
    pub(super) other_revisions: Vec<Arc<ControllerRevision>>,
    /// The claims of the namespace that bear the names which the set gives.
    pub(super) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
}

/// One write. They are done in order, and none before all earlier ones have succeeded.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operation {
    AdoptRevision {
        name: String,
        uid: String,
    },
    AdoptPod {
        name: String,
        uid: String,
    },
    ReleasePod {
        name: String,
        uid: String,
    },
    CreateRevision(Box<ControllerRevision>),
    RenumberRevision {
        name: String,
        revision: i64,
    },
    DeleteRevision {
        name: String,
    },
    CreateClaim {
        pod: String,
        claim: Box<PersistentVolumeClaim>,
    },
    SetClaimOwners {
        name: String,
        owners: Vec<OwnerReference>,
    },
    CreatePod(Box<Pod>),
    /// Makes a Pod or its claims what the set says; `labels` are those that the Pod lacks.
    UpdatePod {
        name: String,
        labels: BTreeMap<String, String>,
    },
    DeletePod {
        name: String,
        uid: String,
    },
}

/// What to do, what to report, and when to look again although nothing happened.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) operations: Vec<Operation>,
    pub(super) status: StatefulSetStatus,
    pub(super) requeue: Option<Duration>,
}

pub(super) fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let set = &observed.set;
    let leaving = set.metadata.deletion_timestamp.is_some();
    let mut operations = Vec::new();
    if !leaving {
        adopt(observed, &mut operations);
    }
    let adopted = if leaving { &[] } else { observed.orphans.as_slice() };
    let pods: Vec<&Pod> = observed.pods.iter().chain(adopted).map(AsRef::as_ref).collect();
    let mut owned = observed.revisions.clone();
    if !leaving {
        owned.extend(observed.orphan_revisions.iter().cloned());
    }
    revisions::sort(&mut owned);
    let mut versions = revisions::choose(set, &owned, &observed.other_revisions);
    let status = status::report(set, &pods, &versions, now);
    let requeue = next_look(set, &pods, &status, now);
    if leaving {
        return Plan { operations, status, requeue };
    }
    operations.extend(versions.record.take());
    Step::new(observed, &pods, &versions, now, &mut operations).run();
    let named = [&status.current_revision, &status.update_revision].into_iter().flatten().map(String::as_str);
    let live: BTreeSet<&str> = named.chain(pods.iter().map(|pod| identity::revision_of(pod))).collect();
    operations.extend(revisions::expired(set, &owned, &live));
    Plan { operations, status, requeue }
}

fn adopt(observed: &Observed, operations: &mut Vec<Operation>) {
    for revision in &observed.orphan_revisions {
        operations.push(Operation::AdoptRevision {
            name: revision.name_any(),
            uid: revision.uid().unwrap_or_default(),
        });
    }
    for pod in &observed.orphans {
        operations.push(Operation::AdoptPod { name: pod.name_any(), uid: pod.uid().unwrap_or_default() });
    }
    for pod in &observed.strays {
        operations.push(Operation::ReleasePod { name: pod.name_any(), uid: pod.uid().unwrap_or_default() });
    }
}

/// When the next ready Pod will count as available.
fn next_look(
    set: &StatefulSet,
    pods: &[&Pod],
    status: &StatefulSetStatus,
    now: Timestamp,
) -> Option<Duration> {
    let seconds = min_ready_seconds(set);
    if seconds <= 0 || status.ready_replicas == status.available_replicas {
        return None;
    }
    let waits = pods.iter().filter_map(|pod| match pods::availability(pod, seconds, now) {
        Availability::After(wait) => Some(wait),
        Availability::Available | Availability::NotReady => None,
    });
    waits.min()
}

/// Told to go, and not yet gone.
pub(super) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(super) fn min_ready_seconds(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// Whether work on the following ordinals may go on.
#[derive(PartialEq)]
enum Next {
    Continue,
    Stop,
}

/// The part of planning that deals with Pods.
struct Step<'a> {
    observed: &'a Observed,
    versions: &'a Versions,
    now: Timestamp,
    /// One slot for each ordinal that is wanted.
    replicas: BTreeMap<i32, Option<&'a Pod>>,
    /// Ordinals that are not wanted, highest first.
    condemned: Vec<(i32, &'a Pod)>,
    operations: &'a mut Vec<Operation>,
}

impl<'a> Step<'a> {
    fn new(
        observed: &'a Observed,
        pods: &[&'a Pod],
        versions: &'a Versions,
        now: Timestamp,
        operations: &'a mut Vec<Operation>,
    ) -> Self {
        let set = &observed.set;
        let first = identity::first_ordinal(set);
        let wanted = first..first.saturating_add(identity::replicas(set));
        let mut replicas: BTreeMap<i32, Option<&Pod>> = wanted.map(|ordinal| (ordinal, None)).collect();
        let mut condemned = Vec::new();
        for pod in pods {
            let Some(ordinal) = identity::ordinal(pod) else { continue };
            match replicas.get_mut(&ordinal) {
                Some(slot) => *slot = Some(pod),
                None => condemned.push((ordinal, *pod)),
            }
        }
        condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        Self { observed, versions, now, replicas, condemned, operations }
    }

    /// Replicas first, then what is to go, then the update; each only once nothing before it is left to wait for.
    fn run(&mut self) {
        let ordered = self.is_ordered();
        for (ordinal, slot) in self.replicas.clone() {
            let next = match slot {
                Some(pod) => self.tend(ordinal, pod, ordered),
                None => self.create(ordinal, ordered),
            };
            if next == Next::Stop && ordered {
                return;
            }
        }
        for (ordinal, pod) in self.condemned.clone() {
            self.own_claims(ordinal, pod, Owner::Condemned(pod));
        }
        for (_, pod) in self.condemned.clone() {
            if self.remove(pod, ordered) == Next::Stop && ordered {
                return;
            }
        }
        self.update();
    }

    fn is_ordered(&self) -> bool {
        let policy = self.observed.set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
        policy != Some("Parallel")
    }

    fn create(&mut self, ordinal: i32, ordered: bool) -> Next {
        let set = &self.observed.set;
        let name = identity::pod_name(set, ordinal);
        let held = |claim: &PersistentVolumeClaim| self.observed.claims.get(&claim.name_any());
        // A claim on its way out would take the new Pod's data with it.
        let blocked = identity::claims(set, ordinal).any(|claim| {
            held(&claim).is_some_and(|held| {
                held.metadata.deletion_timestamp.is_some()
                    || (Policy::of(set).delete_when_scaled && claims::is_stale(held, &name))
            })
        });
        if blocked {
            return Next::Stop;
        }
        self.create_claims(ordinal, &name, None);
        let version = if self.stays_behind(ordinal) { &self.versions.current } else { &self.versions.update };
        let pod = identity::new_pod(set, &version.template, &version.name, ordinal);
        self.operations.push(Operation::CreatePod(Box::new(pod)));
        if ordered { Next::Stop } else { Next::Continue }
    }

    /// Whether a new Pod of this ordinal is still made at the current revision.
    fn stays_behind(&self, ordinal: i32) -> bool {
        let set = &self.observed.set;
        let first = identity::first_ordinal(set);
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        match strategy.and_then(|strategy| strategy.rolling_update.as_ref()) {
            Some(rolling) => ordinal < first.saturating_add(rolling.partition.unwrap_or(0)),
            None => {
                let current = set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0);
                !self.is_on_delete() && ordinal < first.saturating_add(current)
            }
        }
    }

    fn is_on_delete(&self) -> bool {
        let strategy = self.observed.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
    }

    fn tend(&mut self, ordinal: i32, pod: &Pod, ordered: bool) -> Next {
        // However it ended, it is to run: a new one is made once this one is gone.
        if pods::is_finished(pod) {
            if !is_leaving(pod) {
                self.delete(pod);
            }
            return Next::Stop;
        }
        if pods::phase(pod) == "Pending" {
            self.create_claims(ordinal, &pod.name_any(), pod.uid().as_deref());
        }
        if ordered && !self.is_well(pod) {
            return Next::Stop;
        }
        let labels = identity::missing_labels(pod);
        let owned = self.own_claims(ordinal, pod, Owner::Replica);
        if !labels.is_empty() || owned {
            self.operations.push(Operation::UpdatePod { name: pod.name_any(), labels });
        }
        Next::Continue
    }

    fn remove(&mut self, pod: &Pod, ordered: bool) -> Next {
        if is_leaving(pod) {
            return Next::Stop;
        }
        // One that has ended waits for nobody. With Kubernetes' own controller, two of them wait for each other for ever.
        let waits = !self.is_well(pod) && !pods::is_finished(pod);
        let first_unwell = || self.unwell().next().map(|pod| pod.name_any());
        if ordered && waits && first_unwell() != Some(pod.name_any()) {
            return Next::Stop;
        }
        self.delete(pod);
        Next::Stop
    }

    /// Replaces the highest ordinals that are not at the update revision, as long as not too many are away.
    fn update(&mut self) {
        if self.is_on_delete() {
            return;
        }
        let rolling = self.observed.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let partition =
            rolling.and_then(|one| one.rolling_update.as_ref()).and_then(|one| one.partition).unwrap_or(0);
        // The partition counts from the first ordinal.
        let kept = usize::try_from(partition).unwrap_or(0);
        for (_, slot) in self.replicas.clone().into_iter().skip(kept).rev() {
            let Some(pod) = slot else { return };
            if identity::revision_of(pod) != self.versions.update.name && !is_leaving(pod) {
                self.delete(pod);
                return;
            }
            if !self.is_well(pod) {
                return;
            }
        }
    }

    /// Running, ready for long enough, and staying.
    fn is_well(&self, pod: &Pod) -> bool {
        pods::phase(pod) == "Running"
            && pods::availability(pod, min_ready_seconds(&self.observed.set), self.now)
                == Availability::Available
            && !is_leaving(pod)
    }

    /// Those that hold the others up, lowest ordinal first, the wanted before the condemned.
    fn unwell(&self) -> impl Iterator<Item = &'a Pod> {
        let wanted = self.replicas.values().filter_map(|slot| *slot);
        let condemned =
            self.condemned.iter().rev().map(|(_, pod)| *pod).filter(|pod| !pods::is_finished(pod));
        wanted.chain(condemned).filter(|pod| !self.is_well(pod))
    }

    fn delete(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        self.operations.push(Operation::DeletePod { name: pod.name_any(), uid });
    }

    /// Creates the claims of an ordinal that are missing, and gives all of them the owner that the policy says.
    fn create_claims(&mut self, ordinal: i32, pod_name: &str, pod_uid: Option<&str>) {
        let set = &self.observed.set;
        let owner = claims::owner(set, Owner::Replica);
        for mut claim in identity::claims(set, ordinal) {
            let name = claim.name_any();
            match self.observed.claims.get(&name) {
                None => {
                    claim.metadata.owner_references = owner.clone().map(|owner| vec![owner]);
                    self.operations
                        .push(Operation::CreateClaim { pod: pod_name.to_owned(), claim: Box::new(claim) });
                }
                Some(held) => {
                    if let Some(owners) = claims::corrected(held, set, pod_name, pod_uid, owner.clone()) {
                        self.operations.push(Operation::SetClaimOwners { name, owners });
                    }
                }
            }
        }
    }

    /// Corrects the owners of a Pod's claims; says whether any were wrong.
    fn own_claims(&mut self, ordinal: i32, pod: &Pod, kind: Owner<'_>) -> bool {
        let set = &self.observed.set;
        let mut wrong = false;
        for template in identity::claim_templates(set) {
            let name = identity::claim_name(set, template, ordinal);
            let Some(claim) = self.observed.claims.get(&name) else { continue };
            let owner = claims::owner(set, kind);
            let uid = pod.uid();
            if let Some(owners) = claims::corrected(claim, set, &pod.name_any(), uid.as_deref(), owner) {
                let operation = Operation::SetClaimOwners { name, owners };
                // A Pending Pod's claims were seen to already.
                if !self.operations.contains(&operation) {
                    self.operations.push(operation);
                    wrong = true;
                }
            }
        }
        wrong
    }
}
