//! Counts Pods that have ended, exactly once each: their ends are recorded in the status, then they lose the
//! finalizer that held them, then they are counted. Each step can be repeated and none can be skipped.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::facts::{Facts, Recorded, uid};
use super::plan::{Note, Operation, Verdict};
use super::{policy, status, worker};
use crate::controllers::pods;

/// The most ends that a status records at once, so that it stays small.
const MOST_RECORDED: usize = 500;

pub(super) fn remove_finalizer(pod: &Pod) -> Operation {
    Operation::RemoveFinalizer { name: pod.name_any(), uid: pod.uid().unwrap_or_default() }
}

/// Carries the status from what was observed to what it will be: recorded, released, counted, and ended if so decided.
/// `dropped` lost their finalizers before.
pub(super) fn track(
    facts: &Facts<'_>,
    mut report: JobStatus,
    verdict: Option<&Verdict>,
    dropped: &BTreeSet<&str>,
    notes: Vec<Note>,
    now: Timestamp,
) -> Vec<Operation> {
    let mut tracked: BTreeSet<&str> =
        facts.pods.iter().filter(|pod| worker::is_tracked(pod)).map(|pod| uid(pod)).collect();
    count_released(&mut report, &tracked);
    let mut released = record(facts, &mut report, verdict);
    let full = released.len() < releasable(facts, verdict).count();
    released.retain(|pod| !dropped.contains(uid(pod)));
    if let Some(verdict) = verdict.filter(|verdict| !verdict.recorded) {
        status::decide(&mut report, verdict, now);
    }
    let first = report.clone();
    tracked.retain(|uid| !dropped.contains(uid) && !released.iter().any(|pod| self::uid(pod) == *uid));
    count_released(&mut report, &tracked);
    let idle = report.terminating == Some(0) && report.uncounted_terminated_pods == Some(Default::default());
    let ending = match verdict.filter(|_| idle && !full) {
        Some(verdict) => status::end(facts.job, &mut report, verdict, now),
        None => Vec::new(),
    };
    if released.is_empty() {
        // Nothing has to be recorded before anything else: one write says it all.
        let notes = notes.into_iter().chain(ending).collect();
        return write(facts.job.status.as_ref(), report, notes).into_iter().collect();
    }
    let mut operations: Vec<Operation> =
        write(facts.job.status.as_ref(), first.clone(), notes).into_iter().collect();
    operations.extend(released.iter().map(|pod| remove_finalizer(pod)));
    operations.extend(write(Some(&first), report, ending));
    operations
}

/// A write, unless it would change nothing.
fn write(held: Option<&JobStatus>, report: JobStatus, notes: Vec<Note>) -> Option<Operation> {
    status::differs(held, &report).then(|| Operation::WriteStatus { status: Box::new(report), notes })
}

/// Pods whose finalizers may go, those of lower indexes first.
fn releasable<'a>(facts: &Facts<'a>, verdict: Option<&Verdict>) -> impl Iterator<Item = &'a Pod> {
    let job = facts.job;
    let over = job.metadata.deletion_timestamp.is_some() || verdict.is_some();
    let awaiting: BTreeSet<&str> =
        facts.indexes.iter().flat_map(|indexes| indexes.awaiting.values()).map(|pod| uid(pod)).collect();
    let mut pods: Vec<&Pod> = facts.pods.iter().copied().filter(|pod| worker::is_tracked(pod)).collect();
    if worker::is_indexed(job) {
        pods.sort_by_key(|pod| worker::index(pod).unwrap_or(-1));
    }
    pods.into_iter().filter(move |pod| {
        over || pods::phase(pod) == "Succeeded"
            // The replacement has to learn from it first.
            || (worker::is_failed(job, pod) && !awaiting.contains(uid(pod)))
    })
}

/// Records ends, and gives the Pods that may lose their finalizers once the record is written.
fn record<'a>(facts: &Facts<'a>, report: &mut JobStatus, verdict: Option<&Verdict>) -> Vec<&'a Pod> {
    let (job, recorded) = (facts.job, Recorded::of(facts.job));
    let mut uncounted = report.uncounted_terminated_pods.take().unwrap_or_default();
    let (mut succeeded, mut failed) =
        (uncounted.succeeded.take().unwrap_or_default(), uncounted.failed.take().unwrap_or_default());
    let fails_all = verdict.is_some_and(|verdict| !verdict.success);
    let mut new_indexes = 0;
    let mut released = Vec::new();
    for pod in releasable(facts, verdict) {
        released.push(pod);
        let valid = facts.indexes.is_none() || worker::valid_index(job, pod).is_some();
        let known = recorded.failed.contains(uid(pod));
        if pods::phase(pod) == "Succeeded" && !known {
            match &facts.indexes {
                // The index itself keeps it from being counted again.
                Some(indexes) => {
                    let index = worker::valid_index(job, pod);
                    new_indexes += usize::from(index.is_some_and(|index| !indexes.recorded.contains(index)));
                }
                None if !recorded.succeeded.contains(uid(pod)) => succeeded.push(uid(pod).to_owned()),
                None => {}
            }
        } else if (worker::is_failed(job, pod) || fails_all)
            && !known
            && valid
            && policy::action(job, pod).is_counted()
        {
            failed.push(uid(pod).to_owned());
        }
        if new_indexes + succeeded.len() + failed.len() >= MOST_RECORDED {
            break;
        }
    }
    let listed = |uids: Vec<String>| (!uids.is_empty()).then_some(uids);
    report.uncounted_terminated_pods =
        Some(UncountedTerminatedPods { succeeded: listed(succeeded), failed: listed(failed) });
    if let Some(indexes) = &facts.indexes {
        let completed = indexes.succeeded.to_string();
        report.succeeded = Some(indexes.succeeded.len()).filter(|count| *count > 0);
        report.completed_indexes = (!completed.is_empty()).then_some(completed);
        report.failed_indexes = indexes.failed.as_ref().map(ToString::to_string);
    }
    released
}

/// Counts what was recorded and has lost its finalizer since.
fn count_released(report: &mut JobStatus, tracked: &BTreeSet<&str>) {
    let uncounted = report.uncounted_terminated_pods.get_or_insert_default();
    let settle = |uids: &mut Option<Vec<String>>, counter: &mut Option<i32>| {
        let before = uids.take().unwrap_or_default();
        let (left, gone): (Vec<String>, Vec<String>) =
            before.into_iter().partition(|uid| tracked.contains(uid.as_str()));
        let counted = counter.unwrap_or(0).saturating_add(i32::try_from(gone.len()).unwrap_or(i32::MAX));
        *counter = (counted > 0).then_some(counted);
        *uids = (!left.is_empty()).then_some(left);
    };
    settle(&mut uncounted.succeeded, &mut report.succeeded);
    settle(&mut uncounted.failed, &mut report.failed);
}
