//! What users do with a sandbox that runs.

use anyhow::{Context, Result, ensure};

use crate::world::{LIMIT, World, condition, name};

pub(crate) async fn exec(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    let done =
        world.sandbox(&["exec", &name, "--", "sh", "-c", "echo out; echo err >&2; exit 7"], "").await?;
    ensure!(
        (done.code, &*done.out, &*done.err) == (7, "out\n", "err\n"),
        "{} {} {}",
        done.code,
        done.out,
        done.err
    );
    let long = "a line of some length\n".repeat(10_000);
    let done = world.sandbox(&["exec", "-i", &name, "--", "cat"], &long).await?;
    ensure!(done.code == 0 && done.out == long, "{} bytes came back: {}", done.out.len(), done.err);
    let done = world
        .sandbox(&["exec", &name, "-e", "A=b", "-w", "/tmp", "--", "sh", "-c", "echo $A $PWD"], "")
        .await?;
    ensure!(done.out == "b /tmp\n", "{:?} {}", done.out, done.err);
    let done = world.sandbox(&["shell", &name], "echo from $0\nexit 4\n").await?;
    ensure!(done.code == 4 && done.out.starts_with("from "), "{} {} {}", done.code, done.out, done.err);
    let done = world.sandbox(&["exec", &name, "--", "/no/such/program"], "").await?;
    ensure!(done.code != 0, "a program that is not there ran");
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn given(world: &World) -> Result<()> {
    let local = world.place.path().join("given.txt");
    std::fs::write(&local, "from a file\n")?;
    let file = format!("/app/deep/given.txt={}", local.display());
    let options = ["--pool", "fast", "-e", "GREETING=hello", "-w", "/app", "--file", &file];
    let script = "echo $GREETING; cat deep/given.txt; echo more; sleep 1000";
    let name = name(&world.create(&options, &["sh", "-c", script]).await?)?;
    // What is written may still be on its way to the log.
    let whole = async {
        loop {
            let lines = world.well(&["logs", &name]).await?;
            if lines.lines().count() >= 3 {
                return anyhow::Ok(lines);
            }
        }
    };
    let lines = tokio::time::timeout(LIMIT, whole).await.context("the log does not come")??;
    ensure!(lines == "hello\nfrom a file\nmore\n", "{lines:?}");
    let last = world.well(&["logs", &name, "--tail", "1"]).await?;
    ensure!(last == "more\n", "{last:?}");
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn paused(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    world.well(&["pause", &name]).await?;
    let is = |wanted: &'static str| {
        move |object: &serde_json::Value| {
            condition(object, "Paused").is_some_and(|condition| condition["status"] == wanted)
        }
    };
    world.until(&name, "is paused", is("True")).await?;
    let shown = world.well(&["ls"]).await?;
    ensure!(shown.contains("Paused"), "{shown}");
    world.well(&["resume", &name]).await?;
    let object = world.until(&name, "goes on", |object| !is("True")(object)).await?;
    ensure!(object["spec"]["paused"].is_null() || object["spec"]["paused"] == false, "{}", object["spec"]);
    world.well(&["exec", &name, "--", "true"]).await?;
    world.well(&["pause", &name]).await?;
    world.until(&name, "is paused", is("True")).await?;
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

pub(crate) async fn mistakes(world: &World) -> Result<()> {
    let cases: [(&[&str], i32, &str); 7] = [
        (&["create", "host", "--pool", "nope", "--", "true"], 3, "nope"),
        (&["create", "host", "--pool", "fast", "--name", "Not_A_Name", "--", "true"], 2, "Not_A_Name"),
        (&["create", "host", "--pool", "fast", "--memory", "much", "--", "true"], 2, "much"),
        (&["create", "host", "--pool", "fast", "-e", "=x", "--", "true"], 2, "NAME=VALUE"),
        (&["rm", "nobody"], 3, "nobody"),
        (&["logs", "nobody"], 3, "nobody"),
        (&["exec", "nobody", "--", "true"], 3, "nobody"),
    ];
    for (args, code, words) in cases {
        let done = world.sandbox(args, "").await?;
        let shown = format!("{}: {} {:?} {:?}", args.join(" "), done.code, done.out, done.err);
        ensure!(done.code == code && done.err.contains(words), "{shown}");
        ensure!(done.err.starts_with("error: ") && done.err.trim_end().lines().count() == 1, "{shown}");
    }
    Ok(())
}
