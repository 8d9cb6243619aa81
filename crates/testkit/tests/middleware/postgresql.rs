//! PostgreSQL with a primary and standbys that stream from it: upgrade, cancel, and the loss of the primary, while a client
//! commits. What was acknowledged is on the disk of a standby, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::psql::{self, Session};
use crate::world::{Engine, GROUPS, LIMIT, LOOK, World};

pub(crate) const TRIALS: usize = 8;
const APP: &str = "orders";
/// The App that is made of the first one's data.
const AGAIN: &str = "again";
/// The Pod that `psql` runs in.
const CLIENT: &str = "orders-client";
const PACE: Duration = Duration::from_millis(20);

struct PostgreSql {
    app: App,
    writer: Writer,
    differ: bool,
}

/// Somebody who commits all the time, and remembers what was acknowledged.
struct Writer {
    acknowledged: Arc<Mutex<Vec<u64>>>,
    refused: Arc<Mutex<Option<String>>>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Writer {
    fn start(world: &Arc<World>) -> Writer {
        let acknowledged = Arc::<Mutex<Vec<u64>>>::default();
        let refused = Arc::<Mutex<Option<String>>>::default();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let (world, acknowledged, refused, stop) =
                (world.clone(), acknowledged.clone(), refused.clone(), stop.clone());
            async move {
                let mut next = 0;
                while !stop.is_cancelled() {
                    if let Err(error) = commit(&world, &mut next, &acknowledged, &stop).await {
                        *refused.lock() = Some(format!("{error:#}"));
                    }
                    tokio::time::sleep(PACE).await;
                }
            }
        });
        Writer { acknowledged, refused, stop, running }
    }

    async fn goes_on(&self, more: usize) -> Result<()> {
        let wanted = self.acknowledged.lock().len() + more;
        let waiting = async {
            while self.acknowledged.lock().len() < wanted {
                tokio::time::sleep(PACE).await;
            }
        };
        let late = || format!("nothing is acknowledged any more: {:?}", self.refused.lock());
        tokio::time::timeout(LIMIT, waiting).await.ok().with_context(late)
    }

    /// Everything that was acknowledged is there.
    async fn nothing_is_lost(&self, app: &App) -> Result<()> {
        self.goes_on(5).await?;
        let acknowledged: BTreeSet<u64> = self.acknowledged.lock().iter().copied().collect();
        let primary = app.primary().await?;
        let there = psql::at(&app.world, &primary, "select string_agg(n::text, ' ') from w").await?;
        let there: BTreeSet<u64> =
            there.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let lost: Vec<&u64> = acknowledged.difference(&there).take(5).collect();
        ensure!(lost.is_empty(), "of {} acknowledged commits there are none of {lost:?}", acknowledged.len());
        Ok(())
    }
}

/// Commits until something goes wrong.
async fn commit(
    world: &World,
    next: &mut u64,
    acknowledged: &Mutex<Vec<u64>>,
    stop: &CancellationToken,
) -> Result<()> {
    let mut session = Session::open(world, CLIENT).await?;
    while !stop.is_cancelled() {
        let number = *next;
        *next += 1;
        session.run(&format!("insert into w values ({number})")).await?;
        acknowledged.lock().push(number);
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

macro_rules! trials {
    ($options:expr, $report:expr, $running:expr; $($name:literal => $trial:path),* $(,)?) => {
        $(if $options.selects($name) {
            let outcome = async {
                $trial($running).await?;
                $running.writer.nothing_is_lost(&$running.app).await
            }
            .await;
            if outcome.is_err() {
                eprintln!("{}", $running.app.world.told().await);
            }
            $report.note($name, outcome);
        })*
    };
}

pub(crate) async fn run(options: &Options, report: &mut Report, world: &Arc<World>, engine: &Engine) {
    if !engine.differ {
        println!("note: there is one PostgreSQL only; it is upgraded to itself");
    }
    let first = "postgresql: an App gets ready, its Secret connects, a commit arrives";
    let running = match install(world, engine).await {
        Ok(running) => {
            report.note(first, Ok(()));
            running
        }
        Err(error) => {
            eprintln!("{}", world.told().await);
            return report.note(first, Err(error));
        }
    };
    trials! { options, report, &running;
        "postgresql: configuration, without a restart and by one" => configuration,
        "postgresql: an upgrade is cancelled in the middle" => cancel,
        "postgresql: an upgrade" => upgrade,
        "postgresql: the primary is killed, by its process and with its Pod" => killed,
    }
    println!("note: {} commits were acknowledged", running.writer.acknowledged.lock().len());
    let PostgreSql { writer, app, .. } = running;
    writer.stop.cancel();
    report.note("postgresql: the writer ends", writer.running.await.context("it ends"));
    let name = "postgresql: backup, destroy, restore, scale out";
    if options.selects(name) {
        let outcome = backup_and_restore(world, app, engine).await;
        if outcome.is_err() {
            eprintln!("{}", world.told().await);
        }
        report.note(name, outcome);
    }
}

const ALL: &str = "select count(*) || ' ' || md5(string_agg(n::text, ' ' order by n)) from w";

/// What was there is there again in another App, also at one that is added when the log since the archive is gone. All by the
/// command line.
async fn backup_and_restore(world: &Arc<World>, app: App, engine: &Engine) -> Result<()> {
    let before = psql::at(world, &app.primary().await?, ALL).await?;
    app.keep_and_destroy("friday").await?;
    world.cli(&["app", "restore", "friday", AGAIN, "--wait"]).await?;
    let app = App::attach(world, AGAIN, "postgresql").await?;
    let primary = app.primary().await?;
    for pod in app.pods().await? {
        let after = psql::at(world, &pod, ALL).await?;
        ensure!(after == before, "{pod} has {after}, and there was {before}");
    }
    // Its own password is taken, over the network.
    psql::install(world, "again-client", AGAIN, &engine.newer).await?;
    let mut session = Session::open(world, "again-client").await?;
    session.run("insert into w values (-1)").await?;
    app.change(json!({ "config": { "conf": { "wal_keep_size": "0" } } })).await?;
    app.settled().await?;
    for _ in 0..4 {
        psql::at(world, &primary, "create table if not exists filler (); select pg_switch_wal()").await?;
        psql::at(world, &primary, "drop table filler; checkpoint").await?;
    }
    app.change_group(json!({ "replicas": 4 })).await?;
    let added = format!("{}-3", app.group);
    let there = psql::at(world, &added, "select count(*) from w where n = -1").await?;
    ensure!(there == "1", "{added} has {there}");
    Ok(())
}

async fn install(world: &Arc<World>, engine: &Engine) -> Result<PostgreSql> {
    world.install("postgresql", engine).await?;
    let app = App::install(world, APP, "postgresql", json!({})).await?;
    psql::install(world, CLIENT, APP, &engine.newer).await?;
    let mut session = Session::open(world, CLIENT).await?;
    session.run("create table w (n bigint primary key)").await?;
    ensure!(session.run("select 'it is ' || current_user").await? == ["it is postgres"]);
    let writer = Writer::start(world);
    writer.goes_on(5).await?;
    for pod in app.pods().await? {
        let arrived = async {
            while psql::at(world, &pod, "select count(*) > 0 from w").await.ok().as_deref() != Some("t") {
                tokio::time::sleep(PACE).await;
            }
        };
        tokio::time::timeout(LIMIT, arrived).await.with_context(|| format!("{pod} does not have it"))?;
    }
    Ok(PostgreSql { app, writer, differ: engine.differ })
}

impl PostgreSql {
    /// What each Pod says.
    async fn ask(&self, statement: &str) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for pod in self.app.pods().await? {
            let said = psql::at(&self.app.world, &pod, statement).await?;
            all.insert(pod, said);
        }
        Ok(all)
    }

    /// The history that is led now.
    async fn history(&self) -> Result<String> {
        let group = self.app.world.get(GROUPS, &self.app.group).await?;
        Ok(group["status"]["leader"]["history"].as_str().context("somebody leads")?.to_owned())
    }

    /// Somebody leads another history, and nobody besides. It may be who led before: where it stands is on its disk, so it is
    /// compared with the others as soon as it is back.
    async fn led_anew(&self, before: &str) -> Result<String> {
        let is_new =
            |leader: &Value| leader["history"].as_str().is_some_and(|now| !now.is_empty() && now != before);
        let group =
            self.app.group_until("another history is led", |status| is_new(&status["leader"])).await?;
        // It is recorded before its label moves.
        let leader = self.app.led_by(|pod| group["status"]["leader"]["pod"] == pod).await?;
        let mut last = String::new();
        let alone = async {
            loop {
                // One that begins just now answers later; one of the past is told when it is seen.
                let said = self.ask("select pg_is_in_recovery()").await;
                if let Ok(standbys) = &said {
                    let leads = standbys.iter().filter(|(_, standby)| *standby == "f");
                    if leads.map(|(pod, _)| pod).eq([&leader]) {
                        return;
                    }
                }
                last = format!("{said:?}");
                tokio::time::sleep(LOOK).await;
            }
        };
        let alone = tokio::time::timeout(LIMIT, alone).await;
        ensure!(alone.is_ok(), "{leader} leads, and not alone: {last}");
        Ok(leader)
    }
}

async fn configuration(running: &PostgreSql) -> Result<()> {
    let app = &running.app;
    let before = app.uids().await?;
    app.books.limit(0, 3);
    app.change(json!({ "config": { "conf": { "work_mem": "5MB" } } })).await?;
    app.settled().await?;
    app.books.close()?;
    ensure!(app.uids().await? == before, "a Pod was made anew");
    let has = running.ask("show work_mem").await?;
    ensure!(has.values().all(|value| value == "5MB"), "{has:?}");
    let led = app.primary().await?;
    app.books.limit(1, 3);
    app.change(json!({ "config": { "conf": { "max_connections": 120 } } })).await?;
    app.settled().await?;
    // Whoever led was started anew when it handed over, and may have taken it then.
    let taken = app.books.close()?;
    ensure!(taken.iter().take(2).all(|pod| *pod != led), "{led} led, and was not the last: {taken:?}");
    let has = running.ask("show max_connections").await?;
    ensure!(has.values().all(|value| value == "120"), "{has:?}");
    Ok(())
}

async fn cancel(running: &PostgreSql) -> Result<()> {
    let versions = running.ask("select version()").await?;
    running.app.cancel_upgrade().await?;
    ensure!(running.ask("select version()").await? == versions, "something is of the new version");
    Ok(())
}

async fn upgrade(running: &PostgreSql) -> Result<()> {
    let versions = running.ask("select version()").await?;
    running.app.retry_upgrade().await?;
    let now = running.ask("select version()").await?;
    let same = now.iter().filter(|(pod, version)| versions.get(*pod) == Some(version)).count();
    ensure!(same == if running.differ { 0 } else { 3 }, "{versions:?} became {now:?}");
    Ok(())
}

async fn killed(running: &PostgreSql) -> Result<()> {
    let world = &running.app.world;
    let first = running.app.primary().await?;
    let pid = world.exec(&first, &["head", "-n", "1", "/data/pg/postmaster.pid"]).await?;
    let history = running.history().await?;
    world.signal(&first, "-9", pid.trim()).await?;
    let second = running.led_anew(&history).await?;
    running.writer.nothing_is_lost(&running.app).await?;
    let history = running.history().await?;
    world.destroy(&second).await?;
    running.led_anew(&history).await?;
    running.app.books.close().map(drop)
}
