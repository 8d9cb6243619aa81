//! `agentcube frontend ls`.

use agentcube_api::FrontendIntegration;
use clap::Args;
use kube::ResourceExt;
use serde_json::json;

use super::{explain, is_ready, machine_form, path, paths, phase};
use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, say};
use crate::output::{self, Machine, Table, age};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube frontend ls
  agentcube frontend ls -A -o json")]
pub(super) struct Arguments {
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let namespace = (!arguments.all_namespaces).then_some(server.namespace.as_str());
    let mut list = server.get(&path(namespace, None)).await.map_err(explain)?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut all: Vec<FrontendIntegration> =
        items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect();
    all.sort_by_key(|one| (one.namespace(), one.name_any()));
    match arguments.output {
        Some(machine) => machine.print(&json!(all.iter().map(machine_form).collect::<Vec<_>>()))?,
        None if all.is_empty() => say("no front ends"),
        None => output::write(table(&all, arguments.all_namespaces).as_bytes())?,
    }
    Ok(Outcome::Done)
}

fn table(all: &[FrontendIntegration], namespaces: bool) -> String {
    let place = |text: &str| namespaces.then(|| text.to_owned());
    let header = ["NAME", "PHASE", "READY", "PATH", "BUILDS", "AGE", "MESSAGE"].map(str::to_owned);
    let mut table = Table::with_header(place("NAMESPACE").into_iter().chain(header));
    for one in all {
        let status = one.status.clone().unwrap_or_default();
        let cells = [
            one.name_any(),
            phase(one),
            if is_ready(one) { "True".into() } else { "False".into() },
            paths(one).join(", "),
            status.builds.unwrap_or_default().to_string(),
            one.creation_timestamp().map_or_else(|| "<unknown>".into(), |time| age::since(time.0)),
            // What is as it should be needs no words.
            status.message.filter(|_| !is_ready(one)).unwrap_or_default(),
        ];
        table.row(place(&one.namespace().unwrap_or_default()).into_iter().chain(cells));
    }
    table.render()
}
