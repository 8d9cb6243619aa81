//! Does what a round decided. Everything can be done again: a write that has happened already is refused by the
//! server or changes nothing, and the next round starts from what is.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::Scheduler;
use super::plan::Decision;
use crate::controllers::volumes::matching::SELECTED_NODE;

/// A write that must be tried again.
#[derive(Debug, thiserror::Error)]
#[error("{what} {namespace}/{name}: {source}")]
pub struct Error {
    what: &'static str,
    namespace: String,
    name: String,
    #[source]
    source: Box<kube::Error>,
}

fn identity(meta: &kube::core::ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// What is gone needs nothing any more.
fn settle<T>(
    what: &'static str,
    meta: &kube::core::ObjectMeta,
    outcome: Result<T, kube::Error>,
) -> Result<Option<T>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(source) => {
            let (namespace, name) = identity(meta);
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            Err(Error { what, namespace, name, source: Box::new(source) })
        }
    }
}

impl Scheduler {
    pub(super) async fn apply(&self, decision: Decision) -> Result<(), Error> {
        match &decision {
            Decision::Bind { pod, node } => self.bind(pod, node).await,
            Decision::Select { claim, node } => self.select(claim, node).await,
            Decision::Wait { pod, message, nominated } => self.wait(pod, message, nominated.as_deref()).await,
            Decision::Evict { pod, by, node } => self.evict(pod, by, node).await,
        }
    }

    fn pods(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), identity(&pod.metadata).0)
    }

    async fn bind(&self, pod: &Arc<Pod>, node: &str) -> Result<(), Error> {
        let (namespace, name) = identity(&pod.metadata);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        // Before the write: the watch may be quicker than the answer, and forgets what it shows.
        self.assumed.lock().insert(uid.clone(), node.to_owned());
        let answer = self
            .pods(pod)
            .create_subresource::<Value, Value>("binding", name, &PostParams::default(), &binding)
            .await;
        if answer.is_err() {
            self.assumed.lock().remove(&uid);
        }
        if settle("binding", &pod.metadata, answer)?.is_some() {
            let message = format!("Successfully assigned {namespace}/{name} to {node}");
            self.events.normal(pod.as_ref(), "Scheduled", message);
        }
        Ok(())
    }

    async fn select(&self, claim: &Arc<PersistentVolumeClaim>, node: &str) -> Result<(), Error> {
        let (namespace, name) = identity(&claim.metadata);
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let change = json!({"metadata": {"uid": claim.metadata.uid, "annotations": {SELECTED_NODE: node}}});
        let answer = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        if let Some(claim) = settle("choosing a node for claim", &claim.metadata, answer)? {
            self.caches.claims.put(claim);
        }
        Ok(())
    }

    async fn wait(&self, pod: &Arc<Pod>, message: &str, nominated: Option<&str>) -> Result<(), Error> {
        let status = pod.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let told = conditions.find(|condition| condition.type_ == "PodScheduled");
        let same = told.as_ref().is_some_and(|condition| {
            condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
                && condition.message.as_deref() == Some(message)
        });
        if same && status.nominated_node_name.as_deref() == nominated {
            return Ok(());
        }
        let was_false = told.filter(|condition| condition.status == "False");
        let since = was_false.and_then(|condition| condition.last_transition_time);
        let since = since.map_or_else(|| json!(now()), |time| json!(time));
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastProbeTime": null, "lastTransitionTime": since, "observedGeneration": pod.metadata.generation,
        });
        self.report(pod, json!({"conditions": [condition], "nominatedNodeName": nominated})).await?;
        self.events.warning(pod.as_ref(), "FailedScheduling", message);
        Ok(())
    }

    /// Patches the status of a Pod, if it is still the same Pod.
    async fn report(&self, pod: &Arc<Pod>, status: Value) -> Result<(), Error> {
        let change = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        let name = identity(&pod.metadata).1;
        let answer =
            self.pods(pod).patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await;
        if let Some(pod) = settle("reporting on pod", &pod.metadata, answer)? {
            self.caches.pods.put(pod);
        }
        Ok(())
    }

    async fn evict(&self, pod: &Arc<Pod>, by: &Arc<Pod>, node: &str) -> Result<(), Error> {
        let scheduler = by.spec.as_ref().and_then(|spec| spec.scheduler_name.clone()).unwrap_or_default();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
            "lastProbeTime": null, "lastTransitionTime": now(), "observedGeneration": pod.metadata.generation,
        });
        self.report(pod, json!({"conditions": [condition]})).await?;
        let same = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        let answer = self.pods(pod).delete(identity(&pod.metadata).1, &parameters).await;
        match settle("evicting pod", &pod.metadata, answer)? {
            Some(answer) => self.caches.pods.deleted(pod, answer.left()),
            None => return Ok(()),
        }
        let preemptor = by.metadata.uid.as_deref().unwrap_or_default();
        let message = format!("Preempted by pod {preemptor} on node {node}");
        self.events.normal(pod.as_ref(), "Preempted", message);
        Ok(())
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
