//! What goes wrong between Envoy and its routers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::FutureExt;
use http::StatusCode;

use crate::Case;
use crate::cases::{listening, next, talks, upgraded};
use crate::client::get;
use crate::load;
use crate::world::World;

/// Longer than a case lasts: what is not heard of is held.
const NEVER: Duration = Duration::from_secs(3600);

/// In the order in which they are tried.
pub(crate) const ALL: &[Case] = &[
    Case { name: "the only router is killed", change: |_| {}, run: |world| killed(world).boxed_local() },
    Case {
        name: "routers are restarted under load",
        change: |setting| setting.routers = 2,
        run: |world| load::restarts(world).boxed_local(),
    },
    Case {
        name: "a request outlives the router that picked its instance",
        change: |setting| {
            setting.idle_timeout = "1s";
            setting.lease = Duration::from_secs(5);
        },
        run: |world| outlives(world).boxed_local(),
    },
    Case {
        name: "a request without a session outlives the router that picked its instance",
        change: |setting| {
            setting.route_policy = "Oneshot";
            setting.reuse_policy = "Always";
            setting.idle_timeout = "1s";
            setting.lease = Duration::from_secs(5);
        },
        run: |world| oneshot_outlives(world).boxed_local(),
    },
    Case {
        name: "another router hears of the end of a request",
        change: |setting| {
            setting.routers = 2;
            setting.one_log = true;
            setting.lease = NEVER;
        },
        run: |world| told_on(world).boxed_local(),
    },
    Case {
        name: "a request outlives routers that stop in order, and none of them counts any longer",
        change: |setting| {
            setting.routers = 2;
            setting.one_log = true;
            setting.idle_timeout = "1s";
            setting.lease = NEVER;
        },
        run: |world| handed_on(world).boxed_local(),
    },
    Case {
        name: "nobody tells of the end of a request",
        change: |setting| {
            setting.logs = false;
            setting.idle_timeout = "1s";
            setting.lease = Duration::from_secs(3);
        },
        run: |world| unheard(world).boxed_local(),
    },
    Case {
        name: "TLS with certificates of both",
        change: |it| it.tls = true,
        run: |world| mutual(world).boxed_local(),
    },
];

async fn killed(world: &World) -> Result<()> {
    let mut talking = upgraded(world, "u1").await?;
    talks(&mut talking, "before").await?;
    let instance = get(world.address(), "/default/agent", &[("x-session", "u1")]).await?.instance()?;
    let address = world.kill_router(0).context("it ran")?;
    let answer = get(world.address(), "/default/agent", &[("x-session", "u1")]).await?;
    ensure!(answer.status == StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    ensure!(answer.code() == "GatewayError" && answer.body["error"]["requestId"].is_string(), "{answer:?}");
    ensure!(answer.headers["content-type"] == "application/json", "{answer:?}");
    // What is on its way already is not its business.
    talks(&mut talking, "after").await?;
    world.start_router(0, address).await?;
    let again = async || {
        let answer = get(world.address(), "/default/agent", &[("x-session", "u1")]).await?;
        Ok(answer.status == StatusCode::OK && answer.instance()? == instance)
    };
    world.until("the session is served again", again).await?;
    talks(&mut talking, "later").await
}

async fn outlives(world: &World) -> Result<()> {
    let (body, _connection) = listening(world, "long").await?;
    let address = world.kill_router(0).context("it ran")?;
    world.start_router(0, address).await?;
    world.until("the new one takes it over", async || Ok(world.on_their_way(0) == 1)).await?;
    for round in 0..2 {
        let key = format!("short-{round}");
        let asked = async || {
            let answer = get(world.address(), "/default/agent", &[("x-session", &key)]).await?;
            Ok(answer.status == StatusCode::OK)
        };
        world.until("a session is served", asked).await?;
        let ended = async || Ok(world.sessions().await?.iter().all(|session| session.key.as_str() != key));
        world.until("an idle session ends", ended).await?;
        let sessions = world.sessions().await?;
        ensure!(sessions.iter().any(|session| session.key.as_str() == "long"), "it ended under its request");
    }
    drop(body);
    // Its server may have noticed already that nobody listens.
    let _noticed = world.backends.say.send("stop");
    world.until("it ends when it is idle", async || Ok(world.sessions().await?.is_empty())).await
}

async fn oneshot_outlives(world: &World) -> Result<()> {
    let (mut body, _connection) = listening(world, "").await?;
    let address = world.kill_router(0).context("it ran")?;
    world.start_router(0, address).await?;
    world.until("the new one takes it over", async || Ok(world.on_their_way(0) == 1)).await?;
    world.backends.say.send("data: still here\n\n")?;
    ensure!(next(&mut body).await?.as_deref() == Some("data: still here\n\n".as_bytes()));
    world.backends.say.send("stop")?;
    world.until("its instance is free", async || Ok(world.on_their_way(0) == 0)).await
}

async fn told_on(world: &World) -> Result<()> {
    for turn in 0..20 {
        get(world.address(), "/default/agent", &[("x-session", &format!("u{turn}"))]).await?.instance()?;
    }
    let over = async || Ok(world.on_their_way(0) + world.on_their_way(1) == 0);
    world.until("both know that all are over", over).await
}

async fn handed_on(world: &World) -> Result<()> {
    let (mut body, _connection) = listening(world, "long").await?;
    for number in [0, 1, 0, 1] {
        let address = world.stop_router(number).await?;
        ensure!(!world.counts(number).await?, "router {number} still counts");
        let other = 1 - number;
        world.until("the other holds it", async || Ok(world.on_their_way(other) == 1)).await?;
        world.start_router(number, address).await?;
    }
    world.backends.say.send("data: still here\n\n")?;
    ensure!(next(&mut body).await?.as_deref() == Some("data: still here\n\n".as_bytes()));
    let sessions = world.sessions().await?;
    ensure!(sessions.iter().any(|session| session.key.as_str() == "long"), "it ended under its request");
    drop(body);
    // Its server may have noticed already that nobody listens.
    let _noticed = world.backends.say.send("stop");
    let over = async || Ok(world.on_their_way(0) + world.on_their_way(1) == 0);
    world.until("both know that it is over", over).await
}

async fn unheard(world: &World) -> Result<()> {
    get(world.address(), "/default/agent", &[("x-session", "u1")]).await?.instance()?;
    ensure!(world.on_their_way(0) == 1, "it is over, but the router cannot know");
    world.until("its lease runs out", async || Ok(world.on_their_way(0) == 0)).await?;
    world.until("the session ends", async || Ok(world.sessions().await?.is_empty())).await
}

async fn mutual(world: &World) -> Result<()> {
    get(world.address(), "/default/agent", &[("x-session", "u1")]).await?.instance()?;
    world.until("the access log comes through as well", async || Ok(world.on_their_way(0) == 0)).await
}
