//! A router, or the lifecycle manager, dies after its n-th write, for every n until it has no such write: the write was
//! carried out, and nobody heard of it. Whoever is left serves every key, and everything comes to rest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use crate::wire::{Line, Weather};
use crate::world::{LONG, Router, World};

/// Trials at once: they mostly wait.
const AT_ONCE: u64 = 8;
/// More writes than any of the stories has.
const MOST: u64 = 80;

fn scaling(reuse: bool) -> serde_json::Value {
    let reuse = if reuse { "Always" } else { "Never" };
    json!({ "scalingMode": "OnDemand", "minInstances": 1, "maxInstances": 3,
        "instanceLifecycle": { "reusePolicy": reuse, "idleTimeout": "1s" } })
}

/// Tells the story with a death after every write, and says how many it had.
async fn every<F>(story: impl Fn(u64) -> F) -> Result<u64>
where
    F: Future<Output = Result<bool>>,
{
    for batch in 0..MOST / AT_ONCE {
        let trials = (batch * AT_ONCE + 1..).take(8).map(|write| {
            let trial = story(write);
            async move {
                Ok::<_, anyhow::Error>((
                    write,
                    trial.await.with_context(|| format!("death after write {write}"))?,
                ))
            }
        });
        let ended: Vec<(u64, bool)> = stream::iter(trials).buffer_unordered(8).try_collect().await?;
        let lived = ended.iter().filter(|(_, died)| !died).map(|(write, _)| *write).min();
        if let Some(write) = lived {
            return Ok(write - 1);
        }
    }
    anyhow::bail!("more than {MOST} writes: the story has no end")
}

pub(crate) async fn of_routers(reuse: bool) -> Result<()> {
    let writes = every(|write| router_dies(write, reuse)).await?;
    println!("    a router was killed after each of its {writes} writes");
    ensure!(writes >= 6, "the story has {writes} writes only");
    Ok(())
}

pub(crate) async fn of_managers(reuse: bool) -> Result<()> {
    let writes = every(|write| manager_dies(write, reuse)).await?;
    println!("    a manager was killed after each of its {writes} writes");
    ensure!(writes >= 6, "the story has {writes} writes only");
    Ok(())
}

/// Whether the router died before the end of its story.
async fn router_dies(write: u64, reuse: bool) -> Result<bool> {
    let world = World::embedded(scaling(reuse)).await?;
    world.manager(&Line::new(0, Weather::default()));
    let survivor = world.router("survivor", 0, Line::new(0, Weather::default()));
    survivor.ready().await?;
    let line = Line::until_write(write);
    let victim = world.router("victim", 1, line.clone());
    let died = tokio::select! {
        told = router_story(&world, &victim) => {
            told?;
            false
        }
        () = line.died.notified() => true,
    };
    victim.crash(&world.book);
    for key in ["a", "b"] {
        let request = survivor.request(&world.book, key, Duration::ZERO);
        let served = tokio::time::timeout(LONG, request).await.context("the survivor does not answer")?;
        served.with_context(|| format!("the survivor cannot serve {key}"))?;
    }
    rest(&world).await?;
    Ok(died)
}

/// Binds an idle instance, starts one, keeps a session from being released, loses an instance.
async fn router_story(world: &World, victim: &Router) -> Result<()> {
    victim.ready().await?;
    let book = &world.book;
    victim.request(book, "a", Duration::ZERO).await?;
    let b = victim.request(book, "b", Duration::ZERO).await?;
    let long = victim.request(book, "a", Duration::from_millis(2500));
    let lost = async {
        let instances = world.instances().await?;
        if let Some(instance) = instances.iter().find(|instance| *instance.id.uid == *b) {
            world.kill_instance(instance).await;
        }
        victim.request(book, "b", Duration::ZERO).await?;
        anyhow::Ok(())
    };
    let (long, lost) = tokio::join!(long, lost);
    long?;
    lost
}

/// Whether the manager died before everything had come to rest.
async fn manager_dies(write: u64, reuse: bool) -> Result<bool> {
    let world = World::embedded(scaling(reuse)).await?;
    let line = Line::until_write(write);
    world.manager(&line);
    let routers =
        [0, 1].map(|place| world.router(&format!("r{place}"), place, Line::new(place, Weather::default())));
    for router in &routers {
        router.ready().await?;
    }
    let story = async {
        let book = &world.book;
        for key in ["a", "b", "c"] {
            routers[0].request(book, key, Duration::ZERO).await?;
        }
        let sessions = world.sessions().await?;
        if let Some(session) = sessions.iter().find(|session| session.key.as_str() == "a") {
            world.end_session(session).await;
        }
        routers[1].request(book, "b", Duration::from_millis(2500)).await?;
        anyhow::Ok(())
    };
    // The routers go on without it; whoever takes its place finds what it left.
    let successor = async {
        line.died.notified().await;
        world.manager(&Line::new(1, Weather::default()));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        told = async { story.await?; rest(&world).await } => told?,
        () = successor => {}
    }
    Ok(line.is_dead())
}

async fn rest(world: &World) -> Result<()> {
    world.settles(1).await?;
    world.verdict()
}
