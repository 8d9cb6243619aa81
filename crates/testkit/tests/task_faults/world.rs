//! A cluster with one Task as the control plane leaves it, a tiny kubelet, an observer that sees everything in order,
//! and the routers and lifecycle managers of a trial, each on a line of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agentcube_api::{Task, labels};
use agentcube_apiserver::Server;
use agentcube_instance::lifecycle::{self, Limits, Manager};
use agentcube_instance::provider::{InstanceProvider, Request, ReserveError, Reserved};
use agentcube_instance::record::{Instance, Session};
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::revision::owner;
use agentcube_instance::timing::Timing;
use agentcube_instance::token::{KeyId, Keys};
use agentcube_instance::{SessionKey, TaskId};
use agentcube_testkit::cluster::pretended_node;
use agentcube_testkit::cluster::real::Controllers;
use agentcube_testkit::{Binaries, Cluster};
use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::book::Book;
use crate::wire::Line;

const NAMESPACE: &str = "default";
const SYSTEM: &str = "agentcube-system";
const NODE: &str = "node";
/// Longer than anything takes that goes right.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// So short that everything happens within seconds, so long that a busy machine keeps them, even beside a whole cluster.
fn timing(whole: bool) -> Timing {
    let (silent, out_of_touch) = if whole { (3_000, 8_000) } else { (1_500, 5_000) };
    Timing {
        grace: Duration::from_millis(800),
        heartbeat: Duration::from_millis(200),
        silent: Duration::from_millis(silent),
        out_of_touch: Duration::from_millis(out_of_touch),
    }
}

fn limits() -> Limits {
    Limits {
        idle: Duration::from_secs(1),
        rest: Duration::from_millis(300),
        stuck: Duration::from_secs(30),
        dead: Duration::from_millis(20),
        dead_longest: Duration::from_millis(200),
        full_pass: Duration::from_secs(5),
        ..Limits::default()
    }
}

/// What a trial runs in.
pub(crate) struct World {
    /// Goes over no line.
    pub(crate) client: Client,
    pub(crate) task: TaskId,
    pub(crate) book: Arc<Book>,
    pub(crate) timing: Timing,
    _stop: DropGuard,
    _server: Backend,
}

/// Held so that it lives as long as the world.
pub(crate) enum Backend {
    Embedded { _server: Server },
    Real { cluster: Cluster, whole: bool },
}

impl World {
    pub(crate) async fn embedded(scaling: Value) -> Result<World> {
        let server = Server::builder().memory().embed().await?;
        let client = Client::new(server.front(), NAMESPACE);
        World::furnish(client, Backend::Embedded { _server: server }, scaling).await
    }

    pub(crate) async fn real(binaries: &Binaries, scaling: Value) -> Result<World> {
        let cluster = Cluster::real_with(binaries, Controllers::Api).await?;
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let whole = binaries.whole.is_some();
        World::furnish(client, Backend::Real { cluster, whole }, scaling).await
    }

    async fn furnish(client: Client, server: Backend, scaling: Value) -> Result<World> {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let tasks = agentcube_api::crds().into_iter().find(|crd| crd.name_any() == "tasks.agentcube.io");
        unless_there(definitions.create(&PostParams::default(), &tasks.context("Tasks are defined")?).await)?;
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(definitions, "tasks.agentcube.io", established).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM } }))?;
        unless_there(namespaces.create(&PostParams::default(), &system).await)?;
        let stop = CancellationToken::new();
        if let Backend::Real { cluster, whole } = &server {
            // Not every one makes it by itself, and Pods are refused without.
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
            let account = serde_json::from_value(json!({ "metadata": { "name": "default" } }))?;
            unless_there(accounts.create(&PostParams::default(), &account).await)?;
            if *whole {
                pretended_node::beat(&cluster.http, NODE).await?;
                let http = cluster.http.clone();
                let keep = async move { pretended_node::keep(&http, NODE).await };
                tokio::spawn(stop.clone().run_until_cancelled_owned(keep));
            }
        }
        let maximum = scaling["maxInstances"].as_u64().and_then(|max| usize::try_from(max).ok());
        let maximum = maximum.context("a maximum")?;
        let task = make_task(&client, scaling).await?;
        let book = Arc::<Book>::default();
        tokio::spawn(stop.clone().run_until_cancelled_owned(kubelet(client.clone(), book.clone())));
        tokio::spawn(stop.clone().run_until_cancelled_owned(observe_pods(
            client.clone(),
            book.clone(),
            maximum,
        )));
        tokio::spawn(stop.clone().run_until_cancelled_owned(observe_leases(client.clone(), book.clone())));
        let timing = timing(matches!(server, Backend::Real { whole: true, .. }));
        Ok(World { client, task, book, timing, _stop: stop.drop_guard(), _server: server })
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn sessions(&self) -> Result<Vec<Session>> {
        let of_sessions = format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION);
        let leases = self.leases().list(&ListParams::default().labels(&of_sessions)).await?;
        leases.iter().map(|lease| Session::read(lease).context("a spoilt Lease")).collect()
    }

    pub(crate) async fn instances(&self) -> Result<Vec<Instance>> {
        let pods = self.pods().list(&ListParams::default()).await?;
        Ok(pods.iter().filter_map(Instance::read).collect())
    }

    /// A router; `process` tells it apart from an earlier one of the same name.
    pub(crate) fn router(&self, name: &str, process: u64, line: Arc<Line>) -> Router {
        let keys = Keys::generate(KeyId::new("k1").expect("k1 is an id"));
        let options =
            reserve::Options { name: name.into(), namespace: SYSTEM.into(), keys, timing: self.timing };
        let reserver = Reserver::new(line.client(&self.client), options);
        let running = tokio::spawn(reserver.clone().run(CancellationToken::new()));
        let (gone, task) = (CancellationToken::new(), self.task.clone());
        Router { name: format!("{name}/{process}"), reserver, line, gone, running, task }
    }

    pub(crate) fn manager(&self, line: &Arc<Line>) -> tokio::task::JoinHandle<()> {
        let options = lifecycle::Options { namespace: SYSTEM.into(), timing: self.timing, limits: limits() };
        let manager = Manager::new(line.client(&self.client), options);
        tokio::spawn(manager.run(CancellationToken::new()))
    }

    /// An instance fails: its processes end.
    pub(crate) async fn kill_instance(&self, instance: &Instance) {
        self.book.kills(&instance.id.uid);
        let status = json!({ "status": { "phase": "Failed" }, "metadata": { "uid": *instance.id.uid } });
        let _ = self.patch_status(&instance.id.name, status).await;
    }

    /// An instance says that it is not ready, or is again.
    pub(crate) async fn set_ready(&self, instance: &Instance, ready: bool) {
        self.book.fails(&instance.id.uid);
        let condition = json!([{ "type": "Ready", "status": if ready { "True" } else { "False" } }]);
        let status =
            json!({ "status": { "conditions": condition }, "metadata": { "uid": *instance.id.uid } });
        let _ = self.patch_status(&instance.id.name, status).await;
    }

    async fn patch_status(&self, name: &str, patch: Value) -> Result<()> {
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Somebody ends a session by hand.
    pub(crate) async fn end_session(&self, session: &Session) {
        self.book.ends(&session.uid);
        let name = agentcube_instance::record::lease_name(&session.task_uid, &session.key);
        let uid = Some(session.uid.to_string());
        let preconditions = Some(kube::api::Preconditions { uid, resource_version: None });
        let _ = self.leases().delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await;
    }

    /// Nothing is asked for any more: sessions end, and no more instances are left than the minimum. Invariant 5.
    pub(crate) async fn settles(&self, minimum: usize) -> Result<()> {
        let settled = async {
            loop {
                let (sessions, instances) = (self.sessions().await?, self.instances().await?);
                let free = instances.iter().all(|it| it.hold == agentcube_instance::record::Hold::Free);
                if sessions.is_empty() && free && instances.len() == minimum {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if let Ok(settled) = tokio::time::timeout(LONG, settled).await {
            return settled;
        }
        let (sessions, instances) = (self.sessions().await?, self.instances().await?);
        bail!("invariant 5: after {LONG:?} there still are {sessions:#?}\n{instances:#?}");
    }

    /// Fails with everything that was violated.
    pub(crate) fn verdict(&self) -> Result<()> {
        let violations = self.book.violations();
        ensure!(violations.is_empty(), "{}", violations.join("\n    "));
        Ok(())
    }
}

/// Whole clusters have some of it already.
fn unless_there<K>(made: Result<K, kube::Error>) -> Result<()> {
    match made {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => Ok(made.map(drop)?),
    }
}

/// A Task with a revision, as the control plane leaves it.
async fn make_task(client: &Client, scaling: Value) -> Result<TaskId> {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "agent" },
        "spec": {
            "deployment": { "type": "sandbox", "sandboxTemplate": {} },
            "routing": { "routePolicy": "BySession", "reserveTimeout": "100s",
                "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "x-session" }] } },
            "scaling": scaling,
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
        "template": { "spec": { "nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false, "containers": [{ "name": "agent", "image": "agent:1" }] } },
    }))?;
    let templates: Api<PodTemplate> = Api::namespaced(client.clone(), NAMESPACE);
    templates.create(&PostParams::default(), &template).await?;
    let status = Patch::Merge(json!({ "status": { "specID": "agent-1" } }));
    api.patch_status("agent", &PatchParams::default(), &status).await?;
    Ok(id)
}

/// Makes Pods ready, and lets go of deleted ones. An instance is dead before anybody can know that it is.
async fn kubelet(client: Client, book: Arc<Book>) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let next = AtomicU32::new(1);
    let mut events = watcher(pods.clone(), watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event {
            tend(&pods, &pod, &next, &book).await;
        }
    }
}

async fn tend(pods: &Api<Pod>, pod: &Pod, next: &AtomicU32, book: &Book) {
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        book.dies(&pod.uid().unwrap_or_default());
        let preconditions = Some(kube::api::Preconditions { uid: pod.uid(), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let _ = pods.delete(&name, &parameters.grace_period(0)).await;
        return;
    }
    if pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()) {
        return;
    }
    let n = next.fetch_add(1, Ordering::SeqCst);
    let address = format!("10.{}.{}.{}", n / 62500 % 250, n / 250 % 250, n % 250 + 1);
    let status = json!({ "metadata": { "uid": pod.uid() }, "status": { "phase": "Running", "podIP": address,
        "podIPs": [{ "ip": address }], "conditions": [{ "type": "Ready", "status": "True" }] } });
    let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
}

/// Invariant 3, and what is deleted under requests.
async fn observe_pods(client: Client, book: Arc<Book>, maximum: usize) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut events = watcher(pods, watcher::Config::default()).boxed();
    let mut there = std::collections::HashMap::new();
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        match event {
            Event::Init => there.clear(),
            Event::Apply(pod) | Event::InitApply(pod) => {
                let Some(instance) = Instance::read(&pod) else { continue };
                let ends = pod.metadata.deletion_timestamp.is_some();
                let ended = there.insert(pod.name_any(), ends);
                if ends && ended == Some(false) {
                    let session = match &instance.hold {
                        agentcube_instance::record::Hold::Held { reservation, .. } => {
                            Some(&*reservation.lease)
                        }
                        _ => None,
                    };
                    book.deleted(&instance.id.uid, session);
                }
            }
            Event::Delete(pod) => {
                there.remove(&pod.name_any());
            }
            Event::InitDone => {}
        }
        if there.len() > maximum {
            book.violates(format!(
                "invariant 3: {} instances, and at most {maximum} are allowed",
                there.len()
            ));
        }
    }
}

/// What ends as idle.
async fn observe_leases(client: Client, book: Arc<Book>) {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let mut events = watcher(leases, watcher::Config::default().labels(labels::LEASE)).boxed();
    let mut ending = std::collections::HashSet::new();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(lease)) = event else { continue };
        let Some(session) = Session::read(&lease) else { continue };
        if session.ending && ending.insert(session.uid.clone()) && session.releasing {
            let instance = session.holder.as_ref().map(|holder| &*holder.uid);
            book.released(session.key.as_str(), instance.unwrap_or_default());
        }
    }
}

/// A router of a trial.
pub(crate) struct Router {
    pub(crate) name: String,
    pub(crate) reserver: Reserver,
    pub(crate) line: Arc<Line>,
    /// It has crashed.
    pub(crate) gone: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    task: TaskId,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Router {
    /// The process is gone from one moment to the next, and its requests with it.
    pub(crate) fn crash(&self, book: &Book) {
        self.line.kill();
        self.running.abort();
        book.crashes(&self.name);
        self.gone.cancel();
    }

    pub(crate) async fn ready(&self) -> Result<()> {
        tokio::time::timeout(LONG, self.reserver.ready()).await.context("a router does not get ready")
    }

    pub(crate) async fn reserve(&self, key: &str) -> Result<Reserved, ReserveError> {
        let key = Some(SessionKey::new(key).expect("keys of tests are keys"));
        let request = Request { task: self.task.clone(), key, tenant: None, which: Default::default() };
        tokio::select! {
            reserved = self.reserver.reserve_instance(request) => reserved,
            () = self.gone.cancelled() => Err(ReserveError::ShuttingDown),
        }
    }

    /// Makes a request that takes so long at its instance.
    pub(crate) async fn request(
        &self,
        book: &Book,
        key: &str,
        takes: Duration,
    ) -> Result<String, ReserveError> {
        let reserved = self.reserve(key).await?;
        let instance = reserved.instance.uid.to_string();
        let id = book.begin(&self.name, key, &instance);
        tokio::select! {
            () = tokio::time::sleep(takes) => {}
            () = reserved.in_use.revoked() => {}
            () = self.gone.cancelled() => {}
        }
        book.end(id);
        drop(reserved);
        Ok(instance)
    }

    pub(crate) fn lookup(&self, key: &str) -> Option<Reserved> {
        self.reserver.lookup(&self.task, &SessionKey::new(key).expect("keys of tests are keys"))
    }
}
