//! `agentcube delete`: by file, by name or by label; waits until the objects are gone unless told not to.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::client::{Connection, Discovery, Followed, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::manifest;
use crate::output::{self, progress};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube delete pod a b
  agentcube delete deploy/web svc/web
  agentcube delete -f agent.yaml
  agentcube delete pods -l app=web --now
  agentcube delete pods --all

Exits with 3 when nothing that was named is there.")]
pub(crate) struct Arguments {
    /// A kind, several with commas, or KIND/NAME
    #[arg(value_name = "KIND", required_unless_present = "filename")]
    kind: Option<String>,
    /// Names, or more KIND/NAME
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Delete what these files hold; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["kind", "selector", "all"])]
    filename: Vec<PathBuf>,
    /// Look into the directories below as well
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Delete the objects with these labels
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "all")]
    selector: Option<String>,
    /// Delete all objects of the kind in the namespace
    #[arg(long)]
    all: bool,
    /// Do not complain about what is not there
    #[arg(long)]
    ignore_not_found: bool,
    /// Wait until they are gone
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
    /// How long Pods may take to end, in seconds; 0 kills them
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u32>,
    /// Let Pods only one second to end
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,
    #[command(flatten)]
    connection: Connection,
}

/// An object to delete.
struct Doomed {
    called: String,
    path: String,
    object: Followed,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (documents, problems) = manifest::load(&arguments.filename, arguments.recursive);
    problems.iter().for_each(|problem| say(&format!("error: {problem}")));
    let mut failed = !problems.is_empty();
    let server = arguments.connection.open(environment).await?;
    let discovery = Discovery::fetch(&server).await?;
    let mut doomed = Vec::new();
    // What came last may need what came first.
    for document in documents.iter().rev() {
        let (version, kind) = (document.text(&["apiVersion"]), document.text(&["kind"]));
        let Some(kind) = discovery.of(version, kind) else {
            say(&format!("error: {}: the server has no {kind} in {version}", document.place(Some("kind"))));
            failed = true;
            continue;
        };
        let stated = document.text(&["metadata", "namespace"]);
        let namespace = if stated.is_empty() { server.namespace.as_str() } else { stated };
        doomed.push(one(kind, namespace, document.name()));
    }
    if let Some(kind) = &arguments.kind {
        doomed.extend(named(&arguments, &server, &discovery, kind).await?);
    }
    if doomed.is_empty() && !failed {
        say(&format!("No resources found in {} namespace.", server.namespace));
    }
    let (deleted, absent) = delete(&arguments, &server, &doomed, &mut failed).await?;
    if arguments.wait {
        failed |= !wait(&arguments, &server, &deleted, environment).await?;
    }
    Ok(match (failed, absent) {
        (true, _) => Outcome::Failed,
        (false, true) => Outcome::Absent,
        (false, false) => Outcome::Done,
    })
}

fn one(kind: &Kind, namespace: &str, name: &str) -> Doomed {
    Doomed {
        called: kind.called(name),
        path: kind.path(Some(namespace), Some(name)),
        object: Followed { kind: kind.clone(), namespace: namespace.to_owned(), name: name.to_owned() },
    }
}

async fn named(
    arguments: &Arguments,
    server: &Server,
    discovery: &Discovery,
    kind: &str,
) -> anyhow::Result<Vec<Doomed>> {
    let selected = arguments.selector.is_some() || arguments.all;
    if kind.contains('/') {
        if selected {
            return Err(Usage("give names, or a selector, or --all".into()).into());
        }
        let pair = |word: &str| match word.split_once('/') {
            Some((kind, name)) if !name.is_empty() => Ok(one(discovery.find(kind)?, &server.namespace, name)),
            _ => Err(Usage(format!("{word:?} is not KIND/NAME, as the first is")).into()),
        };
        return std::iter::once(kind).chain(arguments.names.iter().map(String::as_str)).map(pair).collect();
    }
    if selected != arguments.names.is_empty() {
        return Err(Usage("give names, or a selector with -l, or --all".into()).into());
    }
    let mut doomed = Vec::new();
    for kind in discovery.find_all(kind)? {
        if !selected {
            doomed.extend(arguments.names.iter().map(|name| one(kind, &server.namespace, name)));
            continue;
        }
        if !kind.can("delete") {
            continue;
        }
        let options = query(&[("labelSelector", arguments.selector.as_deref())]);
        let list = server.get(&format!("{}{options}", kind.path(Some(&server.namespace), None))).await?;
        let names = list["items"].as_array().into_iter().flatten();
        let names = names.filter_map(|object| object["metadata"]["name"].as_str());
        doomed.extend(names.map(|name| one(kind, &server.namespace, name)));
    }
    Ok(doomed)
}

/// Deletes one after the other; what was accepted with its identity, and whether something was not there.
async fn delete<'a>(
    arguments: &Arguments,
    server: &Server,
    doomed: &'a [Doomed],
    failed: &mut bool,
) -> anyhow::Result<(Vec<(&'a Doomed, Value)>, bool)> {
    let grace = if arguments.now { Some(1) } else { arguments.grace_period };
    let body = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "gracePeriodSeconds": grace,
    });
    let (mut deleted, mut absent) = (Vec::new(), false);
    for object in doomed {
        match server.send(Method::DELETE, &object.path, "application/json", &body).await {
            Ok((_, answer)) => {
                output::write(format!("{} deleted\n", object.called).as_bytes())?;
                // The object as it is now, or a status that names it.
                let uid = [&answer["metadata"]["uid"], &answer["details"]["uid"]]
                    .into_iter()
                    .find(|v| v.is_string());
                deleted.push((object, uid.cloned().unwrap_or_default()));
            }
            Err(error) if error.is_not_found() => {
                if !arguments.ignore_not_found {
                    say(&format!("error: {error}"));
                    absent = true;
                }
            }
            Err(error) if error.refusal().is_some() => {
                say(&format!("error: {}: {error}", object.called));
                *failed = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((deleted, absent))
}

async fn wait(
    arguments: &Arguments,
    server: &Server,
    deleted: &[(&Doomed, Value)],
    environment: &Environment,
) -> anyhow::Result<bool> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(arguments.timeout);
    let mut well = true;
    for (object, uid) in deleted {
        let what = format!("waiting for {} to be gone", object.called);
        // Gone, or replaced by another object of the same name.
        let gone = object.object.until(server, deadline, |object| match object {
            Some(object) if !uid.is_string() || object["metadata"]["uid"] == *uid => None,
            _ => Some(()),
        });
        if progress::during(environment, &what, gone).await?.is_none() {
            let hint = "its finalizers or Pods hold it; --wait=false does not wait";
            say(&format!("error: {} is still there after {} s: {hint}", object.called, arguments.timeout));
            well = false;
        }
    }
    Ok(well)
}
