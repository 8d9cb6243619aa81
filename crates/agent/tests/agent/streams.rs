//! Logs, commands and numbers of runs.

use agentcube_protos::agent::{ExecRequest, LogsRequest, StartRequest, State, StatsRequest, Why};
use agentcube_protos::link::{AgentApi, Answers};
use agentcube_protos::session::exec_input::Input;
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecInput, ExecOutput, ExecStart, Exit, LogOptions, Size};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};

use crate::world::{World, command};

/// Runs an order to its end; what it printed.
pub(crate) async fn said(world: &World, order: StartRequest) -> Result<String> {
    let name = order.claim.clone().unwrap_or_default().name;
    world.ordered(order).await?;
    let text = read(world, &name, LogOptions { follow: true, ..LogOptions::default() }).await?;
    world.until(&name, |entry| entry.is_some_and(|entry| entry.state() == State::Ended)).await?;
    world.stop_for(&name, 0, Why::Noted).await?;
    Ok(text)
}

async fn read(world: &World, name: &str, options: LogOptions) -> Result<String> {
    let request = LogsRequest { run_id: world.run(name), options: Some(options) };
    let mut chunks = world.agent.logs(request).await?;
    let mut text = Vec::new();
    while let Some(chunk) = chunks.next().await {
        text.extend(chunk?.content);
    }
    Ok(String::from_utf8(text)?)
}

/// Follows a log until it has these words.
pub(crate) async fn log(world: &World, name: &str, words: &str) -> Result<String> {
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let request = LogsRequest { run_id: world.run(name), options: Some(options) };
    let mut chunks = world.agent.logs(request).await?;
    let mut text = String::new();
    while !text.contains(words) {
        let chunk = chunks.next().await.with_context(|| format!("the log ended with {text:?}"))?;
        text.push_str(&String::from_utf8_lossy(&chunk?.content));
    }
    Ok(text)
}

pub(crate) async fn logs(world: &World) -> Result<()> {
    world.started("says", &["say", "one", "two", "three"]).await?;
    let follow = LogOptions { follow: true, ..LogOptions::default() };
    ensure!(read(world, "says", follow).await? == "one\ntwo\nthree\n");
    world.until("says", |entry| entry.is_some_and(|entry| entry.state() == State::Ended)).await?;
    let tail = LogOptions { tail: Some(1), ..LogOptions::default() };
    ensure!(read(world, "says", tail).await? == "three\n", "also when it has ended");
    let later = LogOptions { since_unix_ms: i64::MAX, ..LogOptions::default() };
    ensure!(read(world, "says", later).await?.is_empty());
    let stamped = read(world, "says", LogOptions { timestamps: true, ..LogOptions::default() }).await?;
    ensure!(stamped.lines().all(|line| line.contains("Z ")) && stamped.lines().count() == 3, "{stamped}");
    let few = LogOptions { limit_bytes: 5, ..LogOptions::default() };
    ensure!(read(world, "says", few).await? == "one\nt");
    world.stop_for("says", 0, Why::Noted).await?;
    let gone = LogsRequest { run_id: world.run("says"), options: None };
    let gone = world.agent.logs(gone).await.err().context("it is not known any more")?;
    ensure!(gone.code() == tonic::Code::NotFound, "{gone}");
    Ok(())
}

async fn exec(world: &World, start: ExecStart, input: Vec<Input>) -> Result<Answers<ExecOutput>> {
    let first = ExecRequest { run_id: world.run("host"), start: Some(start), input: None };
    let rest = input
        .into_iter()
        .map(|input| ExecRequest { input: Some(ExecInput { input: Some(input) }), ..ExecRequest::default() });
    let rest = stream::iter(rest).chain(stream::pending());
    Ok(world.agent.exec(stream::iter([first]).chain(rest).boxed()).await?)
}

/// All that a command says, and its end.
async fn all(mut outputs: Answers<ExecOutput>) -> Result<(String, String, Exit)> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(output) = outputs.next().await {
        match output?.output.context("an output")? {
            Output::Stdout(data) => out.extend(data),
            Output::Stderr(data) => err.extend(data),
            Output::Exit(exit) => return Ok((String::from_utf8(out)?, String::from_utf8(err)?, exit)),
        }
    }
    anyhow::bail!("the command never ended")
}

pub(crate) async fn commands(world: &World) -> Result<()> {
    world.started("host", &["forever"]).await?;
    let start = |words: &[&str]| ExecStart { command: command(words), ..ExecStart::default() };
    let (out, err, exit) = all(exec(world, start(&["say", "hello"]), Vec::new()).await?).await?;
    ensure!((out.as_str(), err.as_str(), exit.code) == ("hello\n", "", 0), "{out} {err} {exit:?}");
    let (_, err, exit) = all(exec(world, start(&["nonsense"]), Vec::new()).await?).await?;
    ensure!(err.contains("unknown") && exit.code == 254, "{err} {exit:?}");
    let copy = ExecStart { stdin: true, ..start(&["copy"]) };
    let input =
        vec![Input::Stdin(b"through ".to_vec()), Input::Stdin(b"it".to_vec()), Input::StdinClosed(true)];
    let (out, _, exit) = all(exec(world, copy, input).await?).await?;
    ensure!(out == "through it" && exit.code == 0, "{out}");
    let envs = vec!["GREETING=a=b".to_owned()];
    let variable = ExecStart { envs, working_dir: "/usr".into(), ..start(&["variable", "GREETING"]) };
    ensure!(all(exec(world, variable, Vec::new()).await?).await?.0 == "a=b\n");
    let size = ExecStart { tty: true, stdin: true, columns: 100, rows: 30, ..start(&["size"]) };
    let (out, _, exit) = all(exec(world, size, Vec::new()).await?).await?;
    ensure!(out.trim() == "100 30" && exit.code == 0, "{out}");
    let resized = ExecStart { tty: true, stdin: true, ..start(&["forever"]) };
    drop(exec(world, resized, vec![Input::Resize(Size { columns: 1, rows: 1 })]).await?);
    for wrong in [
        ExecStart::default(),
        ExecStart { command: vec!["a\0b".into()], ..ExecStart::default() },
        ExecStart { envs: vec!["nothing".into()], ..start(&["say"]) },
        ExecStart { command: vec!["/no/such".into()], ..ExecStart::default() },
    ] {
        ensure!(exec(world, wrong.clone(), Vec::new()).await.is_err(), "{wrong:?}");
    }
    world.stop("host", 0).await.map(drop)
}

/// What is left of its command is nothing.
pub(crate) async fn a_client_that_leaves(world: &World) -> Result<()> {
    world.started("host", &["forever"]).await?;
    let start = ExecStart { command: command(&["say-and-wait", "here"]), ..ExecStart::default() };
    // More than may run at once, so that those who left must have given back their turns.
    for _ in 0..40 {
        let mut outputs = exec(world, start.clone(), Vec::new()).await?;
        let first = outputs.next().await.context("it says something")??;
        ensure!(first.output == Some(Output::Stdout(b"here\n".to_vec())), "{first:?}");
        drop(outputs);
    }
    let held: Vec<_> = {
        let mut held = Vec::new();
        while held.len() < 32 {
            match exec(world, start.clone(), Vec::new()).await {
                Ok(outputs) => held.push(outputs),
                // The turn of one who left is given back when it is dead.
                Err(_) => tokio::task::yield_now().await,
            }
        }
        held
    };
    let refused = exec(world, start, Vec::new()).await.err().context("too many")?;
    ensure!(refused.to_string().contains("too many"), "{refused}");
    drop(held);
    world.stop("host", 0).await.map(drop)
}

pub(crate) async fn usage(world: &World) -> Result<()> {
    world.started("one", &["forever"]).await?;
    world.started("two", &["forever"]).await?;
    let all = world.agent.stats(StatsRequest::default()).await?.runs;
    ensure!(all.len() == 2 && all.iter().all(|usage| usage.processes >= 1), "{all:?}");
    let one = world.agent.stats(StatsRequest { run_id: world.run("one") }).await?.runs;
    ensure!(one.len() == 1 && one[0].run_id == world.run("one"), "{one:?}");
    ensure!(world.agent.stats(StatsRequest { run_id: "nobody".into() }).await?.runs.is_empty());
    world.stop("one", 0).await?;
    world.stop("two", 0).await.map(drop)
}
