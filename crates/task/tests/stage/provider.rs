//! A provider that keeps books of what it is asked, and makes nothing but the PodTemplate of each revision.

use std::collections::HashMap;

use agentcube_api::{Task, labels};
use agentcube_instance::provider::{InstanceSpecProvider, Repair, Repaired, SpecError, SpecStatus};
use agentcube_instance::revision::{labels_of, owner};
use agentcube_instance::{SpecId, TaskId};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

/// A Task with this annotation needs the ConfigMap that it names.
pub(crate) const NEEDS: &str = "needs";

pub(crate) struct Books {
    client: Client,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    standing: HashMap<String, SpecStatus>,
    errors: HashMap<String, SpecError>,
    updates: Vec<String>,
    released: Vec<String>,
}

impl Books {
    pub(crate) fn new(client: Client) -> Books {
        Books { client, state: Mutex::default() }
    }

    /// From now on a revision stands like this.
    pub(crate) fn stands(&self, spec: &str, standing: SpecStatus) {
        self.state.lock().standing.insert(spec.into(), standing);
    }

    /// From now on every preparation for this Task ends like this.
    pub(crate) fn fail(&self, task: &str, error: Option<SpecError>) {
        let mut state = self.state.lock();
        match error {
            Some(error) => state.errors.insert(task.into(), error),
            None => state.errors.remove(task),
        };
    }

    pub(crate) fn updates(&self) -> Vec<String> {
        self.state.lock().updates.clone()
    }

    pub(crate) fn released(&self) -> Vec<String> {
        self.state.lock().released.clone()
    }

    async fn initialize(&self, task: &Task, spec: &SpecId, known: bool) -> Result<Vec<Repair>, SpecError> {
        let transient = |error: kube::Error| SpecError::Transient(error.to_string());
        if let Some(error) = self.state.lock().errors.get(&task.name_any()) {
            return Err(error.clone());
        }
        let namespace = task.namespace().unwrap_or_default();
        if let Some(name) = task.annotations().get(NEEDS) {
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
            if maps.get_opt(name).await.map_err(transient)?.is_none() {
                let message = format!("there is no ConfigMap {name}: create it");
                return Err(SpecError::Missing { reason: "ConfigMapMissing", message });
            }
        }
        let api: Api<PodTemplate> = Api::namespaced(self.client.clone(), &namespace);
        if api.get_opt(&spec.0).await.map_err(transient)?.is_some() {
            return Ok(Vec::new());
        }
        let id = TaskId {
            namespace: namespace.as_str().into(),
            name: task.name_any().into(),
            uid: task.uid().unwrap_or_default().into(),
        };
        let mut of_revision = labels_of(&id, spec);
        of_revision.insert(labels::FORM.into(), "slots".into());
        let object = json!({
            "metadata": { "name": &*spec.0, "labels": of_revision, "ownerReferences": [owner(&id)] },
            "template": { "metadata": { "labels": of_revision },
                "spec": { "containers": [{ "name": "agent", "image": "agent" }] } },
        });
        let object: PodTemplate = serde_json::from_value(object).expect("a PodTemplate");
        match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other.map_err(transient)?),
        }
        let repair = Repair { kind: "PodTemplate", name: spec.to_string(), what: Repaired::Recreated };
        Ok(if known { vec![repair] } else { Vec::new() })
    }
}

impl InstanceSpecProvider for Books {
    fn template_hash(&self, task: &Task) -> Result<String, SpecError> {
        Ok(serde_json::to_string(&task.spec.deployment).expect("a spec is JSON"))
    }

    fn initialize_spec<'a>(
        &'a self,
        task: &'a Task,
        spec: &'a SpecId,
        known: bool,
        _: bool,
    ) -> BoxFuture<'a, Result<Vec<Repair>, SpecError>> {
        Box::pin(self.initialize(task, spec, known))
    }

    fn update_spec<'a>(&'a self, _: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>> {
        self.state.lock().updates.push(spec.to_string());
        Box::pin(async { Ok(()) })
    }

    fn release_spec<'a>(&'a self, task: &'a Task, spec: &'a SpecId) -> BoxFuture<'a, Result<(), SpecError>> {
        Box::pin(async move {
            let api: Api<PodTemplate> =
                Api::namespaced(self.client.clone(), &task.namespace().unwrap_or_default());
            match api.delete(&spec.0, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other.map_err(|error| SpecError::Transient(error.to_string()))?),
            }
            self.state.lock().released.push(spec.to_string());
            Ok(())
        })
    }

    fn spec_status(&self, _: &Task, spec: &SpecId) -> SpecStatus {
        self.state.lock().standing.get(&*spec.0).cloned().unwrap_or_default()
    }
}
