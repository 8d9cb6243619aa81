//! Whose sessions are, where a service says who sends a request.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Case;
use crate::client::{Answer, get};
use crate::world::World;

/// In the order in which they are tried.
pub(crate) const ALL: &[Case] = &[
    Case {
        name: "a session belongs to its subject",
        change: |setting| setting.asks = true,
        run: |world| separate(world).boxed_local(),
    },
    Case {
        name: "the name of a session is one subject's alone where the Task says so",
        change: |setting| {
            setting.asks = true;
            setting.routers = 2;
            setting.other_subjects = "Forbid";
        },
        run: |world| forbidden(world).boxed_local(),
    },
];

/// A service that lets in whoever has a badge, and says that the badge is who it is.
pub(crate) async fn service() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let mut response = Response::new(Full::<Bytes>::default());
                match request.headers().get("x-badge") {
                    Some(badge) => drop(response.headers_mut().insert("x-agentcube-subject", badge.clone())),
                    None => *response.status_mut() = StatusCode::FORBIDDEN,
                }
                Ok::<_, Infallible>(response)
            });
            let io = TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    Ok(address)
}

async fn ask(world: &World, badge: &str, key: &str) -> Result<Answer> {
    // Whoever writes the header itself is not believed.
    let headers = [("x-badge", badge), ("x-session", key), ("x-agentcube-subject", "root")];
    let headers = if badge.is_empty() { &headers[1..] } else { &headers[..] };
    get(world.address(), "/default/agent", headers).await
}

async fn separate(world: &World) -> Result<()> {
    ensure!(ask(world, "", "s1").await?.status == StatusCode::FORBIDDEN);
    let (ada, bob) = (ask(world, "ada", "s1").await?, ask(world, "bob", "s1").await?);
    ensure!(ada.body["headers"]["x-agentcube-subject"] == "ada", "{ada:?}");
    ensure!(ada.instance()? != bob.instance()?, "two subjects share a session");
    ensure!(ask(world, "ada", "s1").await?.instance()? == ada.instance()?);
    // Nor is a session had by its whole key.
    let sessions = world.sessions().await?;
    let keys: Vec<&str> = sessions.iter().map(|session| session.key.as_str()).collect();
    ensure!(keys.len() == 2 && keys.iter().all(|key| key.ends_with("~s1")), "{keys:?}");
    let eve = ask(world, "eve", keys[0]).await?.instance()?;
    ensure!(eve != ada.instance()? && eve != bob.instance()?, "a session is had by its key");
    Ok(())
}

async fn forbidden(world: &World) -> Result<()> {
    let ada = ask(world, "ada", "s1").await?.instance()?;
    for _ in 0..6 {
        let bob = ask(world, "bob", "s1").await?;
        ensure!((bob.status, bob.code()) == (StatusCode::FORBIDDEN, "SessionOfAnother"), "{bob:?}");
        ensure!(ask(world, "ada", "s1").await?.instance()? == ada);
    }
    ask(world, "bob", "s2").await?.instance()?;
    // Of several who come at once, by whichever router, one gets it.
    for round in 0..3 {
        let key = format!("race-{round}");
        let asking = ["ada", "bob", "eve"].map(|who| ask(world, who, &key));
        let answers = futures_util::future::try_join_all(asking).await?;
        let count = |status| answers.iter().filter(|answer| answer.status == status).count();
        ensure!((count(StatusCode::OK), count(StatusCode::FORBIDDEN)) == (1, 2), "{answers:?}");
    }
    Ok(())
}
