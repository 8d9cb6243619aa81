//! A cluster small enough to reason about, for tests: it does to the observed objects what the API server, the node
//! and the garbage collector would, so that plans can be followed to their end or cut short anywhere.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::identity;
use super::plan::{Observed, Operation, Plan, plan};

pub(super) const SET_UID: &str = "set-uid";

pub(super) struct World {
    pub(super) observed: Observed,
    pub(super) now: Timestamp,
    made: u32,
}

/// A set of `replicas` Pods, changed by `spec`.
pub(super) fn set(replicas: i32, spec: Value) -> StatefulSet {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "here", "uid": SET_UID, "generation": 1},
        "spec": {
            "replicas": replicas,
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "one"}]},
            },
        },
    });
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        object["spec"][key] = value;
    }
    serde_json::from_value(object).expect("a StatefulSet")
}

impl World {
    pub(super) fn new(set: StatefulSet) -> Self {
        Self { observed: Observed { set, ..Observed::default() }, now: Timestamp::UNIX_EPOCH, made: 0 }
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.observed, self.now)
    }

    /// Plans, does all of it, and reports.
    pub(super) fn step(&mut self) -> Vec<Operation> {
        let plan = self.plan();
        self.step_partly(usize::MAX);
        plan.operations
    }

    /// Plans and does the first `count` writes; the status is the last of them.
    pub(super) fn step_partly(&mut self, count: usize) {
        let plan = self.plan();
        let all = plan.operations.len();
        for operation in plan.operations.into_iter().take(count) {
            self.apply(operation);
        }
        if count > all {
            self.observed.set.status = Some(plan.status);
        }
    }

    /// Lets every Pod run and every deletion finish, until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            let quiet = self.step().is_empty();
            let busy = self.run_all();
            if quiet && !busy {
                return;
            }
        }
        unreachable!("the set never settles: {:?}", self.plan().operations);
    }

    fn run_all(&mut self) -> bool {
        let names: Vec<String> = self.observed.pods.iter().map(|pod| pod.name_any()).collect();
        names.iter().fold(false, |busy, name| self.run(name) | busy)
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        format!("uid-{}", self.made)
    }

    fn apply(&mut self, operation: Operation) {
        let time = Time(self.now);
        match operation {
            Operation::AdoptPod { name, .. } => {
                let at =
                    self.observed.orphans.iter().position(|pod| pod.name_any() == name).expect("an orphan");
                let pod = self.observed.orphans.remove(at);
                self.observed.pods.push(pod);
            }
            Operation::ReleasePod { name, .. } => self.observed.strays.retain(|pod| pod.name_any() != name),
            Operation::AdoptRevision { name, .. } => {
                let orphans = &mut self.observed.orphan_revisions;
                let at = orphans.iter().position(|one| one.name_any() == name).expect("an orphan");
                let revision = orphans.remove(at);
                self.observed.revisions.push(revision);
            }
            Operation::CreateRevision(revision) => self.observed.revisions.push(Arc::new(*revision)),
            Operation::RenumberRevision { name, revision } => {
                let at = self
                    .observed
                    .revisions
                    .iter_mut()
                    .find(|one| one.name_any() == name)
                    .expect("a revision");
                Arc::make_mut(at).revision = revision;
            }
            Operation::DeleteRevision { name } => {
                self.observed.revisions.retain(|one| one.name_any() != name)
            }
            Operation::CreateClaim { mut claim, .. } => {
                claim.metadata.uid = Some(self.uid());
                self.observed.claims.insert(claim.name_any(), Arc::new(*claim));
            }
            Operation::SetClaimOwners { name, owners } => {
                let claim = self.observed.claims.get_mut(&name).expect("a claim");
                Arc::make_mut(claim).metadata.owner_references = Some(owners);
            }
            Operation::CreatePod(mut pod) => {
                assert!(self.pod(&pod.name_any()).is_none(), "{} exists", pod.name_any());
                pod.metadata.uid = Some(self.uid());
                pod.metadata.creation_timestamp = Some(time);
                pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
                self.observed.pods.push(Arc::new(*pod));
            }
            Operation::UpdatePod { name, labels } => {
                self.change(&name, |pod| pod.metadata.labels.get_or_insert_default().extend(labels));
            }
            Operation::DeletePod { name, uid } => {
                self.change(&name, |pod| {
                    assert_eq!(pod.metadata.uid.as_deref(), Some(uid.as_str()));
                    pod.metadata.deletion_timestamp = Some(time);
                });
            }
        }
    }

    pub(super) fn pod(&self, name: &str) -> Option<&Pod> {
        self.observed.pods.iter().find(|pod| pod.name_any() == name).map(AsRef::as_ref)
    }

    pub(super) fn ordinals(&self) -> Vec<i32> {
        let mut ordinals: Vec<i32> =
            self.observed.pods.iter().filter_map(|pod| identity::ordinal(pod)).collect();
        ordinals.sort_unstable();
        ordinals
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let pod = self.observed.pods.iter_mut().find(|pod| pod.name_any() == name).expect("the Pod exists");
        change(Arc::make_mut(pod));
    }

    /// The node carries on with one Pod: starts it, or ends it if it was told to go. Says whether anything changed.
    pub(super) fn run(&mut self, name: &str) -> bool {
        let pod = self.pod(name).expect("the Pod exists");
        if pod.metadata.deletion_timestamp.is_some() {
            let uid = pod.uid();
            self.observed.pods.retain(|pod| pod.name_any() != name);
            let owned = |one: &Arc<_>| k8s_owned(one, uid.as_deref());
            self.observed.claims.retain(|_, claim| !owned(claim));
            return true;
        }
        let starts = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
        if starts {
            self.report(name, "Running", true);
        }
        starts
    }

    pub(super) fn report(&mut self, name: &str, phase: &str, ready: bool) {
        let since = Time(self.now);
        self.change(name, |pod| {
            pod.status = Some(PodStatus {
                phase: Some(phase.to_owned()),
                conditions: Some(vec![PodCondition {
                    type_: "Ready".into(),
                    status: if ready { "True" } else { "False" }.into(),
                    last_transition_time: Some(since),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            });
        });
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).expect("still in range");
    }

    pub(super) fn edit(&mut self, change: impl FnOnce(&mut k8s_openapi::api::apps::v1::StatefulSetSpec)) {
        change(self.observed.set.spec.get_or_insert_default());
        let generation = self.observed.set.metadata.generation.get_or_insert_default();
        *generation += 1;
    }

    pub(super) fn set_image(&mut self, image: &str) {
        self.edit(|spec| {
            spec.template.spec.get_or_insert_default().containers[0].image = Some(image.to_owned());
        });
    }
}

fn k8s_owned(claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim, uid: Option<&str>) -> bool {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| Some(owner.uid.as_str()) == uid)
}
