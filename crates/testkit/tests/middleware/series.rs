//! Redis from one series to the next, whose files and snapshots are not the same any more: the upgrade is cancelled in the middle and
//! carried out, while a client writes.

use std::sync::Arc;

use agentcube_testkit::suite::{Options, Report};
use anyhow::{Result, ensure};
use serde_json::json;

use crate::app::App;
use crate::redis::Redis;
use crate::world::{APPS, Engine, World};

pub(crate) const TRIALS: usize = 1;
const NAME: &str = "redis: from 6.2 to 7.0, cancelled in the middle and carried out";
const APP: &str = "series";

pub(crate) async fn run(options: &Options, report: &mut Report, world: &Arc<World>, engine: &Engine) {
    if !options.selects(NAME) {
        return;
    }
    if engine.oldest.is_none() {
        return report.skip(NAME, TRIALS, "there is no Redis 6.2: `cargo xtask setup` gets one");
    }
    let outcome = upgrade(world).await;
    if outcome.is_err() {
        eprintln!("{}", world.told().await);
    }
    report.note(NAME, outcome);
}

async fn upgrade(world: &Arc<World>) -> Result<()> {
    // 6.2 does not know this setting, which the plugin has by itself.
    let conf = json!({ "conf": { "shutdown-timeout": "" } });
    let spec = json!({ "runtime": { "name": "redis", "version": "oldest" }, "config": conf });
    let app = App::install(world, APP, "redis", spec).await?;
    let redis = Redis::written_to(app, "s").await?;
    let old = redis.info("server", "redis_version").await?;
    ensure!(old.len() == 3 && old.values().all(|version| version.starts_with("6.2.")), "{old:?}");
    redis.app.cancel_upgrade().await?;
    let back = redis.info("server", "redis_version").await?;
    ensure!(back == old, "it did not go back: {back:?}");
    redis.writer.nothing_is_lost(world).await?;
    redis.app.retry_upgrade().await?;
    let new = redis.info("server", "redis_version").await?;
    ensure!(new.len() == 3 && new.values().all(|version| version.starts_with("7.")), "{new:?}");
    redis.writer.nothing_is_lost(world).await?;
    println!("note: {} writes were acknowledged on the way to {new:?}", redis.writer.acknowledged());
    redis.writer.stop().await?;
    world.delete(APPS, APP).await
}
