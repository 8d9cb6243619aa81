//! What an instance is on the server: a Pod, or a Sandbox on a pool. The one place that knows both; everything else sees
//! an [`Instance`], and reads and writes through [`Instances`].

use std::net::{IpAddr, SocketAddr};

use agentcube_api::sandbox::SandboxPhase;
use agentcube_api::{Sandbox, conditions};
use agentcube_operator::cache::Object;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{NamespaceResourceScope, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use crate::identity::Kind;
use crate::record::{Instance, Life};

/// Conditions of a Sandbox.
const READY: &str = "Ready";
const PAUSED: &str = "Paused";

/// An object that an instance may be.
pub trait Bearer: Object + Serialize + Resource<Scope = NamespaceResourceScope> {
    const KIND: Kind;

    /// Whether it can serve, given whether it was given to a session.
    fn life(&self, taken: bool) -> Life;

    /// Its address, and the port there if that is not the Task's own.
    fn place(&self) -> (Option<IpAddr>, Option<u16>);

    /// Whether it is to stand still.
    fn is_paused(&self) -> bool;
}

impl Bearer for Pod {
    const KIND: Kind = Kind::Pod;

    fn life(&self, taken: bool) -> Life {
        let Some(status) = &self.status else { return Life::Starting };
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Life::Dead;
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Life::Terminating;
        }
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == READY);
        if ready.is_some_and(|ready| ready.status == "True") {
            return Life::Ready;
        }
        // Only what was ready once was ever given to a session; whether it was is what its hold tells. A container that
        // ended once is not new either.
        let restarted =
            status.container_statuses.iter().flatten().any(|container| container.restart_count > 0);
        if restarted || taken { Life::Unready } else { Life::Starting }
    }

    fn place(&self) -> (Option<IpAddr>, Option<u16>) {
        (self.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok()), None)
    }

    fn is_paused(&self) -> bool {
        false
    }
}

impl Bearer for Sandbox {
    const KIND: Kind = Kind::Sandbox;

    fn life(&self, taken: bool) -> Life {
        let Some(status) = &self.status else {
            return if self.metadata.deletion_timestamp.is_some() {
                Life::Terminating
            } else {
                Life::Starting
            };
        };
        let phase = status.phase.unwrap_or_default();
        if matches!(phase, SandboxPhase::Failed | SandboxPhase::Expired) {
            return Life::Dead;
        }
        if self.metadata.deletion_timestamp.is_some() || phase == SandboxPhase::Terminating {
            return Life::Terminating;
        }
        let says = |name| {
            conditions::find(&status.conditions, name).is_some_and(|condition| condition.status == "True")
        };
        match phase {
            // Its agent is silent, or has ended: it is of no use, and may come back.
            SandboxPhase::Lost => Life::Unready,
            // What is to stand still will, and what is to go on does not yet.
            SandboxPhase::Running if self.spec.paused || says(PAUSED) => Life::Paused,
            SandboxPhase::Running if says(READY) => Life::Ready,
            _ if taken => Life::Unready,
            _ => Life::Starting,
        }
    }

    fn place(&self) -> (Option<IpAddr>, Option<u16>) {
        let endpoints = self.status.as_ref().map(|status| status.endpoints.as_slice()).unwrap_or_default();
        // It has one port, the Task's.
        let endpoint = endpoints.first().and_then(|endpoint| endpoint.parse::<SocketAddr>().ok());
        (endpoint.map(|endpoint| endpoint.ip()), endpoint.map(|endpoint| endpoint.port()))
    }

    fn is_paused(&self) -> bool {
        self.spec.paused
    }
}

/// The object of an instance, whichever it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Pod(Box<Pod>),
    Sandbox(Box<Sandbox>),
}

impl From<Pod> for Body {
    fn from(pod: Pod) -> Body {
        Body::Pod(Box::new(pod))
    }
}

impl From<Sandbox> for Body {
    fn from(sandbox: Sandbox) -> Body {
        Body::Sandbox(Box::new(sandbox))
    }
}

impl Body {
    pub fn kind(&self) -> Kind {
        match self {
            Body::Pod(_) => Kind::Pod,
            Body::Sandbox(_) => Kind::Sandbox,
        }
    }

    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Body::Pod(pod) => &pod.metadata,
            Body::Sandbox(sandbox) => &sandbox.metadata,
        }
    }

    pub fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Body::Pod(pod) => &mut pod.metadata,
            Body::Sandbox(sandbox) => &mut sandbox.metadata,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Body::Pod(pod) => pod.name_any(),
            Body::Sandbox(sandbox) => sandbox.name_any(),
        }
    }

    /// What it says; nothing if it is no instance of a Task.
    pub fn instance(&self) -> Option<Instance> {
        match self {
            Body::Pod(pod) => Instance::read(&**pod),
            Body::Sandbox(sandbox) => Instance::read(&**sandbox),
        }
    }

    /// The Pod, if it is one.
    pub fn into_pod(self) -> Option<Pod> {
        match self {
            Body::Pod(pod) => Some(*pod),
            Body::Sandbox(_) => None,
        }
    }
}

/// Reads and writes the objects of instances.
#[derive(Clone)]
pub(crate) struct Instances {
    client: Client,
}

impl Instances {
    pub(crate) fn new(client: Client) -> Instances {
        Instances { client }
    }

    fn of<B: Bearer>(&self, namespace: &str) -> Api<B> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> kube::Result<Option<Body>> {
        Ok(match kind {
            Kind::Pod => self.of::<Pod>(namespace).get_opt(name).await?.map(Body::from),
            Kind::Sandbox => self.of::<Sandbox>(namespace).get_opt(name).await?.map(Body::from),
        })
    }

    pub(crate) async fn create(&self, body: &Body) -> kube::Result<Body> {
        let (namespace, parameters) =
            (body.meta().namespace.as_deref().unwrap_or_default(), PostParams::default());
        Ok(match body {
            Body::Pod(pod) => self.of::<Pod>(namespace).create(&parameters, pod).await?.into(),
            Body::Sandbox(sandbox) => {
                self.of::<Sandbox>(namespace).create(&parameters, sandbox).await?.into()
            }
        })
    }

    /// Merges a change into an object.
    pub(crate) async fn change(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: Value,
    ) -> kube::Result<Body> {
        let (parameters, change) = (PatchParams::default(), Patch::Merge(change));
        Ok(match kind {
            Kind::Pod => self.of::<Pod>(namespace).patch(name, &parameters, &change).await?.into(),
            Kind::Sandbox => self.of::<Sandbox>(namespace).patch(name, &parameters, &change).await?.into(),
        })
    }

    /// Deletes an object; what is left of it if it waits for something.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        parameters: &DeleteParams,
    ) -> kube::Result<Option<Body>> {
        Ok(match kind {
            Kind::Pod => self.of::<Pod>(namespace).delete(name, parameters).await?.left().map(Body::from),
            Kind::Sandbox => {
                self.of::<Sandbox>(namespace).delete(name, parameters).await?.left().map(Body::from)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sandbox(change: impl FnOnce(&mut Value)) -> Sandbox {
        let mut sandbox = json!({
            "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": "agent-0" },
            "spec": { "image": "host", "poolRef": "quick", "exposedPorts": [8080] },
            "status": { "phase": "Running", "endpoints": ["10.0.0.9:18080"], "conditions": [
                { "type": "Ready", "status": "True", "reason": "Running", "message": "",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        change(&mut sandbox);
        serde_json::from_value(sandbox).unwrap()
    }

    #[test]
    fn the_life_of_a_sandbox() {
        let of = |taken: bool, change: &dyn Fn(&mut Value)| sandbox(change).life(taken);
        assert_eq!(of(true, &|_| ()), Life::Ready);
        assert_eq!(of(true, &|sandbox| sandbox["spec"]["paused"] = json!(true)), Life::Paused);
        let waking = |sandbox: &mut Value| {
            sandbox["status"]["conditions"][0]["status"] = json!("False");
            let paused = json!({ "type": "Paused", "status": "True", "reason": "Paused", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            sandbox["status"]["conditions"].as_array_mut().unwrap().push(paused);
        };
        assert_eq!(of(true, &waking), Life::Paused);
        let starting = |sandbox: &mut Value| sandbox["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!((of(false, &starting), of(true, &starting)), (Life::Starting, Life::Unready));
        let phase =
            |phase: &'static str| move |sandbox: &mut Value| sandbox["status"]["phase"] = json!(phase);
        assert_eq!(of(false, &phase("Bound")), Life::Starting);
        assert_eq!((of(true, &phase("Lost")), of(false, &phase("Lost"))), (Life::Unready, Life::Unready));
        assert_eq!(of(true, &phase("Failed")), Life::Dead);
        assert_eq!(of(true, &phase("Expired")), Life::Dead);
        let deleted = |sandbox: &mut Value| {
            sandbox["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:02:00Z");
        };
        assert_eq!(of(true, &deleted), Life::Terminating);
        assert_eq!(
            of(false, &|sandbox| *sandbox = {
                let mut new = sandbox.clone();
                new.as_object_mut().unwrap().remove("status");
                new
            }),
            Life::Starting
        );
    }

    #[test]
    fn a_sandbox_is_where_its_first_endpoint_is() {
        let at = |endpoints: Value| sandbox(|sandbox| sandbox["status"]["endpoints"] = endpoints).place();
        assert_eq!(at(json!(["10.0.0.9:18080"])), (Some([10, 0, 0, 9].into()), Some(18080)));
        assert_eq!(at(json!(["nonsense"])), (None, None));
        assert_eq!(at(json!([])), (None, None));
    }
}
