//! What the observed Pods amount to, against what the status already counts.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::Pod;

use super::backoff::Backoff;
use super::indexes::Indexes;
use super::policy::{self, Action};
use super::worker;
use crate::controllers::pods;

/// A Job's spec; the API server admits none without.
pub(super) fn spec(job: &Job) -> &JobSpec {
    static EMPTY: std::sync::LazyLock<JobSpec> = std::sync::LazyLock::new(JobSpec::default);
    job.spec.as_ref().unwrap_or(&EMPTY)
}

pub(super) struct Facts<'a> {
    pub(super) job: &'a Job,
    pub(super) pods: Vec<&'a Pod>,
    pub(super) active: Vec<&'a Pod>,
    /// Ends that are neither counted nor recorded yet.
    new_succeeded: Vec<&'a Pod>,
    new_failed: Vec<&'a Pod>,
    /// All successes and all failures that count, however far their counting has got.
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    /// Present for Jobs whose completions are told apart.
    pub(super) indexes: Option<IndexFacts<'a>>,
}

pub(super) struct IndexFacts<'a> {
    /// As the status has it.
    pub(super) recorded: Indexes,
    pub(super) succeeded: Indexes,
    /// Present if every index has a limit of its own.
    pub(super) failed: Option<Indexes>,
    /// The failed Pod of each index that waits to be replaced, which tells its replacement the failures so far.
    pub(super) awaiting: BTreeMap<i32, &'a Pod>,
}

impl<'a> Facts<'a> {
    pub(super) fn gather(job: &'a Job, pods: &[&'a Pod]) -> Self {
        let recorded = Recorded::of(job);
        let uncounted: Vec<&Pod> = pods
            .iter()
            .copied()
            .filter(|pod| worker::is_tracked(pod))
            .filter(|pod| !worker::is_indexed(job) || worker::valid_index(job, pod).is_some())
            .collect();
        let is_new = |pod: &&Pod, recorded: &BTreeSet<&str>| !recorded.contains(uid(pod));
        let new_succeeded: Vec<&Pod> = uncounted
            .iter()
            .copied()
            .filter(|pod| pods::phase(pod) == "Succeeded" && is_new(pod, &recorded.succeeded))
            .collect();
        let new_failed: Vec<&Pod> = uncounted
            .into_iter()
            .filter(|pod| worker::is_failed(job, pod) && is_new(pod, &recorded.failed))
            .collect();
        let counted = new_failed.iter().filter(|pod| policy::action(job, pod).is_counted()).count();
        let status = job.status.as_ref();
        let mut facts = Self {
            job,
            pods: pods.to_vec(),
            active: pods.iter().copied().filter(|pod| pods::is_active(pod)).collect(),
            succeeded: sum(
                status.and_then(|status| status.succeeded),
                new_succeeded.len() + recorded.succeeded.len(),
            ),
            failed: sum(status.and_then(|status| status.failed), counted + recorded.failed.len()),
            new_succeeded,
            new_failed,
            indexes: None,
        };
        if worker::is_indexed(job) {
            let indexes = facts.index_facts();
            facts.succeeded = indexes.succeeded.len();
            facts.indexes = Some(indexes);
        }
        facts
    }

    fn index_facts(&self) -> IndexFacts<'a> {
        let (job, status) = (self.job, self.job.status.as_ref());
        let completions = spec(job).completions.unwrap_or(0);
        let parse = |text: Option<&String>| Indexes::parse(text.map_or("", String::as_str), completions);
        let recorded = parse(status.and_then(|status| status.completed_indexes.as_ref()));
        let tracked = || self.pods.iter().copied().filter(|pod| worker::is_tracked(pod));
        let ended = tracked().filter(|pod| pods::phase(pod) == "Succeeded");
        let succeeded = recorded.with(ended.filter_map(|pod| worker::valid_index(job, pod)));
        let failed = spec(job).backoff_limit_per_index.map(|limit| {
            let failed = tracked().filter(|pod| index_failed(job, pod, limit));
            parse(status.and_then(|status| status.failed_indexes.as_ref()))
                .with(failed.filter_map(|pod| worker::valid_index(job, pod)))
        });
        let awaiting = match &failed {
            Some(failed) => self.awaiting(&succeeded.union(failed)),
            None => BTreeMap::new(),
        };
        IndexFacts { recorded, succeeded, failed, awaiting }
    }

    /// The latest failed Pod of each index that is neither settled nor at work.
    fn awaiting(&self, settled: &Indexes) -> BTreeMap<i32, &'a Pod> {
        let busy: BTreeSet<i32> = self.active.iter().filter_map(|pod| worker::index(pod)).collect();
        let mut awaiting: BTreeMap<i32, &Pod> = BTreeMap::new();
        for pod in self
            .pods
            .iter()
            .copied()
            .filter(|pod| worker::is_tracked(pod) && worker::is_failed(self.job, pod))
        {
            let Some(index) = worker::valid_index(self.job, pod) else { continue };
            if settled.contains(index) || busy.contains(&index) {
                continue;
            }
            let rank = |pod: &Pod| (worker::all_failures(pod), worker::finished_at(pod));
            let latest = awaiting.entry(index).or_insert(pod);
            if rank(latest) <= rank(pod) {
                *latest = pod;
            }
        }
        awaiting
    }

    /// The back-off with the ends that are new; of a Job that this process did not know, with all that can be seen.
    pub(super) fn backoff(&self, known: Option<Backoff>) -> Backoff {
        let known = known.unwrap_or_else(|| {
            let counted = || self.pods.iter().copied().filter(|pod| !worker::is_tracked(pod));
            let succeeded = counted().filter(|pod| pods::phase(pod) == "Succeeded");
            let failed = counted().filter(|pod| pods::phase(pod) == "Failed");
            Backoff::default().after(succeeded, failed)
        });
        known.after(self.new_succeeded.iter().copied(), self.new_failed.iter().copied())
    }

    /// Whether containers that are restarted in place have failed as often as Pods may.
    pub(super) fn restarts_exceed(&self, limit: i32) -> bool {
        let template = spec(self.job).template.spec.as_ref();
        if template.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let statuses = self
            .pods
            .iter()
            .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"))
            .filter_map(|pod| pod.status.as_ref());
        let restarts: i64 = statuses
            .flat_map(|status| {
                status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
            })
            .map(|container| i64::from(container.restart_count))
            .sum();
        restarts >= i64::from(limit.max(1))
    }

    pub(super) fn terminating(&self) -> i32 {
        i32::try_from(self.pods.iter().filter(|pod| pods::is_terminating(pod)).count()).unwrap_or(i32::MAX)
    }

    pub(super) fn ready(&self) -> i32 {
        i32::try_from(self.active.iter().filter(|pod| pods::is_ready(pod)).count()).unwrap_or(i32::MAX)
    }
}

/// The uids whose ends the status has recorded but not counted.
pub(super) struct Recorded<'a> {
    pub(super) succeeded: BTreeSet<&'a str>,
    pub(super) failed: BTreeSet<&'a str>,
}

impl<'a> Recorded<'a> {
    pub(super) fn of(job: &'a Job) -> Self {
        let uncounted = job.status.as_ref().and_then(|status| status.uncounted_terminated_pods.as_ref());
        let set = |uids: Option<&'a Vec<String>>| uids.into_iter().flatten().map(String::as_str).collect();
        Self {
            succeeded: set(uncounted.and_then(|uncounted| uncounted.succeeded.as_ref())),
            failed: set(uncounted.and_then(|uncounted| uncounted.failed.as_ref())),
        }
    }
}

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn sum(counted: Option<i32>, more: usize) -> i32 {
    counted.unwrap_or(0).saturating_add(i32::try_from(more).unwrap_or(i32::MAX))
}

fn index_failed(job: &Job, pod: &Pod, limit: i32) -> bool {
    worker::is_failed(job, pod)
        && match policy::action(job, pod) {
            Action::FailIndex => true,
            Action::Ignore => false,
            Action::Count | Action::FailJob(_) => worker::failures(pod) >= limit,
        }
}
