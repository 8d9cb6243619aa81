//! An API server with one Task as the control plane leaves it, a lifecycle manager, and a small kubelet that starts an
//! instance for every Pod.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentcube_api::{Task, labels};
use agentcube_instance::TaskId;
use agentcube_instance::lifecycle::{self, Limits, Manager};
use agentcube_instance::revision::owner;
use agentcube_instance::timing::Timing;
use agentcube_instance::token::{TaskKeys, ensure_master_keys};
use agentcube_testkit::cluster::process::{ServerProcess, Storage};
use agentcube_testkit::gateway;
use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::book::Book;
use crate::instance::Instance;

const NAMESPACE: &str = "default";
const SYSTEM: &str = "agentcube-system";
/// Instances that are gone but whose Pods are not yet take up room.
const SPARE: usize = 50;

/// Servers by the UID of their Pod, with its name.
type Running = Arc<Mutex<HashMap<String, (String, JoinHandle<()>)>>>;

pub(crate) struct World {
    pub(crate) book: Arc<Book>,
    pods: Api<Pod>,
    running: Running,
    server: ServerProcess,
    _stop: DropGuard,
}

impl World {
    pub(crate) async fn new(program: &Path, sessions: usize) -> Result<World> {
        let server = ServerProcess::start(program, Storage::Memory).await?;
        gateway::install(&server.http).await?;
        let client = gateway::connect(&server.kubeconfig()).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM } }))?;
        namespaces.create(&PostParams::default(), &system).await?;
        // Instances are told apart by their addresses, so all have the port that is free at one.
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let uid = make_task(&client, port, sessions + SPARE).await?;
        let keys = ensure_master_keys(client.clone(), SYSTEM).await?.for_task(&uid);
        let (stop, book, running) = (CancellationToken::new(), Arc::new(Book::default()), Running::default());
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let kubelet =
            Kubelet { pods: pods.clone(), port, keys, book: book.clone(), running: running.clone(), next: 0 };
        tokio::spawn(stop.clone().run_until_cancelled_owned(kubelet.run()));
        let options = lifecycle::Options {
            namespace: SYSTEM.into(),
            timing: Timing::default(),
            limits: Limits::default(),
        };
        tokio::spawn(Manager::new(client, options).run(stop.clone()));
        Ok(World { book, pods, running, server, _stop: stop.drop_guard() })
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig()
    }

    /// The Gateway of the Task, at this port.
    pub(crate) async fn listen(&self, port: u16) -> Result<()> {
        gateway::listen(&self.server.http, "default", port).await
    }

    /// Ends an instance that serves a session: its server dies and the kubelet notices, or its Pod is deleted.
    pub(crate) async fn kill_one(&self, turn: usize) -> Result<()> {
        let Some(uid) = self.book.some_instance(turn) else { return Ok(()) };
        self.book.dies(&uid);
        let Some((name, server)) = self.running.lock().remove(&uid) else { return Ok(()) };
        if turn.is_multiple_of(2) {
            server.abort();
            let failed = json!({ "metadata": { "uid": uid }, "status": { "phase": "Failed",
                "conditions": [{ "type": "Ready", "status": "False" }] } });
            self.pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(failed)).await?;
        } else {
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            self.pods.delete(&name, &parameters).await?;
            server.abort();
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (_, (_, server)) in self.running.lock().drain() {
            server.abort();
        }
    }
}

/// A Task with a revision; its UID.
async fn make_task(client: &Client, port: u16, most: usize) -> Result<String> {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "agent" },
        "spec": {
            "deployment": { "type": "sandbox", "sandboxTemplate": {} },
            "routing": { "routePolicy": "BySession", "reserveTimeout": "60s", "gatewayRefs": ["default"],
                "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "x-session" }] } },
            "requestHandling": { "backend": { "port": port } },
            "scaling": { "scalingMode": "OnDemand", "minInstances": 0, "maxInstances": most,
                "instanceLifecycle": { "reusePolicy": "Never", "idleTimeout": "600s" } },
        },
    }))?;
    let api: Api<Task> = Api::namespaced(client.clone(), NAMESPACE);
    let task = api.create(&PostParams::default(), &task).await?;
    let uid = task.uid().context("a UID")?;
    let id = TaskId { namespace: NAMESPACE.into(), name: "agent".into(), uid: uid.as_str().into() };
    let template: PodTemplate = serde_json::from_value(json!({
        "metadata": { "name": "agent-1", "labels": { labels::FORM: "slots", labels::SPEC_ID: "agent-1",
            labels::TASK: "agent", labels::TASK_UID: uid },
            "ownerReferences": [serde_json::to_value(owner(&id))?] },
        "template": { "spec": { "nodeName": "node", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false, "containers": [{ "name": "agent", "image": "agent:1" }] } },
    }))?;
    let templates: Api<PodTemplate> = Api::namespaced(client.clone(), NAMESPACE);
    templates.create(&PostParams::default(), &template).await?;
    let status = Patch::Merge(json!({ "status": { "specID": "agent-1" } }));
    api.patch_status("agent", &PatchParams::default(), &status).await?;
    Ok(uid)
}

/// Starts a server for each Pod, and ends it with the Pod.
struct Kubelet {
    pods: Api<Pod>,
    port: u16,
    keys: TaskKeys,
    book: Arc<Book>,
    running: Running,
    /// No address is given twice.
    next: u16,
}

impl Kubelet {
    async fn run(mut self) {
        let mut events = watcher(self.pods.clone(), watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event
                && let Err(error) = self.tend(&pod).await
            {
                self.book.wrong(format!("the kubelet and {}: {error:#}", pod.name_any()));
            }
        }
    }

    async fn tend(&mut self, pod: &Pod) -> Result<()> {
        let (name, uid) = (pod.name_any(), pod.uid().context("a UID")?);
        if pod.metadata.deletion_timestamp.is_some() {
            self.book.dies(&uid);
            if let Some((_, server)) = self.running.lock().remove(&uid) {
                server.abort();
            }
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            // It may be gone by now.
            let _ = self.pods.delete(&name, &parameters.grace_period(0)).await;
        } else if pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
            self.next += 1;
            let [high, low] = self.next.to_be_bytes();
            let ip = Ipv4Addr::new(127, 99, high + 1, low);
            let (keys, book, serves) = (self.keys.clone(), self.book.clone(), Mutex::default());
            let instance = Instance { uid: uid.clone(), keys, book, serves };
            let server = instance.start((ip, self.port).into()).await?;
            self.running.lock().insert(uid.clone(), (name.clone(), server));
            let ready = json!({ "metadata": { "uid": uid }, "status": { "phase": "Running", "podIP": ip,
                "podIPs": [{ "ip": ip }], "conditions": [{ "type": "Ready", "status": "True" }] } });
            // It may be gone by now, or changed; then there is another event.
            let _ = self.pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(ready)).await;
        }
        Ok(())
    }
}
