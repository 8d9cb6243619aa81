//! A revision of a Task's instances as the control plane left it: a `PodTemplate` named by the specID. Whoever starts
//! an instance makes its Pod or Sandbox from this and from nothing else, so that a change of the Task in between changes
//! nothing.

use std::collections::BTreeMap;

use agentcube_api::sandbox::SandboxSpec;
use agentcube_api::{Sandbox, labels};
use k8s_openapi::api::core::v1::{Pod, PodTemplate, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;

use crate::bearer::Body;
use crate::identity::{Kind, SpecId, TaskId};

/// How instances are made from a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Pods of ours in numbered slots.
    Slots,
    /// Sandboxes on a pool, in numbered slots.
    Sandboxes,
    /// The Pods of a Job, each of which ends by itself after its request.
    Job,
}

impl Form {
    /// The value of the label.
    pub fn label(self) -> &'static str {
        match self {
            Form::Slots => "slots",
            Form::Sandboxes => "sandboxes",
            Form::Job => "job",
        }
    }

    /// What the instances are.
    pub fn kind(self) -> Kind {
        match self {
            Form::Slots | Form::Job => Kind::Pod,
            Form::Sandboxes => Kind::Sandbox,
        }
    }
}

/// A revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    pub task: TaskId,
    pub spec_id: SpecId,
    pub form: Form,
    pub template: PodTemplateSpec,
    /// What its Sandboxes are, if that is its form.
    pub sandbox: Option<SandboxSpec>,
}

impl Revision {
    /// What the object says; nothing if it is no revision of a Task.
    pub fn read(object: &PodTemplate) -> Option<Revision> {
        let meta = &object.metadata;
        let label = |name| meta.labels.as_ref()?.get(name).map(String::as_str);
        let form = match label(labels::FORM)? {
            "slots" => Form::Slots,
            "sandboxes" => Form::Sandboxes,
            "job" => Form::Job,
            _ => return None,
        };
        // The label may be shortened; the owner has the whole name.
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        let task = TaskId {
            namespace: meta.namespace.as_deref()?.into(),
            name: owner.name.as_str().into(),
            uid: owner.uid.as_str().into(),
        };
        let template = object.template.clone()?;
        let sandbox = match form {
            Form::Slots | Form::Job => None,
            Form::Sandboxes => Some(sandbox(&template)?),
        };
        Some(Revision { task, spec_id: SpecId(meta.name.as_deref()?.into()), form, template, sandbox })
    }

    /// The instance of a slot, free, started on behalf of a router or (none) to keep up the minimum.
    pub fn instance(&self, slot: u32, created_for: Option<&str>) -> Body {
        let Some(spec) = &self.sandbox else { return self.pod(slot, created_for).into() };
        let mut metadata = self.metadata(slot, created_for);
        // Its controller would add it before anything else.
        metadata.finalizers = Some(vec![labels::SANDBOX_FINALIZER.into()]);
        Sandbox { metadata, spec: spec.clone(), status: None }.into()
    }

    /// The Pod of a slot.
    pub fn pod(&self, slot: u32, created_for: Option<&str>) -> Pod {
        let metadata = self.metadata(slot, created_for);
        Pod { metadata, spec: self.template.spec.clone(), status: None }
    }

    fn metadata(&self, slot: u32, created_for: Option<&str>) -> ObjectMeta {
        let template = self.template.metadata.clone().unwrap_or_default();
        let mut of_instance = template.labels.unwrap_or_default();
        of_instance.extend(self.labels());
        of_instance.insert(labels::SLOT.into(), slot.to_string());
        let mut annotations = template.annotations.unwrap_or_default();
        annotations.remove(labels::SANDBOX_SPEC);
        annotations.insert(labels::RESERVE_KEY.into(), String::new());
        annotations.insert(labels::RESERVATION.into(), String::new());
        annotations.insert(labels::LAST_ACTIVE.into(), String::new());
        if let Some(router) = created_for {
            annotations.insert(labels::CREATED_FOR.into(), router.into());
        }
        ObjectMeta {
            name: Some(slot_name(&self.task.name, slot)),
            namespace: Some(self.task.namespace.to_string()),
            labels: Some(of_instance),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(&self.task)]),
            ..ObjectMeta::default()
        }
    }

    /// The labels of everything that belongs to this revision.
    pub fn labels(&self) -> BTreeMap<String, String> {
        labels_of(&self.task, &self.spec_id)
    }
}

/// What the Sandboxes of a template are; nothing if that cannot be read.
pub fn sandbox(template: &PodTemplateSpec) -> Option<SandboxSpec> {
    let annotations = template.metadata.as_ref()?.annotations.as_ref()?;
    serde_json::from_str(annotations.get(labels::SANDBOX_SPEC)?).ok()
}

/// The labels of everything that belongs to a revision.
pub fn labels_of(task: &TaskId, spec_id: &SpecId) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::TASK.into(), label_value(&task.name)),
        (labels::TASK_UID.into(), task.uid.to_string()),
        (labels::SPEC_ID.into(), label_value(&spec_id.0)),
    ])
}

/// The Task as owner and controller of what is made for it.
pub fn owner(task: &TaskId) -> OwnerReference {
    OwnerReference {
        api_version: "agentcube.io/v1alpha1".into(),
        kind: "Task".into(),
        name: task.name.to_string(),
        uid: task.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Name of the instance in a slot. The API server lets nobody fill a slot twice, and all revisions share the slots.
pub fn slot_name(task: &str, slot: u32) -> String {
    format!("{task}-{slot}")
}

/// A name as the value of a label, which may have 63 characters: a longer one keeps its beginning and gets a hash.
pub fn label_value(name: &str) -> String {
    if name.len() <= 63 {
        return name.into();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let hash: String = digest.as_ref()[..5].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", name[..52].trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision() -> Revision {
        let task = TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() };
        let object = serde_json::json!({
            "metadata": { "name": "agent-3", "namespace": "prod", "labels": {
                labels::FORM: "slots" }, "ownerReferences": [serde_json::to_value(owner(&task)).unwrap()] },
            "template": {
                "metadata": { "labels": { "app": "agent" }, "annotations": { "note": "kept" } },
                "spec": { "containers": [{ "name": "agent", "image": "agent:1" }] },
            },
        });
        Revision::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_is_free_and_owned() {
        let pod = revision().pod(7, Some("router-a"));
        let meta = &pod.metadata;
        assert_eq!(meta.name.as_deref(), Some("agent-7"));
        let labels_of_pod = meta.labels.as_ref().unwrap();
        assert_eq!(labels_of_pod["app"], "agent");
        assert_eq!(labels_of_pod[labels::SPEC_ID], "agent-3");
        assert_eq!(labels_of_pod[labels::SLOT], "7");
        let annotations = meta.annotations.as_ref().unwrap();
        assert_eq!((annotations["note"].as_str(), annotations[labels::RESERVE_KEY].as_str()), ("kept", ""));
        assert_eq!(annotations[labels::CREATED_FOR], "router-a");
        assert_eq!(meta.owner_references.as_ref().unwrap()[0].uid, "t1");
    }

    #[test]
    fn a_sandbox_is_made_from_the_revision_alone() {
        let mut revision = revision();
        let spec = SandboxSpec { image: "host".into(), pool_ref: "quick".into(), ..SandboxSpec::default() };
        let annotations = revision.template.metadata.as_mut().unwrap().annotations.as_mut().unwrap();
        annotations.insert(labels::SANDBOX_SPEC.into(), serde_json::to_string(&spec).unwrap());
        revision.sandbox = sandbox(&revision.template);
        let Body::Sandbox(made) = revision.instance(2, None) else { panic!("not a Sandbox") };
        assert_eq!((made.metadata.name.as_deref(), &made.spec), (Some("agent-2"), &spec));
        let annotations = made.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations.get(labels::SANDBOX_SPEC), None);
        assert_eq!((annotations["note"].as_str(), annotations[labels::RESERVATION].as_str()), ("kept", ""));
        assert_eq!(made.metadata.labels.as_ref().unwrap()[labels::SLOT], "2");
    }

    #[test]
    fn long_names_fit_into_labels() {
        let long = "a".repeat(80);
        assert_eq!(label_value(&long).len(), 63);
        assert_ne!(label_value(&long), label_value(&format!("{long}b")));
        assert_eq!(label_value("short"), "short");
    }
}
