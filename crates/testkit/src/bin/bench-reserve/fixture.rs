//! Tasks, instances and sessions made by hand, as controllers, kubelets and routers leave them.
#![allow(dead_code, reason = "each measurement uses a part of it")]

use std::net::Ipv4Addr;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_instance::record::lease_name;
use agentcube_instance::revision::{Form, Revision, labels_of, owner};
use agentcube_instance::{SessionKey, SpecId, TaskId};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use crate::kubelet::{ready, ready_at};

/// Where routers have their Leases.
pub(crate) const SYSTEM: &str = "agentcube-system";
const NAMESPACE: &str = "default";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const TASKS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/tasks";
/// Requests under way at once when much is made.
const AT_ONCE: usize = 32;
const DEFINED_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A Task on a server, with a revision.
pub(crate) struct Fixture {
    pub(crate) http: HttpClient,
    pub(crate) task: TaskId,
    revision: Revision,
    address: fn(usize) -> Ipv4Addr,
}

/// The address of all instances where nobody asks them anything.
fn nowhere(_: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 7)
}

/// The key of the session of a number.
pub(crate) fn key(number: usize) -> Result<SessionKey> {
    Ok(SessionKey::new(&format!("user-{number}"))?)
}

pub(crate) async fn post(http: &HttpClient, path: &str, body: &Value) -> Result<Value> {
    let reply = http.send(Request::new(Method::POST, path).json(body)).await?;
    ensure!(reply.is_success(), "{path}: {}", reply.value());
    Ok(reply.value())
}

async fn merge(http: &HttpClient, path: &str, body: &Value) -> Result<Value> {
    let request = Request::new(Method::PATCH, path).body("application/merge-patch+json", body.to_string());
    let reply = http.send(request).await?;
    ensure!(reply.is_success(), "{path}: {}", reply.value());
    Ok(reply.value())
}

fn uid(object: &Value) -> Result<String> {
    Ok(object.pointer("/metadata/uid").and_then(Value::as_str).context("it has a UID")?.to_owned())
}

/// Defines Tasks, and makes the namespace of routers.
pub(crate) async fn install(http: &HttpClient) -> Result<()> {
    let definitions = agentcube_api::crds();
    let task = definitions.iter().find(|crd| crd.metadata.name.as_deref() == Some("tasks.agentcube.io"));
    let task = serde_json::to_value(task.context("Tasks are defined")?)?;
    post(http, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &task).await?;
    let defined = async {
        while !http.send(Request::new(Method::GET, TASKS)).await?.is_success() {
            tokio::time::sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(DEFINED_LIMIT, defined).await.context("the server does not serve Tasks")??;
    post(http, "/api/v1/namespaces", &json!({"metadata": {"name": SYSTEM}})).await?;
    Ok(())
}

impl Fixture {
    /// A Task of sessions that starts instances on demand, as the Task controller leaves it.
    pub(crate) async fn new(http: HttpClient, name: &str) -> Result<Fixture> {
        Fixture::at(http, name, 8080, nowhere).await
    }

    /// The same with instances that can be reached: at this port, each at an address of its own.
    pub(crate) async fn at(
        http: HttpClient,
        name: &str,
        port: u16,
        address: fn(usize) -> Ipv4Addr,
    ) -> Result<Fixture> {
        let container = json!({"name": "agent", "image": "agent:1"});
        let extractors = json!([{"type": "httpHeader", "name": "X-Session-ID"}]);
        let body = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": {"name": name},
            "spec": {
                "deployment": {"type": "pod", "podTemplate": {"spec": {"containers": [container]}}},
                "scaling": {"scalingMode": "OnDemand", "maxInstances": 100_000},
                "requestHandling": {"backend": {"port": port}},
                "routing": {
                    "routePolicy": "BySession", "sessionIdentifier": {"extractors": extractors},
                    "reserveTimeout": "120s",
                },
            },
        });
        let task = post(&http, TASKS, &body).await?;
        let task = TaskId { namespace: NAMESPACE.into(), name: name.into(), uid: uid(&task)?.into() };
        let spec_id = SpecId(format!("{name}-1").into());
        let mut of_revision = labels_of(&task, &spec_id);
        of_revision.insert(labels::FORM.into(), Form::Slots.label().into());
        let template = json!({
            "metadata": {"name": &*spec_id.0, "labels": of_revision, "ownerReferences": [owner(&task)]},
            "template": {"spec": {"containers": [container]}},
        });
        let template = post(&http, "/api/v1/namespaces/default/podtemplates", &template).await?;
        let revision = Revision::read(&serde_json::from_value(template)?).context("it is a revision")?;
        let condition = |of_type: &str| {
            json!({"type": of_type, "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let status = json!({"status": {"specID": &*spec_id.0, "phase": "Serving",
            "conditions": [condition("SpecReady"), condition("Ready")]}});
        merge(&http, &format!("{TASKS}/{name}/status"), &status).await?;
        Ok(Fixture { http, task, revision, address })
    }

    /// An instance without a session, not ready: name and UID.
    async fn instance(&self, slot: usize) -> Result<(String, String)> {
        let pod = serde_json::to_value(self.revision.pod(u32::try_from(slot)?, None))?;
        let pod = post(&self.http, PODS, &pod).await?;
        Ok((
            pod.pointer("/metadata/name").and_then(Value::as_str).context("it has a name")?.into(),
            uid(&pod)?,
        ))
    }

    /// Ready instances that nobody has.
    pub(crate) async fn idle(&self, slots: std::ops::Range<usize>) -> Result<()> {
        let made = stream::iter(slots).map(|slot| async move {
            let (name, _) = self.instance(slot).await?;
            merge(&self.http, &format!("{PODS}/{name}/status"), &ready()).await.map(drop)
        });
        made.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Sessions of these numbers, each bound to a ready instance of its own.
    pub(crate) async fn bound(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        stream::iter(numbers).map(|number| self.session(number)).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn session(&self, number: usize) -> Result<()> {
        let (pod, pod_uid) = self.instance(number).await?;
        let key = key(number)?;
        let lease = post(&self.http, LEASES, &self.lease(&key, &format!("{pod}/{pod_uid}"))).await?;
        let held = json!({"metadata": {"annotations": {
            labels::RESERVE_KEY: key.as_str(), labels::RESERVATION: format!("{}.1", uid(&lease)?),
        }}});
        merge(&self.http, &format!("{PODS}/{pod}"), &held).await?;
        merge(&self.http, &format!("{PODS}/{pod}/status"), &ready_at((self.address)(number))).await?;
        Ok(())
    }

    /// The Lease of a session.
    pub(crate) fn lease(&self, key: &SessionKey, holder: &str) -> Value {
        json!({
            "metadata": {
                "name": lease_name(&self.task.uid, key),
                "labels": {labels::LEASE: labels::LEASE_OF_SESSION, labels::TASK_UID: &*self.task.uid,
                    labels::TASK: &*self.task.name},
                "annotations": {labels::RESERVE_KEY: key.as_str(), labels::BINDER: "bench/0"},
                "finalizers": [labels::SESSION_FINALIZER],
                "ownerReferences": [owner(&self.task)],
            },
            "spec": {"holderIdentity": holder, "leaseTransitions": 1,
                "renewTime": format!("{:.6}", jiff::Timestamp::now())},
        })
    }
}
