//! `agentcube frontend logs`: what the Pod of the last build wrote.

use agentcube_api::labels::FORGE_FI_NAME;
use clap::Args;
use serde_json::{Value, json};

use super::read;
use crate::client::{Connection, Server, escape, query};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome};
use crate::output::{self, Machine};
use crate::pods;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube frontend logs tasks
  agentcube frontend logs tasks -f
  agentcube frontend logs tasks -o json

The Pods of the last builds are kept; `agentcube frontend describe` lists them.")]
pub(super) struct Arguments {
    /// The front end
    #[arg(value_name = "NAME")]
    name: String,
    /// Go on as more is written
    #[arg(short, long, conflicts_with = "output")]
    follow: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    read(&server, &arguments.name).await?;
    let pod = last(&server, &arguments.name).await?;
    let follow = arguments.follow.then_some("true");
    let (place, called) = (escape(&server.namespace), escape(pods::name(&pod)));
    let path = format!("/api/v1/namespaces/{place}/pods/{called}/log{}", query(&[("follow", follow)]));
    let mut lines = server.lines(&path, "*/*").await?;
    let mut all = Vec::new();
    while let Some(line) = lines.next().await? {
        match arguments.output {
            None => output::write(&line)?,
            Some(_) => all.push(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }
    if let Some(machine) = arguments.output {
        machine.print(&json!({ "pod": pods::name(&pod), "lines": all }))?;
    }
    Ok(Outcome::Done)
}

/// The Pod of the last build.
async fn last(server: &Server, name: &str) -> anyhow::Result<Value> {
    let label = format!("{FORGE_FI_NAME}={}", agentcube_forge::names::label(name));
    let mut all = pods::selected(server, &label).await?;
    // `<job>-<random>`, and a Job ends with the number of its build.
    let number = |pod: &Value| {
        pods::name(pod).rsplit_once('-').and_then(|(job, _)| agentcube_forge::names::number(job))
    };
    all.sort_by_key(number);
    let none = || {
        Absent(format!(
            "{name} has no Pods of builds; `agentcube frontend describe {name}` says how it stands"
        ))
    };
    Ok(all.pop().ok_or_else(none)?)
}
