//! `agentcube app backup` and `restore`: order a Backup and see it taken; make another App of what it has kept.

use std::time::Duration;

use agentcube_api::middleware::Backup;
use agentcube_api::middleware::taken::BackupPhase;
use anyhow::{anyhow, bail};
use clap::Args;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::tree;
use super::world::{World, apps_path, explain, news};
use crate::client::{Connection, Error, Followed, Kind, Server};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::output::{self, Machine, progress};

const JSON: &str = "application/json";
/// Of the App's name in the name of a Backup that nobody named: with the time it is as long as it may be.
const LONGEST: usize = 38;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app backup sessions                      # begins it, and says what it is called
  agentcube app backup sessions --name monday --wait --timeout 600

It is begun when the App is ready. The archive is on the claim <APP>-backups, and outlives the Backup and the App;
`agentcube app restore` makes another App from it.")]
pub(super) struct BackupArguments {
    /// The App
    #[arg(value_name = "APP")]
    app: String,
    /// Name of the Backup [default: that of the App, and the time]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app restore monday sessions-again --wait
  agentcube app restore monday sessions-again -o yaml | grep -A3 restore

The new App is as the one was that the Backup was taken of, and begins with its data. Change it with `agentcube apply`.")]
pub(super) struct RestoreArguments {
    /// The Backup
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// Name of the App that is made
    #[arg(value_name = "NEW-APP")]
    app: String,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
#[group(skip)]
struct How {
    /// Wait until it is done, and say how it ended
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds [default: without end]
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
    /// Print what there is then for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

impl How {
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.timeout.unwrap_or(7 * 86_400))
    }

    /// Prints the object for machines, or else the line.
    fn finish(&self, object: &Value, line: &str) -> anyhow::Result<()> {
        match self.output {
            Some(machine) => machine.print(object)?,
            None => output::write(format!("{line}\n").as_bytes())?,
        }
        Ok(())
    }
}

pub(super) async fn backup(arguments: BackupArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let BackupArguments { app, name, how } = arguments;
    let server = how.connection.open(environment).await?;
    // Who misspells the App would have a Backup that waits for ever.
    World::read(&server, &app).await?;
    let name = name.unwrap_or_else(|| usual_name(&app, jiff::Timestamp::now()));
    let order = json!({
        "apiVersion": "middleware.io/v1alpha1", "kind": "Backup", "metadata": { "name": name },
        "spec": { "appRef": { "name": app } },
    });
    let path = Kind::backups().path(Some(&server.namespace), None);
    let made = match server.send(Method::POST, &path, JSON, &order).await {
        Ok((_, made)) => made,
        Err(error) if is_conflict(&error) => bail!("there is a Backup {name} already: give another --name"),
        Err(error) => return Err(explain(error)),
    };
    if !how.wait {
        let told = format!("backup {name} is begun; `agentcube get backup {name}` says how far it is");
        how.finish(&made, &told)?;
        return Ok(Outcome::Done);
    }
    let taking = Box::pin(taken(&server, &name, how.deadline()));
    let Some(last) = progress::during(environment, &format!("waiting for backup {name}"), taking).await?
    else {
        bail!("backup {name} is still not taken; it goes on without being waited for");
    };
    let backup: Backup = serde_json::from_value(last.clone())?;
    let status = backup.status.unwrap_or_default();
    let message = status.message.unwrap_or_default();
    let (outcome, line) = match status.phase {
        Some(BackupPhase::Succeeded) => (Outcome::Done, format!("backup {name} is taken: {message}")),
        _ => {
            say(&format!("error: backup {name} has failed: {message}"));
            (Outcome::Failed, String::new())
        }
    };
    if outcome == Outcome::Done || how.output.is_some() {
        how.finish(&last, &line)?;
    }
    Ok(outcome)
}

fn is_conflict(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| refusal.code == 409)
}

/// Names sort as Backups were taken.
fn usual_name(app: &str, now: jiff::Timestamp) -> String {
    let app: String = app.replace('.', "-").chars().take(LONGEST).collect();
    format!("{}-{}", app.trim_end_matches('-'), now.strftime("%Y%m%d-%H%M%S"))
}

/// The Backup when it has ended. Says what it waits for meanwhile.
async fn taken(server: &Server, name: &str, deadline: Instant) -> anyhow::Result<Option<Value>> {
    let namespace = server.namespace.clone();
    let followed = Followed { kind: Kind::backups(), namespace, name: name.to_owned() };
    let mut told = String::new();
    let ended = followed
        .until(server, deadline, |backup| {
            let Some(backup) = backup else {
                return Some(Err(Absent(format!("Backup {name} was deleted meanwhile"))));
            };
            let text = |key: &str| backup["status"][key].as_str().unwrap_or_default();
            if matches!(text("phase"), "Succeeded" | "Failed") {
                return Some(Ok(backup.clone()));
            }
            if text("message") != told {
                text("message").clone_into(&mut told);
                say(&format!("{name}: {told}"));
            }
            None
        })
        .await?;
    Ok(ended.transpose()?)
}

pub(super) async fn restore(
    arguments: RestoreArguments,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    let RestoreArguments { backup, app, how } = arguments;
    let server = how.connection.open(environment).await?;
    let kept = read(&server, &backup).await?;
    let wanted = match wanted(&kept, &app) {
        Err(Unfit::NoSpec) => {
            // It was taken before Backups kept the spec, or the spec is too large: the App may still be there.
            let first = &kept.spec.app_ref.name;
            let Ok(there) = server.get(&apps_path(Some(&server.namespace), Some(first))).await else {
                bail!(
                    "Backup {backup} has no spec, and App {first} is gone: write an App with `restore: {}` in its spec",
                    json!(kept.status.unwrap_or_default().archive)
                );
            };
            made_of(&kept, there["spec"].clone(), &app)
        }
        other => other,
    };
    let wanted = wanted.map_err(|unfit| anyhow!("Backup {backup} {unfit}"))?;
    let path = apps_path(Some(&server.namespace), None);
    let made = match server.send(Method::POST, &path, JSON, &wanted).await {
        Ok((_, made)) => made,
        Err(error) if is_conflict(&error) => {
            bail!("there is an App {app} already: a Backup is restored into a new one")
        }
        Err(error) => return Err(explain(error)),
    };
    let begun = format!("app {app} is made from backup {backup}");
    if !how.wait {
        how.finish(&made, &format!("{begun}; `agentcube app describe {app} --watch` follows it"))?;
        return Ok(Outcome::Done);
    }
    let deadline = how.deadline();
    let settling = Box::pin(settled(&server, &app, deadline));
    let Some(world) = progress::during(environment, &format!("waiting for app {app}"), settling).await?
    else {
        bail!("{app} is still not settled; it goes on without being waited for");
    };
    if world.has_failed() {
        say(&format!("error: app {app} does not run: {}", tree::waits(&world)));
        return Ok(Outcome::Failed);
    }
    how.finish(&json!(world.app), &format!("{begun}, and runs"))?;
    Ok(Outcome::Done)
}

async fn read(server: &Server, name: &str) -> anyhow::Result<Backup> {
    let path = Kind::backups().path(Some(&server.namespace), Some(name));
    match server.get(&path).await {
        Ok(found) => Ok(serde_json::from_value(found)?),
        Err(error) if error.is_not_found() => {
            Err(Absent(format!("there is no Backup {name} in namespace {}", server.namespace)).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// The App when nothing is under way any more.
async fn settled(server: &Server, name: &str, deadline: Instant) -> anyhow::Result<Option<World>> {
    loop {
        let world = World::read(server, name).await?;
        if world.is_settled() {
            return Ok(Some(world));
        }
        if tokio::time::timeout_at(deadline, news(server, &world, name)).await.is_err() {
            return Ok(None);
        }
    }
}

/// Why no App can be made of a Backup.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unfit {
    #[error("has failed: {0}")]
    Failed(String),
    #[error("is not taken yet: {0}")]
    Unfinished(String),
    #[error("does not say what its App was like")]
    NoSpec,
}

/// The App to be made of a Backup.
fn wanted(backup: &Backup, name: &str) -> Result<Value, Unfit> {
    let status = backup.status.clone().unwrap_or_default();
    let message =
        status.message.unwrap_or_else(|| "nobody has looked at it yet: do the controllers run?".into());
    match status.phase.unwrap_or_default() {
        BackupPhase::Failed => return Err(Unfit::Failed(message)),
        BackupPhase::Pending | BackupPhase::Running => return Err(Unfit::Unfinished(message)),
        BackupPhase::Succeeded if status.app_spec.is_empty() => return Err(Unfit::NoSpec),
        BackupPhase::Succeeded => {}
    }
    made_of(backup, json!(status.app_spec), name)
}

/// The App with this spec, but of the version that the data are of, and with the archive.
fn made_of(backup: &Backup, mut spec: Value, name: &str) -> Result<Value, Unfit> {
    let status = backup.status.clone().unwrap_or_default();
    let archive = status.archive.ok_or_else(|| Unfit::Failed("it has no archive".into()))?;
    for (part, origin) in [("plugin", status.plugin), ("runtime", status.runtime)] {
        if let Some(origin) = origin {
            spec[part] = json!(origin);
        }
    }
    spec["restore"] = json!(archive);
    let metadata = json!({ "name": name });
    Ok(json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "App", "metadata": metadata, "spec": spec }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(status: Value) -> Backup {
        let metadata = json!({ "name": "monday" });
        let spec = json!({ "appRef": { "name": "cache" } });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn an_app_is_made_as_the_first_was_with_the_data_and_their_version() {
        let archive = json!({ "claim": "cache-backups", "file": "monday.tar.gz", "sha256": "ab" });
        let taken = backup(json!({
            "phase": "Succeeded", "archive": archive,
            "plugin": { "name": "redis", "version": "1.0.0" }, "runtime": { "name": "redis", "version": "7.0" },
            "appSpec": { "plugin": { "name": "redis", "version": "1.0.0" },
                "runtime": { "name": "redis", "version": "7.2" }, "config": { "a": 1 },
                "restore": { "claim": "old", "file": "old", "sha256": "cd" } },
        }));
        let app = wanted(&taken, "again").unwrap();
        assert_eq!(app["metadata"]["name"], "again");
        assert_eq!(app["spec"]["runtime"]["version"], "7.0");
        assert_eq!((&app["spec"]["config"]["a"], &app["spec"]["restore"]), (&json!(1), &archive));
    }

    #[test]
    fn a_backup_that_is_none_says_why() {
        let cases = [
            (json!({}), "is not taken yet: nobody has looked"),
            (json!({ "phase": "Running", "message": "Job j takes it" }), "is not taken yet: Job j"),
            (json!({ "phase": "Failed", "message": "no room" }), "has failed: no room"),
            (json!({ "phase": "Succeeded" }), "does not say"),
            (json!({ "phase": "Succeeded", "appSpec": { "config": {} } }), "no archive"),
        ];
        for (status, said) in cases {
            let unfit = wanted(&backup(status), "again").unwrap_err().to_string();
            assert!(unfit.contains(said), "{unfit}");
        }
    }

    #[test]
    fn names_that_nobody_gave_are_short_enough() {
        let now: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(usual_name("cache", now), "cache-20260102-030405");
        assert!(usual_name(&"a".repeat(60), now).len() <= 54);
    }
}
