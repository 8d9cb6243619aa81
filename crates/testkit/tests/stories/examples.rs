//! The user stories, from the examples.

use anyhow::Result;
use http::Method;
use serde_json::json;

use crate::world::{World, distinct, expect};

pub(crate) async fn chat(world: &World) -> Result<()> {
    world.deploy("stories/1-chat.yaml").await?;
    let mut instances = Vec::new();
    for (session, turn) in [("ada", 1), ("bob", 1), ("ada", 2), ("bob", 2), ("ada", 3)] {
        let answer = world.say("chat", session, &format!("turn {turn}")).await?;
        expect(answer.json()["turn"] == turn, "the instance remembers", &answer)?;
        instances.push(answer.instance()?);
    }
    let (ada, bob) = (&instances[0], &instances[1]);
    expect(ada != bob, "each session has an instance of its own", &instances)?;
    expect([&instances[2], &instances[4]] == [ada, ada], "and keeps it", &instances)?;
    expect(&instances[3] == bob, "and keeps it", &instances)?;
    let shown = world.run(&["sessions", "chat", "-o", "json"]).await?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let ada = shown.as_array().into_iter().flatten().find(|it| it["key"] == "ada").cloned();
    let told = ada.is_some_and(|it| it["instance"] == instances[0].as_str() && it["state"] == "bound");
    expect(told, "the command line shows the session", &shown)?;
    world.remove("chat").await
}

pub(crate) async fn untrusted(world: &World) -> Result<()> {
    world.deploy("stories/2-untrusted.yaml").await?;
    let run = |code: &'static str| world.ask(Method::POST, "/default/untrusted-code/", &[], code);
    let answer = run("print(6 * 7)").await?;
    expect((answer.status, answer.text().trim()) == (200, "42"), "the code ran", &answer)?;
    let answer = run("raise ValueError('no')").await?;
    expect(answer.status == 422 && answer.text().contains("ValueError"), "its failure is told", &answer)?;
    let mut hosts = Vec::new();
    for _ in 0..2 {
        let answer = run("import socket; print(socket.gethostname())").await?;
        hosts.push(answer.text().trim().to_owned());
    }
    expect(distinct(&hosts) == 2, "each request has a sandbox of its own", &hosts)?;
    // The API server's address is the one that every Pod could know.
    let code = "import socket\ntry:\n  it = socket.create_connection(('10.96.0.1', 443), timeout=3)\n  \
                it.sendall(b'hello')\n  print('open' if it.recv(1) else 'closed')\nexcept OSError:\n  print('closed')";
    let answer = run(code).await?;
    expect(answer.text().trim() == "closed", "there is no network", &answer)?;
    world.remove("untrusted-code").await
}

pub(crate) async fn interpreter(world: &World) -> Result<()> {
    interpreter_on(world, async || Ok(())).await
}

/// The same, and a look at it before it goes.
pub(crate) async fn interpreter_on(world: &World, look: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    world.deploy("stories/2-code-interpreter.yaml").await?;
    let run = |user: &'static str, code: &'static str| async move {
        world.ask(Method::POST, "/default/code-interpreter/", &[("x-user-id", user)], code).await
    };
    let answer = run("ada", "x = 41").await?;
    expect(answer.status == 200, "the code ran", &answer)?;
    let answer = run("ada", "print(x + 1)").await?;
    expect(answer.text().trim() == "42", "variables are kept", &answer)?;
    let answer = run("bob", "print(x)").await?;
    expect(answer.status == 422 && answer.text().contains("NameError"), "and are nobody else's", &answer)?;
    look().await?;
    world.remove("code-interpreter").await
}

pub(crate) async fn code_bundle(world: &World) -> Result<()> {
    world.deploy("stories/3-code-bundle.yaml").await?;
    let mut seen = Vec::new();
    for session in ["ada", "bob", "ada"] {
        let headers = [("x-session-id", session)];
        let answer = world.ask(Method::GET, "/default/prototype/", &headers, "").await?;
        expect(answer.status == 200, "the code runs", &answer)?;
        seen.push((answer.json()["count"].clone(), answer.instance()?));
    }
    let counts: Vec<_> = seen.iter().map(|(count, _)| count.clone()).collect();
    expect(counts == [json!(1), json!(1), json!(2)], "it remembers", &seen)?;
    expect(seen[0].1 == seen[2].1 && seen[0].1 != seen[1].1, "in instances of their own", &seen)?;
    world.remove("prototype").await
}

pub(crate) async fn function_proxy(world: &World) -> Result<()> {
    world.deploy("stories/5-function-proxy.yaml").await?;
    let mut seen = Vec::new();
    for (session, call) in [("ada", 1), ("bob", 1), ("ada", 2), ("ada", 3)] {
        // A token of the client's own is nothing to the proxy: it never gets there.
        let headers = [("x-session-id", session), ("x-reserved-token", "forged")];
        let answer = world.ask(Method::POST, "/default/serverless-function/run", &headers, "work").await?;
        let value = answer.json();
        expect(answer.status == 200 && value["call"] == call, "the proxy believes the token", &answer)?;
        seen.push((answer.instance()?, value["function"].clone()));
    }
    expect(seen[0] == seen[2] && seen[2] == seen[3], "the session has its function", &seen)?;
    world.remove("serverless-function").await?;
    world.run(&["delete", "configmap", "function-proxy"]).await?;
    Ok(())
}

/// As the demonstration and the README have it: through the command line.
pub(crate) async fn hello(world: &World) -> Result<()> {
    world.deploy("agents/hello.yaml").await?;
    let first = world.run(&["invoke", "hello", "--session", "ada", "-d", "I am Ada"]).await?;
    let second = world.run(&["invoke", "hello", "--session", "ada", "-d", "Who am I?"]).await?;
    expect(first.contains("Nice to meet you"), "it answers", &first)?;
    expect(second.contains("I am Ada"), "it remembers", &second)?;
    let table = world.run(&["sessions", "hello"]).await?;
    expect(table.contains("ada") && table.contains("bound"), "the session is shown", &table)?;
    let tasks = world.run(&["get", "tasks"]).await?;
    expect(tasks.contains("Serving") && tasks.contains("/default/hello"), "the Task is shown", &tasks)?;
    world.remove("hello").await
}
