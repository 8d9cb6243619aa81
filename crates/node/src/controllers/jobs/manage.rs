//! How many Pods of a Job should be at work, which are to be made, and which are to go.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::backoff::{self, Backoff};
use super::facts::{Facts, spec, uid};
use super::plan::Operation;
use super::{status, track, worker};
use crate::controllers::pods;

/// The most Pods that one pass creates or deletes.
const MOST_AT_ONCE: usize = 500;

/// What is done about Pods, and what the counts are once it is done.
pub(super) struct Managed<'a> {
    pub(super) operations: Vec<Operation>,
    pub(super) active: i32,
    pub(super) ready: i32,
    pub(super) terminating: i32,
    pub(super) requeue: Option<Duration>,
    /// Those that go without being counted: nobody failed, there were too many.
    dropped: Vec<&'a Pod>,
}

impl<'a> Managed<'a> {
    pub(super) fn as_is(facts: &Facts<'a>) -> Self {
        Self {
            operations: Vec::new(),
            active: count(facts.active.len()),
            ready: facts.ready(),
            terminating: facts.terminating(),
            requeue: None,
            dropped: Vec::new(),
        }
    }

    /// The uids of Pods whose finalizers are removed here.
    pub(super) fn released(&self) -> BTreeSet<&'a str> {
        self.dropped.iter().map(|pod| uid(pod)).collect()
    }

    fn remove(&mut self, pods: &[&'a Pod]) {
        for pod in pods {
            let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
            self.operations.push(Operation::DeletePod { name, uid });
            self.ready -= i32::from(pods::is_ready(pod));
        }
        self.active -= count(pods.len());
        self.terminating += count(pods.len());
    }

    /// Lets Pods go uncounted. The finalizer goes first: a Pod that is deleted while it is tracked counts as failed.
    fn drop_uncounted(mut self, pods: Vec<&'a Pod>) -> Self {
        let tracked = pods.iter().filter(|pod| worker::is_tracked(pod));
        self.operations.extend(tracked.map(|pod| track::remove_finalizer(pod)));
        self.remove(&pods);
        self.dropped = pods;
        self
    }
}

/// The Job is over: whatever still works has to stop.
pub(super) fn end<'a>(facts: &Facts<'a>) -> Managed<'a> {
    let mut managed = Managed::as_is(facts);
    managed.remove(&facts.active);
    managed
}

/// The Job goes on: brings the number of Pods at work to what is wanted, by either removing or making some.
pub(super) fn manage<'a>(facts: &Facts<'a>, backoff: Backoff, now: Timestamp) -> Managed<'a> {
    let mut managed = Managed::as_is(facts);
    let wanted = if status::is_suspended(facts.job) { 0 } else { wanted(facts) };
    let mut excess = for_removal(facts, managed.active - wanted);
    if !excess.is_empty() {
        excess.truncate(MOST_AT_ONCE);
        return managed.drop_uncounted(excess);
    }
    let replaced_late = if worker::replaces_only_failed(facts.job) { managed.terminating } else { 0 };
    let missing = usize::try_from(wanted - replaced_late - managed.active).unwrap_or(0).min(MOST_AT_ONCE);
    if missing == 0 {
        return managed;
    }
    match create(facts, missing, backoff, now) {
        Ok(made) => {
            managed.active += count(made.len());
            managed.operations.extend(made.into_iter().map(|pod| Operation::CreatePod(Box::new(pod))));
        }
        Err(wait) => managed.requeue = Some(wait),
    }
    managed
}

fn wanted(facts: &Facts<'_>) -> i32 {
    let spec = spec(facts.job);
    let parallelism = spec.parallelism.unwrap_or(1);
    match spec.completions {
        Some(completions) => completions.saturating_sub(facts.succeeded).min(parallelism).max(0),
        // A work queue: once one has succeeded, no more are made, and those at work may finish.
        None if facts.succeeded > 0 => count(facts.active.len()),
        None => parallelism,
    }
}

/// The Pods to make now, or how long to wait before any may be made.
fn create(facts: &Facts<'_>, missing: usize, backoff: Backoff, now: Timestamp) -> Result<Vec<Pod>, Duration> {
    let job = facts.job;
    let per_index = spec(job).backoff_limit_per_index.is_some();
    let wait = backoff.remaining(now);
    if !per_index && !wait.is_zero() {
        return Err(wait);
    }
    let Some(indexes) = &facts.indexes else {
        return Ok((0..missing).map(|_| worker::new_pod(job, None, None)).collect());
    };
    let mut taken = indexes.succeeded.with(facts.active.iter().filter_map(|pod| worker::index(pod)));
    if worker::replaces_only_failed(job) {
        let leaving = facts.pods.iter().filter(|pod| pods::is_terminating(pod));
        taken = taken.with(leaving.filter_map(|pod| worker::index(pod)));
    }
    if let Some(failed) = &indexes.failed {
        taken = taken.union(failed);
    }
    let free = taken.first_missing(missing, spec(job).completions.unwrap_or(0));
    let wait = |index: &i32| match indexes.awaiting.get(index) {
        Some(failed) => {
            let failures = worker::all_failures(failed).unsigned_abs().saturating_add(1);
            backoff::remaining(failures, worker::finished_at(failed), now)
        }
        None => Duration::ZERO,
    };
    let (now, later): (Vec<i32>, Vec<i32>) = free.into_iter().partition(|index| wait(index).is_zero());
    match later.iter().map(wait).min() {
        Some(wait) if now.is_empty() => Err(wait),
        _ => {
            let made = now
                .into_iter()
                .map(|index| worker::new_pod(job, Some(index), indexes.awaiting.get(&index).copied()));
            Ok(made.collect())
        }
    }
}

/// The Pods to remove: those that work on no valid index or on one that another works on, and as many more as there
/// are too many, the least advanced first.
fn for_removal<'a>(facts: &Facts<'a>, excess: i32) -> Vec<&'a Pod> {
    let mut left = facts.active.clone();
    left.sort_by(|a, b| advance(a, b));
    let mut removed = Vec::new();
    if worker::is_indexed(facts.job) {
        let mut seen = BTreeSet::new();
        // From the most advanced down: the first of an index stays.
        left.reverse();
        left.retain(|pod| {
            let stays = worker::valid_index(facts.job, pod).is_some_and(|index| seen.insert(index));
            if !stays {
                removed.push(*pod);
            }
            stays
        });
        left.reverse();
    }
    let more = usize::try_from(excess).unwrap_or(0).saturating_sub(removed.len());
    removed.extend(left.into_iter().take(more));
    removed
}

/// Orders Pods by how much would be lost with them.
fn advance(a: &Pod, b: &Pod) -> Ordering {
    let rank = |pod: &Pod| {
        let assigned = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let ready_since = pods::ready_since(pod).map(Reverse);
        let created = pod.metadata.creation_timestamp.as_ref().map(|at| Reverse(at.0));
        let status = pod.status.as_ref();
        let restarts = status.into_iter().flat_map(|status| status.container_statuses.iter().flatten());
        let restarts = Reverse(restarts.map(|container| container.restart_count).max());
        let phase = ["Pending", "Unknown", "Running"].iter().position(|phase| *phase == pods::phase(pod));
        (assigned, phase, pods::is_ready(pod), ready_since, restarts, created)
    };
    rank(a).cmp(&rank(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
}

fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}
