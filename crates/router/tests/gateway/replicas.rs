//! Two gateways over one API server, each with a router of its own, and a tiny kubelet whose Pods are real HTTP servers:
//! each has an address of loopback to itself.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_api::labels;
use agentcube_apiserver::Server;
use agentcube_instance::TaskId;
use agentcube_instance::lifecycle;
use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::revision::owner;
use agentcube_instance::timing::Timing;
use agentcube_instance::token::{KeyId, Keys};
use agentcube_router::{Gateway, Options, Tcp};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplate};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
    WatchParams,
};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::world::{gateway_object, http_listener, install};

const SYSTEM: &str = "agentcube-system";
const LONG: Duration = Duration::from_secs(60);

pub(crate) type Answer = Response<BoxBody<Bytes, std::io::Error>>;
/// An agent: one for each instance.
pub(crate) type Agent = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// The world of a test.
pub(crate) struct World {
    pub(crate) client: Client,
    /// Where the gateways listen.
    pub(crate) ports: Vec<u16>,
    /// What every router signs with.
    pub(crate) keys: Keys,
    pub(crate) stop: CancellationToken,
    instances: Arc<Instances>,
    _stop: DropGuard,
    _server: Server,
}

/// What runs in an instance.
// Programs are for the suite with the official clients, which shares this file.
#[allow(dead_code)]
pub(crate) enum Runs {
    Agent(Agent),
    /// A program, which listens at the address that it was told.
    Program(tokio::process::Command),
}

/// Makes an instance, given its name and address.
type Make = dyn Fn(&str, SocketAddr) -> Runs + Send + Sync;

struct Instances {
    make: Box<Make>,
    port: u16,
    next: AtomicU8,
    running: Mutex<HashMap<String, CancellationToken>>,
    started: AtomicUsize,
}

pub(crate) fn body(text: impl Into<Bytes>) -> BoxBody<Bytes, std::io::Error> {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// A stream of events; stays open after the last if it `lasts`.
pub(crate) fn events(texts: Vec<String>, lasts: bool) -> Answer {
    let frames = futures_util::stream::iter(texts).then(|text| async {
        // Each in a frame of its own.
        tokio::task::yield_now().await;
        Ok(Frame::data(Bytes::from(text)))
    });
    let end = futures_util::stream::pending().take(usize::from(lasts));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames.chain(end))));
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}

pub(crate) fn json_answer(status: u16, value: &Value) -> Answer {
    let mut response = Response::new(body(value.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

/// What came back, with all of its body.
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {} {}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl World {
    /// With agents made by `make`, which is told the name of each instance.
    pub(crate) async fn new(make: impl Fn(&str) -> Agent + Send + Sync + 'static) -> World {
        World::with(move |name, _| Runs::Agent(make(name))).await
    }

    /// With instances made by `make`, which is told the name and the address of each.
    pub(crate) async fn with(make: impl Fn(&str, SocketAddr) -> Runs + Send + Sync + 'static) -> World {
        let mut world = World::bare(make).await;
        for n in 0..2 {
            let port = replica(&world.client, n, world.keys.clone(), &world.stop).await;
            world.ports.push(port);
        }
        world
    }

    /// The same without gateways.
    pub(crate) async fn bare(make: impl Fn(&str, SocketAddr) -> Runs + Send + Sync + 'static) -> World {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), "default");
        install(&client).await;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = serde_json::from_value(json!({ "metadata": { "name": SYSTEM } })).unwrap();
        namespaces.create(&PostParams::default(), &system).await.unwrap();
        let stop = CancellationToken::new();
        let port = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap().port();
        let instances = Arc::new(Instances {
            make: Box::new(make),
            port,
            next: AtomicU8::new(2),
            running: Mutex::default(),
            started: AtomicUsize::new(0),
        });
        tokio::spawn(kubelet(client.clone(), instances.clone(), stop.clone()));
        let options = lifecycle::Options {
            namespace: SYSTEM.into(),
            timing: timing(),
            limits: lifecycle::Limits::default(),
        };
        tokio::spawn(lifecycle::Manager::new(client.clone(), options).run(stop.clone()));
        let keys = Keys::generate(KeyId::new("k1").unwrap());
        let _stop = stop.clone().drop_guard();
        World { client, ports: Vec::new(), keys, stop, instances, _stop, _server: server }
    }

    pub(crate) async fn create(&self, object: Value) -> Value {
        create(&self.client, object).await
    }

    /// A Task that both gateways serve, as its controller leaves it. `routing` is added to its routing.
    pub(crate) async fn task(&self, name: &str, routing: Value, most: u32) -> TaskId {
        let mut object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": {
                "deployment": { "type": "sandbox", "sandboxTemplate": {} },
                "routing": { "gatewayRefs": ["gateway-0", "gateway-1"], "routePolicy": "BySession",
                    "reserveTimeout": "20s" },
                "scaling": { "scalingMode": "OnDemand", "maxInstances": most,
                    "instanceLifecycle": { "idleTimeout": "1h", "reusePolicy": "Always" } },
                "requestHandling": { "backend": { "port": self.instances.port } },
            },
        });
        for (key, value) in routing.as_object().unwrap() {
            object["spec"]["routing"][key] = value.clone();
        }
        let task = self.create(object).await;
        let uid = task["metadata"]["uid"].as_str().unwrap();
        let id = TaskId { namespace: "default".into(), name: name.into(), uid: uid.into() };
        let template = json!({
            "metadata": { "name": format!("{name}-1"), "labels": { labels::FORM: "slots" },
                "ownerReferences": [serde_json::to_value(owner(&id)).unwrap()] },
            "template": { "spec": { "nodeName": "node", "containers": [{ "name": "agent", "image": "agent:1" }] } },
        });
        let template: PodTemplate = serde_json::from_value(template).unwrap();
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), "default");
        templates.create(&PostParams::default(), &template).await.unwrap();
        let api: Api<agentcube_api::Task> = Api::namespaced(self.client.clone(), "default");
        let status = Patch::Merge(json!({ "status": { "specID": format!("{name}-1") } }));
        api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
        for replica in 0..self.ports.len() {
            until("both gateways serve it", async || {
                let found = self.send(replica, Request::get(format!("/default/{name}/ready")), "").await;
                let known = !found.text.contains("NoRoute") && !found.text.contains("GatewayNotReady");
                known.then_some(())
            })
            .await;
        }
        id
    }

    /// Lets in only those with tokens of these providers, by either gateway, from now on.
    // Not needed by the suite with the official clients, which shares this file.
    #[allow(dead_code)]
    pub(crate) async fn guard(&self, task: &str, providers: Value) {
        for replica in 0..2 {
            let spec = json!({ "listeners": [http_listener("http", self.ports[replica])],
                "authentication": { "jwt": { "providers": providers } } });
            self.create(json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway",
                "metadata": { "name": format!("gateway-{replica}") }, "spec": spec }))
                .await;
        }
        for replica in 0..2 {
            until("it is guarded", async || {
                let found = self.send(replica, Request::get(format!("/default/{task}")), "").await;
                (found.status == 401).then_some(())
            })
            .await;
        }
    }

    async fn open(&self, replica: usize, request: http::request::Builder, text: &str) -> Response<Incoming> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[replica])).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = request.header("host", "gw.example:80").body(Full::new(Bytes::from(text.to_owned())));
        tokio::time::timeout(LONG, sender.send_request(request.unwrap())).await.expect("an answer").unwrap()
    }

    /// A request through one of the two gateways.
    pub(crate) async fn send(&self, replica: usize, request: http::request::Builder, text: &str) -> Got {
        let response = self.open(replica, request, text).await;
        let (head, body) = response.into_parts();
        let body = tokio::time::timeout(LONG, body.collect()).await.expect("an end").unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        Got { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// The first so many events of a stream, as they come.
    pub(crate) async fn stream(
        &self,
        replica: usize,
        request: http::request::Builder,
        text: &str,
        count: usize,
    ) -> Vec<String> {
        let mut body = self.open(replica, request, text).await.into_body();
        let mut all = String::new();
        while all.matches("\n\n").count() < count {
            let frame = tokio::time::timeout(LONG, body.frame()).await.expect("an event");
            all.push_str(&String::from_utf8_lossy(frame.expect("more").unwrap().data_ref().unwrap()));
        }
        all.split_terminator("\n\n").map(str::to_owned).collect()
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn count_leases(&self, kind: &str) -> usize {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "default");
        let of_kind = ListParams::default().labels(&format!("{}={kind}", labels::LEASE));
        leases.list(&of_kind).await.unwrap().items.len()
    }

    /// How many instances were ever started.
    pub(crate) fn started(&self) -> usize {
        self.instances.started.load(Ordering::SeqCst)
    }

    /// Kills an instance, and comes back when it is gone. The gateways may hear of it later.
    pub(crate) async fn kill(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
        until("it is gone", async || self.pods().get_opt(pod).await.unwrap().is_none().then_some(())).await;
    }
}

/// What gives requests their instances in a router.
pub(crate) fn reserver(client: &Client, n: usize, keys: Keys) -> Reserver {
    let options =
        reserve::Options { name: format!("r{n}"), namespace: SYSTEM.into(), keys, timing: timing() };
    Reserver::new(client.clone(), options)
}

/// Runs it; comes back when it is ready.
pub(crate) async fn run_reserver(reserver: &Reserver, stop: &CancellationToken) {
    tokio::spawn(reserver.clone().run(stop.clone()));
    tokio::time::timeout(LONG, reserver.ready()).await.expect("a router gets ready");
}

/// A gateway with a router of its own; its port.
async fn replica(client: &Client, n: usize, keys: Keys, stop: &CancellationToken) -> u16 {
    let reserver = reserver(client, n, keys);
    run_reserver(&reserver, stop).await;
    let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = bound.local_addr().unwrap().port();
    let controller = format!("example.com/gateway-{n}");
    let options = Options { bound: vec![bound], controller: controller.clone(), ..Options::default() };
    let gateway = Gateway::new(client.clone(), Arc::new(reserver), Arc::new(Tcp), options);
    tokio::spawn(gateway.run(stop.clone()));
    let class = format!("class-{n}");
    create(
        client,
        json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": { "name": class }, "spec": { "controllerName": controller } }),
    )
    .await;
    let mut object = gateway_object(&format!("gateway-{n}"), json!([http_listener("http", port)]));
    object["spec"]["gatewayClassName"] = json!(class);
    create(client, object).await;
    port
}

async fn create(client: &Client, object: Value) -> Value {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let kind = object["kind"].as_str().unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match kind {
        "GatewayClass" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), "default", &resource),
    };
    let created = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    serde_json::to_value(created).unwrap()
}

fn timing() -> Timing {
    Timing {
        grace: Duration::from_secs(2),
        heartbeat: Duration::from_millis(500),
        silent: Duration::from_secs(15),
        out_of_touch: Duration::from_secs(60),
    }
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
    tokio::time::timeout(LONG, search).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

async fn kubelet(client: Client, instances: Arc<Instances>, stop: CancellationToken) {
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let serve = async {
        loop {
            if let Ok(events) = pods.watch(&WatchParams::default(), "0").await {
                let mut events = std::pin::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event {
                        tend(&pods, &pod, &instances).await;
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
    instances.running.lock().values().for_each(CancellationToken::cancel);
}

async fn tend(pods: &Api<Pod>, pod: &Pod, instances: &Arc<Instances>) {
    let uid = pod.uid().unwrap();
    if pod.metadata.deletion_timestamp.is_some() {
        if let Some(running) = instances.running.lock().remove(&uid) {
            running.cancel();
        }
        // By now another may have its name.
        let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let _gone = pods.delete(&pod.name_any(), &parameters.grace_period(0)).await;
        return;
    }
    if instances.running.lock().contains_key(&uid)
        || pod.status.as_ref().is_some_and(|it| it.pod_ip.is_some())
    {
        return;
    }
    let end = CancellationToken::new();
    instances.running.lock().insert(uid, end.clone());
    instances.started.fetch_add(1, Ordering::SeqCst);
    let ip = Ipv4Addr::new(127, 0, 0, instances.next.fetch_add(1, Ordering::SeqCst));
    let address = SocketAddr::from((ip, instances.port));
    match (instances.make)(&pod.name_any(), address) {
        Runs::Agent(agent) => serve(address, agent, end).await,
        Runs::Program(program) => run(address, program, end).await,
    }
    let status = json!({ "status": { "phase": "Running", "podIP": ip.to_string(),
        "conditions": [{ "type": "Ready", "status": "True" }] } });
    let _gone = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await;
}

/// Runs a program until the end; comes back when it listens.
async fn run(address: SocketAddr, mut program: tokio::process::Command, end: CancellationToken) {
    let mut child = program.kill_on_drop(true).spawn().unwrap();
    while TcpStream::connect(address).await.is_err() {
        // Whoever waits for the instance is told, and need not wait for ever.
        if let Some(status) = child.try_wait().unwrap() {
            eprintln!("a program of an instance has ended before it listened: {status}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::spawn(async move {
        tokio::select! {
            status = child.wait() => eprintln!("a program of an instance has ended: {status:?}"),
            () = end.cancelled() => drop(child.kill().await),
        }
    });
}

/// Serves until the end, which cuts every connection.
async fn serve(address: SocketAddr, agent: Agent, end: CancellationToken) {
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(end.clone().run_until_cancelled_owned(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let agent = agent.clone();
            let service = hyper::service::service_fn(move |request| {
                agent(request).map(Ok::<_, std::convert::Infallible>)
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(end.clone().run_until_cancelled_owned(connection));
        }
    }));
}

/// A request with a JSON body.
pub(crate) fn post(path: &str) -> http::request::Builder {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("accept-encoding", "gzip")
}
