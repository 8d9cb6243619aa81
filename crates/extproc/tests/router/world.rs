//! An API server with one Task as the control plane leaves it, a small kubelet that starts servers for Pods, routers,
//! each with threads of its own so that it can be killed, and a front.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_api::{Task, labels};
use agentcube_apiserver::Server;
use agentcube_extproc::{Front, Options, Tls};
use agentcube_instance::TaskId;
use agentcube_instance::lifecycle::{self, Limits, Manager};
use agentcube_instance::record::Session;
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::revision::owner;
use agentcube_instance::timing::Timing;
use agentcube_instance::token::{KeyId, Keys};
use agentcube_operator::metrics::Registry;
use agentcube_router::observe::{AccessLog, Hiding};
use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backend;
use crate::builtin::Builtin;
use crate::envoy::{Envoy, Files, Logs, Plan, Program};
use crate::subjects;

const NAMESPACE: &str = "default";
const SYSTEM: &str = "agentcube-system";

/// What differs from case to case.
pub(crate) struct Setting {
    pub(crate) routers: usize,
    pub(crate) idle_timeout: &'static str,
    pub(crate) lease: Duration,
    /// Envoy tells of requests by the access log.
    pub(crate) logs: bool,
    /// It tells one router of each, whichever it likes.
    pub(crate) one_log: bool,
    /// Between Envoy and the routers.
    pub(crate) tls: bool,
    /// A service is asked who sends a request.
    pub(crate) asks: bool,
    pub(crate) other_subjects: &'static str,
    pub(crate) route_policy: &'static str,
    pub(crate) reuse_policy: &'static str,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            routers: 1,
            idle_timeout: "300s",
            lease: Duration::from_secs(60),
            logs: true,
            one_log: false,
            tls: false,
            asks: false,
            other_subjects: "Separate",
            route_policy: "BySession",
            reuse_policy: "Never",
        }
    }
}

/// So short that everything happens within seconds, so long that a busy machine keeps them.
fn timing() -> Timing {
    Timing {
        grace: Duration::from_millis(800),
        heartbeat: Duration::from_millis(200),
        silent: Duration::from_millis(1500),
        out_of_touch: Duration::from_secs(60),
    }
}

/// What a case runs in.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) backends: Arc<backend::Shared>,
    pub(crate) setting: Setting,
    pub(crate) seen: Seen,
    routers: Mutex<Vec<Option<Router>>>,
    front: Option<Through>,
    files: Option<(Files, tempfile::TempDir)>,
    _stop: DropGuard,
    _server: Server,
}

enum Through {
    Envoy(Envoy),
    Builtin(Builtin),
}

impl World {
    pub(crate) async fn new(setting: Setting) -> Result<World> {
        let server = Server::builder().memory().embed().await?;
        let client = Client::new(server.front(), NAMESPACE);
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let tasks = agentcube_api::crds().into_iter().find(|crd| crd.name_any() == "tasks.agentcube.io");
        definitions.create(&PostParams::default(), &tasks.context("Tasks are defined")?).await?;
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(definitions, "tasks.agentcube.io", established).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM } }))?;
        namespaces.create(&PostParams::default(), &system).await?;
        // Instances are told apart by their addresses, so all have the port that is free at one.
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        make_task(&client, port, &setting).await?;
        let (stop, backends) = (CancellationToken::new(), Arc::new(backend::Shared::new()));
        let kubelet = kubelet(client.clone(), port, backends.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(kubelet));
        let limits = Limits { rest: Duration::from_millis(300), ..Limits::default() };
        let options = lifecycle::Options { namespace: SYSTEM.into(), timing: timing(), limits };
        tokio::spawn(Manager::new(client.clone(), options).run(stop.clone()));
        let files = setting.tls.then(certificates).transpose()?;
        Ok(World {
            client,
            backends,
            setting,
            seen: Seen::new()?,
            routers: Mutex::default(),
            front: None,
            files,
            _stop: stop.drop_guard(),
            _server: server,
        })
    }

    pub(crate) async fn with_envoy(mut self, program: &Program) -> Result<World> {
        for number in 0..self.setting.routers {
            let router = self.router(number, None).await?;
            self.routers.lock().push(Some(router));
        }
        let addresses: Vec<SocketAddr> = self.routers.lock().iter().flatten().map(|it| it.address).collect();
        let tls = self.files.as_ref().map(|(files, _)| files);
        let asks = if self.setting.asks { Some(subjects::service().await?) } else { None };
        let tasks = &["agent", "gone"];
        let logs = match (self.setting.logs, self.setting.one_log) {
            (false, _) => Logs::Off,
            (true, true) => Logs::One,
            (true, false) => Logs::Each,
        };
        let plan = Plan { routers: &addresses, tasks, logs, tls, asks };
        self.front = Some(Through::Envoy(Envoy::start(program, plan).await?));
        Ok(self)
    }

    pub(crate) async fn with_gateway(mut self) -> Result<World> {
        let reserver = reserver(&self.client, "router-0", &self.seen.registry);
        tokio::spawn(reserver.clone().run(CancellationToken::new()));
        reserver.ready().await;
        let options = agentcube_router::Options {
            metrics: self.seen.registry.clone(),
            access_log: Some(self.seen.log.clone()),
            ..agentcube_router::Options::default()
        };
        let asks = if self.setting.asks { Some(subjects::service().await?) } else { None };
        let builtin = Builtin::start(&self.client, reserver, options, asks).await?;
        self.front = Some(Through::Builtin(builtin));
        Ok(self)
    }

    /// Where clients send requests.
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.front {
            Some(Through::Envoy(envoy)) => envoy.address,
            Some(Through::Builtin(gateway)) => gateway.address,
            None => (Ipv4Addr::LOCALHOST, 0).into(),
        }
    }

    /// How many requests were answered before the case began.
    pub(crate) fn answered(&self) -> i64 {
        match &self.front {
            Some(Through::Builtin(gateway)) => gateway.answered,
            _ => 0,
        }
    }

    pub(crate) fn is_envoy(&self) -> bool {
        matches!(self.front, Some(Through::Envoy(_)))
    }

    /// What Envoy said last.
    pub(crate) fn told(&self) -> String {
        match &self.front {
            Some(Through::Envoy(envoy)) => format!("Envoy says: {}", envoy.told()),
            _ => String::new(),
        }
    }

    async fn router(&self, number: usize, address: Option<SocketAddr>) -> Result<Router> {
        let tls = self.files.as_ref().map(|(files, _)| Tls {
            certificate: files.server.clone(),
            key: files.server_key.clone(),
            client_authorities: Some(files.authority.clone()),
        });
        let options = Options {
            lease: self.setting.lease,
            notice: Duration::from_secs(2),
            drain: Duration::from_secs(30),
            tls,
            metrics: self.seen.registry.clone(),
            access_log: Some(self.seen.log.clone()),
            ..Options::default()
        };
        Router::start(&self.client, number, address, options).await
    }

    /// A router is gone from one moment to the next.
    pub(crate) fn kill_router(&self, number: usize) -> Option<SocketAddr> {
        let router = self.routers.lock()[number].take()?;
        Some(router.kill())
    }

    /// A router stops in order.
    pub(crate) async fn stop_router(&self, number: usize) -> Result<SocketAddr> {
        let router = self.routers.lock()[number].take().context("it runs")?;
        router.stop().await
    }

    /// A router comes back where it was.
    pub(crate) async fn start_router(&self, number: usize, address: SocketAddr) -> Result<()> {
        let router = self.router(number, Some(address)).await?;
        self.routers.lock()[number] = Some(router);
        Ok(())
    }

    /// Whether a router counts, for those who end sessions.
    pub(crate) async fn counts(&self, number: usize) -> Result<bool> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        Ok(leases.get_opt(&format!("router-router-{number}")).await?.is_some())
    }

    /// How many requests are on their way, as far as a router knows.
    pub(crate) fn on_their_way(&self, number: usize) -> usize {
        self.routers.lock()[number].as_ref().map_or(0, |router| (router.on_their_way)())
    }

    pub(crate) async fn sessions(&self) -> Result<Vec<Session>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let of_sessions = format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION);
        let leases = leases.list(&ListParams::default().labels(&of_sessions)).await?;
        leases.iter().map(|lease| Session::read(lease).context("a spoilt Lease")).collect()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        while !so().await? {
            anyhow::ensure!(tokio::time::Instant::now() < limit, "it never came to be that {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// What operators see of it.
pub(crate) struct Seen {
    registry: Registry,
    log: AccessLog,
    written: Written,
}

/// What was written to the access log.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seen {
    fn new() -> Result<Seen> {
        let (registry, written) = (Registry::new(), Written::default());
        let keys = Keys::generate(KeyId::new("k1").context("k1 is an id")?);
        let hiding = Hiding::new(keys.hiding_key());
        let log = AccessLog::to(Box::new(written.clone()), 1000, hiding, &registry)?;
        Ok(Seen { registry, log, written })
    }

    pub(crate) fn metrics(&self) -> String {
        self.registry.encode()
    }

    /// The lines of the access log.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.0.lock()).into_owned()
    }
}

fn reserver(client: &Client, name: &str, metrics: &Registry) -> Reserver {
    let keys = Keys::generate(KeyId::new("k1").expect("k1 is an id"));
    let options = reserve::Options { name: name.into(), namespace: SYSTEM.into(), keys, timing: timing() };
    Reserver::counted(client.clone(), options, metrics)
}

/// A router with threads of its own: when they go, so do its connections.
struct Router {
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    on_their_way: Box<dyn Fn() -> usize + Send + Sync>,
    shutdown: CancellationToken,
    over: Option<tokio::sync::oneshot::Receiver<()>>,
}

impl Router {
    async fn start(
        client: &Client,
        number: usize,
        address: Option<SocketAddr>,
        options: Options,
    ) -> Result<Router> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let reserver = reserver(client, &format!("router-{number}"), &options.metrics);
        let encrypted = options.tls.is_some();
        let front = Front::new(client.clone(), Arc::new(reserver.clone()), options);
        let on_their_way = Box::new(front.on_their_way());
        let shutdown = CancellationToken::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let (ended, over) = tokio::sync::oneshot::channel();
        let stop = shutdown.clone();
        runtime.spawn(async move {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("an address can be used again");
            // No connection to others comes from this address, so none takes the port while a router is away.
            let address = address.unwrap_or((Ipv4Addr::new(127, 0, 0, 3), 0).into());
            socket.bind(address).expect("the address is free");
            if !encrypted {
                reserver.set_address(socket.local_addr().expect("it has an address"));
            }
            let reserving = CancellationToken::new();
            let running = tokio::spawn(reserver.clone().run(reserving.clone()));
            reserver.ready().await;
            let listener = socket.listen(1024).expect("it can be listened on");
            let _ = ready.send(listener.local_addr().expect("it has an address"));
            let holds = front.run(listener, stop).await;
            reserving.cancel();
            let _ = running.await;
            drop(holds);
            let _ = ended.send(());
        });
        let address = is_ready.await?;
        Ok(Router { address, runtime: Some(runtime), on_their_way, shutdown, over: Some(over) })
    }

    /// Comes back when nothing of it is left: its sockets are closed when its threads have ended.
    fn kill(mut self) -> SocketAddr {
        if let Some(runtime) = self.runtime.take() {
            let ending = std::thread::spawn(move || runtime.shutdown_timeout(crate::LONG));
            let _ended = ending.join();
        }
        self.address
    }

    async fn stop(mut self) -> Result<SocketAddr> {
        self.shutdown.cancel();
        if let Some(over) = self.over.take() {
            over.await?;
        }
        Ok(self.kill())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn routing(setting: &Setting) -> Value {
    let mut routing = json!({ "routePolicy": setting.route_policy, "reserveTimeout": "30s",
        "gatewayRefs": ["default"], "otherSubjects": setting.other_subjects });
    if setting.route_policy == "BySession" {
        let extractors = json!([{ "type": "httpHeader", "name": "x-session" }]);
        routing["sessionIdentifier"] = json!({ "extractors": extractors });
    }
    routing
}

/// A Task with a revision, as the control plane leaves it.
async fn make_task(client: &Client, port: u16, setting: &Setting) -> Result<()> {
    let task: Task = serde_json::from_value(json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "agent" },
        "spec": {
            "deployment": { "type": "sandbox", "sandboxTemplate": {} },
            "routing": routing(setting),
            "requestHandling": { "backend": { "port": port } },
            "scaling": { "scalingMode": "OnDemand", "minInstances": 0, "maxInstances": 100,
                "instanceLifecycle": { "reusePolicy": setting.reuse_policy, "idleTimeout": setting.idle_timeout } },
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
    Ok(())
}

/// Worlds run one after the other, and each has loopback addresses of its own.
static WORLDS: AtomicU8 = AtomicU8::new(1);

/// Starts a server for each Pod, and ends it with the Pod.
async fn kubelet(client: Client, port: u16, shared: Arc<backend::Shared>) {
    let world = WORLDS.fetch_add(1, Ordering::SeqCst);
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let (next, mut running) = (AtomicUsize::new(1), std::collections::HashMap::new());
    let mut events = watcher(pods.clone(), watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            if let Some(server) = running.remove(&uid) {
                tokio::task::JoinHandle::abort(&server);
            }
            let preconditions = Some(kube::api::Preconditions { uid: Some(uid), resource_version: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            let _ = pods.delete(&name, &parameters.grace_period(0)).await;
        } else if pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
            let n = next.fetch_add(1, Ordering::SeqCst);
            let ip = Ipv4Addr::new(127, world, (n / 250) as u8 + 1, (n % 250) as u8 + 1);
            let Ok(server) = backend::serve((ip, port).into(), name.clone(), shared.clone()).await else {
                continue;
            };
            running.insert(uid.clone(), server);
            let _ =
                pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(running_at(&uid, ip))).await;
        }
    }
}

fn running_at(uid: &str, ip: Ipv4Addr) -> Value {
    json!({ "metadata": { "uid": uid }, "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
        "conditions": [{ "type": "Ready", "status": "True" }] } })
}

/// An authority, a router's certificate, and Envoy's.
fn certificates() -> Result<(Files, tempfile::TempDir)> {
    let directory = tempfile::TempDir::new()?;
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new())?;
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = write("authority.pem", parameters.self_signed(&key)?.pem())?;
    let issuer = rcgen::Issuer::new(parameters, key);
    let issue = |name: &str| -> Result<(PathBuf, PathBuf)> {
        let key = rcgen::KeyPair::generate()?;
        let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.signed_by(&key, &issuer)?;
        Ok((
            write(&format!("{name}.pem"), certificate.pem())?,
            write(&format!("{name}.key"), key.serialize_pem())?,
        ))
    };
    let ((server, server_key), (client, client_key)) = (issue("server")?, issue("client")?);
    Ok((Files { authority, server, server_key, client, client_key }, directory))
}
