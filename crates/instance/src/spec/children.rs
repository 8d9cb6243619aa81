//! The objects of a revision as they should be. Pure. All are owned by the Task, so that they go with it.

use std::collections::BTreeMap;

use agentcube_api::{Task, labels};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, PodSpec, PodTemplate, PodTemplateSpec,
    VolumeResourceRequirements,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::core::ObjectMeta;

use super::config::{BundleCache, Config};
use super::render::Rendered;
use crate::identity::{SpecId, TaskId};
use crate::provider::SpecError;
use crate::revision::{Form, label_value, labels_of, owner};

/// A Job that never completes by itself: each Pod that ends is replaced as long as instances are wanted.
const WITHOUT_END: i32 = i32::MAX;

/// The Task as its children name it.
pub(super) fn identify(task: &Task) -> Result<TaskId, SpecError> {
    let missing = |what| SpecError::Transient(format!("the Task has no {what} yet"));
    Ok(TaskId {
        namespace: task.namespace().ok_or_else(|| missing("namespace"))?.into(),
        name: task.name_any().into(),
        uid: task.uid().ok_or_else(|| missing("uid"))?.into(),
    })
}

/// What belongs to the Task as a whole.
pub(super) fn of_task(task: &TaskId, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(task.namespace.to_string()),
        labels: Some(BTreeMap::from([
            (labels::TASK.into(), label_value(&task.name)),
            (labels::TASK_UID.into(), task.uid.to_string()),
        ])),
        owner_references: Some(vec![owner(task)]),
        ..ObjectMeta::default()
    }
}

/// What belongs to one revision.
pub(super) fn of_revision(task: &TaskId, spec: &SpecId) -> ObjectMeta {
    ObjectMeta { labels: Some(labels_of(task, spec)), ..of_task(task, spec.to_string()) }
}

/// The revision itself.
pub(super) fn revision(task: &TaskId, spec: &SpecId, rendered: &Rendered) -> PodTemplate {
    let mut metadata = of_revision(task, spec);
    metadata.labels.get_or_insert_default().insert(labels::FORM.into(), rendered.form.label().into());
    metadata.annotations = Some(BTreeMap::from([(labels::TEMPLATE_HASH.into(), rendered.hash())]));
    PodTemplate { metadata, template: Some(rendered.template.clone()) }
}

/// The Job of a revision whose work runs to completion.
pub(super) fn job(task: &TaskId, spec: &SpecId, template: &PodTemplateSpec, parallelism: i32) -> Job {
    let mut template = template.clone();
    let of_pods = template.metadata.get_or_insert_default();
    of_pods.labels.get_or_insert_default().extend(labels_of(task, spec));
    let unbound = [labels::RESERVE_KEY, labels::RESERVATION, labels::LAST_ACTIVE];
    of_pods.annotations.get_or_insert_default().extend(unbound.map(|name| (name.into(), String::new())));
    Job {
        metadata: of_revision(task, spec),
        spec: Some(JobSpec {
            parallelism: Some(parallelism),
            completions: Some(WITHOUT_END),
            backoff_limit: Some(WITHOUT_END),
            // A Pod that ends makes room only when it has ended, so that there are never more than the maximum.
            pod_replacement_policy: Some("Failed".into()),
            template,
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// Closes instances off: requests from the gateway come in, nothing goes out. What a user's own policies allow besides
/// is allowed.
pub(super) fn closed(task: &TaskId, spec: &SpecId, port: i32, config: &Config) -> NetworkPolicy {
    let from = &config.gateway_peers;
    // A rule that names nobody would let everybody in.
    let ingress = (!from.is_empty()).then(|| NetworkPolicyIngressRule {
        from: Some(from.clone()),
        ports: Some(vec![NetworkPolicyPort {
            port: Some(IntOrString::Int(port)),
            protocol: Some("TCP".into()),
            end_port: None,
        }]),
    });
    NetworkPolicy {
        metadata: of_revision(task, spec),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(labels_of(task, spec)),
                match_expressions: None,
            }),
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ingress: ingress.map(|rule| vec![rule]),
            egress: None,
        }),
    }
}

pub(super) fn code(task: &TaskId, name: &str, files: &BTreeMap<String, String>) -> ConfigMap {
    ConfigMap { metadata: of_task(task, name.into()), data: Some(files.clone()), ..ConfigMap::default() }
}

pub(super) fn cache(task: &TaskId, name: &str, cache: &BundleCache) -> PersistentVolumeClaim {
    let requests = BTreeMap::from([("storage".into(), Quantity(cache.size.clone()))]);
    PersistentVolumeClaim {
        metadata: of_task(task, name.into()),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![cache.access_mode.clone()]),
            storage_class_name: cache.storage_class.clone(),
            resources: Some(VolumeResourceRequirements { requests: Some(requests), limits: None }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// Name of the Pod that prepares a revision.
pub(super) fn preparation_name(spec: &SpecId) -> String {
    format!("{spec}-prepare")
}

/// The Pod that does once what instances would fail at: it fetches and checks the code, and fills the cache. The node
/// runs it again, later and later, until it succeeds. It is no instance, and carries none of their labels.
pub(super) fn preparation(task: &TaskId, spec: &SpecId, rendered: &Rendered) -> Option<Pod> {
    let (last, before) = rendered.prepare.split_last()?;
    let template = rendered.template.spec.clone().unwrap_or_default();
    let mut metadata = of_task(task, preparation_name(spec));
    metadata.labels = Some(BTreeMap::from([
        (labels::TASK.into(), label_value(&task.name)),
        (labels::PREPARES.into(), label_value(&spec.0)),
    ]));
    let mut spec = PodSpec {
        init_containers: (!before.is_empty()).then(|| before.to_vec()),
        containers: vec![last.clone()],
        restart_policy: Some("OnFailure".into()),
        ..template
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.termination_message_policy = Some("FallbackToLogsOnError".into());
    }
    Some(Pod { metadata, spec: Some(spec), status: None })
}

/// Whether what had to be prepared for a revision, as it is now, has been.
pub(super) fn is_prepared(revision: &PodTemplate) -> bool {
    let annotations = revision.annotations();
    let prepared = annotations.get(labels::PREPARED);
    prepared.is_some() && prepared == annotations.get(labels::TEMPLATE_HASH)
}

/// What to add to a revision of this hash that is prepared.
pub(super) fn prepared(hash: &str) -> serde_json::Value {
    serde_json::json!({ "metadata": { "annotations": { labels::PREPARED: hash } } })
}

/// How many instances a Job begins with.
pub(super) fn least(task: &Task) -> i32 {
    task.spec.scaling.bounds().0
}

/// Whether a Job that is there is as it should be, in what may be changed and is not for routers to scale.
pub(super) fn spoilt(job: &Job) -> bool {
    let Some(spec) = &job.spec else { return true };
    spec.completions != Some(WITHOUT_END)
        || spec.backoff_limit != Some(WITHOUT_END)
        || spec.suspend == Some(true)
        || spec.active_deadline_seconds.is_some()
        || spec.ttl_seconds_after_finished.is_some()
}

/// What puts a spoilt Job right.
pub(super) fn mended() -> serde_json::Value {
    serde_json::json!({ "spec": {
        "completions": WITHOUT_END, "backoffLimit": WITHOUT_END, "suspend": false,
        "activeDeadlineSeconds": null, "ttlSecondsAfterFinished": null,
    } })
}

/// Whether the revision makes its instances by a Job.
pub(super) fn is_job(rendered: &Rendered) -> bool {
    rendered.form == Form::Job
}
