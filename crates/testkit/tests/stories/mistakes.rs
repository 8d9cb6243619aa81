//! What clients do wrong, and what happens to them.

use agentcube_testkit::Request;
use anyhow::{Context, Result, ensure};
use http::Method;
use http_body_util::BodyExt;
use serde_json::json;

use crate::world::{LIMIT, LOOK, PODS, World, expect, sessions};

/// A request that is refused: where to, with which headers, and the status and code it is refused with.
type Refused<'a> = (&'a str, &'a [(&'a str, &'a str)], u16, &'a str);

pub(crate) async fn clients(world: &World) -> Result<()> {
    world.task("strict", sessions(json!({ "scalingMode": "OnDemand" }))).await?;
    let path = "/default/strict/";
    let long = "x".repeat(600);
    let huge = "x".repeat(100 << 10);
    let cases: [Refused<'_>; 6] = [
        (path, &[], 400, "SessionKeyMissing"),
        (path, &[("x-session-id", &long)], 400, "SessionKeyInvalid"),
        ("/default/strict/?session=%ff", &[], 400, "SessionKeyInvalid"),
        ("/default/stricter/", &[("x-session-id", "ada")], 404, "NoRoute"),
        ("/", &[], 404, "NoRoute"),
        (path, &[("x-session-id", "ada"), ("x-huge", &huge)], 431, "HeadersTooLarge"),
    ];
    for (path, headers, status, code) in cases {
        let answer = world.ask(Method::GET, path, headers, "").await?;
        expect((answer.status, answer.refusal().as_str()) == (status, code), code, &answer)?;
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        expect(!message.is_empty() && answer.headers.contains_key("x-request-id"), "it says why", &answer)?;
    }
    expect(world.pods("strict").await?.is_empty(), "no instance was started for them", &())?;
    world.remove("strict").await
}

pub(crate) async fn death_in_flight(world: &World) -> Result<()> {
    world.task("victim", sessions(json!({ "scalingMode": "OnDemand" }))).await?;
    let first = world.say("victim", "ada", "hello").await?;
    let instance = first.instance()?;
    let headers = [("x-session-id", "ada")];
    // One that has not been answered, and one that is being answered.
    let words = "word ".repeat(200);
    let mut speaking =
        world.begin(Method::POST, "/default/victim/stream", &headers, &words).await?.into_body();
    ensure!(speaking.frame().await.is_some(), "it speaks");
    let killing = async {
        on_their_way(world, "victim", 2).await?;
        let now = json!({ "gracePeriodSeconds": 0 });
        let request = Request::new(Method::DELETE, format!("{PODS}/{instance}")).json(&now);
        let killed = world.http.send(request).await?;
        ensure!(killed.is_success(), "the Pod is deleted");
        Ok(())
    };
    let waiting = world.ask(Method::GET, "/default/victim/wait", &headers, "");
    let (killed, answer) = tokio::join!(killing, waiting);
    killed?;
    let answer = answer?;
    // What was not sent yet is refused; what was sent is lost.
    let told = matches!(
        (answer.status, answer.refusal().as_str()),
        (502, "InstanceFailed") | (503, "InstanceUnreachable")
    );
    expect(told, "the request in flight is told", &answer)?;
    let rest = async { while let Some(Ok(_)) = speaking.frame().await {} };
    tokio::time::timeout(LIMIT, rest).await.context("the stream of a dead instance ends")?;
    let again = world.say("victim", "ada", "hello").await?;
    expect(again.status == 200 && again.json()["turn"] == 1, "the session has a new instance", &again)?;
    world.remove("victim").await
}

/// Waits until the gateway has sent so many requests of a Task to instances, and waits for their ends.
async fn on_their_way(world: &World, task: &str, count: u64) -> Result<()> {
    let path = format!("/debug/sessions?task={task}");
    let sending = async {
        loop {
            let known = world.http.send(Request::new(Method::GET, &*path)).await?.value();
            if known["sessions"][0]["inFlight"] == count {
                return anyhow::Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LIMIT, sending).await.context("the gateway never sends them")?
}
