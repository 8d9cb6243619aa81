//! An embedded API server, Tasks made by hand, a tiny kubelet, and routers whose every request is counted and can be
//! held up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use agentcube_api::{Task, labels};
use agentcube_apiserver::Server;
use agentcube_apiserver::http::Front;
use agentcube_instance::identity::{SessionKey, SpecId, TaskId};
use agentcube_instance::provider::{InstanceProvider, Request, ReserveError, Reserved};
use agentcube_instance::record::{RouterLease, lease_name};
use agentcube_instance::reserve::{Options, Reserver};
use agentcube_instance::revision::owner;
use agentcube_instance::timing::Timing;
use agentcube_instance::token::{KeyId, Keys};
use agentcube_operator::metrics::Registry;
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, CustomResourceExt, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) const NAMESPACE: &str = "default";
pub(crate) const SYSTEM: &str = "agentcube-system";
/// Longer than anything takes that goes right.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Time limits short enough to wait for, long enough for a busy machine.
pub(crate) fn timing() -> Timing {
    Timing {
        grace: Duration::from_secs(2),
        heartbeat: Duration::from_millis(500),
        silent: Duration::from_secs(15),
        out_of_touch: Duration::from_secs(60),
    }
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) client: Client,
    /// Whether the kubelet makes new Pods ready.
    pub(crate) kubelet_works: Arc<AtomicBool>,
    _stop: tokio_util::sync::DropGuard,
}

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(LONG, search).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

impl World {
    pub(crate) async fn new() -> World {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), NAMESPACE);
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions.create(&PostParams::default(), &Task::crd()).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": SYSTEM } })).expect("this is a Namespace");
        namespaces.create(&PostParams::default(), &system).await.unwrap();
        let tasks: Api<Task> = Api::namespaced(client.clone(), NAMESPACE);
        until("Tasks are served", async || tasks.list(&ListParams::default()).await.ok()).await;
        let (stop, works) = (CancellationToken::new(), Arc::new(AtomicBool::new(true)));
        tokio::spawn(kubelet(client.clone(), works.clone(), stop.clone()));
        World { server, client, kubelet_works: works, _stop: stop.drop_guard() }
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn tasks(&self) -> Api<Task> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A Task as the control plane leaves it: with a specID and a revision. `spec` is merged into a session Task that
    /// starts instances on demand.
    pub(crate) async fn task(&self, name: &str, spec: Value) -> TaskId {
        let id = self.new_task(name, spec).await;
        self.revision(&id, &format!("{name}-1")).await;
        id
    }

    /// The same before the control plane has seen it.
    pub(crate) async fn new_task(&self, name: &str, spec: Value) -> TaskId {
        let mut task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": {
                "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                "routing": { "routePolicy": "BySession", "reserveTimeout": "20s",
                    "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "x-session" }] } },
                "scaling": { "scalingMode": "OnDemand", "maxInstances": 10 },
            },
        });
        merge(&mut task["spec"], spec);
        let task: Task = serde_json::from_value(task).unwrap();
        let api: Api<Task> = Api::namespaced(self.client.clone(), NAMESPACE);
        let task = api.create(&PostParams::default(), &task).await.unwrap();
        TaskId { namespace: NAMESPACE.into(), name: name.into(), uid: task.uid().unwrap().as_str().into() }
    }

    /// Makes a revision, and makes it the current one.
    pub(crate) async fn revision(&self, task: &TaskId, spec_id: &str) {
        let template = json!({
            "metadata": { "name": spec_id, "labels": { labels::FORM: "slots" },
                "ownerReferences": [serde_json::to_value(owner(task)).unwrap()] },
            "template": { "spec": { "nodeName": "node",
                "containers": [{ "name": "agent", "image": "agent:1" }] } },
        });
        let template: PodTemplate = serde_json::from_value(template).unwrap();
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), NAMESPACE);
        templates.create(&PostParams::default(), &template).await.unwrap();
        let api: Api<Task> = Api::namespaced(self.client.clone(), NAMESPACE);
        let status = json!({ "status": { "specID": spec_id } });
        let parameters = PatchParams::default();
        api.patch_status(&task.name, &parameters, &Patch::Merge(status)).await.unwrap();
    }

    /// An idle instance.
    pub(crate) async fn instance(&self, task: &TaskId, slot: u32) -> Pod {
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), NAMESPACE);
        let template = templates.get(&format!("{}-1", task.name)).await.unwrap();
        let revision = agentcube_instance::revision::Revision::read(&template).unwrap();
        let pod = self.pods().create(&PostParams::default(), &revision.pod(slot, None)).await.unwrap();
        self.until_ready(&pod.name_any()).await
    }

    pub(crate) async fn until_ready(&self, name: &str) -> Pod {
        until("a Pod is ready", async || self.pods().get(name).await.ok().filter(is_ready)).await
    }

    pub(crate) async fn session(&self, task: &TaskId, key: &str) -> Option<Lease> {
        self.leases().get_opt(&lease_name(&task.uid, &self::key(key))).await.unwrap()
    }

    pub(crate) async fn sessions(&self) -> Vec<Lease> {
        let of_sessions = format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION);
        self.leases().list(&ListParams::default().labels(&of_sessions)).await.unwrap().items
    }

    pub(crate) async fn all_pods(&self) -> Vec<Pod> {
        self.pods().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn set_status(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn annotate(&self, pod: &str, annotations: Value) -> Pod {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.pods().patch(pod, &PatchParams::default(), &patch).await.unwrap()
    }

    pub(crate) async fn annotate_session(&self, task: &TaskId, key: &str, annotations: Value) -> Lease {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let name = lease_name(&task.uid, &self::key(key));
        self.leases().patch(&name, &PatchParams::default(), &patch).await.unwrap()
    }

    /// A router that is ready.
    pub(crate) async fn router(&self, name: &str) -> Router {
        self.router_with(name, timing()).await
    }

    pub(crate) async fn router_with(&self, name: &str, timing: Timing) -> Router {
        let router = Router::start(self, name, timing);
        tokio::time::timeout(LONG, router.reserver.ready()).await.expect("a router gets ready");
        router
    }
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

pub(crate) fn key(text: &str) -> SessionKey {
    SessionKey::new(text).unwrap()
}

pub(crate) fn annotation(pod: &Pod, name: &str) -> String {
    pod.annotations().get(name).cloned().unwrap_or_default()
}

/// Makes Pods ready with an address of their own, and lets go of deleted ones.
async fn kubelet(client: Client, works: Arc<AtomicBool>, stop: CancellationToken) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let next = AtomicU32::new(1);
    let serve = async {
        loop {
            // From the beginning each time: what went wrong the last time is tried again.
            if let Ok(events) = pods.watch(&WatchParams::default(), "0").await {
                let mut events = std::pin::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
                    if works.load(Ordering::SeqCst) && tend(&pods, &pod, &next).await.is_err() {
                        break;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = serve => {}
    }
}

async fn tend(pods: &Api<Pod>, pod: &Pod, next: &AtomicU32) -> kube::Result<()> {
    if pod.metadata.deletion_timestamp.is_some() {
        let gone = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        return match gone {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        };
    }
    // What has an address has been tended before; what became of it since is the test's business.
    if pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()) {
        return Ok(());
    }
    let n = next.fetch_add(1, Ordering::SeqCst);
    let status = json!({ "status": { "phase": "Running", "podIP": format!("10.0.{}.{}", n / 250, n % 250 + 1),
        "conditions": [{ "type": "Ready", "status": "True" }] } });
    match pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What a router asks of the server.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Requests that are no list, no watch and not the router's own Lease: `POST leases` and the like.
    seen: Mutex<Vec<String>>,
    /// Which of these writes count, and how many more of them get through before the router is cut off; none for all.
    writes_left: Mutex<Option<(&'static str, usize)>>,
    dead: AtomicBool,
    /// The last write is done.
    last_done: AtomicBool,
}

impl Traffic {
    /// Notes a request. Whether it gets through, and whether its answer does.
    fn pass(&self, method: &http::Method, path: &str, query: Option<&str>) -> (bool, bool) {
        let kinds = ["leases", "pods", "jobs", "podtemplates", "tasks"];
        let kind = kinds.into_iter().find(|kind| path.contains(&format!("/{kind}"))).unwrap_or("other");
        let own = path.contains(SYSTEM);
        let read = *method == http::Method::GET;
        let listing = read && query.is_some_and(|query| query.contains("limit=") || query.contains("watch="));
        let caching = read && matches!(kind, "tasks" | "podtemplates");
        if own || listing || caching {
            let alive = !self.dead.load(Ordering::SeqCst);
            return (alive, alive);
        }
        let request = format!("{method} {kind}");
        self.seen.lock().push(request.clone());
        if self.dead.load(Ordering::SeqCst) {
            return (false, false);
        }
        let mut left = self.writes_left.lock();
        match &mut *left {
            Some((counted, left)) if !read && request.starts_with(*counted) => {
                *left -= 1;
                if *left == 0 {
                    self.dead.store(true, Ordering::SeqCst);
                }
                (true, *left > 0)
            }
            _ => (true, true),
        }
    }

    /// What was asked since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// The router dies in its so many-th write from now: it is done, and nothing is heard from the router again.
    pub(crate) fn die_in_write(&self, number: usize) {
        self.die_in("", number);
    }

    /// The same, counting only requests that begin so: what a router does by the clock may come in between.
    pub(crate) fn die_in(&self, request: &'static str, number: usize) {
        *self.writes_left.lock() = Some((request, number));
    }

    /// Whether the write in which it was to die is done.
    pub(crate) fn is_dead(&self) -> bool {
        self.last_done.load(Ordering::SeqCst)
    }

    /// From now on nothing gets through, or everything does again.
    pub(crate) fn cut(&self, cut: bool) {
        self.dead.store(cut, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Wire {
    front: Front,
    traffic: Arc<Traffic>,
}

impl tower::Service<http::Request<kube::client::Body>> for Wire {
    type Response = <Front as tower::Service<http::Request<kube::client::Body>>>::Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        let (sent, answered) =
            self.traffic.pass(request.method(), request.uri().path(), request.uri().query());
        let (mut front, traffic) = (self.front.clone(), self.traffic.clone());
        Box::pin(async move {
            if !sent {
                std::future::pending::<()>().await;
            }
            let answer = front.call(request).await;
            if !answered {
                traffic.last_done.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}

/// A router, stopped when dropped.
pub(crate) struct Router {
    name: String,
    pub(crate) reserver: Reserver,
    pub(crate) metrics: Registry,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) running: tokio::task::JoinHandle<()>,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Router {
    fn start(world: &World, name: &str, timing: Timing) -> Router {
        let traffic = Arc::new(Traffic::default());
        let wire = Wire { front: world.server.front(), traffic: traffic.clone() };
        let client = Client::new(wire, NAMESPACE);
        let keys = Keys::generate(KeyId::new("k1").unwrap());
        let options = Options { name: name.into(), namespace: SYSTEM.into(), keys, timing };
        let (metrics, shutdown) = (Registry::new(), CancellationToken::new());
        let reserver = Reserver::counted(client, options, &metrics);
        let running = tokio::spawn(reserver.clone().run(shutdown.clone()));
        Router { name: name.into(), reserver, metrics, traffic, shutdown, running }
    }

    pub(crate) async fn reserve(&self, task: &TaskId, key: &str) -> Result<Reserved, ReserveError> {
        self.reserve_for(task, Some(key), None).await
    }

    pub(crate) async fn reserve_for(
        &self,
        task: &TaskId,
        key: Option<&str>,
        tenant: Option<&str>,
    ) -> Result<Reserved, ReserveError> {
        let (key, tenant) = (key.map(self::key), tenant.map(str::to_owned));
        let request = Request { task: task.clone(), key, tenant, which: Default::default() };
        tokio::time::timeout(LONG, self.reserver.reserve_instance(request)).await.expect("an answer in time")
    }

    /// Whether the key is served from memory.
    pub(crate) fn hits(&self, task: &TaskId, key: &str) -> bool {
        self.reserver.lookup(task, &self::key(key)).is_some()
    }

    /// Waits until the router no longer serves a key from memory.
    pub(crate) async fn misses(&self, task: &TaskId, key: &str) {
        until("the router has heard of it", async || (!self.hits(task, key)).then_some(())).await;
    }

    /// What the router says that it has seen.
    pub(crate) async fn seen(&self, world: &World) -> Option<RouterLease> {
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
        leases
            .get_opt(&format!("router-{}", self.name))
            .await
            .unwrap()
            .and_then(|lease| RouterLease::read(&lease))
    }

    /// The same where reading may fail.
    pub(crate) async fn try_seen(&self, world: &World) -> Option<RouterLease> {
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
        let lease = leases.get(&format!("router-{}", self.name)).await.ok()?;
        RouterLease::read(&lease)
    }

    /// Waits until the router knows so many idle instances of it.
    pub(crate) async fn knows(&self, task: &TaskId, idle: i32) {
        let spec = SpecId(format!("{}-1", task.name).into());
        until("a router knows the idle instances", async || {
            let counts = self.reserver.instance_statistics(task, &spec);
            (counts.idle == idle).then_some(())
        })
        .await;
    }
}
