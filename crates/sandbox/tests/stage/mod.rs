//! A stage for the controllers: an API server in memory, agents in memory, and controllers that can die.

pub(crate) mod fake;
pub(crate) mod fuse;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::sandbox::{Sandbox, SandboxPhase, SandboxPool};
use agentcube_apiserver::Server;
use agentcube_operator::metrics::Registry as Metrics;
use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use agentcube_protos::fastpath::fast_path_server::FastPathServer;
use agentcube_protos::fastpath::{CreateRequest, DeleteRequest};
use agentcube_sandbox::{
    AgentId, Controllers, FastPathService, Fleet, FleetError, Name, OneToken, Options, Place, PoolKey,
    Registry, Timing,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use fake::{Book, Fake};
use fuse::{Fuse, Fused};

pub(crate) const NAMESPACE: &str = "boxes";
pub(crate) const POOL: &str = "pool";
const LONG: Duration = Duration::from_secs(60);

/// Short times; what takes longer than these is taken for lost.
pub(crate) fn timing() -> Timing {
    Timing {
        sync: Duration::from_millis(50),
        call: Duration::from_millis(500),
        unhealthy: Duration::from_millis(300),
        dropped: Duration::from_millis(600),
        start: Duration::from_secs(2),
        api: Duration::from_secs(2),
        late: Duration::from_millis(700),
        object_retry: Duration::from_millis(100),
        grace: Duration::from_secs(0),
        ..Timing::default()
    }
}

/// Agents that outlive controllers.
pub(crate) struct Agents {
    pub(crate) book: Arc<Book>,
    all: Mutex<BTreeMap<u32, Arc<Fake>>>,
    dead: Mutex<HashSet<String>>,
    made: Mutex<u32>,
    changes: broadcast::Sender<PoolKey>,
}

impl Agents {
    fn new() -> Arc<Agents> {
        Arc::new(Agents {
            book: Arc::default(),
            all: Mutex::default(),
            dead: Mutex::default(),
            made: Mutex::default(),
            changes: broadcast::Sender::new(16),
        })
    }

    pub(crate) fn get(&self, index: u32) -> Arc<Fake> {
        self.all.lock()[&index].clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Every run that holds a slot anywhere.
    pub(crate) fn runs(&self) -> Vec<String> {
        let mut runs: Vec<String> = self.all.lock().values().flat_map(|agent| agent.runs()).collect();
        runs.sort();
        runs
    }

    pub(crate) fn add(&self, index: u32) {
        let mut made = self.made.lock();
        *made += 1;
        let agent = Fake::new(&format!("uid-{index}-{made}"), self.book.clone());
        self.all.lock().entry(index).or_insert(agent);
        let _ = self.changes.send(PoolKey::new(NAMESPACE, POOL));
    }

    /// An agent dies for certain, with all it runs, and another may take its place.
    pub(crate) fn kill(&self, index: u32) {
        let agent = self.all.lock().remove(&index).unwrap();
        agent.restart();
        agent.cut(true);
        self.dead.lock().insert(agent.uid.clone());
        let _ = self.changes.send(PoolKey::new(NAMESPACE, POOL));
    }
}

/// The agents as one controller reaches them.
struct Reached {
    agents: Arc<Agents>,
    fuse: Fuse,
}

impl Fleet for Reached {
    fn agents(&self, pool: &PoolKey) -> Vec<Place> {
        if *pool != PoolKey::new(NAMESPACE, POOL) {
            return Vec::new();
        }
        let all = self.agents.all.lock();
        let place = |(index, agent): (&u32, &Arc<Fake>)| Place {
            id: AgentId { name: format!("{POOL}-agent-{index}"), uid: agent.uid.clone() },
            index: *index,
            dead: false,
            link: Arc::new(Fused { agent: agent.clone(), fuse: self.fuse.clone() }),
        };
        all.iter().map(place).collect()
    }

    fn changes(&self) -> BoxStream<'static, PoolKey> {
        let receiver = self.agents.changes.subscribe();
        futures_util::stream::unfold(receiver, |mut receiver| async move {
            let pool = receiver.recv().await.unwrap_or_else(|_| PoolKey::new(NAMESPACE, POOL));
            Some((pool, receiver))
        })
        .boxed()
    }

    fn add<'a>(&'a self, _: &'a SandboxPool, index: u32) -> BoxFuture<'a, Result<(), FleetError>> {
        Box::pin(async move {
            self.agents.add(index);
            Ok(())
        })
    }

    fn remove<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), FleetError>> {
        Box::pin(async move {
            self.agents.kill(place.index);
            Ok(())
        })
    }

    fn is_dead(&self, agent: &AgentId) -> bool {
        self.agents.dead.lock().contains(&agent.uid)
    }
}

pub(crate) type FastPath = FastPathClient<FastPathServer<FastPathService>>;

/// A controller that runs.
pub(crate) struct Controller {
    pub(crate) fastpath: FastPath,
    pub(crate) registry: Registry,
    pub(crate) metrics: Metrics,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Controller {
    /// Ends it as a crash would: whatever it was doing is not done.
    pub(crate) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    /// Ends it in order.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("nothing panicked");
    }
}

pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) agents: Arc<Agents>,
    term: Mutex<u64>,
}

impl Stage {
    /// A server with a pool of so many agents, of four slots each.
    pub(crate) async fn open(agents: u32) -> Stage {
        let server = Server::builder().memory().embed().await.expect("a server in memory starts");
        let client = Client::new(server.front(), NAMESPACE);
        install(&client).await;
        let stage = Stage { server, client, agents: Agents::new(), term: Mutex::new(0) };
        (0..agents).for_each(|index| stage.agents.add(index));
        stage
            .create_pool(json!({ "capacity": { "poolMin": agents, "poolMax": agents.max(1), "bufferMin": 0 },
            "maxSandboxesPerPod": 4 }))
            .await;
        stage
    }

    pub(crate) async fn create_pool(&self, spec: Value) -> SandboxPool {
        let api: Api<SandboxPool> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pool = serde_json::from_value(json!({ "metadata": { "name": POOL }, "spec": spec })).unwrap();
        api.create(&PostParams::default(), &pool).await.expect("the server takes it")
    }

    pub(crate) fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn pools(&self) -> Api<SandboxPool> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A controller of the next term, ready.
    pub(crate) async fn start(&self) -> Controller {
        let (controller, ready) = self.start_with(&Fuse::never(), Options::default());
        tokio::time::timeout(LONG, ready).await.expect("it gets ready");
        controller
    }

    pub(crate) fn start_with(
        &self,
        fuse: &Fuse,
        options: Options,
    ) -> (Controller, impl Future<Output = ()> + Send + use<>) {
        let term = {
            let mut term = self.term.lock();
            *term += 1;
            *term
        };
        let options = Options { term, timing: timing(), ..options };
        let fleet = Arc::new(Reached { agents: self.agents.clone(), fuse: fuse.clone() });
        let (client, metrics) = (fuse.client(&self.server), Metrics::new());
        let controllers =
            Controllers::new(client, fleet, Arc::new(OneToken::new("secret")), options, &metrics);
        let (registry, ready) = (controllers.registry(), controllers.ready());
        let fastpath = FastPathClient::new(controllers.fastpath());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(controllers.run(shutdown.clone()));
        (Controller { fastpath, registry, metrics, shutdown, running }, ready)
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> Sandbox {
        let mut object =
            json!({ "metadata": { "name": name }, "spec": { "image": "image", "poolRef": POOL } });
        merge(&mut object, spec);
        let object = serde_json::from_value(object).unwrap();
        self.sandboxes().create(&PostParams::default(), &object).await.expect("the server takes it")
    }

    pub(crate) async fn until(&self, name: &str, wanted: impl Fn(&Sandbox) -> bool) -> Sandbox {
        let last = Mutex::new(None);
        let look = async || {
            let now = self.sandboxes().get_opt(name).await.unwrap();
            last.lock().clone_from(&now);
            now.filter(|now| wanted(now))
        };
        match tokio::time::timeout(LONG, search(look)).await {
            Ok(found) => found,
            Err(_) => panic!("{name} is not as wanted: {:#?}", last.lock()),
        }
    }

    pub(crate) async fn until_phase(&self, name: &str, wanted: SandboxPhase) -> Sandbox {
        self.until(name, |sandbox| phase(sandbox) == Some(wanted)).await
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        until("it is gone", async || self.sandboxes().get_opt(name).await.unwrap().is_none().then_some(()))
            .await;
    }

    pub(crate) async fn objects(&self) -> Vec<Sandbox> {
        self.sandboxes().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until objects, agents and the registry say the same, and nothing runs twice or for nobody.
    pub(crate) async fn until_at_rest(&self, controller: &Controller) {
        until("objects, agents and the registry agree", async || {
            let objects = self.objects().await;
            let settled = objects.iter().all(|object| {
                let annotated = object.annotations().contains_key(agentcube_api::labels::SANDBOX_ALLOCATION);
                object.metadata.deletion_timestamp.is_none()
                    && !annotated
                    && phase(object) == Some(SandboxPhase::Running)
            });
            let mut named: Vec<String> = objects.iter().filter_map(run_of).collect();
            named.sort();
            let audit = controller.registry.audit();
            let held: Vec<String> = audit.held.iter().map(ToString::to_string).collect();
            let agree = settled && named == self.agents.runs() && held == named && audit.mismatched == 0;
            let booked = self.agents.book.running();
            let mut booked: Vec<&String> = booked.values().collect();
            booked.sort();
            (agree && booked == named.iter().collect::<Vec<_>>()).then_some(())
        })
        .await;
        self.agents.book.check();
    }
}

pub(crate) fn phase(sandbox: &Sandbox) -> Option<SandboxPhase> {
    sandbox.status.as_ref().and_then(|status| status.phase)
}

pub(crate) fn run_of(sandbox: &Sandbox) -> Option<String> {
    sandbox.status.as_ref().and_then(|status| status.sandbox_id.clone())
}

pub(crate) fn ask<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request
}

pub(crate) fn wanted(name: &str) -> CreateRequest {
    CreateRequest {
        image: "image".into(),
        pool_ref: POOL.into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
        ports: vec![80],
        ..CreateRequest::default()
    }
}

pub(crate) fn unwanted(name: &str) -> DeleteRequest {
    DeleteRequest { sandbox_id: name.into(), namespace: NAMESPACE.into() }
}

pub(crate) fn named(name: &str) -> Name {
    Name::new(NAMESPACE, name)
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

async fn search<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    match tokio::time::timeout(LONG, search(look)).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

async fn install(client: &Client) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in agentcube_api::crds() {
        if crd.spec.group == "sandbox.fast.io" {
            api.create(&PostParams::default(), &crd).await.expect("the server takes it");
        }
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } })).unwrap();
    let _ = namespaces.create(&PostParams::default(), &namespace).await;
}
