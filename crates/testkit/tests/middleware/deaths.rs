//! Redis whose controllers die all the time, while a client writes: after each kind of effect that an operation has, and at the latest
//! after eight of them. The next ones find everything: nothing is lost, done twice or forgotten, and Pods never notice.

use std::sync::Arc;

use agentcube_testkit::suite::{Options, Report};
use anyhow::{Result, ensure};
use serde_json::json;

use crate::mortal::{self, Deaths};
use crate::redis::{self, Redis};
use crate::world::{Engine, World};

pub(crate) const TRIALS: usize = 10;

/// Has each trial that is wanted carried out by mortals, and shows what the platform says when one fails.
macro_rules! trials {
    ($options:expr, $report:expr, $redis:expr; $($name:literal => $trial:path),* $(,)?) => {
        $(if $options.selects($name) {
            let world = &$redis.app.world;
            let work = async {
                $trial($redis).await?;
                $redis.writer.nothing_is_lost(world).await
            };
            let outcome = Box::pin(mortal::carry_out(world, work)).await;
            note($report, $name, world, outcome).await;
        })*
    };
}

pub(crate) async fn run(options: &Options, report: &mut Report, world: &Arc<World>, engine: &Engine) {
    let first = "deaths: an installation";
    let installing = Box::pin(mortal::carry_out(world, redis::install(world, engine)));
    let Some(redis) = note(report, first, world, installing.await).await else { return };
    trials! { options, report, &redis;
        "deaths: scale out and in" => scale,
        "deaths: memory" => redis::memory,
        "deaths: configuration, without a restart and by one" => configuration,
        "deaths: larger volumes" => redis::volumes,
        "deaths: an upgrade is cancelled in the middle" => redis::cancel,
        "deaths: the upgrade is taken up again" => again,
        "deaths: the primary is killed" => killed,
    }
    let Redis { writer, .. } = redis;
    report.note("deaths: the writer ends", writer.stop().await.map(drop));
}

async fn note<T>(report: &mut Report, name: &str, world: &World, outcome: Result<(T, Deaths)>) -> Option<T> {
    match outcome {
        Ok((done, Deaths { count, after })) => {
            let after: Vec<String> = after.into_iter().collect();
            println!("note: {name}: {count} sets of controllers died, after {}", after.join(", "));
            // An operation without effects would show nothing.
            report.note(name, if count > 0 { Ok(()) } else { Err(anyhow::anyhow!("nobody died")) });
            Some(done)
        }
        Err(error) => {
            eprintln!("{}", world.told().await);
            report.note(name, Err(error));
            None
        }
    }
}

async fn scale(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    app.books.limit(1, 3);
    app.change_group(json!({ "replicas": 4 })).await?;
    ensure!(app.pods().await?.len() == 4);
    app.change_group(json!({ "replicas": 3 })).await?;
    ensure!(app.pods().await?.len() == 3);
    app.books.close().map(drop)
}

async fn configuration(redis: &Redis) -> Result<()> {
    let app = &redis.app;
    let before = app.uids().await?;
    app.books.limit(0, 3);
    app.change(json!({ "config": { "conf": { "maxmemory": "96mb" } } })).await?;
    app.settled().await?;
    app.books.close()?;
    ensure!(app.uids().await? == before, "a Pod was made anew");
    let has = redis.setting("maxmemory").await?;
    ensure!(has == vec![(96 << 20).to_string(); 3], "{has:?}");
    let led = app.primary().await?;
    app.books.limit(1, 3);
    app.change(json!({ "config": { "conf": { "databases": 20 } } })).await?;
    app.settled().await?;
    app.rolled(&led).await?;
    let has = redis.setting("databases").await?;
    ensure!(has == ["20", "20", "20"], "{has:?}");
    Ok(())
}

async fn again(redis: &Redis) -> Result<()> {
    redis.app.retry_upgrade().await
}

async fn killed(redis: &Redis) -> Result<()> {
    let (first, pid) = redis.process().await?;
    redis.app.world.signal(&first, "-9", &pid).await?;
    redis.led_anew(&first).await?;
    redis.app.settled().await?;
    redis.app.books.close().map(drop)
}
