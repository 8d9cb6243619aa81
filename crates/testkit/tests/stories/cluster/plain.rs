//! Without patches: by what every Envoy Gateway offers. The platform is installed anew in this way, over what there is.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde_json::json;

use super::faults::Socket;
use crate::world::{KNOWN, LIMIT, World, expect, sessions};

const LOOK: Duration = Duration::from_millis(500);
const TURNS: usize = 10;

pub(crate) async fn without_patches(world: &World) -> Result<()> {
    let cluster = world.cluster().context("it is a cluster")?;
    super::install(cluster, &["--envoy-gateway", "plain"])?;
    world.task("plain", sessions(json!({ "scalingMode": "OnDemand" }))).await?;
    let (ada, bob) = (settled(world, "ada").await?, settled(world, "bob").await?);
    expect(ada != bob, "each session has an instance of its own", &(&ada, &bob))?;
    for _ in 0..TURNS {
        for (session, home) in [("ada", &ada), ("bob", &bob)] {
            let answer = world.say("plain", session, "again").await?;
            expect(answer.instance()? == *home, "a session stays with its instance", &answer)?;
        }
    }
    // Who names a destination does not get there.
    let pods = world.pods("plain").await?;
    let other = pods.iter().find(|pod| crate::world::name(pod) == bob).context("bob's instance is a Pod")?;
    let address = format!("{}:8080", other["status"]["podIP"].as_str().context("it has an address")?);
    let headers = [("x-session-id", "ada"), ("x-gateway-destination-endpoint", &*address)];
    let forged = world.ask(Method::POST, "/default/plain/", &headers, "hello").await?;
    expect(forged.instance()? == ada, "a forged destination is no destination", &forged)?;
    let headers = [("x-gateway-destination-endpoint", &*address)];
    let nobody = world.ask(Method::POST, "/default/plain/", &headers, "hello").await?;
    expect(nobody.status == 400, "without a session there is no instance", &nobody)?;

    super::faults::echoes(world, "plain-echo").await?;
    let mut socket = Socket::open(world, "plain-echo", "ada").await?;
    socket.echo("hello").await?;
    drop(socket);
    world.remove("plain-echo").await?;
    world.remove("plain").await
}

/// The instance of a session, once Envoy has heard of it: until then requests may go astray, which is what patches are for.
async fn settled(world: &World, session: &str) -> Result<String> {
    let settling = async {
        let mut times = 0;
        loop {
            // While Envoy is told of an instance, it may break a connection.
            let answer = world.say("plain", session, "hello").await;
            let pods = world.pods("plain").await?;
            let own = |pod: &&serde_json::Value| {
                pod["metadata"]["annotations"]["agentcube.io/reserve-key"] == session
            };
            let home = pods.iter().find(own).map(|pod| crate::world::name(pod).to_owned());
            let reached = answer.and_then(|answer| answer.instance()).ok();
            times = if reached.is_some() && reached == home { times + 1 } else { 0 };
            if times == KNOWN {
                return home.context("it has one");
            }
            if times == 0 {
                tokio::time::sleep(LOOK).await;
            }
        }
    };
    tokio::time::timeout(LIMIT, settling).await.context("a session never reaches its instance")?
}
