//! A gateway over an embedded API server, real HTTP servers in the place of instances, and a provider that hands them
//! out.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agentcube_api::agentcube::task::InstanceStatistics;
use agentcube_apiserver::Server;
use agentcube_instance::provider::{InstanceProvider, Path, Request as Wanted, ReserveError, Reserved};
use agentcube_instance::reserve::InUse;
use agentcube_instance::token::Token;
use agentcube_instance::{Endpoint, InstanceId, SpecId, TaskId};
use agentcube_router::{CONTROLLER, Connect, Gateway, Options};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::{Client, CustomResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Hands out instances: always the same for one key, in turn without one.
#[derive(Default)]
pub(crate) struct Instances {
    by_task: Mutex<HashMap<String, Vec<SocketAddr>>>,
    bound: Mutex<HashMap<String, usize>>,
    next: AtomicUsize,
    pub(crate) asked: Mutex<Vec<Wanted>>,
    /// Who is told to wait for ever.
    pub(crate) stuck: Mutex<bool>,
    /// Whether all have to wait, until they have not.
    pub(crate) hold: watch::Sender<bool>,
    /// How many wait now.
    pub(crate) waiting: watch::Sender<usize>,
}

/// Counts a request that waits, until it is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> Waiting<'a> {
        count.send_modify(|count| *count += 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Instances {
    pub(crate) fn set(&self, task: &str, instances: &[SocketAddr]) {
        self.by_task.lock().insert(task.into(), instances.to_vec());
    }

    pub(crate) fn forget(&self, task: &str) {
        self.by_task.lock().remove(task);
    }

    fn reserve(&self, wanted: &Wanted) -> Result<Reserved, ReserveError> {
        self.asked.lock().push(wanted.clone());
        let by_task = self.by_task.lock();
        let instances = by_task
            .get(&*wanted.task.name)
            .ok_or_else(|| ReserveError::NotReady("its instances do not start".into()))?;
        let turn = || self.next.fetch_add(1, Ordering::SeqCst);
        let chosen = match &wanted.key {
            None => turn(),
            Some(key) => *self.bound.lock().entry(key.to_string()).or_insert_with(turn),
        } % instances.len();
        let address = instances[chosen];
        Ok(Reserved {
            instance: InstanceId::pod(format!("{}-{chosen}", wanted.task.name), address.to_string()),
            endpoint: Endpoint { host: address.ip(), port: address.port() },
            token: Token::random(),
            path: Path::Reused,
            in_use: in_use(),
        })
    }
}

pub(crate) fn in_use() -> InUse {
    InUse::detached()
}

impl InstanceProvider for Instances {
    fn reserve_instance(&self, request: Wanted) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        if *self.stuck.lock() {
            return Box::pin(async {
                let _waiting = Waiting::begin(&self.waiting);
                std::future::pending().await
            });
        }
        if !*self.hold.borrow() {
            return Box::pin(std::future::ready(self.reserve(&request)));
        }
        Box::pin(async move {
            let _waiting = Waiting::begin(&self.waiting);
            let _ = self.hold.subscribe().wait_for(|hold| !hold).await;
            self.reserve(&request)
        })
    }

    fn instance_statistics(&self, _: &TaskId, _: &SpecId) -> InstanceStatistics {
        InstanceStatistics::default()
    }
}

/// Every address is here: those of endpoints may not be of loopback.
struct Here;

impl Connect for Here {
    fn connect(&self, endpoint: Endpoint) -> BoxFuture<'_, std::io::Result<TcpStream>> {
        Box::pin(TcpStream::connect((Ipv4Addr::LOCALHOST, endpoint.port)))
    }
}

/// The world of a test.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) port: u16,
    /// Another port, which no Gateway uses yet.
    pub(crate) second_port: u16,
    pub(crate) instances: Arc<Instances>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) running: tokio::task::JoinHandle<()>,
    _server: Server,
}

impl World {
    pub(crate) async fn new() -> World {
        World::with(Options::default()).await
    }

    /// With a gateway of a TaskGateway that says this, besides where it listens.
    pub(crate) async fn guarded(policy: Value) -> World {
        World::start(Options::default(), Some(policy)).await
    }

    /// With a gateway as these options say; where it listens is chosen here.
    pub(crate) async fn with(options: Options) -> World {
        World::start(options, None).await
    }

    /// With both.
    pub(crate) async fn start(options: Options, policy: Option<Value>) -> World {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), "default");
        install(&client).await;
        let instances = Arc::new(Instances::default());
        let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        let second = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let second_port = second.local_addr().unwrap().port();
        let options = Options { bound: vec![bound, second], ..options };
        let shutdown = CancellationToken::new();
        let gateway = Gateway::new(client.clone(), instances.clone(), Arc::new(Here), options);
        let running = tokio::spawn(gateway.run(shutdown.clone()));
        let world = World { client, port, second_port, instances, shutdown, running, _server: server };
        world
            .create(json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": { "name": "agentcube" }, "spec": { "controllerName": CONTROLLER },
            }))
            .await;
        let mut gateway = gateway_object("default", json!([http_listener("http", port)]));
        if let Some(mut spec) = policy {
            spec["listeners"] = gateway["spec"]["listeners"].clone();
            let policy = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway",
                "metadata": { "name": "default" }, "spec": spec });
            let policy = world.create(policy).await;
            gateway["metadata"]["labels"] = json!({ "agentcube.io/gateway": "default" });
            gateway["metadata"]["ownerReferences"] = json!([{ "apiVersion": "agentcube.io/v1alpha1",
                "kind": "TaskGateway", "name": "default", "uid": policy["metadata"]["uid"], "controller": true }]);
        }
        world.create(gateway).await;
        world
    }

    /// Asks again and again until there is an answer.
    pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(&self, ask: impl Fn() -> F) -> T {
        let asking = async {
            loop {
                match ask().await {
                    Some(answer) => return answer,
                    None => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), asking).await.expect("it never came to be")
    }

    fn api(&self, object: &Value) -> (Api<DynamicObject>, String) {
        let version = object["apiVersion"].as_str().unwrap();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource =
            ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap()));
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        match object["kind"].as_str() {
            Some("GatewayClass") => (Api::all_with(self.client.clone(), &resource), name),
            _ => (Api::namespaced_with(self.client.clone(), "default", &resource), name),
        }
    }

    pub(crate) async fn create(&self, object: Value) -> Value {
        let (api, _) = self.api(&object);
        let created =
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        serde_json::to_value(created).unwrap()
    }

    pub(crate) async fn patch(&self, object: &Value, patch: Value) {
        let (api, name) = self.api(object);
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn patch_status(&self, object: &Value, patch: Value) {
        let (api, name) = self.api(object);
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn delete(&self, object: &Value) {
        let (api, name) = self.api(object);
        api.delete(&name, &Default::default()).await.unwrap();
    }

    /// Every state of an object after the one that is given, none left out, until one is as wanted.
    pub(crate) async fn states_until(&self, object: &Value, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let (api, name) = self.api(object);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        let of_name = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(api.watch(&of_name, version).await.unwrap());
        let mut states: Vec<Value> = Vec::new();
        while !states.last().is_some_and(&wanted) {
            let event = tokio::time::timeout(std::time::Duration::from_secs(30), events.next()).await;
            if let WatchEvent::Modified(object) = event.expect("it changes").unwrap().unwrap() {
                states.push(serde_json::to_value(object).unwrap());
            }
        }
        states
    }

    /// Waits until an object is not there any more.
    pub(crate) async fn until_gone(&self, object: &Value) {
        let (api, name) = self.api(object);
        self.eventually(|| async { api.get_opt(&name).await.unwrap().is_none().then_some(()) }).await;
    }

    /// Deletes an object, and leaves what belongs to it.
    pub(crate) async fn orphan(&self, object: &Value) {
        let (api, name) = self.api(object);
        api.delete(&name, &kube::api::DeleteParams::orphan()).await.unwrap();
    }

    /// Waits until an object is as wanted, and shows it.
    pub(crate) async fn until(&self, object: &Value, wanted: impl Fn(&Value) -> bool) -> Value {
        let (api, name) = self.api(object);
        let mut last = Value::Null;
        let reached = tokio::time::timeout(std::time::Duration::from_secs(30), async {
            loop {
                last = serde_json::to_value(api.get(&name).await.unwrap()).unwrap();
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
        assert!(reached.await.is_ok(), "never came to be: {last:#}");
        last
    }

    /// A Task with instances, and the HTTPRoute that its controller would make; comes back when it is served.
    pub(crate) async fn task(&self, name: &str, spec: Value, instances: &[SocketAddr]) -> Value {
        self.instances.set(name, instances);
        let mut object = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": name },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} } },
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        let task = self.create(object).await;
        let route = self.route(&task, "default").await;
        self.until(&route, |route| condition(&route["status"]["parents"][0], "Accepted").is_some()).await;
        task
    }

    pub(crate) async fn route(&self, task: &Value, gateway: &str) -> Value {
        let owner = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "controller": true,
            "name": task["metadata"]["name"], "uid": task["metadata"]["uid"] });
        let hostnames = &task["spec"]["routing"]["hostnames"];
        let mut route = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": task["metadata"]["name"], "ownerReferences": [owner] },
            "spec": { "parentRefs": [{ "name": gateway }] },
        });
        if !hostnames.is_null() {
            route["spec"]["hostnames"] = hostnames.clone();
        }
        self.create(route).await
    }

    /// A connection to the gateway.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.unwrap()
    }

    pub(crate) async fn send<B>(&self, request: Request<B>) -> Response<Incoming>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + Unpin
            + 'static,
    {
        let io = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    /// Status and JSON body of the answer to a request.
    pub(crate) async fn ask(&self, request: http::request::Builder, body: &str) -> (StatusCode, Value) {
        let response = self.send(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await;
        read(response).await
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, Value) {
        let mut request = Request::get(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request, "").await
    }
}

pub(crate) async fn read(response: Response<Incoming>) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

pub(crate) fn gateway_object(name: &str, listeners: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "name": name },
        "spec": { "gatewayClassName": "agentcube", "listeners": listeners },
    })
}

pub(crate) fn http_listener(name: &str, port: u16) -> Value {
    json!({ "name": name, "port": port, "protocol": "HTTP" })
}

pub(crate) async fn install(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions = [
        gateway_api::gateways::Gateway::crd(),
        gateway_api::gatewayclasses::GatewayClass::crd(),
        gateway_api::httproutes::HttpRoute::crd(),
        agentcube_api::Task::crd(),
        agentcube_api::TaskGateway::crd(),
    ];
    for mut definition in definitions {
        let approved = ("api-approved.kubernetes.io".to_owned(), "https://example.com/approved".to_owned());
        definition.metadata.annotations.get_or_insert_default().extend([approved]);
        // The schemas are not the subject here.
        for version in &mut definition.spec.versions {
            let open = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true }});
            version.schema = Some(serde_json::from_value(open).unwrap());
        }
        let created = api.create(&PostParams::default(), &definition).await.unwrap();
        let name = created.metadata.name.unwrap();
        loop {
            let status = api.get(&name).await.unwrap().status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            if conditions.iter().any(|it| it.type_ == "Established" && it.status == "True") {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

/// A server that tells what it was asked.
pub(crate) async fn echo(name: &'static str) -> SocketAddr {
    serve(move |request: Request<Incoming>| async move {
        let headers: BTreeMap<String, String> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
            .collect();
        let target = request.uri().to_string();
        let method = request.method().to_string();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let seen = json!({ "instance": name, "method": method, "target": target, "headers": headers,
            "body": String::from_utf8_lossy(&body) });
        Response::new(Full::new(Bytes::from(seen.to_string())))
    })
    .await
}

/// A server on loopback.
pub(crate) async fn serve<F, R, B>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            let service = hyper::service::service_fn(move |request| {
                let answering = answer(request);
                async move { Ok::<_, Infallible>(answering.await) }
            });
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
        }
    });
    address
}
