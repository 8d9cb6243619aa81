//! Runs that stand still.

use agentcube_protos::agent::{Entry, PauseRequest, Reason, StartRequest, State, StatsRequest};
use agentcube_protos::link::AgentApi;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

use crate::world::World;
use crate::{POLL, is_root};

async fn cpu(world: &World, name: &str) -> Result<u64> {
    let usage = world.agent.stats(StatsRequest { run_id: world.run(name) }).await?.runs;
    Ok(usage.first().context("it runs")?.cpu_microseconds)
}

/// It uses the processor, now and then again.
async fn goes_on(world: &World, name: &str) -> Result<()> {
    let before = cpu(world, name).await?;
    while cpu(world, name).await? == before {
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// A program that does nothing but use the processor uses none, however often one looks.
async fn stands_still(world: &World, name: &str) -> Result<()> {
    let before = cpu(world, name).await?;
    for _ in 0..200 {
        ensure!(cpu(world, name).await? == before, "it goes on");
    }
    Ok(())
}

pub(crate) async fn paused_and_resumed(world: &World) -> Result<()> {
    world.started("spins", &["spin"]).await?;
    goes_on(world, "spins").await?;
    for _ in 0..2 {
        ensure!(world.pause("spins", true).await?.is_none());
        stands_still(world, "spins").await?;
    }
    let entry = world.until("spins", |entry| entry.is_some_and(|entry| entry.paused)).await?;
    ensure!(entry.is_some_and(|entry| entry.state() == State::Running && !entry.fenced));
    ensure!(world.pause("spins", false).await?.is_none());
    goes_on(world, "spins").await?;
    world.until("spins", |entry| entry.is_some_and(|entry| !entry.paused)).await?;
    let fenced = PauseRequest { fenced: Some(true), ..world.of("spins") };
    let refusal = world.agent.pause(fenced).await?.refusal.context("only an agent fences")?;
    ensure!(refusal.reason() == Reason::Invalid, "{refusal:?}");
    let nobody = world.pause("nobody", true).await?.context("there is no such run")?;
    ensure!(nobody.reason() == Reason::Unknown, "{nobody:?}");
    world.stop("spins", 0).await.map(drop)
}

/// A signal would wait until it is thawed, which never happens: it is killed at once, whatever its grace.
pub(crate) async fn stopped_while_paused(world: &World) -> Result<()> {
    world.started("paused", &["until-told", "0"]).await?;
    ensure!(world.pause("paused", true).await?.is_none());
    let stopped = world.stop("paused", 3_600).await?;
    ensure!(stopped.exit.is_some_and(|exit| exit.code == 137));
    world.started("left", &["forever"]).await?;
    ensure!(world.pause("left", true).await?.is_none());
    Ok(())
}

async fn keeps_contact(world: &World) -> Result<()> {
    loop {
        let answer = world.sync(0).await?;
        world.acknowledge(answer.seq).await?;
        tokio::time::sleep(POLL).await;
    }
}

/// Starts it, in contact for as long as that takes; and is told this then.
async fn started_in_contact(world: &World, order: StartRequest, told: &[PauseRequest]) -> Result<()> {
    let started = async {
        world.ordered(order).await?;
        for told in told {
            let answer = world.agent.pause(told.clone()).await?;
            ensure!(answer.refusal.is_none(), "{answer:?}");
        }
        Ok(())
    };
    tokio::select! {
        started = started => started,
        lost = keeps_contact(world) => lost,
    }
}

pub(crate) async fn stands_still_without_a_controller(world: &World) -> Result<()> {
    let short = world.another(|options| options.dropped = Duration::from_secs(3)).await?;
    let mut patient = short.order("patient", &["spin"]);
    patient.claim.get_or_insert_default().uid = "its-object-exists".into();
    patient.recovery_timeout_seconds = 0;
    // It may be told of more time, never of less: that would have been said earlier.
    let more = |seconds| PauseRequest { recovery_timeout_seconds: Some(seconds), ..short.of("patient") };
    started_in_contact(&short, patient, &[more(600), more(0)]).await?;
    // Nobody has confirmed an object of this one, however long its recovery may take.
    started_in_contact(&short, short.order("spins", &["spin"]), &[]).await?;
    if !is_root() {
        // Without a freezer it can only end.
        let ended = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.state() == State::Ended);
        let exit = short.until("spins", ended).await?.and_then(|entry| entry.exit);
        ensure!(exit.is_some_and(|exit| exit.reason == "Fenced"));
        return short.end().await;
    }
    let entry = short.until("spins", |entry| entry.is_some_and(|entry| entry.fenced)).await?;
    ensure!(entry.is_some_and(|entry| entry.state() == State::Running && !entry.paused));
    stands_still(&short, "spins").await?;
    goes_on(&short, "patient").await.context("it has more time")?;
    // The word to go on may be as old as our silence; and so may the word to start.
    let thaw = PauseRequest { fenced: Some(false), ..short.of("spins") };
    let refusal = short.agent.pause(thaw.clone()).await?.refusal.context("out of contact")?;
    ensure!(refusal.reason() == Reason::Unknown, "{refusal:?}");
    short.refused_for(short.order("late", &["spin"]), Reason::Unknown).await?;
    // Contact alone thaws nothing.
    let answer = short.sync(0).await?;
    short.acknowledge(answer.seq).await?;
    stands_still(&short, "spins").await?;
    loop {
        let answer = short.sync(0).await?;
        short.acknowledge(answer.seq).await?;
        // On a slow machine the next silence is over before this is said.
        if short.agent.pause(thaw.clone()).await?.refusal.is_none() {
            break;
        }
    }
    short.stop("spins", 0).await?;
    short.end().await
}
