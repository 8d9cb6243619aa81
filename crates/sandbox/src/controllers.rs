//! The controllers, wired. To be run by the leader only.

use std::sync::{Arc, OnceLock};

use agentcube_operator::cache::Cache;
use agentcube_operator::controller::Controller;
use agentcube_operator::events::Recorder;
use agentcube_operator::metrics::Registry as Metrics;
use agentcube_protos::fastpath::fast_path_server::FastPathServer;
use futures_util::StreamExt;
use kube::Client;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::agents::Agents;
use crate::core::{Core, Demand, Hub, Waiting, is_deleted, pool_of};
use crate::counts::Counts;
use crate::fastpath::FastPathService;
use crate::fleet::Fleet;
use crate::locks::Locks;
use crate::log::Log;
use crate::names::{Name, PoolKey};
use crate::options::Options;
use crate::pending::Pending;
use crate::registry::Registry;
use crate::rush::Rush;
use crate::{pool, sandbox};

/// Sandboxes that are reconciled at once. Many, because most of them wait for an agent: one that ends a program waits for
/// as long as that is given to end by itself, and must not keep others from starting.
const AT_ONCE: usize = 4096;

/// The controllers of Sandbox and SandboxPool, and the fast path.
pub struct Controllers {
    core: Arc<Core>,
    access: Arc<dyn Access>,
    sandboxes: Controller<Name>,
    pools: Controller<PoolKey>,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Controllers {
    pub fn new(
        client: Client,
        fleet: Arc<dyn Fleet>,
        access: Arc<dyn Access>,
        options: Options,
        metrics: &Metrics,
    ) -> Controllers {
        let sandboxes = Controller::new("sandbox").concurrency(AT_ONCE).metrics(metrics);
        let pools = Controller::new("sandboxpool").metrics(metrics);
        let every = watcher::Config::default();
        let core = Arc::new(Core {
            sandboxes: Cache::new(client.clone(), every.clone()),
            pools: Cache::new(client.clone(), every),
            client,
            fleet,
            registry: Registry::default(),
            agents: Agents::default(),
            pending: Pending::default(),
            locks: Locks::default(),
            calls: Semaphore::new(options.concurrency.max(1)),
            growing: Locks::default(),
            queue: sandboxes.queue(),
            pool_queue: pools.queue(),
            demand: Demand::default(),
            waiting: Waiting::default(),
            rush: Rush::default(),
            hub: Hub::default(),
            counts: Counts::new(metrics),
            begun: Instant::now(),
            ready: watch::Sender::new(false),
            stop: CancellationToken::new(),
            events: OnceLock::new(),
            options,
        });
        show(&core, metrics);
        Controllers { core, access, sandboxes, pools }
    }

    /// What clients talk to. Answers that it is not ready until [`Controllers::ready`].
    pub fn fastpath(&self) -> FastPathServer<FastPathService> {
        let most = self.core.options.limits.message;
        FastPathServer::new(FastPathService::new(self.core.clone(), self.access.clone()))
            .max_decoding_message_size(most)
            .max_encoding_message_size(agentcube_protos::link::LONGEST_MESSAGE)
    }

    /// Waits until everything was listed and every agent asked, or given up.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ready = self.core.ready.subscribe();
        async move {
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The slots, for those who count them.
    pub fn registry(&self) -> Registry {
        self.core.registry.clone()
    }

    /// Runs until the shutdown, and then until the reconciles under way are over.
    pub async fn run(self, shutdown: CancellationToken) {
        let Controllers { core, access: _, sandboxes, pools } = self;
        let mut background = JoinSet::new();
        // The caches outlive the reconciles that use them.
        let after = CancellationToken::new();
        let _ended = after.clone().drop_guard();
        let _stopped = core.stop.clone().drop_guard();
        background.spawn(core.sandboxes.clone().run(after.clone()));
        background.spawn(core.pools.clone().run(after.clone()));
        let events = Recorder::start(core.client.clone(), "agentcube-sandbox", None, after.clone());
        let _ = core.events.set(events);
        let booting = core.clone();
        core.spawn(async move { boot(booting).await });

        let hub = core.clone();
        let sandboxes = sandboxes
            .watch(&core.sandboxes, move |change| {
                let name = Name::of(&**change.latest());
                hub.hub.changed(&name);
                [name]
            })
            .needs(&core.pools);
        let waiting = core.clone();
        let pools = pools
            .watch(&core.pools, move |change| {
                let pool = Name::of(&**change.latest());
                waiting.room(&pool);
                // A pool that was missing is there: who waits for it is looked at.
                if change.old.is_none() {
                    of_pool(&waiting, &pool).into_iter().for_each(|name| waiting.queue.add(name));
                }
                [pool]
            })
            .needs(&core.sandboxes);
        let (of_sandboxes, of_pools) = (core.clone(), core.clone());
        tokio::join!(
            sandboxes.run(shutdown.clone(), move |name| {
                Box::pin(sandbox::reconcile(of_sandboxes.clone(), name))
            }),
            pools.run(shutdown, move |key| Box::pin(pool::reconcile(of_pools.clone(), key))),
        );
        core.stop.cancel();
        after.cancel();
        while background.join_next().await.is_some() {}
    }
}

/// Sandboxes of a pool that have no agent yet.
fn of_pool(core: &Core, pool: &PoolKey) -> Vec<Name> {
    let sandboxes = core.sandboxes.list(Some(&pool.namespace));
    let waits = sandboxes.iter().filter(|one| {
        pool_of(one) == *pool && !is_deleted(one) && crate::pending::allocated_run(one).is_none()
    });
    waits.map(|sandbox| Name::of(&**sandbox)).collect()
}

/// Lists, then asks every agent; says when that is done, and goes on taking in which agents there are.
async fn boot(core: Arc<Core>) {
    tokio::join!(core.sandboxes.synced(), core.pools.synced());
    let mut changes = core.fleet.changes();
    let known: Vec<PoolKey> = core.pools.list(None).iter().map(|pool| Name::of(&**pool)).collect();
    known.iter().for_each(|pool| core.look_at_places(pool));
    let agents = core.agents.all();
    let asked = async {
        for agent in agents.iter().filter(|agent| !agent.place.dead) {
            agent.synced().await;
        }
    };
    // Nothing waits for longer than for an agent to count as lost.
    let _ = tokio::time::timeout_at(core.begun + core.options.timing.dropped, asked).await;
    core.ready.send_replace(true);
    known.into_iter().for_each(|pool| core.pool_queue.add(pool));
    // What an earlier controller has promised, and did not get to.
    core.options.log.iter().flat_map(Log::names).for_each(|name| core.queue.add(name));
    while let Some(pool) = changes.next().await {
        core.look_at_places(&pool);
    }
}

/// Counts what is only counted when somebody looks.
fn show(core: &Arc<Core>, metrics: &Metrics) {
    let weak = Mutex::new(Arc::downgrade(core));
    metrics.read_before(move || {
        let Some(core) = weak.lock().upgrade() else { return };
        let audit = core.registry.audit();
        let counts = &core.counts;
        counts.slots.with(&["used"]).set(audit.used.into());
        counts.slots.with(&["free"]).set(audit.capacity.saturating_sub(audit.used).into());
        counts.mismatch.with(&[]).set(i64::try_from(audit.mismatched).unwrap_or(i64::MAX));
        counts.objects_pending.with(&[]).set(i64::try_from(core.pending.count()).unwrap_or(i64::MAX));
        if let Some(log) = &core.options.log {
            counts.log_open.with(&[]).set(i64::try_from(log.names().len()).unwrap_or(i64::MAX));
            counts.log_broken.with(&[]).set(log.check().is_err().into());
        }
        let unhealthy = core.options.timing.unhealthy;
        let (well, silent): (Vec<_>, Vec<_>) =
            core.agents.all().into_iter().partition(|agent| agent.silence(core.begun) < unhealthy);
        counts.agents.with(&["healthy"]).set(i64::try_from(well.len()).unwrap_or(i64::MAX));
        counts.agents.with(&["silent"]).set(i64::try_from(silent.len()).unwrap_or(i64::MAX));
    });
}
