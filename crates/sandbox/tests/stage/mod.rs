//! A stage for the controllers: an API server, agents in memory, and controllers that can die.

pub(crate) mod disk;
pub(crate) mod fake;
pub(crate) mod fuse;
pub(crate) mod server;

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
    Access, AgentId, Controllers, FastPathService, Fleet, FleetError, Log, OneToken, Options, Place, PoolKey,
    Registry, Reviews, Timing,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use disk::Trouble;
use fake::{Book, Fake};
use fuse::{Fuse, Fused, Weather};

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
        demand: Duration::from_secs(1),
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
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    disk: Option<disk::Fused>,
}

impl Controller {
    /// Ends it as a crash would: whatever it was doing is not done.
    pub(crate) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
        if let Some(disk) = self.disk {
            disk.close();
        }
    }

    /// Ends it in order.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("nothing panicked");
    }
}

pub(crate) struct Stage {
    /// Ends with the stage, if it is its own.
    _server: Option<Server>,
    pub(crate) client: Client,
    pub(crate) agents: Arc<Agents>,
    pub(crate) weather: Arc<Mutex<Weather>>,
    pub(crate) trouble: Arc<Trouble>,
    /// Where controllers keep their log, if they do.
    log: Option<tempfile::TempDir>,
    access: Arc<dyn Access>,
    term: Mutex<u64>,
}

impl Stage {
    /// A server with a pool of so many agents, of four slots each.
    pub(crate) async fn open(agents: u32) -> Stage {
        let (client, server) = server::open().await;
        let stage = Stage {
            _server: server,
            client,
            agents: Agents::new(),
            weather: Arc::new(Mutex::new(Weather::Fair)),
            trouble: Arc::default(),
            log: None,
            access: Arc::new(OneToken::new("secret")),
            term: Mutex::new(0),
        };
        (0..agents).for_each(|index| stage.agents.add(index));
        stage
            .create_pool(json!({ "capacity": { "poolMin": agents, "poolMax": agents.max(1), "bufferMin": 0 },
            "maxSandboxesPerPod": 4 }))
            .await;
        stage
    }

    /// Controllers keep a log.
    pub(crate) fn logging(mut self) -> Stage {
        self.log = Some(tempfile::tempdir().expect("there is room for a directory"));
        self
    }

    /// Controllers ask the server who may do what.
    #[allow(dead_code, reason = "for the suite on kube-apiserver; the embedded one has one user")]
    pub(crate) fn reviewing(mut self) -> Stage {
        self.access = Arc::new(Reviews::new(self.client.clone()));
        self
    }

    /// Bytes of the log.
    pub(crate) fn log_length(&self) -> u64 {
        let log = self.log.as_ref().expect("there is a log").path().join("log");
        let bytes = std::fs::read(log).unwrap_or_default();
        // Behind it there is room, which is zeros.
        bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
    }

    pub(crate) fn weather(&self, weather: Weather) {
        *self.weather.lock() = weather;
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

    /// A controller of the next term, ready, and with room at every agent that can be reached.
    pub(crate) async fn start(&self) -> Controller {
        let (controller, ready) = self.start_with(&Fuse::never(), Options::default());
        tokio::time::timeout(LONG, ready).await.expect("it gets ready");
        // On a slow machine it is ready before it has heard of all: it waits for none for long.
        let term = *self.term.lock();
        until("it has heard of all agents", async || {
            // Of a pool that is missing there are none.
            let Some(pool) = self.pools().get_opt(POOL).await.unwrap() else { return Some(()) };
            let agents: Vec<Arc<Fake>> = self.agents.all.lock().values().cloned().collect();
            let reached: Vec<_> = agents.iter().filter(|agent| !agent.is_cut()).collect();
            let each = pool.spec.max_sandboxes_per_pod.max(0).unsigned_abs() as usize;
            let room = controller.registry.audit().capacity as usize;
            let heard = reached.iter().all(|agent| agent.is_configured(term));
            (heard && room >= each * reached.len()).then_some(())
        })
        .await;
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
        let path = self.log.as_ref().map(|directory| directory.path().join("log"));
        let disk = path.map(|path| disk::Fused::open(&path, fuse, &self.trouble));
        let log = disk.clone().map(|disk| Log::open_on(Box::new(disk)).expect("the log is whole"));
        disk.iter().for_each(disk::Fused::opened);
        let options = Options { term, timing: timing(), log, ..options };
        let fleet = Arc::new(Reached { agents: self.agents.clone(), fuse: fuse.clone() });
        let (client, metrics) = (fuse.client(&self.client, &self.weather), Metrics::new());
        let controllers = Controllers::new(client, fleet, self.access.clone(), options, &metrics);
        let (registry, ready) = (controllers.registry(), controllers.ready());
        let fastpath = FastPathClient::new(controllers.fastpath());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(controllers.run(shutdown.clone()));
        (Controller { fastpath, registry, shutdown, running, disk }, ready)
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

    /// Waits for an Event about a sandbox.
    pub(crate) async fn until_event(&self, name: &str, reason: &str) -> Event {
        let api: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let about = |event: &Event| {
            event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
        };
        until(&format!("an Event {reason} about {name}"), async || {
            api.list(&ListParams::default()).await.unwrap().items.into_iter().find(about)
        })
        .await
    }

    /// Every state of a sandbox from now on, as a client sees it that watches.
    pub(crate) async fn history(&self, name: &str) -> History {
        let (api, name) = (self.sandboxes(), name.to_string());
        let from = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = api.watch(&parameters, &from).await.unwrap().boxed();
        let (states, history) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(state) | WatchEvent::Modified(state) = event {
                    let _ = states.send(state);
                }
            }
        });
        History(history)
    }

    pub(crate) async fn objects(&self) -> Vec<Sandbox> {
        self.sandboxes().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until objects, agents and the registry say the same, and nothing runs twice or for nobody.
    pub(crate) async fn until_at_rest(&self, controller: &Controller) {
        self.until_at_rest_with(controller, &[SandboxPhase::Running]).await;
    }

    /// The same with sandboxes in all of these phases.
    pub(crate) async fn until_at_rest_with(&self, controller: &Controller, phases: &[SandboxPhase]) {
        let last = Mutex::new(String::new());
        let look = async || {
            let objects = self.objects().await;
            let settled = objects.iter().all(|object| {
                let annotated = object.annotations().contains_key(agentcube_api::labels::SANDBOX_ALLOCATION);
                object.metadata.deletion_timestamp.is_none()
                    && !annotated
                    && phase(object).is_some_and(|phase| phases.contains(&phase))
            });
            let running = objects.iter().filter(|object| phase(object) == Some(SandboxPhase::Running));
            let mut named: Vec<String> = running.filter_map(run_of).collect();
            named.sort();
            let audit = controller.registry.audit();
            let held: Vec<String> = audit.held.iter().map(ToString::to_string).collect();
            let agree = settled && named == self.agents.runs() && held == named && audit.mismatched == 0;
            let booked = self.agents.book.running();
            let mut booked: Vec<&String> = booked.values().collect();
            booked.sort();
            *last.lock() = format!("{objects:#?}\nat agents {:?}, held {held:?}", self.agents.runs());
            (agree && booked == named.iter().collect::<Vec<_>>()).then_some(())
        };
        if tokio::time::timeout(LONG, search(look)).await.is_err() {
            panic!("objects, agents and the registry do not agree: {}", last.lock());
        }
        self.agents.book.check();
    }
}

/// What a watch has told.
pub(crate) struct History(mpsc::UnboundedReceiver<Sandbox>);

impl History {
    /// The next state like this; the ones before it are gone.
    pub(crate) async fn next(&mut self, wanted: impl Fn(&Sandbox) -> bool) -> Sandbox {
        let look = async {
            loop {
                let state = self.0.recv().await.expect("the watch goes on");
                if wanted(&state) {
                    return state;
                }
            }
        };
        tokio::time::timeout(LONG, look).await.expect("it comes to be so")
    }
}

pub(crate) fn phase(sandbox: &Sandbox) -> Option<SandboxPhase> {
    sandbox.status.as_ref().and_then(|status| status.phase)
}

pub(crate) fn run_of(sandbox: &Sandbox) -> Option<String> {
    sandbox.status.as_ref().and_then(|status| status.sandbox_id.clone())
}

pub(crate) fn ask<T>(message: T) -> Request<T> {
    ask_as("secret", message)
}

pub(crate) fn ask_as<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
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
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    match tokio::time::timeout(LONG, search(look)).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}"),
    }
}
