//! The same on a real cluster, but for what needs volumes or signals: Redis in an image that was made without a registry, in Pods of a
//! real kubelet, looked after by controllers that are installed as users do.

use std::path::PathBuf;
use std::sync::Arc;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::cluster::whole::{IMAGE, Whole, kubeconfig};
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result};

use crate::redis::{self, Redis};
use crate::world::{APPS, Engine, World};

/// Runs each trial that is wanted, and shows what the cluster says when one fails.
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

pub(crate) async fn run(options: &Options, report: &mut Report) {
    let found = build_program().and_then(|program| Whole::find(&options.cache, &program));
    let cluster = match found {
        Ok(cluster) => cluster,
        Err(error) => return report.skip("middleware on a cluster", 1, &format!("{error:#}")),
    };
    let installed = cluster.run(&["install", "--image", IMAGE, "--apply"]).map(drop);
    let failed = installed.is_err();
    report.note("cluster: agentcube install brings the controllers", installed);
    if failed {
        return eprintln!("{}", cluster.told());
    }
    let world = match World::on_cluster(cluster, &kubeconfig(&options.cache)).await {
        Ok(world) => Arc::new(world),
        Err(error) => return report.note("cluster: it can be talked to", Err(error)),
    };
    redis(options, report, &world).await;
    let stopped = Arc::into_inner(world).context("somebody still uses it").and_then(World::stop);
    report.note("cluster: agentcube uninstall takes it away", stopped);
}

async fn redis(options: &Options, report: &mut Report, world: &Arc<World>) {
    // One image for both; what differs is a directory on the path, so that there is something to upgrade.
    let [older, newer] = ["/opt/older", "/opt/newer"].map(PathBuf::from);
    let first = "cluster: redis gets ready, its Secret connects, a write arrives";
    let redis = match redis::install(world, &Engine { older, newer, differ: false, oldest: None }).await {
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
        "cluster: redis: scale out and in" => redis::scale,
        "cluster: redis: memory" => redis::memory,
        "cluster: redis: configuration without a restart" => redis::hot,
        "cluster: redis: configuration by a restart" => redis::cold,
        "cluster: redis: an upgrade is cancelled in the middle" => redis::cancel,
        "cluster: redis: an upgrade" => redis::upgrade,
        "cluster: redis: the primary is lost with its Pod" => lost,
    }
    let Redis { writer, app, .. } = redis;
    report.note("cluster: redis: the writer ends", writer.stop().await.map(drop));
    let name = app.name.clone();
    drop(app);
    report.note("cluster: redis: it goes with everything", world.delete(APPS, &name).await);
}

/// By its Pod alone: the image has nothing to send a signal to a process with.
async fn lost(redis: &Redis) -> Result<()> {
    let first = redis.app.primary().await?;
    redis.app.world.destroy(&first).await?;
    redis.led_anew(&first).await?;
    redis.app.books.close().map(drop)
}
