//! What a Pod of a Job says: whether it still has to be counted, which index it works on, how and when it ended.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use kube::ResourceExt;

use super::facts::spec;
use super::policy;
use crate::controllers::ownership::controller_reference;
use crate::controllers::pods;

/// Keeps a Pod from vanishing before its end is recorded in the Job's status.
pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// The longest name that a generated suffix is put behind.
const LONGEST_PREFIX: usize = 58;

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

pub(super) fn index(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

pub(super) fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
}

/// The index that counts for an Indexed Job; `None` if the Pod works on none that the Job has.
pub(super) fn valid_index(job: &Job, pod: &Pod) -> Option<i32> {
    let completions = job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(0);
    index(pod).filter(|index| *index < completions)
}

/// Whether a Pod is replaced only once it has failed, and not as soon as it is told to go.
pub(super) fn replaces_only_failed(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.and_then(|spec| spec.pod_replacement_policy.as_deref()) == Some("Failed")
        || spec.is_some_and(|spec| spec.pod_failure_policy.is_some())
}

/// Whether a Pod counts as failed. One that was deleted does, as it may never get to say how it ended.
pub(super) fn is_failed(job: &Job, pod: &Pod) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pods::is_terminating(pod) && !replaces_only_failed(job),
    }
}

pub(super) fn failures(pod: &Pod) -> i32 {
    count(pod, FAILURES)
}

/// Failures of the index, counting those that the policy ignores.
pub(super) fn all_failures(pod: &Pod) -> i32 {
    count(pod, FAILURES).saturating_add(count(pod, IGNORED_FAILURES))
}

fn count(pod: &Pod, annotation: &str) -> i32 {
    pod.annotations().get(annotation).and_then(|count| count.parse().ok()).unwrap_or(0).max(0)
}

/// When a Pod ended: when its last container did, or it stopped being ready, or was deleted, or at worst was created.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    let unready = pods::condition(pod, "Ready").filter(|ready| ready.status == "False");
    let unready = unready.and_then(|ready| Some(ready.last_transition_time.as_ref()?.0));
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|at| {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        at.0.checked_sub(grace).unwrap_or(at.0)
    });
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    containers_finished_at(pod).or(unready).or(deleted).or(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// When the last container ended, sidecars included; `None` unless all have.
fn containers_finished_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let sidecar = |name: &str| {
        let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        init.iter().any(|one| one.name == name && one.restart_policy.as_deref() == Some("Always"))
    };
    let ended =
        |one: &ContainerStatus| Some(one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0);
    let init = status.init_container_statuses.iter().flatten().filter(|one| sidecar(&one.name));
    let all: Option<Vec<Timestamp>> =
        status.container_statuses.iter().flatten().chain(init).map(ended).collect();
    all?.into_iter().max()
}

/// A Pod to create. `replaced` is the failed one whose failures an index inherits.
pub(super) fn new_pod(job: &Job, index: Option<i32>, replaced: Option<&Pod>) -> Pod {
    let mut pod = pods::from_template(&spec(job).template, controller_reference(job));
    if !is_tracked(&pod) {
        pod.finalizers_mut().push(FINALIZER.to_owned());
    }
    let Some(index) = index else { return pod };
    pod.labels_mut().insert(INDEX.to_owned(), index.to_string());
    pod.annotations_mut().insert(INDEX.to_owned(), index.to_string());
    pod.metadata.generate_name = Some(indexed_prefix(&job.name_any(), index));
    if spec(job).backoff_limit_per_index.is_some() {
        let (counted, ignored) = inherited_failures(job, replaced);
        pod.annotations_mut().insert(FAILURES.to_owned(), counted.to_string());
        if ignored > 0 {
            pod.annotations_mut().insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    let template = pod.spec.get_or_insert_default();
    template.hostname = Some(format!("{}-{index}", job.name_any()));
    for container in template.init_containers.iter_mut().flatten().chain(&mut template.containers) {
        add_index_variable(container.env.get_or_insert_default());
    }
    pod
}

fn inherited_failures(job: &Job, replaced: Option<&Pod>) -> (i32, i32) {
    let Some(replaced) = replaced else { return (0, 0) };
    let (counted, ignored) = (failures(replaced), count(replaced, IGNORED_FAILURES));
    match policy::action(job, replaced).is_counted() {
        true => (counted.saturating_add(1), ignored),
        false => (counted, ignored.saturating_add(1)),
    }
}

fn indexed_prefix(name: &str, index: i32) -> String {
    let suffix = format!("-{index}-");
    let room = LONGEST_PREFIX.saturating_sub(suffix.len());
    format!("{}{suffix}", name.get(..room).unwrap_or(name))
}

fn add_index_variable(env: &mut Vec<EnvVar>) {
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    env.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{INDEX}']"),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
}
