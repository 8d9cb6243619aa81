//! How runs end.

use std::sync::{Mutex, PoisonError};

use agentcube_protos::agent::{ConfigureRequest, PauseRequest, Reason, State, Why};
use agentcube_protos::link::AgentApi;
use agentcube_protos::session::Resources;
use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;

use crate::settled;
use crate::streams::log;
use crate::traces::Traces;
use crate::world::World;

fn in_milliseconds(wait: i64) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or_default() + wait
}

pub(crate) async fn ends_by_itself(world: &World) -> Result<()> {
    world.started("ends", &["exit", "3"]).await?;
    let entry = world.until("ends", |entry| entry.is_some_and(|entry| entry.state() == State::Ended)).await?;
    let exit = entry.and_then(|entry| entry.exit).context("it has ended")?;
    ensure!(exit.code == 3 && exit.reason == "Exited" && exit.ended_unix_ms > 0, "{exit:?}");
    ensure!(world.sync(0).await?.used == 0, "its slot is free");
    world
        .refused_for(
            agentcube_protos::agent::StartRequest {
                run_id: world.run("new"),
                ..world.order("ends", &["exit", "0"])
            },
            Reason::OtherRun,
        )
        .await?;
    let noted = world.stop_for("ends", 0, Why::Noted).await?;
    ensure!(noted.was_there && noted.exit == Some(exit), "{noted:?}");
    ensure!(world.sync(0).await?.entries.is_empty());
    Ok(())
}

pub(crate) async fn expires_without_a_controller(world: &World) -> Result<()> {
    let mut order = world.order("expires", &["until-told", "4"]);
    order.expire_unix_ms = in_milliseconds(3_000);
    world.ordered(order).await?;
    let ended = |entry: Option<&agentcube_protos::agent::Entry>| {
        entry.is_some_and(|entry| entry.state() == State::Ended)
    };
    let exit = world.until("expires", ended).await?.and_then(|entry| entry.exit).context("it has ended")?;
    ensure!(exit.reason == "Expired", "{exit:?}");
    // Sooner than was said at first.
    world.started("sooner", &["until-told", "5"]).await?;
    let request = PauseRequest {
        fence: Some(world.fence.clone()),
        run_id: world.run("sooner"),
        expire_unix_ms: Some(in_milliseconds(1)),
        ..PauseRequest::default()
    };
    let answer = world.agent.pause(request).await?;
    ensure!(answer.refusal.is_none(), "{answer:?}");
    let exit = world.until("sooner", ended).await?.and_then(|entry| entry.exit).context("it has ended")?;
    ensure!(exit.reason == "Expired", "{exit:?}");
    Ok(())
}

pub(crate) async fn ends_within_its_grace(world: &World) -> Result<()> {
    world.started("listens", &["until-told", "7"]).await?;
    ensure!(log(world, "listens", "listening").await?.contains("listening"));
    let exit = world.stop("listens", 60).await?.exit.context("it was there")?;
    ensure!(exit.code == 7 && exit.reason == "Stopped", "{exit:?}");
    world.started("stubborn", &["forever"]).await?;
    let exit = world.stop("stubborn", 1).await?.exit.context("it was there")?;
    ensure!(exit.code == 137, "{exit:?}");
    // Who has no patience is not kept waiting by who has.
    world.started("hurried", &["forever"]).await?;
    let (patient, hurried) = tokio::join!(world.stop("hurried", 3_600), world.stop("hurried", 0));
    ensure!(patient?.exit.is_some() && hurried?.exit.is_some());
    Ok(())
}

/// Start and Stop at once, in any order: afterwards it does not run, and is never started again.
pub(crate) async fn stopped_in_the_middle(world: &World) -> Result<()> {
    let tries = (0..24_u32).map(|number| async move {
        let name = format!("middle-{number}");
        let order = world.order(&name, &["forever"]);
        let stop = async {
            for _ in 0..number * 4 {
                tokio::task::yield_now().await;
            }
            world.stop(&name, 0).await
        };
        let (started, stopped) = tokio::join!(world.start(order.clone()), stop);
        let (started, stopped) = (started?, stopped?);
        if let Err(refusal) = &started {
            ensure!(refusal.reason() == Reason::Tombstoned, "{refusal:?}");
        }
        ensure!(stopped.was_there || started.is_err(), "{started:?} {stopped:?}");
        world.refused_for(order, Reason::Tombstoned).await
    });
    for tried in join_all(tries).await {
        tried?;
    }
    let told = world.sync(0).await?;
    ensure!(told.used == 0 && told.entries.is_empty(), "{told:?}");
    Ok(())
}

/// By somebody else: it is told as any other end.
pub(crate) async fn killed_in_the_middle(world: &World) -> Result<()> {
    let node = format!("agent-test-{}", std::process::id());
    let before = Traces::of(&node)?;
    let names: Vec<String> = (0..8).map(|number| format!("victim-{number}")).collect();
    for started in join_all(names.iter().map(|name| world.started(name, &["forever"]))).await {
        started?;
    }
    let victims = Mutex::new(Vec::new());
    // One that is just being made ahead has no name yet by which it could be told.
    settled(&node, |traces| {
        let mut found = victims.lock().unwrap_or_else(PoisonError::into_inner);
        *found = traces.since(&before);
        ensure!(found.len() == names.len(), "{found:?}");
        Ok(())
    })
    .await?;
    for pid in victims.into_inner()? {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("a process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    for name in &names {
        let ended =
            world.until(name, |entry| entry.is_some_and(|entry| entry.state() == State::Ended)).await?;
        let exit = ended.and_then(|entry| entry.exit).context("it has ended")?;
        ensure!(exit.code == 137 && exit.reason == "Exited", "{exit:?}");
    }
    ensure!(world.sync(0).await?.used == 0);
    // Sandboxes that are made ahead in their place come when nothing else is done.
    settled(&node, |traces| traces.compare(&before)).await.context("before anybody took note")
}

pub(crate) async fn runs_out_of_memory(world: &World) -> Result<()> {
    let mut order = world.order("eats", &["eat"]);
    order.spec.get_or_insert_default().resources =
        Some(Resources { memory: "64Mi".into(), ..Resources::default() });
    world.ordered(order).await?;
    let ended = world.until("eats", |entry| entry.is_some_and(|entry| entry.state() == State::Ended)).await?;
    let exit = ended.and_then(|entry| entry.exit).context("it has ended")?;
    ensure!(exit.reason == "OutOfMemory" && exit.code == 137, "{exit:?}");
    Ok(())
}

pub(crate) async fn unknown_ids_are_answered(world: &World) -> Result<()> {
    let answer = world.stop("never-seen", 5).await?;
    ensure!(!answer.was_there && answer.exit.is_none(), "{answer:?}");
    world.refused_for(world.order("never-seen", &["forever"]), Reason::Tombstoned).await?;
    let told = world.sync(0).await?;
    ensure!(told.tombstones.len() == 1 && told.tombstones[0].why() == Why::Deleted, "{told:?}");
    Ok(())
}

pub(crate) async fn only_empty_agents_go(world: &World) -> Result<()> {
    let configure =
        |drain| ConfigureRequest { fence: Some(world.fence.clone()), drain, ..ConfigureRequest::default() };
    world.started("stays", &["forever"]).await?;
    let answer = world.agent.configure(configure(true)).await?;
    ensure!(!answer.draining && !answer.empty, "{answer:?}");
    world.stop("stays", 0).await?;
    let answer = world.agent.configure(configure(true)).await?;
    ensure!(answer.draining && answer.empty, "{answer:?}");
    world.refused_for(world.order("late", &["forever"]), Reason::Draining).await?;
    ensure!(world.sync(0).await?.draining);
    let answer = world.agent.configure(configure(false)).await?;
    ensure!(!answer.draining, "{answer:?}");
    world.started("again", &["forever"]).await?;
    world.stop("again", 0).await.map(drop)
}

/// Otherwise it would be asked again at once, and answer at once, over and over again.
pub(crate) async fn who_ends_has_nothing_more_to_tell(world: &World) -> Result<()> {
    world.agent.shutdown().await;
    let told = world.sync(0).await?;
    let again = world.sync(told.version).await;
    ensure!(again.is_err(), "there is nothing new, and never will be: {again:?}");
    Ok(())
}
