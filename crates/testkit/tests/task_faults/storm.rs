//! Three routers, a lifecycle manager and 200 sessions in a storm: bad lines, instances that die or turn unready,
//! sessions ended by hand, routers and managers that are cut off, crash and come back. The invariants hold at all times,
//! and when the storm is over everything comes to rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use agentcube_instance::provider::Path;
use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use tokio::time::Instant;

use crate::random::Random;
use crate::wire::{Line, Weather};
use crate::world::{LONG, Router, World};

/// What a storm is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) seed: u64,
    pub(crate) lasts: Duration,
    pub(crate) keys: usize,
    pub(crate) clients: usize,
    pub(crate) reuse: bool,
}

const ROUTERS: usize = 3;
const INSTANCES: u64 = 50;

/// The scaling of the Task that a storm needs.
pub(crate) fn scaling(storm: &Storm) -> serde_json::Value {
    let reuse = if storm.reuse { "Always" } else { "Never" };
    json!({ "scalingMode": "OnDemand", "minInstances": 0, "maxInstances": INSTANCES,
        "instanceLifecycle": { "reusePolicy": reuse, "idleTimeout": "1s" } })
}

/// Everything that the clients and the trouble-maker share.
struct Scene {
    world: World,
    storm: Storm,
    random: Random,
    routers: RwLock<Vec<Arc<Router>>>,
    manager: Mutex<Arc<Line>>,
    over: AtomicBool,
    processes: AtomicU64,
    /// How many requests were refused for each reason.
    refused: Mutex<BTreeMap<String, u64>>,
    rebound: AtomicU64,
}

pub(crate) async fn run(world: World, storm: Storm) -> Result<()> {
    let line = Line::new(storm.seed ^ 77, Weather::storm(storm.seed ^ 77));
    world.manager(&line);
    let scene = Arc::new(Scene {
        world,
        storm,
        random: Random::new(storm.seed),
        routers: RwLock::default(),
        manager: Mutex::new(line),
        over: AtomicBool::new(false),
        processes: AtomicU64::new(0),
        refused: Mutex::default(),
        rebound: AtomicU64::new(0),
    });
    for place in 0..ROUTERS {
        let router = scene.new_router(place);
        scene.routers.write().push(router);
    }
    for router in scene.all() {
        router.ready().await?;
    }
    let mut clients = tokio::task::JoinSet::new();
    (0..storm.clients).for_each(|_| drop(clients.spawn(scene.clone().be_a_client())));
    let trouble = tokio::spawn(scene.clone().make_trouble());
    let begun = Instant::now();
    while begun.elapsed() < storm.lasts {
        tokio::time::sleep(Duration::from_millis(100)).await;
        scene.world.verdict()?;
    }
    scene.over.store(true, Ordering::SeqCst);
    trouble.await?;
    scene.calm();
    let drained = async { while clients.join_next().await.is_some() {} };
    tokio::time::timeout(LONG, drained).await.context("requests hang after the storm")?;
    scene.come_to_rest().await
}

impl Scene {
    fn new_router(&self, place: usize) -> Arc<Router> {
        let process = self.processes.fetch_add(1, Ordering::SeqCst);
        let seed = self.storm.seed ^ (1000 + process);
        Arc::new(self.world.router(&format!("r{place}"), process, Line::new(seed, Weather::storm(seed))))
    }

    fn all(&self) -> Vec<Arc<Router>> {
        self.routers.read().clone()
    }

    fn any(&self) -> Arc<Router> {
        self.routers.read()[self.random.below(ROUTERS)].clone()
    }

    /// One key in three is one of a few; so some are asked for all the time, and others end in between.
    fn key(&self) -> String {
        let few = self.random.chance(0.3);
        format!("key-{}", self.random.below(if few { 10 } else { self.storm.keys }))
    }

    /// Most requests are short, some outlast the idle timeout.
    fn takes(&self) -> Duration {
        let longest = match self.random.below(100) {
            0 => 2500,
            1..10 => 300,
            _ => 20,
        };
        Duration::from_millis(longest).mul_f64(self.random.unit())
    }

    async fn be_a_client(self: Arc<Scene>) {
        while !self.over.load(Ordering::SeqCst) {
            if self.random.chance(0.05) {
                self.ask_everybody();
            }
            let (router, key) = (self.any(), self.key());
            let request = async {
                let reserved = router.reserve(&key).await?;
                self.rebound.fetch_add(u64::from(reserved.path == Path::Rebound), Ordering::Relaxed);
                drop(reserved);
                router.request(&self.world.book, &key, self.takes()).await
            };
            if let Err(error) = request.await {
                *self.refused.lock().entry(error.to_string()).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// At one moment no two routers know different instances for a key.
    fn ask_everybody(&self) {
        let (key, book) = (self.key(), &self.world.book);
        let found: Vec<_> = self
            .all()
            .iter()
            .filter_map(|router| {
                let reserved = router.lookup(&key)?;
                Some((book.begin(&router.name, &key, &reserved.instance.uid), reserved))
            })
            .collect();
        found.iter().for_each(|(id, _)| book.end(*id));
    }

    async fn make_trouble(self: Arc<Scene>) {
        while !self.over.load(Ordering::SeqCst) {
            let pause = Duration::from_millis(100 + self.random.next() % 200);
            tokio::time::sleep(pause).await;
            match self.random.below(40) {
                0..10 => {
                    if let Some(instance) = self.some_instance().await {
                        self.world.kill_instance(&instance).await;
                    }
                }
                10..17 => self.fail_one().await,
                17..32 => {
                    let sessions = self.world.sessions().await.unwrap_or_default();
                    if !sessions.is_empty() {
                        self.world.end_session(&sessions[self.random.below(sessions.len())]).await;
                    }
                }
                32..34 => self.cut_one().await,
                34..36 => self.crash_one(),
                36 => self.replace_manager(),
                _ => {}
            }
        }
    }

    async fn some_instance(&self) -> Option<agentcube_instance::record::Instance> {
        let mut instances = self.world.instances().await.ok()?;
        instances.retain(|instance| instance.life == agentcube_instance::record::Life::Ready);
        (!instances.is_empty()).then(|| instances.swap_remove(self.random.below(instances.len())))
    }

    /// An instance turns unready, and perhaps ready again.
    async fn fail_one(&self) {
        let Some(instance) = self.some_instance().await else { return };
        self.world.set_ready(&instance, false).await;
        if self.random.chance(0.6) {
            tokio::time::sleep(Duration::from_millis(self.random.next() % 100)).await;
            self.world.set_ready(&instance, true).await;
        }
    }

    /// A router is cut off, now and then for so long that it is taken for dead.
    async fn cut_one(&self) {
        let router = self.any();
        router.line.cut(true);
        let timing = &self.world.timing;
        let longest =
            if self.random.chance(0.2) { timing.out_of_touch.mul_f64(1.5) } else { timing.silent * 2 };
        tokio::time::sleep(longest.mul_f64(self.random.unit())).await;
        router.line.cut(false);
    }

    /// A router crashes; another process of the same name takes its place.
    fn crash_one(&self) {
        let place = self.random.below(ROUTERS);
        let mut routers = self.routers.write();
        routers[place].crash(&self.world.book);
        routers[place] = self.new_router(place);
    }

    /// Another manager takes over, for a moment beside the old one.
    fn replace_manager(&self) {
        let seed = self.storm.seed ^ (5000 + self.processes.fetch_add(1, Ordering::SeqCst));
        let line = Line::new(seed, Weather::storm(seed));
        self.world.manager(&line);
        let old = std::mem::replace(&mut *self.manager.lock(), line);
        let wait = Duration::from_millis(self.random.next() % 300);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            old.kill();
        });
    }

    fn calm(&self) {
        self.manager.lock().set(Weather::default());
        for router in self.all() {
            router.line.set(Weather::default());
            router.line.cut(false);
        }
    }

    /// Everything ends; then every key can be bound again.
    async fn come_to_rest(&self) -> Result<()> {
        let stormy = self.world.book.served();
        let begun = Instant::now();
        self.world.settles(0).await?;
        let rested = begun.elapsed();
        let requests = (0..self.storm.keys).map(|key| async move {
            let (router, key) = (self.any(), format!("key-{key}"));
            let request = router.request(&self.world.book, &key, Duration::ZERO);
            let served = tokio::time::timeout(LONG, request).await.context("a request hangs at rest")?;
            if let Err(error) = served {
                let (sessions, instances) = (self.world.sessions().await?, self.world.instances().await?);
                bail!(
                    "{key} cannot be bound again by {}: {error}\n{sessions:#?}\n{instances:#?}",
                    router.name
                );
            }
            Ok(())
        });
        stream::iter(requests).buffer_unordered(20).try_collect::<Vec<_>>().await?;
        self.world.settles(0).await?;
        self.world.verdict()?;
        let struck: u64 = self.all().iter().map(|router| router.line.struck()).sum();
        let (refused, rebound) =
            (self.refused.lock().values().sum::<u64>(), self.rebound.load(Ordering::Relaxed));
        let (keys, requests) = stormy;
        println!(
            "    {requests} requests for {keys} keys served in the storm, {refused} refused, {rebound} rebound; \
             {struck} faults on the routers' last lines; at rest after {rested:?}, all bound and at rest again after {:?}",
            begun.elapsed()
        );
        ensure!(struck > 0 && keys > self.storm.keys / 4, "the storm was none, or nothing else");
        Ok(())
    }
}
