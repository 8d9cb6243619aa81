//! A cluster small enough to reason about, for tests: it does to the observed objects what the API server and the node
//! would, so that plans can be followed to their end or cut short anywhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan::{Note, Observed, Operation, Plan, plan};
use super::worker;
use crate::controllers::pods;

pub(super) struct World {
    pub(super) observed: Observed,
    pub(super) now: Timestamp,
    pub(super) notes: Vec<Note>,
    /// Whether the Job was deleted.
    pub(super) gone: bool,
    made: u32,
    /// The uids of Pods that ended by themselves, which is what the counters must come to.
    pub(super) succeeded: BTreeSet<String>,
    pub(super) failed: BTreeSet<String>,
    /// The uids of Pods that anybody told to go.
    pub(super) told: BTreeSet<String>,
}

/// A Job that runs one Pod, changed by `spec`.
pub(super) fn job(spec: Value) -> Job {
    let mut object = json!({
        "metadata": {"name": "pi", "namespace": "here", "uid": "job-uid", "generation": 1},
        "spec": {
            "completions": 1, "parallelism": 1, "backoffLimit": 6, "podReplacementPolicy": "TerminatingOrFailed",
            "completionMode": "NonIndexed", "suspend": false,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "job-uid"}},
            "template": {
                "metadata": {"labels": {"batch.kubernetes.io/controller-uid": "job-uid"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        object["spec"][key] = value;
    }
    serde_json::from_value(object).expect("a Job")
}

impl World {
    pub(super) fn new(job: Job) -> Self {
        Self {
            observed: Observed { job, ..Observed::default() },
            now: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24),
            notes: Vec::new(),
            gone: false,
            made: 0,
            succeeded: BTreeSet::new(),
            failed: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.observed, self.now)
    }

    /// Plans and does all of it.
    pub(super) fn step(&mut self) -> Vec<Operation> {
        let operations = self.plan().operations;
        self.step_partly(usize::MAX);
        operations
    }

    /// Plans, does the first `count` writes, and crashes if that was not all.
    pub(super) fn step_partly(&mut self, count: usize) {
        let plan = self.plan();
        let whole = count >= plan.operations.len();
        for operation in plan.operations.into_iter().take(count) {
            self.apply(operation);
        }
        self.observed.backoff = whole.then_some(plan.backoff);
    }

    fn apply(&mut self, operation: Operation) {
        let time = Time(self.now);
        match operation {
            Operation::AdoptPod { name, .. } => {
                let at =
                    self.observed.orphans.iter().position(|pod| pod.name_any() == name).expect("an orphan");
                let mut pod = (*self.observed.orphans.remove(at)).clone();
                pod.metadata.finalizers.get_or_insert_default().push(worker::FINALIZER.to_owned());
                self.observed.pods.push(Arc::new(pod));
            }
            Operation::ReleasePod { name, .. } => self.observed.strays.retain(|pod| pod.name_any() != name),
            Operation::CreatePod(mut pod) => {
                self.made += 1;
                let prefix = pod.metadata.generate_name.clone().expect("a generated name");
                pod.metadata.name = Some(format!("{prefix}{:03}", self.made));
                pod.metadata.namespace = Some("here".into());
                pod.metadata.uid = Some(format!("uid-{:03}", self.made));
                pod.metadata.creation_timestamp = Some(time);
                pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
                self.observed.pods.push(Arc::new(*pod));
            }
            Operation::DeletePod { name, .. } => self.delete(&name),
            Operation::RemoveFinalizer { name, .. } => {
                self.change(&name, |pod| pod.metadata.finalizers = None);
                self.collect(&name);
            }
            Operation::WriteStatus { status, notes } => {
                self.observed.job.status = Some(*status);
                self.notes.extend(notes);
            }
            Operation::DeleteJob { .. } => self.gone = true,
        }
    }

    pub(super) fn status(&self) -> JobStatus {
        self.observed.job.status.clone().unwrap_or_default()
    }

    pub(super) fn conditions(&self) -> Vec<String> {
        let conditions = self.status().conditions.unwrap_or_default();
        conditions
            .iter()
            .map(|one| format!("{}={} {}", one.type_, one.status, one.reason.as_deref().unwrap_or_default()))
            .collect()
    }

    /// Pods at work, oldest first.
    pub(super) fn active(&self) -> Vec<String> {
        let active = self.observed.pods.iter().filter(|pod| pods::is_active(pod));
        active.map(|pod| pod.name_any()).collect()
    }

    pub(super) fn pod(&self, name: &str) -> Option<&Pod> {
        self.observed.pods.iter().find(|pod| pod.name_any() == name).map(AsRef::as_ref)
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.observed.pods.iter_mut().find(|pod| pod.name_any() == name) {
            change(Arc::make_mut(pod));
        }
    }

    /// A Pod ends by itself.
    pub(super) fn finish(&mut self, name: &str, phase: &str, exit_code: i32) {
        let finished = json!({
            "phase": phase,
            "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": exit_code, "finishedAt": self.now.to_string()}},
            }],
        });
        self.change(name, |pod| pod.status = serde_json::from_value(finished).expect("a status"));
        let uid = self.pod(name).and_then(|pod| pod.uid()).unwrap_or_default();
        match phase {
            "Succeeded" => self.succeeded.insert(uid),
            _ => self.failed.insert(uid),
        };
    }

    /// A user or a controller deletes a Pod.
    pub(super) fn delete(&mut self, name: &str) {
        let time = Time(self.now);
        self.change(name, |pod| {
            pod.metadata.deletion_timestamp.get_or_insert(time);
        });
        self.told.extend(self.pod(name).and_then(|pod| pod.uid()));
        // One that runs stays until the node is done with it.
        let over = self.pod(name).is_some_and(pods::is_finished);
        if over {
            self.collect(name);
        }
    }

    /// The node is done with a Pod that was told to go.
    pub(super) fn stop(&mut self, name: &str) {
        let Some(pod) = self.pod(name) else { return };
        if pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        if pods::phase(pod) != "Succeeded" && pods::phase(pod) != "Failed" {
            self.change(name, |pod| pod.status.get_or_insert_default().phase = Some("Failed".into()));
        }
        self.collect(name);
    }

    /// An object that was deleted, has ended and is held by nothing vanishes.
    fn collect(&mut self, name: &str) {
        self.observed.pods.retain(|pod| {
            let held = worker::is_tracked(pod)
                || pod.metadata.deletion_timestamp.is_none()
                || !pods::is_finished(pod);
            pod.name_any() != name || held
        });
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub(super) fn edit(&mut self, change: impl FnOnce(&mut JobSpec)) {
        change(self.observed.job.spec.get_or_insert_default());
    }
}
