//! Redis with a primary and replicas: each trial changes it or breaks something, while a client writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::app::App;
use crate::resp::Reply;
use crate::world::{APPS, BACKUPS, Engine, LIMIT, LOOK, PODS, World};
use crate::writer::Writer;

pub(crate) const TRIALS: usize = 13;
const APP: &str = "cache";
/// The App that is made of the first one's data.
const AGAIN: &str = "again";

/// A Redis that runs, and somebody who writes to it.
pub(crate) struct Redis {
    pub(crate) app: App,
    pub(crate) writer: Writer,
    password: String,
    /// The two versions are not the same.
    differ: bool,
}

/// Runs each trial that is wanted, and shows what the platform says when one fails.
macro_rules! trials {
    ($options:expr, $report:expr, $redis:expr; $($name:literal => $trial:path),* $(,)?) => {
        $(if $options.selects($name) {
            let outcome = async {
                $trial($redis).await?;
                $redis.writer.nothing_is_lost(&$redis.app.world).await
            }
            .await;
            if outcome.is_err() {
                eprintln!("{}", $redis.app.world.told().await);
            }
            $report.note($name, outcome);
        })*
    };
}

pub(crate) async fn run(options: &Options, report: &mut Report, world: &Arc<World>, engine: &Engine) {
    if !engine.differ {
        println!("note: there is one Redis only; it is upgraded to itself");
    }
    let first = "redis: an App gets ready, its Secret connects, a write arrives";
    let redis = match install(world, engine).await {
        Ok(redis) => {
            report.note(first, Ok(()));
            redis
        }
        Err(error) => {
            eprintln!("{}", world.told().await);
            return report.note(first, Err(error));
        }
    };
    trials! { options, report, &redis;
        "redis: scale out and in" => scale,
        "redis: memory" => memory,
        "redis: configuration without a restart" => hot,
        "redis: configuration by a restart" => cold,
        "redis: larger volumes" => volumes,
        "redis: an upgrade is cancelled in the middle" => cancel,
        "redis: an upgrade" => upgrade,
        "redis: the primary is killed, by its process and with its Pod" => killed,
        "redis: a primary that was away comes back" => away,
    }
    println!(
        "note: {} writes were acknowledged, {} changes of tasks were seen",
        redis.writer.acknowledged(),
        redis.app.books.transitions()
    );
    let Redis { writer, mut app, password, .. } = redis;
    report.note("redis: the writer ends", writer.stop().await.map(drop));
    let name = "redis: backup, destroy, restore";
    if options.selects(name) {
        let outcome = backup_and_restore(world, app, &password).await;
        let Some(again) = told(report, name, world, outcome).await else { return };
        app = again;
    }
    let name = "redis: all of it is killed in the middle of a change";
    if options.selects(name) {
        let outcome = die_and_rise(world, app).await;
        told(report, name, world, outcome).await;
    }
}

/// Shows what the platform says when something failed.
async fn told<T>(report: &mut Report, name: &str, world: &World, outcome: Result<T>) -> Option<T> {
    if outcome.is_err() {
        eprintln!("{}", world.told().await);
    }
    let (done, failed) = match outcome {
        Ok(done) => (Some(done), Ok(())),
        Err(error) => (None, Err(error)),
    };
    report.note(name, failed);
    done
}

/// `agentcube up` is killed, and every Pod with it. Redis itself keeps what was acknowledged then only if it writes before it
/// answers.
async fn die_and_rise(world: &Arc<World>, app: App) -> Result<()> {
    let (name, password) = (app.name.clone(), world.password(&app.name).await?);
    app.change(json!({ "config": { "conf": { "appendfsync": "always" } } })).await?;
    app.settled().await?;
    let writer = Writer::start(world, &app.service(), &password, "d");
    writer.goes_on(20).await?;
    app.change_one(json!({ "config": { "conf": { "databases": 24 } } })).await?;
    writer.goes_on(20).await?;
    drop(app);
    world.die_and_rise().await?;
    let app = App::attach(world, &name, "redis").await?;
    let redis = Redis { app, writer, password, differ: false };
    // The App may have been settled before, and its status may say so still while Pods come up.
    redis.has_everywhere("databases", "24").await?;
    redis.writer.nothing_is_lost(world).await?;
    redis.writer.stop().await.map(drop)
}

/// What was there is there again in another App, when nothing is left of the first but the archive.
async fn backup_and_restore(world: &Arc<World>, app: App, password: &str) -> Result<App> {
    let before = all_data(world, &app.primary().await?, password).await?;
    ensure!(!before.is_empty(), "there is nothing to keep");
    let version = world.get(APPS, APP).await?["spec"]["runtime"].clone();
    app.keep_and_destroy("monday").await?;
    let archive = world.get(BACKUPS, "monday").await?["status"]["archive"].clone();
    world.delete(BACKUPS, "monday").await?;
    let app = App::install(world, AGAIN, "redis", json!({ "runtime": version, "restore": archive })).await?;
    let password = world.password(AGAIN).await?;
    for pod in app.pods().await? {
        let after = all_data(world, &pod, &password).await?;
        ensure!(after == before, "{pod} has {} of {} keys", after.len(), before.len());
    }
    Ok(app)
}

async fn all_data(world: &World, pod: &str, password: &str) -> Result<BTreeMap<String, String>> {
    let mut client = world.redis(pod, password).await?;
    let Reply::List(keys) = client.ask(&["KEYS", "*"]).await? else { anyhow::bail!("no list of keys") };
    let mut data = BTreeMap::new();
    for key in keys {
        let key = key.text()?;
        let value = client.ask(&["GET", &key]).await?.text()?;
        data.insert(key, value);
    }
    Ok(data)
}

pub(crate) async fn install(world: &Arc<World>, engine: &Engine) -> Result<Redis> {
    world.install("redis", engine).await?;
    let conf = json!({ "config": { "conf": { "maxmemory": "64mb" } } });
    let app = App::install(world, APP, "redis", conf).await?;
    let password = world.password(APP).await?;
    let mut client = world.redis(&app.primary().await?, &password).await?;
    let answers = client.ask_all(&[&["SET", "first", "1"], &["WAIT", "2", "10000"]]).await?;
    ensure!(matches!(answers.as_slice(), [Reply::Text(_), Reply::Number(2)]), "{answers:?}");
    for pod in app.pods().await? {
        let mut client = world.redis(&pod, &password).await?;
        ensure!(client.ask(&["GET", "first"]).await? == Reply::Text("1".into()), "{pod} does not have it");
    }
    let writer = Writer::start(world, &app.service(), &password, "w");
    writer.goes_on(10).await?;
    Ok(Redis { app, writer, password, differ: engine.differ })
}

impl Redis {
    /// An App that runs, and somebody who writes to it from now on, under keys of its own.
    pub(crate) async fn written_to(app: App, prefix: &str) -> Result<Redis> {
        let password = app.world.password(&app.name).await?;
        let writer = Writer::start(&app.world, &app.service(), &password, prefix);
        writer.goes_on(10).await?;
        Ok(Redis { app, writer, password, differ: true })
    }

    /// One line of INFO of each Pod.
    pub(crate) async fn info(&self, section: &str, name: &str) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for pod in self.app.pods().await? {
            let mut client = self.app.world.redis(&pod, &self.password).await?;
            all.insert(pod, client.info(section, name).await?);
        }
        Ok(all)
    }

    /// A setting of each Pod.
    pub(crate) async fn setting(&self, name: &str) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for pod in self.app.pods().await? {
            let mut client = self.app.world.redis(&pod, &self.password).await?;
            let Reply::List(answer) = client.ask(&["CONFIG", "GET", name]).await? else { continue };
            all.push(answer.into_iter().nth(1).context("a value")?.text()?);
        }
        Ok(all)
    }

    /// The primary, and the number of its process in the Pod.
    pub(crate) async fn process(&self) -> Result<(String, String)> {
        let primary = self.app.primary().await?;
        let mut client = self.app.world.redis(&primary, &self.password).await?;
        let pid = client.info("server", "process_id").await?;
        Ok((primary, pid))
    }

    /// Every Pod answers, and has this setting.
    async fn has_everywhere(&self, name: &str, wanted: &str) -> Result<()> {
        let mut last = String::new();
        let all = async {
            loop {
                let said = self.setting(name).await;
                if said.as_ref().is_ok_and(|has| has.len() == 3 && has.iter().all(|one| one == wanted)) {
                    return;
                }
                last = format!("{said:?}");
                tokio::time::sleep(LOOK).await;
            }
        };
        let all = tokio::time::timeout(LIMIT, all).await;
        ensure!(all.is_ok(), "{name} is not {wanted} everywhere: {last}");
        Ok(())
    }

    /// Somebody else leads, and soon nobody besides: one of the past is told when it is seen.
    pub(crate) async fn led_anew(&self, before: &str) -> Result<String> {
        let leader = self.app.led_by(|pod| pod != before).await?;
        let alone = async {
            loop {
                let roles = self.info("replication", "role").await?;
                let others = roles.iter().any(|(pod, role)| *pod != leader && role == "master");
                if !others && roles.get(&leader).is_some_and(|role| role == "master") {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(LIMIT, alone)
            .await
            .with_context(|| format!("{leader} does not lead alone"))??;
        Ok(leader)
    }
}

pub(crate) async fn scale(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    app.books.limit(1, 3);
    app.change_group(json!({ "replicas": 4 })).await?;
    ensure!(app.pods().await?.len() == 4);
    redis.writer.goes_on(20).await?;
    // Somebody has the last Pod lead, and then it is the one to go.
    let last = format!("{}-3", app.group);
    let pod = app.world.get(PODS, &last).await?;
    let address = pod["status"]["podIP"].as_str().context("an address")?.to_owned();
    let mut client = app.world.redis(&app.primary().await?, &redis.password).await?;
    let answer = client.ask(&["FAILOVER", "TO", &address, "6379", "TIMEOUT", "10000"]).await?;
    ensure!(matches!(answer, Reply::Text(_)), "{answer:?}");
    app.group_until("the last Pod leads", |status| status["leader"]["pod"] == *last).await?;
    app.change_group(json!({ "replicas": 3 })).await?;
    ensure!(app.pods().await?.len() == 3);
    app.books.close().map(drop)
}

pub(crate) async fn memory(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    let led = app.primary().await?;
    app.books.limit(1, 3);
    let resources =
        json!({ "requests": { "cpu": "10m", "memory": "40Mi" }, "limits": { "memory": "128Mi" } });
    app.change_group(json!({ "resources": resources })).await?;
    app.rolled(&led).await?;
    for pod in app.world.pods(&app.group).await? {
        let has = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
        ensure!(*has == "128Mi", "{has}");
    }
    Ok(())
}

pub(crate) async fn hot(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    let before = app.uids().await?;
    app.books.limit(0, 3);
    app.change(json!({ "config": { "conf": { "maxmemory": "96mb" } } })).await?;
    app.settled().await?;
    app.books.close()?;
    let has = redis.setting("maxmemory").await?;
    ensure!(has == vec![(96 << 20).to_string(); 3], "{has:?}");
    ensure!(app.uids().await? == before, "a Pod was made anew");
    Ok(())
}

pub(crate) async fn cold(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    let led = app.primary().await?;
    app.books.limit(1, 3);
    app.change(json!({ "config": { "conf": { "databases": 20 } } })).await?;
    app.settled().await?;
    app.rolled(&led).await?;
    let has = redis.setting("databases").await?;
    ensure!(has == ["20", "20", "20"], "{has:?}");
    Ok(())
}

pub(crate) async fn volumes(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    let before = app.uids().await?;
    app.books.limit(0, 3);
    app.change_group(json!({ "storage": { "size": "96Mi" } })).await?;
    app.books.close()?;
    for pod in app.pods().await? {
        let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
        let claim = app.world.get(claims, &format!("data-{pod}")).await?;
        let size = &claim["status"]["capacity"]["storage"];
        ensure!(*size == "96Mi", "{pod}: {size}");
    }
    ensure!(app.uids().await? == before, "a Pod was made anew");
    Ok(())
}

pub(crate) async fn cancel(redis: &Redis) -> Result<()> {
    let builds = redis.info("server", "redis_build_id").await?;
    redis.app.cancel_upgrade().await?;
    ensure!(redis.info("server", "redis_build_id").await? == builds, "something is of the new version");
    Ok(())
}

pub(crate) async fn upgrade(redis: &Redis) -> Result<()> {
    let builds = redis.info("server", "redis_build_id").await?;
    let watching = async {
        // From when it is under way, until it is not any more.
        redis
            .app
            .group_until("it is upgraded", |status| status["upgradeStatus"]["phase"] == "Upgrading")
            .await?;
        redis.app.world.cli(&["app", "describe", APP, "--watch", "--timeout", "180"]).await
    };
    let (upgraded, shown) = tokio::join!(redis.app.retry_upgrade(), watching);
    upgraded?;
    let shown = shown?;
    for expected in ["of 3 updated", "older to newer", "primary (leads)", "replica", "running   upgrade"] {
        ensure!(shown.contains(expected), "{expected} is not in {shown}");
    }
    let last = shown.rsplit("TASK").next().unwrap_or_default();
    ensure!(last.contains("  done  "), "it does not end with the end: {last}");
    let now = redis.info("server", "redis_build_id").await?;
    let same = now.iter().filter(|(pod, build)| builds.get(*pod) == Some(build)).count();
    ensure!(same == if redis.differ { 0 } else { 3 }, "{builds:?} became {now:?}");
    Ok(())
}

async fn killed(redis: &Redis) -> Result<()> {
    let world = &redis.app.world;
    let (first, pid) = redis.process().await?;
    world.signal(&first, "-9", &pid).await?;
    let second = redis.led_anew(&first).await?;
    redis.writer.nothing_is_lost(world).await?;
    world.destroy(&second).await?;
    redis.led_anew(&second).await?;
    redis.app.books.close().map(drop)
}

async fn away(redis: &Redis) -> Result<()> {
    let (app, world) = (&redis.app, &redis.app.world);
    let (first, pid) = redis.process().await?;
    world.signal(&first, "-STOP", &pid).await?;
    app.group_until("somebody else leads", |status| {
        status["leader"]["pod"].as_str().is_some_and(|leader| leader != first)
    })
    .await?;
    redis.writer.goes_on(50).await?;
    world.signal(&first, "-CONT", &pid).await?;
    redis.led_anew(&first).await?;
    app.books.close().map(drop)
}
