//! The front as a whole: what its services share, and how it starts and stops. It stops in order: it says that it is not
//! to be asked any more, answers what it was asked, sends Envoys elsewhere with what they have to tell, and waits until the
//! requests on their way have ended, were taken over by another router, or have run out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentcube_api::Task;
use agentcube_api::labels::SUBJECT_HEADER;
use agentcube_instance::provider::InstanceProvider;
use agentcube_instance::reserve::{self, InUse, Reserver};
use agentcube_instance::{InstanceId, SessionKey, TaskId};
use agentcube_operator::cache::Cache;
use agentcube_operator::metrics::{Counter, Registry};
use agentcube_router::observe::{AccessLog as Lines, Observer};
use agentcube_router::route::Table;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogServiceServer, SERVICE_NAME as ACCESS_LOG,
};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessorServer, SERVICE_NAME as EXTERNAL_PROCESSOR,
};
use http::header::HeaderName;
use kube::Client;
use kube::runtime::watcher;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::HealthReporter;

use crate::access_log::{AccessLog, Entry};
use crate::hold::Hold;
use crate::ledger::{Ledger, Pick};
use crate::listen;
use crate::peers::{Peers, Word};
use crate::processor::Processor;
use crate::tls::{Certificates, Error, Tls};
use crate::who::Names;

/// The largest message of Envoy's, in bytes. Heads of requests are far smaller; access logs come in batches.
const LARGEST_MESSAGE: usize = 4 << 20;
const MOST_STREAMS: u32 = 4096;
/// Envoy resets each stream as soon as it has its answer. What guards HTTP/2 servers against that must not take it for
/// an attack, or connections are closed under load.
const MOST_RESETS: usize = 20_000;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long the last answers may take when it stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Between the process and the number of a pick.
const IN_PICK: char = '-';

const LEASE: Duration = Duration::from_secs(60);

/// How long to listen for the end of requests that count as being on their way for so long: what is not heard of by
/// then has run out.
pub fn drain_for(lease: Duration) -> Duration {
    lease + Duration::from_secs(5)
}

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The header that names on whose behalf a request comes.
    pub tenant_header: HeaderName,
    /// The header by which a service that Envoy asks for authorisation says who sends a request. Envoy has to take it
    /// away from clients.
    pub subject_header: HeaderName,
    /// How long a request counts as being on its way after it was last heard of. Longer than a few of the intervals in
    /// which Envoy tells of requests that go on.
    pub lease: Duration,
    /// The picked instance is told by a header as well as by metadata, for Envoys that have no cluster which reads
    /// metadata. Weaker: see docs/envoy.md.
    pub by_header: bool,
    /// How many requests may be on their way.
    pub most_held: usize,
    /// How long it goes on as before when it stops, but for what it says of its health, so that Envoys notice.
    pub notice: Duration,
    /// How long requests on their way are listened for after that. Longer than the lease, or what nobody tells of any
    /// more keeps its own Lease from going.
    pub drain: Duration,
    /// How many connections of Envoys there may be.
    pub connections: usize,
    pub tls: Option<Tls>,
    /// Where requests are counted.
    pub metrics: Registry,
    /// Where there is a line for each.
    pub access_log: Option<Lines>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tenant_header: HeaderName::from_static("x-tenant-id"),
            subject_header: HeaderName::from_static(SUBJECT_HEADER),
            lease: LEASE,
            by_header: false,
            most_held: 200_000,
            notice: Duration::from_secs(3),
            drain: drain_for(LEASE),
            connections: 1024,
            tls: None,
            metrics: Registry::new(),
            access_log: None,
        }
    }
}

/// Whoever gives requests their instances, and can be told of requests that others have begun.
pub trait Sessions: InstanceProvider + 'static {
    /// A hold for a request that is at this instance, of this session or of none; nothing if that is not so any more.
    fn take_over(&self, task: &TaskId, key: Option<&SessionKey>, instance: &InstanceId) -> Option<InUse>;

    /// Whether there may be requests on their way that nobody has told of.
    fn set_unsure(&self, unsure: bool);

    /// What this process is called among those of all routers.
    fn process(&self) -> Arc<str>;

    /// Where the processes of routers are reached.
    fn peers(&self) -> watch::Receiver<reserve::Peers>;
}

impl Sessions for Reserver {
    fn take_over(&self, task: &TaskId, key: Option<&SessionKey>, instance: &InstanceId) -> Option<InUse> {
        Reserver::take_over(self, task, key, instance)
    }

    fn set_unsure(&self, unsure: bool) {
        Reserver::set_unsure(self, unsure);
    }

    fn process(&self) -> Arc<str> {
        Reserver::process(self)
    }

    fn peers(&self) -> watch::Receiver<reserve::Peers> {
        Reserver::peers(self)
    }
}

/// What the services share.
pub(crate) struct Shared {
    pub(crate) table: RwLock<Table>,
    pub(crate) provider: Arc<dyn Sessions>,
    pub(crate) names: Names,
    pub(crate) by_header: bool,
    pub(crate) observer: Arc<Observer>,
    unheard: Counter,
    /// Envoys are to tell another router of requests.
    pub(crate) elsewhere: CancellationToken,
    /// Ends what would go on for ever.
    pub(crate) cut: CancellationToken,
    ledger: Mutex<Ledger<Arc<Hold>>>,
    begun: Notify,
    doubt: Doubt,
    start: Instant,
    peers: Peers,
    /// Tells the picks of this process from those of others.
    process: Arc<str>,
    next: AtomicU64,
}

impl Shared {
    fn new(provider: Arc<dyn Sessions>, options: &Options) -> Shared {
        let observer = Observer::new("envoy", &options.metrics, options.access_log.clone());
        let help = "Requests that were let go of because nothing was heard of them for too long";
        let unheard = options.metrics.counter("agentcube_requests_unheard_total", help, &[]).with(&[]);
        Shared {
            table: RwLock::new(Table::counted(observer.counts().clone())),
            observer,
            unheard,
            process: provider.process(),
            peers: Peers::default(),
            provider,
            names: Names { tenant: options.tenant_header.clone(), subject: options.subject_header.clone() },
            by_header: options.by_header,
            elsewhere: CancellationToken::new(),
            cut: CancellationToken::new(),
            ledger: Mutex::new(Ledger::new(options.lease, options.most_held)),
            begun: Notify::new(),
            doubt: Doubt { lease: options.lease, ..Doubt::default() },
            start: Instant::now(),
            next: AtomicU64::new(1),
        }
    }

    /// An id that no other pick has. Not the request's, which may be the client's to choose.
    pub(crate) fn pick(&self) -> Pick {
        format!("{}{IN_PICK}{:x}", self.process, self.next.fetch_add(1, Ordering::Relaxed)).into()
    }

    /// A request goes to its instance.
    pub(crate) fn begin(&self, pick: Pick, hold: Arc<Hold>) {
        let (first, dropped) = {
            let mut ledger = self.ledger.lock();
            let first = ledger.is_empty();
            (first, ledger.begin(pick, hold, self.start.elapsed()))
        };
        if dropped.is_some() {
            // It may be on its way all the same.
            self.unsure();
            tracing::warn!("there are as many requests on their way as can be held: the oldest is let go of");
        }
        if first {
            self.begun.notify_one();
        }
    }

    /// A request has ended.
    pub(crate) fn end(&self, pick: &str) {
        let ended = self.ledger.lock().end(pick);
        drop(ended);
    }

    /// The access log tells of a request.
    pub(crate) fn hear(&self, entry: &Entry<'_>) {
        if entry.ended {
            self.end(entry.mark.pick);
            return self.tell_picker(entry.mark.pick);
        }
        if !self.ledger.lock().heard(entry.mark.pick, self.start.elapsed())
            && let Some(hold) = self.take_over(entry)
        {
            tracing::debug!(pick = entry.mark.pick, "taken over");
            let pick: Pick = entry.mark.pick.into();
            self.begin(pick.clone(), Arc::new(hold));
            // Whoever has picked it holds it, or one that has taken it over before.
            self.peers.tell_all(&Word { pick, now_at: Some(self.process.clone()) });
        }
    }

    /// Tells whoever picked that the request is over: nobody else does.
    fn tell_picker(&self, pick: &str) {
        if let Some((process, _)) = pick.split_once(IN_PICK) {
            self.peers.tell(process, Word { pick: pick.into(), now_at: None });
        }
    }

    /// Another router tells of a request that may be held here.
    pub(crate) fn hear_from_router(&self, entry: &Entry<'_>) {
        if entry.ended {
            return self.end(entry.mark.pick);
        }
        let (lesser, stops) = (*entry.mark.instance > *self.process, self.elsewhere.is_cancelled());
        // Whoever picked lets go; of two that have taken over at the same time, one has to keep it.
        let passed_on = {
            let mut ledger = self.ledger.lock();
            let goes = ledger.get(entry.mark.pick).is_some_and(|it| !it.is_taken_over() || lesser || stops);
            goes.then(|| ledger.end(entry.mark.pick)).flatten()
        };
        if let Some(hold) = passed_on {
            hold.pass_on();
        }
    }

    /// A hold for a request that another router picked, or this one before it was restarted, or lost sight of.
    fn take_over(&self, entry: &Entry<'_>) -> Option<Hold> {
        let at = entry.at()?;
        let route = self.table.read().task(at.namespace, at.task)?.clone();
        let in_use = self.provider.take_over(&route.task, at.key.as_ref(), &at.instance)?;
        let in_flight = route.counts.as_ref().map(|counts| counts.begin());
        Some(Hold::taken_over(in_use, in_flight, self.provider.clone()))
    }

    /// For the length of a lease there may be requests on their way that are not known: by then they have been heard of,
    /// or are over.
    fn unsure(&self) {
        let mut until = self.doubt.until.lock();
        *until = Some(self.start.elapsed() + self.doubt.lease);
        self.provider.set_unsure(true);
        self.doubt.begun.notify_one();
    }

    /// Ends doubts when their time is over.
    async fn learn(&self) {
        loop {
            let until = *self.doubt.until.lock();
            match until {
                None => self.doubt.begun.notified().await,
                Some(at) if self.start.elapsed() < at => tokio::time::sleep_until(self.start + at).await,
                Some(_) => {
                    let mut now = self.doubt.until.lock();
                    // Another may have begun meanwhile.
                    if *now == until {
                        *now = None;
                        self.provider.set_unsure(false);
                    }
                }
            }
        }
    }

    /// Lets go of what was not heard of for too long.
    async fn let_go(&self) {
        loop {
            let next = self.ledger.lock().next_deadline();
            match next {
                None => self.begun.notified().await,
                Some(at) => {
                    tokio::time::sleep_until(self.start + at).await;
                    let over = self.ledger.lock().run_out(self.start.elapsed());
                    if !over.is_empty() {
                        let count = over.len();
                        self.unheard.add(count as u64);
                        tracing::info!(count, "requests were not heard of for too long, and are let go of");
                    }
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.ledger.lock().is_empty()
    }
}

/// That there may be requests on their way which are not known.
#[derive(Default)]
struct Doubt {
    lease: Duration,
    /// On the clock of the ledger; none if all are known.
    until: Mutex<Option<Duration>>,
    begun: Notify,
}

/// The router as Envoy's external processor.
pub struct Front {
    shared: Arc<Shared>,
    tasks: Cache<Task>,
    options: Options,
}

/// What requests that Envoy still carries hold. As long as it lives they count as being on their way, so the reserver's
/// own end has to come first.
pub struct Holds(#[expect(dead_code, reason = "held, not read")] Arc<Shared>);

impl Front {
    /// To be made before the provider runs. Until every request that another process has begun must have been heard of,
    /// none of them counts as ended.
    pub fn new(client: Client, provider: Arc<dyn Sessions>, options: Options) -> Front {
        let shared = Arc::new(Shared::new(provider, &options));
        shared.unsure();
        Front { shared, tasks: Cache::new(client, watcher::Config::default()), options }
    }

    /// How many requests are on their way.
    pub fn on_their_way(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.ledger.lock().len()
    }

    /// Serves until the shutdown, and then until requests on their way have ended or their time is over.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) -> Result<Holds, Error> {
        let certificates = self.options.tls.clone().map(Certificates::read).transpose()?;
        let Front { shared, tasks, options } = self;
        let caches = CancellationToken::new();
        let _caches = caches.clone().drop_guard();
        let known = watch::Sender::new(false);
        tokio::spawn(tasks.clone().run(caches));
        // From when it hears of requests.
        shared.unsure();
        let working = async {
            tokio::join!(
                crate::tasks::follow(&tasks, &shared.table, &known),
                shared.let_go(),
                shared.learn(),
                shared.peers.follow(&shared.process, shared.provider.peers()),
            )
        };
        tokio::select! {
            _ = working => {}
            () = serve(&shared, listener, certificates, &options, known.subscribe(), shutdown) => {}
        }
        Ok(Holds(shared))
    }
}

async fn serve(
    shared: &Arc<Shared>,
    listener: TcpListener,
    certificates: Option<Certificates>,
    options: &Options,
    mut known: watch::Receiver<bool>,
    shutdown: CancellationToken,
) {
    let (health, health_service) = tonic_health::server::health_reporter();
    tokio::select! {
        _ = known.wait_for(|known| *known) => {}
        () = shutdown.cancelled() => return,
    }
    say(&health, ServingStatus::Serving).await;
    let connections = listen::connections(listener, certificates, options.connections);
    let stop = CancellationToken::new();
    let serving = server(shared, health_service)
        .serve_with_incoming_shutdown(connections, stop.clone().cancelled_owned());
    let stopping = async {
        shutdown.cancelled().await;
        say(&health, ServingStatus::NotServing).await;
        tokio::time::sleep(options.notice).await;
        stop.cancel();
        // To nobody is not elsewhere: then it goes on listening itself.
        if shared.peers.any() {
            shared.elsewhere.cancel();
        }
        drained(shared, options.drain).await;
        shared.cut.cancel();
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    let mut stopping = std::pin::pin!(stopping);
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                tracing::error!(%error, "the server for Envoy ended");
            }
            // Nobody is connected any more, but requests may be on their way.
            if stop.is_cancelled() {
                stopping.await;
            }
        }
        () = &mut stopping => {}
    }
}

async fn say(health: &HealthReporter, status: ServingStatus) {
    for service in ["", EXTERNAL_PROCESSOR, ACCESS_LOG] {
        health.set_service_status(service, status).await;
    }
}

/// Waits until no request is on its way, or for so long.
async fn drained(shared: &Shared, limit: Duration) {
    let ended = async {
        while !shared.is_idle() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(limit, ended).await.is_err() {
        tracing::warn!("requests that had not ended after {limit:?} go on without this router");
    }
}

/// A server as Envoy needs it, without services.
pub fn transport() -> Server {
    Server::builder()
        .max_concurrent_streams(MOST_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MOST_RESETS))
        .http2_keepalive_interval(Some(KEEP_ALIVE))
}

fn server(shared: &Arc<Shared>, health: HealthServer<impl Health>) -> Router {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(EXTERNAL_PROCESSOR)
        .with_service_name(ACCESS_LOG)
        .with_service_name(tonic_health::pb::health_server::SERVICE_NAME)
        .build_v1();
    let processor =
        ExternalProcessorServer::new(Processor(shared.clone())).max_decoding_message_size(LARGEST_MESSAGE);
    let access_log =
        AccessLogServiceServer::new(AccessLog(shared.clone())).max_decoding_message_size(LARGEST_MESSAGE);
    transport()
        .add_service(processor)
        .add_service(access_log)
        .add_service(health)
        .add_optional_service(reflection.ok())
}
