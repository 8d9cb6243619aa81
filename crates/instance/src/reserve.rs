//! Gives every session an instance of its own, over any number of routers. A bound session is found in memory, without
//! a call; everything else follows `docs/decisions/0011-reservation.md`. Never serves from a memory that may be too old.

mod activity;
mod aliases;
pub mod bind;
mod binder;
mod bindings;
mod by_uid;
mod clock;
mod contact;
mod counts;
mod feed;
mod flush;
mod heartbeat;
mod index;
mod intern;
pub mod known;
mod naming;
mod objections;
mod oneshot;
pub mod pool;
pub mod queue;
mod reached;
mod routers;
mod run;
mod seat;
mod session;
mod shards;
mod signer;
mod start;
mod tasks;
mod waiting;
mod writes;

use std::collections::HashSet;
use std::fmt::{self, Debug, Formatter};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentcube_api::agentcube::task::InstanceStatistics;
use agentcube_operator::cache::Cache;
use agentcube_operator::metrics::Registry;
use futures_util::future::BoxFuture;
use kube::Client;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::alias::{Alias, NameError, Named};
use crate::identity::{Endpoint, InstanceId, SessionKey, SpecId, TaskId};
use crate::provider::{InstanceProvider, Path, Request, ReserveError, Reserved};
use crate::record::Instance;
use crate::revision::label_value;
use crate::timing::Timing;
use crate::token::{Keys, SealKeys};

use activity::Activity;
pub use activity::InUse;
use aliases::Aliases;
use bindings::Bindings;
use clock::Clock;
use contact::Contact;
pub use counts::Counts;
use index::{Index, SessionId};
pub use naming::SessionRef;
use objections::About;
pub use routers::Peers;
use routers::Routers;
use seat::Seat;
use signer::Signer;
use tasks::{TaskView, Tasks};
use waiting::{PoolKey, Pools};
use writes::Writes;

/// How a router takes part.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, which no other router has at the same time.
    pub name: String,
    /// Where its own Lease is: the operator's namespace.
    pub namespace: String,
    /// What tokens are signed with.
    pub keys: Keys,
    pub timing: Timing,
}

/// Gives requests their instances; cheap to clone.
#[derive(Clone)]
pub struct Reserver {
    shared: Arc<Shared>,
}

impl Debug for Reserver {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserver").field("name", &self.shared.me).finish_non_exhaustive()
    }
}

/// Everything that the parts share.
struct Shared {
    /// The router's name.
    me: Arc<str>,
    /// This process of it, whose name no other has, and the two together.
    process: Arc<str>,
    binder: Arc<str>,
    namespace: String,
    lease_name: String,
    timing: Timing,
    clock: Clock,
    writes: Writes,
    index: Index,
    aliases: Aliases,
    alias_reads: Semaphore,
    absent: Mutex<naming::Absent>,
    pools: Pools,
    tasks: Tasks,
    activity: Arc<Activity>,
    bindings: Arc<Bindings>,
    routers: Routers,
    /// Where other routers reach this one.
    address: OnceLock<SocketAddr>,
    contact: Contact,
    counts: Counts,
    signer: Signer,
    /// A mark was seen, or an objection written: the router's Lease is to say so.
    marked: Notify,
    objections: mpsc::UnboundedSender<About>,
    written_objections: Mutex<Option<mpsc::UnboundedReceiver<About>>>,
    starts: Semaphore,
    /// Tasks whose Job is being scaled.
    scaling: Mutex<HashSet<PoolKey>>,
    /// Whoever ends sessions knows of this router.
    announced: watch::Sender<bool>,
    /// All Tasks were read once.
    known_tasks: watch::Sender<bool>,
    /// A Task has its instances on a pool.
    sandboxes_wanted: watch::Sender<bool>,
    stopping: CancellationToken,
}

impl Reserver {
    /// A router that knows nothing yet; [`Reserver::run`] teaches it.
    pub fn new(client: Client, options: Options) -> Reserver {
        Reserver::counted(client, options, &Registry::new())
    }

    /// The same, with its counts among these metrics.
    pub fn counted(client: Client, options: Options, metrics: &Registry) -> Reserver {
        let Options { name, namespace, keys, timing } = options;
        let clock = Clock::start();
        let me: Arc<str> = name.as_str().into();
        let process = RandomState::new().hash_one(&name);
        let process: Arc<str> = format!("{process:016x}").into();
        let binder: Arc<str> = format!("{name}/{process}").into();
        let revisions = watcher::Config::default().labels(agentcube_api::labels::FORM);
        let tasks = Tasks::new(
            Cache::new(client.clone(), watcher::Config::default()),
            Cache::new(client.clone(), revisions),
        );
        let (lease_name, seat) = (format!("router-{name}"), Arc::<Seat>::default());
        let (objections, receiver) = mpsc::unbounded_channel();
        let shared = Shared {
            routers: Routers::new(namespace.clone(), lease_name.clone(), seat.clone()),
            lease_name,
            timing,
            clock,
            writes: Writes::new(client, binder.clone()),
            binder,
            process,
            index: Index::new(),
            aliases: Aliases::new(),
            alias_reads: Semaphore::new(naming::READS),
            absent: Mutex::default(),
            pools: Pools::new(me.clone(), seat, clock),
            tasks,
            activity: Arc::new(Activity::new(clock)),
            bindings: Arc::default(),
            namespace,
            address: OnceLock::new(),
            contact: Contact::new(clock, timing.serves_until()),
            counts: Counts::new(metrics),
            signer: Signer::new(keys),
            marked: Notify::new(),
            objections,
            written_objections: Mutex::new(Some(receiver)),
            starts: Shared::starts_at_a_time(),
            scaling: Mutex::default(),
            announced: watch::Sender::new(false),
            known_tasks: watch::Sender::new(false),
            sandboxes_wanted: watch::Sender::new(false),
            stopping: CancellationToken::new(),
            me,
        };
        let shared = Arc::new(shared);
        let counting = Arc::downgrade(&shared);
        metrics.read_before(move || {
            if let Some(shared) = counting.upgrade() {
                shared.count_sessions();
            }
        });
        Reserver { shared }
    }

    /// Takes part until the shutdown; then stops serving, and says so last of all. To be run once.
    pub async fn run(self, shutdown: CancellationToken) {
        Box::pin(run::run(self.shared, shutdown)).await;
    }

    /// Waits until everything that exists is known.
    pub async fn ready(&self) {
        self.shared.ready().await;
    }

    /// The instance of a session that is bound, from memory. Nothing if it is not, or if memory may be too old.
    pub fn lookup(&self, task: &TaskId, key: &SessionKey) -> Option<Reserved> {
        let view = self.shared.tasks.get(task)?;
        let id = SessionId::of(task, key);
        let found = self.shared.lookup(&view, &id, key, Path::Reused)?;
        self.shared.counts.served(Path::Reused);
        Some(found)
    }

    /// A hold for a request that is under way at this instance, of a session or of none, though another process has begun
    /// it, or this one has lost sight of it. Nothing, and nothing is touched, if the session has another instance by now,
    /// or the instance is gone.
    pub fn take_over(&self, task: &TaskId, key: Option<&SessionKey>, instance: &InstanceId) -> Option<InUse> {
        let view = self.shared.tasks.get(task)?;
        self.shared.take_over(&view, key, instance)
    }

    /// Says whether there may be requests on their way that this router does not know of: where others carry them, they
    /// go on while a router is restarted. As long as it is so, nothing ends for being idle, and a session that ends is
    /// taken to have been interrupted. To be said before the router runs.
    pub fn set_unsure(&self, unsure: bool) {
        self.shared.index.unsure.store(unsure, Ordering::SeqCst);
    }

    /// What this process is called among all processes of routers.
    pub fn process(&self) -> Arc<str> {
        self.shared.process.clone()
    }

    /// Tells the other routers where this one is reached. To be said before it runs.
    pub fn set_address(&self, address: SocketAddr) {
        let _said_once = self.shared.address.set(address);
    }

    /// Where all routers are reached that say it, this one among them.
    pub fn peers(&self) -> watch::Receiver<Peers> {
        self.shared.routers.peers()
    }

    /// What this router has done.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// From now on tokens are signed with these keys.
    pub fn set_keys(&self, keys: Keys) {
        self.shared.signer.set(keys);
    }
}

impl InstanceProvider for Reserver {
    fn reserve_instance(&self, request: Request) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        match self.shared.at_hand(&request) {
            Some(reserved) => Box::pin(std::future::ready(Ok(reserved))),
            None => Box::pin(self.shared.reserve(request)),
        }
    }

    fn instance_at_hand(&self, request: &Request) -> Option<Reserved> {
        self.shared.at_hand(request)
    }

    fn instance_statistics(&self, task: &TaskId, spec: &SpecId) -> InstanceStatistics {
        let spec = SpecId(label_value(&spec.0).into());
        let pool = self.shared.pools.get(&PoolKey::of(task));
        pool.map(|pool| pool.look(|pool| pool.statistics(&spec))).unwrap_or_default()
    }

    fn resolve<'a>(
        &'a self,
        task: &'a TaskId,
        alias: &'a Alias,
        own: Option<&'a SessionKey>,
    ) -> BoxFuture<'a, Result<Option<Named>, ReserveError>> {
        Box::pin(self.shared.resolve(task, alias, own))
    }

    fn name_session<'a>(
        &'a self,
        in_use: &'a InUse,
        aliases: Vec<Alias>,
    ) -> BoxFuture<'a, Result<(), NameError>> {
        Box::pin(self.shared.name_session(in_use, aliases))
    }

    fn end_session(&self, session: SessionRef, rest: Duration) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.end_session(session, rest).await })
    }

    fn seal_keys(&self, task: &TaskId) -> Option<SealKeys> {
        Some(self.shared.signer.seal_keys(&task.uid))
    }
}

impl Shared {
    /// What a request gets: where the instance is, and a token that it believes.
    fn reserved(
        &self,
        view: &TaskView,
        instance: &Instance,
        key: Option<&SessionKey>,
        path: Path,
        in_use: InUse,
    ) -> Option<Reserved> {
        let endpoint = Endpoint { host: instance.address?, port: instance.port.unwrap_or(view.port) };
        let token = self.signer.token(view, instance, key);
        Some(Reserved { instance: instance.id.clone(), endpoint, token, path, in_use })
    }
}
