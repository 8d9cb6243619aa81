//! What every front has to do.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Case;
use crate::client::{get, head, send};
use crate::seeing;
use crate::world::World;

/// In the order in which they are tried.
pub(crate) const ALL: &[Case] = &[
    Case {
        name: "two sessions have two instances",
        change: |_| {},
        run: |world| two_sessions(world).boxed_local(),
    },
    Case { name: "a client cannot forge", change: |_| {}, run: |world| forged(world).boxed_local() },
    Case { name: "refusals are JSON", change: |_| {}, run: |world| refusals(world).boxed_local() },
    Case { name: "a WebSocket", change: |_| {}, run: |world| websocket(world).boxed_local() },
    Case { name: "events", change: |_| {}, run: |world| events(world).boxed_local() },
    Case { name: "100 MB both ways", change: |_| {}, run: |world| large(world).boxed_local() },
    Case {
        name: "every request is counted once",
        change: |_| {},
        run: |world| seeing::counted(world).boxed_local(),
    },
    Case {
        name: "the access log tells no secrets",
        change: |_| {},
        run: |world| seeing::logged(world).boxed_local(),
    },
    Case {
        name: "what is on its way is seen",
        change: |_| {},
        run: |world| seeing::in_flight(world).boxed_local(),
    },
    Case { name: "a client leaves", change: |_| {}, run: |world| leaves(world).boxed_local() },
    Case {
        name: "a session is idle from the end of its last request on",
        change: |setting| {
            setting.idle_timeout = "1s";
            // Shorter than the request: it has to be renewed.
            setting.lease = Duration::from_secs(5);
        },
        run: |world| idle(world).boxed_local(),
    },
];

async fn two_sessions(world: &World) -> Result<()> {
    let ask =
        async |key: &str| get(world.address(), "/default/agent/v1/say?x=1", &[("x-session", key)]).await;
    let first = ask("u1").await?;
    ensure!(first.body["target"] == "/v1/say?x=1", "{first:?}");
    let (one, two) = (first.instance()?, ask("u2").await?.instance()?);
    ensure!(one != two, "both are at {one}");
    for _ in 0..20 {
        ensure!(ask("u1").await?.instance()? == one && ask("u2").await?.instance()? == two);
    }
    let keys: Vec<String> = (0..10).map(|n| format!("many-{n}")).collect();
    let instances = futures_util::future::try_join_all(keys.iter().map(|key| ask(key))).await?;
    let different: Result<std::collections::BTreeSet<String>> =
        instances.iter().map(|answer| answer.instance()).collect();
    ensure!(different?.len() == keys.len(), "new sessions at once share instances");
    Ok(())
}

async fn forged(world: &World) -> Result<()> {
    let victim = get(world.address(), "/default/agent", &[("x-session", "victim")]).await?.instance()?;
    let elsewhere = "127.0.0.1:9";
    let forged = [
        ("x-session", "attacker"),
        ("x-gateway-destination-endpoint", elsewhere),
        ("x-reserved-token", "forged"),
        ("x-forwarded-prefix", "/forged"),
        ("x-forwarded-host", "forged"),
        ("x-request-id", "mine"),
    ];
    let answer = get(world.address(), "/default/agent", &forged).await?;
    ensure!(answer.instance()? != victim);
    let headers = &answer.body["headers"];
    let token = headers["x-reserved-token"].as_str().context("a token")?;
    ensure!(token != "forged" && !token.is_empty(), "{headers}");
    ensure!(headers["x-gateway-destination-endpoint"].is_null(), "{headers}");
    ensure!(headers["x-forwarded-prefix"] == "/default/agent", "{headers}");
    ensure!(headers["x-forwarded-host"] == "localhost" && headers["host"] == "localhost", "{headers}");
    ensure!(headers["x-request-id"].is_string(), "{headers}");
    Ok(())
}

async fn refusals(world: &World) -> Result<()> {
    let address = world.address();
    for (path, key, status, code) in [
        ("/default/gone", "u1", StatusCode::NOT_FOUND, "NoRoute"),
        ("/default/agent", "", StatusCode::BAD_REQUEST, "SessionKeyMissing"),
        ("/default/agent", &"x".repeat(600), StatusCode::BAD_REQUEST, "SessionKeyInvalid"),
    ] {
        let answer = get(address, path, &[("x-session", key)]).await?;
        ensure!((answer.status, answer.code()) == (status, code), "{answer:?}");
        ensure!(answer.headers["content-type"] == "application/json", "{answer:?}");
        let id = answer.headers.get("x-request-id").and_then(|id| id.to_str().ok());
        ensure!(answer.body["error"]["requestId"].as_str() == id && id.is_some(), "{answer:?}");
    }
    Ok(())
}

/// A connection that speaks WebSocket with the instance of a session.
pub(crate) async fn upgraded(world: &World, key: &str) -> Result<TokioIo<hyper::upgrade::Upgraded>> {
    let asked = [
        ("x-session", key),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let (mut response, _) = send(world.address(), head("/default/agent/talk", &asked)?).await?;
    ensure!(response.status() == StatusCode::SWITCHING_PROTOCOLS, "{response:?}");
    Ok(TokioIo::new(hyper::upgrade::on(&mut response).await?))
}

/// Says something, and hears it again.
pub(crate) async fn talks(io: &mut TokioIo<hyper::upgrade::Upgraded>, word: &str) -> Result<()> {
    io.write_all(word.as_bytes()).await?;
    let mut heard = vec![0; word.len()];
    io.read_exact(&mut heard).await?;
    ensure!(heard == word.to_uppercase().into_bytes(), "{heard:?}");
    Ok(())
}

async fn websocket(world: &World) -> Result<()> {
    let mut io = upgraded(world, "u1").await?;
    for word in ["hello", "again"] {
        talks(&mut io, word).await?;
    }
    io.shutdown().await?;
    ensure!(io.read(&mut [0; 8]).await? == 0, "the instance ends it too");
    let mut open = world.backends.open.subscribe();
    open.wait_for(|count| *count == 0).await?;
    Ok(())
}

/// A stream of events of a session's instance, with its first event read.
pub(crate) async fn listening(world: &World, key: &str) -> Result<(Incoming, tokio::task::JoinHandle<()>)> {
    let (response, connection) =
        send(world.address(), head("/default/agent/events", &[("x-session", key)])?).await?;
    ensure!(response.status() == StatusCode::OK, "{response:?}");
    ensure!(response.headers()["content-type"] == "text/event-stream", "{response:?}");
    let mut body = response.into_body();
    ensure!(next(&mut body).await?.as_deref() == Some("data: hello\n\n".as_bytes()));
    Ok((body, connection))
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>> {
    let Some(frame) = body.frame().await else { return Ok(None) };
    Ok(frame?.into_data().ok())
}

async fn events(world: &World) -> Result<()> {
    let (mut body, _connection) = listening(world, "u1").await?;
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        // Each comes before the next is sent.
        world.backends.say.send(event)?;
        ensure!(next(&mut body).await?.as_deref() == Some(event.as_bytes()));
    }
    world.backends.say.send("stop")?;
    ensure!(next(&mut body).await?.is_none());
    Ok(())
}

async fn large(world: &World) -> Result<()> {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 1600;
    let chunks = futures_util::stream::iter(0..CHUNKS)
        .map(|n| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![n as u8; CHUNK]))));
    let request =
        Request::post("/default/agent/mirror").header("host", "localhost").header("x-session", "u1");
    let body = StreamBody::new(chunks.boxed());
    let (response, _connection) = send(world.address(), request.body(body)?).await?;
    ensure!(response.status() == StatusCode::OK, "{response:?}");
    let (mut body, mut at) = (response.into_body(), 0_usize);
    while let Some(data) = next(&mut body).await? {
        let right = data.iter().enumerate().all(|(n, byte)| *byte == ((at + n) / CHUNK) as u8);
        ensure!(right, "what comes back differs somewhere after byte {at}");
        at += data.len();
    }
    ensure!(at == CHUNK * CHUNKS, "{at} bytes came back");
    Ok(())
}

async fn leaves(world: &World) -> Result<()> {
    let mut open = world.backends.open.subscribe();
    let (body, connection) = listening(world, "u1").await?;
    ensure!(*open.borrow_and_update() == 1);
    drop(body);
    connection.abort();
    // A server notices when it has something to say.
    let say = world.backends.say.clone();
    let saying = async {
        loop {
            let _ = say.send("data: anybody there?\n\n");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        gone = open.wait_for(|count| *count == 0) => drop(gone?),
        () = saying => {}
    }
    if world.is_envoy() {
        world.until("the router hears of its end", async || Ok(world.on_their_way(0) == 0)).await?;
    }
    get(world.address(), "/default/agent", &[("x-session", "u1")]).await?.instance()?;
    Ok(())
}

async fn idle(world: &World) -> Result<()> {
    let (mut body, _connection) = listening(world, "long").await?;
    // Another is idle meanwhile, and ends: there was time enough for the first to do so too, several times over.
    for round in 0..3 {
        let key = format!("short-{round}");
        get(world.address(), "/default/agent", &[("x-session", &key)]).await?.instance()?;
        let ended = async || Ok(world.sessions().await?.iter().all(|session| session.key.as_str() != key));
        world.until("an idle session ends", ended).await?;
        let sessions = world.sessions().await?;
        ensure!(sessions.iter().any(|session| session.key.as_str() == "long"), "it ended under its request");
    }
    world.backends.say.send("data: still here\n\n")?;
    ensure!(next(&mut body).await?.as_deref() == Some("data: still here\n\n".as_bytes()));
    world.backends.say.send("stop")?;
    ensure!(next(&mut body).await?.is_none());
    world.until("it ends when it is idle", async || Ok(world.sessions().await?.is_empty())).await
}
