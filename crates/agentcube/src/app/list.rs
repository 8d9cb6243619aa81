//! `agentcube app ls`.

use agentcube_api::App;
use agentcube_api::conditions::{self, READY};
use agentcube_api::middleware::change::ChangeStatus;
use clap::Args;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::latest;
use super::world::{apps_path, explain};
use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, say};
use crate::output::{self, Machine, Table, age};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app ls
  agentcube app ls -A -o json")]
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
    let mut list = server.get(&apps_path(namespace, None)).await.map_err(explain)?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut apps: Vec<App> = items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect();
    apps.sort_by_key(|app| (app.namespace(), app.name_any()));
    match arguments.output {
        Some(machine) => machine.print(&json!(apps.iter().map(machine_form).collect::<Vec<_>>()))?,
        None if apps.is_empty() => say("no Apps"),
        None => output::write(table(&apps, arguments.all_namespaces).as_bytes())?,
    }
    Ok(Outcome::Done)
}

fn ready(app: &App) -> String {
    let status = app.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    ready.map_or_else(|| "Unknown".into(), |ready| ready.status.clone())
}

fn phase(app: &App) -> String {
    let phase = app.status.as_ref().and_then(|status| status.phase).unwrap_or_default();
    format!("{phase:?}")
}

/// Of the latest change: how many tasks are done, of how many.
fn done(app: &App) -> (usize, usize) {
    let tasks = app.status.as_ref().map(|status| status.tasks.as_slice()).unwrap_or_default();
    let done = latest(tasks).filter(|task| task.status == ChangeStatus::Done).count();
    (done, latest(tasks).count())
}

fn doing(app: &App) -> String {
    let tasks = app.status.as_ref().map(|status| status.tasks.as_slice()).unwrap_or_default();
    let mut running = tasks.iter().filter(|task| task.status == ChangeStatus::InProgress);
    match (running.next(), running.count()) {
        (None, _) => String::new(),
        (Some(task), 0) => task.description.clone(),
        (Some(task), more) => format!("{}, and {more} more", task.description),
    }
}

fn machine_form(app: &App) -> Value {
    let (done, tasks) = done(app);
    json!({
        "namespace": app.namespace(),
        "name": app.name_any(),
        "plugin": app.spec.plugin,
        "runtime": app.spec.runtime,
        "phase": phase(app),
        "ready": ready(app) == "True",
        "tasks": { "done": done, "total": tasks },
        "doing": doing(app),
    })
}

fn table(apps: &[App], namespaces: bool) -> String {
    let place = |text: &str| namespaces.then(|| text.to_owned());
    let header = ["NAME", "PHASE", "READY", "RUNS", "TASKS", "AGE", "DOING"].map(str::to_owned);
    let mut table = Table::with_header(place("NAMESPACE").into_iter().chain(header));
    for app in apps {
        let (done, tasks) = done(app);
        let cells = [
            app.name_any(),
            phase(app),
            ready(app),
            format!("{} {}", app.spec.runtime.name, app.spec.runtime.version),
            format!("{done}/{tasks}"),
            app.creation_timestamp().map_or_else(|| "<unknown>".into(), |time| age::since(time.0)),
            doing(app),
        ];
        table.row(place(&app.namespace().unwrap_or_default()).into_iter().chain(cells));
    }
    table.render()
}
