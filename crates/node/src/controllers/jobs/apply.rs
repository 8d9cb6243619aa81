//! Carries out what was planned for a Job, and tells of it in Events. Every answer is written through.
//!
//! Nothing is done after a write that failed, as what follows may depend on it. Creations are the exception: nothing
//! depends on them but the number of Pods at work, which is corrected.

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::Context;
use super::plan::{Note, Operation};
use super::worker::FINALIZER;
use crate::controllers::ownership::{adoption, controller_reference, release};
use crate::controllers::refusal::{self, code, is_gone};
use crate::controllers::{is_current, is_namespace_ending, reason_of};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("taking or letting go Pod {name}: {source}")]
    Claim { name: String, source: kube::Error },
    #[error("asking whether the Job is still as it was: {0}")]
    Look(#[source] kube::Error),
    #[error("creating a Pod: {0}")]
    Create(#[source] kube::Error),
    #[error("deleting Pod {name}: {source}")]
    Delete { name: String, source: kube::Error },
    #[error("removing the finalizer of Pod {name}: {source}")]
    Finalizer { name: String, source: kube::Error },
    #[error("writing the status: {0}")]
    Status(#[source] kube::Error),
    #[error("deleting the Job after its time to live: {0}")]
    Expire(#[source] kube::Error),
}

/// Carries out one plan for one Job.
pub(super) struct Apply<'a> {
    pub(super) context: &'a Context,
    /// Changes with every status that is written, so that the next is written on top of it.
    pub(super) job: Job,
    /// Whether a status was written: what has ended by then is known to the server.
    pub(super) recorded: bool,
    /// Whether a creation failed, or so it was said: there may be a Pod that the caches do not show yet.
    pub(super) unsure: bool,
}

impl Apply<'_> {
    /// Does all in order. Nothing is done for a Job that is another by now: what is newer is written through, and asks
    /// for the next reconcile.
    pub(super) async fn all(&mut self, operations: Vec<Operation>) -> Result<(), Error> {
        if operations.is_empty() {
            return Ok(());
        }
        let current = is_current(&self.jobs(), &self.context.caches.jobs, &self.job).await;
        if !current.map_err(Error::Look)? {
            return Ok(());
        }
        let mut missing = 0;
        let mut failure = None;
        for operation in operations {
            match operation {
                Operation::AdoptPod { name, uid } => self.adopt(name, uid).await?,
                Operation::ReleasePod { name, uid } => self.release(name, uid).await?,
                Operation::CreatePod(_) if missing > 0 => missing += 1,
                Operation::CreatePod(pod) => {
                    if let Err(error) = self.create(&pod).await {
                        (missing, self.unsure) = (1, true);
                        // With its namespace the Job will go too.
                        failure = Some(error).filter(|error| !is_namespace_ending(error));
                    }
                }
                Operation::DeletePod { name, uid } => self.delete(name, uid).await?,
                Operation::RemoveFinalizer { name, uid } => {
                    remove_finalizer(self.context, &self.namespace(), name, uid).await?;
                }
                Operation::WriteStatus { mut status, notes } => {
                    let active = status.active.unwrap_or(0) - missing;
                    status.active = (active > 0).then_some(active);
                    self.write(*status, notes).await?;
                }
                Operation::DeleteJob { uid } => self.expire(uid).await?,
            }
        }
        match failure {
            Some(error) => Err(Error::Create(error)),
            None => Ok(()),
        }
    }

    fn namespace(&self) -> String {
        self.job.namespace().unwrap_or_default()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), &self.namespace())
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.context.client.clone(), &self.namespace())
    }

    async fn adopt(&self, name: String, uid: String) -> Result<(), Error> {
        let mut patch = adoption(&controller_reference(&self.job), &meta(uid));
        patch["metadata"]["finalizers"] = json!([FINALIZER]);
        self.claim(name, patch).await
    }

    async fn release(&self, name: String, uid: String) -> Result<(), Error> {
        let mut patch = release(&self.job.metadata, &meta(uid));
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([FINALIZER]);
        self.claim(name, patch).await
    }

    async fn claim(&self, name: String, patch: Value) -> Result<(), Error> {
        match self.pods().patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(pod) => self.context.caches.pods.put(pod),
            Err(error) if code(&error) == 404 => forget(self.context, &self.namespace(), &name),
            Err(source) => return Err(Error::Claim { name, source }),
        }
        Ok(())
    }

    async fn create(&self, pod: &Pod) -> Result<(), kube::Error> {
        match self.pods().create(&PostParams::default(), pod).await {
            Ok(created) => {
                let message = format!("Created pod: {}", created.name_any());
                self.context.caches.pods.put(created);
                self.context.events.normal(&self.job, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                if !is_namespace_ending(&error) {
                    let message = format!("Error creating: {}", reason_of(&error));
                    self.context.events.warning(&self.job, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    async fn delete(&self, name: String, uid: String) -> Result<(), Error> {
        let pods = &self.context.caches.pods;
        let Some(held) = pods.get(&self.namespace(), &name) else { return Ok(()) };
        match self.pods().delete(&name, &refusal::only(uid.clone())).await {
            Ok(answer) => {
                pods.deleted(&held, answer.left());
                self.context.events.normal(&self.job, "SuccessfulDelete", format!("Deleted pod: {name}"));
            }
            Err(error) => match is_gone(&self.pods(), &name, &uid, error).await {
                Ok(()) => pods.gone(&held),
                Err(source) => {
                    let message = format!("Error deleting: {}", reason_of(&source));
                    self.context.events.warning(&self.job, "FailedDelete", message);
                    return Err(Error::Delete { name, source });
                }
            },
        }
        Ok(())
    }

    /// Writes on top of what was observed: if anybody wrote in between, it is refused, and all is decided anew.
    async fn write(&mut self, status: JobStatus, notes: Vec<Note>) -> Result<(), Error> {
        let new = Job { status: Some(status), ..self.job.clone() };
        let written = self.jobs().replace_status(&self.job.name_any(), &PostParams::default(), &new).await;
        self.job = written.map_err(Error::Status)?;
        self.recorded = true;
        self.context.caches.jobs.put(self.job.clone());
        for note in notes {
            let about = agentcube_operator::events::reference(&self.job);
            self.context.events.record(about, note.severity, &note.reason, note.message);
        }
        Ok(())
    }

    async fn expire(&self, uid: String) -> Result<(), Error> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..refusal::only(uid.clone())
        };
        let name = self.job.name_any();
        match self.jobs().delete(&name, &parameters).await {
            Ok(answer) => self.context.caches.jobs.deleted(&self.job, answer.left()),
            Err(error) => is_gone(&self.jobs(), &name, &uid, error).await.map_err(Error::Expire)?,
        }
        Ok(())
    }
}

/// Lets a Pod go. One that is gone, or another by now, is let go already.
pub(super) async fn remove_finalizer(
    context: &Context,
    namespace: &str,
    name: String,
    uid: String,
) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
    match api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        // The last thing that held a Pod which was told to go: the answer shows it as it was when it went.
        Ok(pod) if vanished(&pod) => context.caches.pods.gone(&pod),
        Ok(pod) => context.caches.pods.put(pod),
        Err(error) => match is_gone(&api, &name, &uid, error).await {
            Ok(()) => forget(context, namespace, &name),
            Err(source) => return Err(Error::Finalizer { name, source }),
        },
    }
    Ok(())
}

fn vanished(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && pod.finalizers().is_empty()
        && pod.metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
}

/// Takes in that a Pod is not there.
fn forget(context: &Context, namespace: &str, name: &str) {
    if let Some(held) = context.caches.pods.get(namespace, name) {
        context.caches.pods.gone(&held);
    }
}

fn meta(uid: String) -> ObjectMeta {
    ObjectMeta { uid: Some(uid), ..ObjectMeta::default() }
}
