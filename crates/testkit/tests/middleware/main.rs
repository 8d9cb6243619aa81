//! Real middleware on `agentcube up`: the plugins of the examples with programs of Debian, under clients that write all the time
//! and remember what was acknowledged. With `--cluster` a shorter form on a real cluster.

mod app;
mod books;
mod cluster;
mod deaths;
mod mortal;
mod postgresql;
mod psql;
mod redis;
mod resp;
mod series;
mod world;
mod writer;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::suite::{Options, Report};
use anyhow::Result;

use world::{Engine, World};

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    if options.cluster {
        return cluster::run(options, report).await;
    }
    let program = match build_program() {
        Ok(program) => program,
        Err(error) => return report.note("agentcube builds", Err(error)),
    };
    // Beside each other: they wait most of the time.
    let (mut first, mut second) = (Report::default(), Report::default());
    let of_redis = async {
        if wants(options, "redis") {
            redis(options, &mut first, &program).await;
        }
    };
    let others = async {
        if wants(options, "deaths") {
            deaths(options, &mut second, &program).await;
        }
        if wants(options, "postgresql") {
            postgresql(options, &mut second, &program).await;
        }
    };
    tokio::join!(Box::pin(of_redis), Box::pin(others));
    report.absorb(first);
    report.absorb(second);
}

/// Whether trials of an engine are wanted: each begins with its installation.
fn wants(options: &Options, engine: &str) -> bool {
    options.filter.as_ref().is_none_or(|filter| filter.contains(engine))
}

async fn redis(options: &Options, report: &mut Report, program: &Path) {
    match Engine::redis(&options.cache) {
        Err(error) => report.skip("Redis", redis::TRIALS + series::TRIALS, &format!("{error:#}")),
        Ok(engine) => {
            let world = World::start(program, &engine.places(), &[]).await.map(Arc::new);
            if let Some(world) = started(report, world) {
                redis::run(options, report, &world, &engine).await;
                series::run(options, report, &world, &engine).await;
                report.note("redis: agentcube down ends it in order", stop(world));
            }
        }
    }
}

async fn deaths(options: &Options, report: &mut Report, program: &Path) {
    match Engine::redis(&options.cache) {
        Err(error) => report.skip("deaths of controllers", deaths::TRIALS, &format!("{error:#}")),
        Ok(engine) => {
            let world = World::start(program, &engine.places(), &["--no-middleware"]).await.map(Arc::new);
            if let Some(world) = started(report, world) {
                deaths::run(options, report, &world, &engine).await;
                report.note("deaths: agentcube down ends it in order", stop(world));
            }
        }
    }
}

async fn postgresql(options: &Options, report: &mut Report, program: &Path) {
    let usual = ["/usr/lib/postgresql/15/bin"];
    match Engine::find(&options.cache, "postgresql-debian", "postgres", &usual) {
        Err(error) => report.skip("PostgreSQL", postgresql::TRIALS, &format!("{error:#}")),
        Ok(engine) => {
            let world = World::start(program, &engine.places(), &[]).await.map(Arc::new);
            if let Some(world) = started(report, world) {
                postgresql::run(options, report, &world, &engine).await;
                report.note("postgresql: agentcube down ends it in order", stop(world));
            }
        }
    }
}

fn started(report: &mut Report, world: Result<Arc<World>>) -> Option<Arc<World>> {
    match world {
        Ok(world) => Some(world),
        Err(error) => {
            report.note("agentcube up starts", Err(error));
            None
        }
    }
}

fn stop(world: Arc<World>) -> Result<()> {
    let world = Arc::into_inner(world).ok_or_else(|| anyhow::anyhow!("somebody still uses it"))?;
    world.stop()
}
