//! Sandboxes are created and deleted while controllers, workers and keepers are killed in turn, or while the API server
//! is away; then everything comes to rest, and is counted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agentcube_protos::fastpath::FailurePolicy;
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use tokio::task::JoinSet;

use crate::book::{Book, Mode};
use crate::client::{Client, Worker, order};
use crate::kernel::Kernel;
use crate::world::{AGENTS, LONG, LOOK, Settings, World, objects};

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) sandboxes: usize,
    pub(crate) clients: usize,
    pub(crate) controller_kills: usize,
    /// Of each agent.
    pub(crate) worker_kills: usize,
    pub(crate) keeper_kills: usize,
    /// How long the API server is away.
    pub(crate) away: Duration,
    pub(crate) late: Duration,
}

/// Sandboxes that each client keeps.
const HOLDS: usize = 3;
/// What is left to be done after the end may take this long: containers go, names linger for some time more.
const REST: Duration = Duration::from_secs(60);

fn settings(size: Size, lease: Duration, controllers: usize) -> Settings {
    let timing = vec![("late", size.late), ("api", size.late.min(Duration::from_secs(10)))];
    Settings { slots: 20, lease, timing, controllers, logged: controllers == 1, authority: None }
}

fn clients(world: &World) -> Result<Client> {
    let addresses: Vec<_> = world.controllers.iter().map(|controller| controller.address).collect();
    Client::new(&addresses)
}

/// With two controllers, one leads and one stands by; with one, that has a log of FAST creates.
pub(crate) async fn campaign(program: &Path, size: Size, controllers: usize) -> Result<()> {
    let world = World::start(program, settings(size, Duration::from_secs(4), controllers)).await?;
    let outcome = storm(&world, size).await.with_context(|| world.told());
    outcome.and(world.end().await)
}

async fn storm(world: &World, size: Size) -> Result<()> {
    settled(world).await?;
    let before = mounts(world)?;
    let book = Arc::new(Book::default());
    let (client, over) = (clients(world)?, Arc::new(AtomicBool::new(false)));
    let mut workers = JoinSet::new();
    for number in 0..size.clients {
        let worker = Worker {
            number,
            client: client.clone(),
            book: book.clone(),
            agents: world.agents.clone(),
            wanted: size.sandboxes,
            holds: HOLDS,
            logged: world.settings.logged,
            over: over.clone(),
        };
        workers.spawn(worker.run());
    }
    let killed = tokio::try_join!(kill_controllers(world, &book, size), kill_agents(world, &book, size));
    if killed.is_err() {
        over.store(true, Ordering::Relaxed);
    }
    workers.join_all().await;
    killed?;
    println!("{}", book.told());
    book.check()?;
    let wrong = world.agents.wrong.lock().clone();
    ensure!(wrong.is_empty(), "{wrong:?}");
    rest(world, &client, &book).await?;
    empty(world, &client, &book, &before).await?;
    book.check()
}

/// Every agent is there and answers.
async fn settled(world: &World) -> Result<()> {
    world.leader().await?;
    let ready = async {
        loop {
            let agents = world.agents.all();
            let mut answers = 0;
            for agent in &agents {
                answers += usize::from(agent.says().await.is_ok());
            }
            let slots = world.counted("agentcube_sandbox_slots{state=\"free\"}").await.ok().flatten();
            if answers == AGENTS && slots == i64::try_from(AGENTS * world.settings.slots).ok() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LONG, ready).await.context("the agents are never ready")
}

fn mounts(world: &World) -> Result<Vec<Kernel>> {
    world.agents.all().iter().map(|agent| kernel(agent)).collect()
}

fn kernel(agent: &crate::agents::Agent) -> Result<Kernel> {
    Kernel::of(&agent.data, agent.keeper().context("a keeper")?).with_context(|| agent.describe())
}

/// Waits until so many sandboxes were created, so that kills are spread over all of it.
async fn created(book: &Book, count: usize) -> Result<()> {
    let waiting = async {
        while book.created() < count {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LONG * 5, waiting)
        .await
        .with_context(|| format!("{count} are never created: {}", book.told()))
}

async fn kill_controllers(world: &World, book: &Book, size: Size) -> Result<()> {
    for turn in 0..size.controller_kills {
        created(book, size.sandboxes * (turn + 1) / (size.controller_kills + 2)).await?;
        let leader = world.leader().await?;
        book.controllers.fetch_add(1, Ordering::SeqCst);
        world.kill_controller(leader)?;
        // The other one waits for the Lease to lapse; whoever takes over its directory need not.
        if turn % 4 == 1 && world.controllers.len() > 1 {
            world.leader().await?;
        }
        world.start_controller(leader).await?;
        world.leader().await?;
    }
    Ok(())
}

async fn kill_agents(world: &World, book: &Book, size: Size) -> Result<()> {
    let each = size.worker_kills + size.keeper_kills;
    let all = each * AGENTS;
    for turn in 0..all {
        created(book, size.sandboxes * (turn + 1) / (all + 2)).await?;
        let agents = world.agents.all();
        let agent = &agents[turn % agents.len()];
        // Of each agent's deaths, those of its keeper come between those of its workers.
        if (turn / AGENTS) % each < size.keeper_kills * 2 && (turn / AGENTS) % 2 == 1 {
            agent.kill_keeper()?;
        } else {
            agent.worker_dies().await?;
        }
    }
    Ok(())
}

async fn listed(world: &World) -> Result<Vec<DynamicObject>> {
    Ok(objects(&world.client, "Sandbox").list(&ListParams::default()).await?.items)
}

fn phase(object: &DynamicObject) -> &str {
    object.data["status"]["phase"].as_str().unwrap_or_default()
}

/// What everybody says: the registry, objects that run, agents, their runs that live, the kernel's processes and groups.
async fn counts(world: &World) -> Result<Vec<i64>> {
    let registry = world.counted("agentcube_sandbox_slots{state=\"used\"}").await?.unwrap_or(-1);
    let running = listed(world).await?.iter().filter(|object| phase(object) == "Running").count();
    let (mut used, mut living, mut processes, mut groups) = (0, 0, 0, 0);
    for agent in world.agents.all() {
        let says = agent.says().await?;
        used += i64::from(says.0);
        living += says.1;
        let kernel = kernel(&agent)?;
        processes += kernel.processes;
        groups += kernel.cgroups;
    }
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(vec![registry, number(running), used, number(living), number(processes), number(groups)])
}

/// Waits until all say the same, and something that is right.
async fn agree(world: &World, what: &str, limit: Duration, right: impl Fn(i64) -> bool) -> Result<i64> {
    let begun = Instant::now();
    loop {
        let counts = counts(world).await;
        if let Ok(counts) = &counts
            && counts.iter().all(|count| *count == counts[0])
            && right(counts[0])
        {
            return Ok(counts[0]);
        }
        if begun.elapsed() > limit {
            let objects = listed(world).await?;
            let objects: Vec<_> =
                objects.iter().map(|it| format!("{} {}", it.name_any(), phase(it))).collect();
            anyhow::bail!(
                "{what}: registry, objects that run, agents, living runs, processes, cgroups: {counts:?}; objects: {objects:?}"
            );
        }
        tokio::time::sleep(LOOK * 5).await;
    }
}

/// Nobody creates or deletes any more: all that was acknowledged is there, and everybody says the same.
async fn rest(world: &World, client: &Client, book: &Book) -> Result<()> {
    let living = book.living();
    for one in &living {
        if client.get(&one.name).await?.is_none() {
            book.is_gone(one, &world.agents, world.settings.logged);
        }
    }
    book.check()?;
    let count = agree(world, "at rest", REST + LONG, |_| true).await?;
    println!("at rest: {count} run of {} that were acknowledged and not deleted", living.len());
    let known = listed(world).await?;
    for object in &known {
        // Names that were deleted linger for as long as a create of them may be under way.
        let lingers = object.metadata.deletion_timestamp.is_some();
        let of_ours = living.iter().any(|one| one.name == object.name_any());
        // What nobody was told of may have lost its agent, too, and then stays lost unless it says otherwise.
        let manual = object.data["spec"]["failurePolicy"] != "AutoRecreate";
        let rests = phase(object) == "Running" || phase(object) == "Lost" && manual;
        ensure!(of_ours || lingers || rests, "{} {}", object.name_any(), phase(object));
    }
    let mismatch = world.counted("agentcube_sandbox_registry_audit_mismatch").await?;
    ensure!(mismatch == Some(0), "{mismatch:?}");
    Ok(())
}

/// All is deleted: no container is left within the bound, and no object a little later.
async fn empty(world: &World, client: &Client, book: &Book, before: &[Kernel]) -> Result<()> {
    for one in book.living() {
        client.delete(&one.name).await?;
        book.delete(&one.name);
    }
    // Creates that nobody was told of are there as well: whoever asked gave up, or asked under another name.
    for object in listed(world).await? {
        client.delete(&object.name_any()).await?;
    }
    agree(world, "60 s after the end", REST, |count| count == 0).await?;
    let begun = Instant::now();
    while !listed(world).await?.is_empty() {
        ensure!(begun.elapsed() < REST + LONG, "objects linger");
        tokio::time::sleep(LOOK * 5).await;
    }
    let after = mounts(world)?;
    ensure!(after.len() == before.len());
    for (after, before) in after.iter().zip(before) {
        ensure!(after.mounts <= before.mounts + 1, "{after:?} instead of {before:?}");
    }
    Ok(())
}

pub(crate) async fn away(program: &Path, size: Size) -> Result<()> {
    let lease = size.away + Duration::from_secs(20);
    let world = World::start(program, settings(size, lease, 1)).await?;
    let outcome = without_server(&world, size).await.with_context(|| world.told());
    outcome.and(world.end().await)
}

/// Runs that were there go on; FAST creates are answered; objects of all of them appear afterwards.
async fn without_server(world: &World, size: Size) -> Result<()> {
    settled(world).await?;
    let client = clients(world)?;
    let mut runs = std::collections::BTreeMap::new();
    for number in 0..10 {
        let name = format!("before-{number}");
        let made = client.create(order(&name, Mode::Fast, FailurePolicy::AutoRecreate)).await?;
        runs.insert(name, made.map_err(|status| anyhow::anyhow!("{status}"))?.run_id);
    }
    agree(world, "before", LONG, |count| count == 10).await?;
    world.server.kill()?;
    let begun = Instant::now();
    let mut number = 0;
    let every = size.away / 20;
    // However long each of them takes.
    while begun.elapsed() < size.away || number < 10 {
        let name = format!("during-{number}");
        let made = client.create(order(&name, Mode::Fast, FailurePolicy::AutoRecreate)).await?;
        let made = made.map_err(|status| anyhow::anyhow!("{name}, after {:?}: {status}", begun.elapsed()))?;
        runs.insert(name, made.run_id);
        number += 1;
        tokio::time::sleep(every).await;
    }
    world.server.again().await?;
    let count = i64::try_from(runs.len())?;
    agree(world, "afterwards", REST + LONG, |agreed| agreed == count).await?;
    for object in listed(world).await? {
        let run = object.data["status"]["sandboxID"].as_str().unwrap_or_default();
        ensure!(
            runs.get(&object.name_any()).is_some_and(|known| known == run),
            "{}: {run}",
            object.name_any()
        );
    }
    for name in runs.keys() {
        client.delete(name).await?;
    }
    agree(world, "in the end", REST + LONG, |count| count == 0).await.map(drop)
}
