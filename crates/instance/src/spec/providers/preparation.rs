//! What is done once before a revision has instances, because they would fail at it.

use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};

use super::kept::failed;
use super::{Providers, wanted};
use crate::identity::{SpecId, TaskId};
use crate::provider::SpecError;
use crate::spec::render::Rendered;

impl Providers {
    /// Has done once what instances would fail at, and notes on the revision that it was done.
    pub(super) async fn prepare(
        &self,
        task: &TaskId,
        spec: &SpecId,
        rendered: &Rendered,
    ) -> Result<(), SpecError> {
        let Some(desired) = wanted::preparation(task, spec, rendered) else { return Ok(()) };
        let revision = self.revisions.get(&task.namespace, &spec.0);
        let done = revision.as_deref().is_some_and(wanted::is_prepared);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &task.namespace);
        let held = self.preparations.get(&task.namespace, &wanted::preparation_name(spec));
        match held {
            None if done => Ok(()),
            None => match api.create(&PostParams::default(), &desired).await {
                Ok(pod) => {
                    self.preparations.put(pod);
                    Ok(())
                }
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                Err(error) => Err(failed::<Pod>(&desired.name_any(), &error)),
            },
            Some(pod) if is_outdated(&pod, &desired) || evicted(&pod) => {
                self.remove(&self.preparations, &pod).await
            }
            Some(pod) if succeeded(&pod) => {
                if !done {
                    self.note_prepared(task, spec, &rendered.hash()).await?;
                }
                self.remove(&self.preparations, &pod).await
            }
            Some(_) => Ok(()),
        }
    }

    async fn note_prepared(&self, task: &TaskId, spec: &SpecId, hash: &str) -> Result<(), SpecError> {
        let api: Api<PodTemplate> = Api::namespaced(self.client.clone(), &task.namespace);
        let patch = Patch::Merge(wanted::prepared(hash));
        let noted = api.patch(&spec.0, &PatchParams::default(), &patch).await;
        self.revisions.put(noted.map_err(|error| failed::<PodTemplate>(&spec.0, &error))?);
        Ok(())
    }

    /// Whether what had to be prepared has been.
    pub(super) fn is_prepared(&self, task: &TaskId, spec: &SpecId, rendered: &Rendered) -> bool {
        let revision = self.revisions.get(&task.namespace, &spec.0);
        rendered.prepare.is_empty() || revision.as_deref().is_some_and(wanted::is_prepared)
    }
}

fn succeeded(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
}

/// The node gave it up; nobody runs it again.
fn evicted(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed")
}

/// Whether it prepares something else than is wanted now.
fn is_outdated(pod: &Pod, desired: &Pod) -> bool {
    let commands = |pod: &Pod| -> Vec<_> {
        let spec = pod.spec.iter();
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
            .map(|container| (container.image.clone(), container.command.clone()))
            .collect()
    };
    commands(pod) != commands(desired)
}
