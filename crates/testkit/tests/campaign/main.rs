//! A campaign: thousands of requests of hundreds of sessions while routers are restarted in turn and instances die. Each
//! instance checks the token and the session of every request; whatever fails has to be a 5xx that says why.
//!
//! Without `--whole` it is a short one. Routers and gateways are processes; so is Envoy.

mod book;
mod client;
mod fronts;
mod instance;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::envoy::Program;
use agentcube_testkit::gateway;
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result, bail};

use book::Book;
use client::Client;
use fronts::Fronts;
use world::World;

/// Longer than anything takes that goes right.
const LONG: Duration = Duration::from_secs(900);

/// How much is tried.
#[derive(Clone, Copy)]
struct Size {
    requests: usize,
    sessions: usize,
    clients: usize,
    /// Routers that are restarted, at least.
    restarts: usize,
    /// Instances that die, at least.
    deaths: usize,
}

const SHORT: Size = Size { requests: 2_400, sessions: 60, clients: 12, restarts: 3, deaths: 12 };
const WHOLE: Size = Size { requests: 24_000, sessions: 300, clients: 24, restarts: 12, deaths: 120 };

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [gateway::ROLE, kubeconfig, address, name] =
        arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice()
    {
        let run = async { gateway::run(Path::new(kubeconfig), address.parse()?, name).await };
        return match runtime.block_on(run) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let size = if arguments.iter().any(|argument| argument == "--whole") { WHOLE } else { SHORT };
    let options = Options::from_environment();
    let mut report = Report::default();
    runtime.block_on(async {
        let name = "a campaign through the built-in gateway";
        if options.selects(name) {
            report.note(name, limited(through_gateways(size)).await);
        }
        let name = "a campaign through Envoy";
        if options.selects(name) {
            match Program::find(&options.cache) {
                Ok(program) => report.note(name, limited(through_envoy(&program, size)).await),
                Err(error) => report.skip(name, 1, &format!("{error:#}")),
            }
        }
    });
    runtime.shutdown_background();
    report.close(options.strict)
}

async fn limited(tried: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::time::timeout(LONG, Box::pin(tried)).await.context("it does not come to an end")?
}

async fn through_envoy(envoy: &Program, size: Size) -> Result<()> {
    let program = build_program()?;
    let world = World::new(&program, size.sessions).await?;
    let fronts = Fronts::routers(&world, &program, envoy).await?;
    run(&world, &fronts, size).await.with_context(|| fronts.told())
}

async fn through_gateways(size: Size) -> Result<()> {
    let program = build_program()?;
    let world = World::new(&program, size.sessions).await?;
    let fronts = Fronts::gateways(&world).await?;
    run(&world, &fronts, size).await.with_context(|| fronts.told())
}

async fn run(world: &World, fronts: &Fronts, size: Size) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..size.clients {
        let client = Client::new(number, fronts.doors(), world.book.clone());
        clients.spawn(client.run(size, over.clone()));
    }
    let happening = async {
        tokio::try_join!(restart(&world.book, fronts, size), kill(world, size))?;
        world.book.noted(size.requests).await;
        anyhow::Ok(())
    };
    tokio::select! {
        happened = happening => happened?,
        Some(ended) = clients.join_next() => { ended??; bail!("a client stopped") }
    }
    over.store(true, Ordering::SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    world.book.close(size)
}

/// One after the other stops and comes back; every other one without a word.
async fn restart(book: &Book, fronts: &Fronts, size: Size) -> Result<()> {
    let between = size.requests / size.restarts / 4;
    for turn in 0..size.restarts {
        book.more(between).await;
        match turn % 4 {
            0 | 1 => fronts.stop(turn % 2).await?,
            _ => fronts.kill(turn % 2)?,
        }
        book.more(between).await;
        fronts.start(turn % 2).await?;
    }
    Ok(())
}

/// One instance after the other dies; every other one is deleted in order.
async fn kill(world: &World, size: Size) -> Result<()> {
    for turn in 0..size.deaths {
        world.book.more(size.requests / size.deaths / 2).await;
        world.kill_one(turn).await?;
    }
    Ok(())
}
