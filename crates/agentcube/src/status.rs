//! `agentcube status`: whether `up` runs on a data directory, since when, where, and what it holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use agentcube_api::labels;
use clap::Args;
use serde_json::{Value, json};

use crate::client::{Server, kubeconfig, query};
use crate::environment::Environment;
use crate::exit::Outcome;
use crate::output::{self, Machine, Table, age};
use crate::paths::{self, DataDir};
use crate::up::footprint::Footprint;
use crate::up::running::{Phase, Running};

/// How long the server may take to say what it holds.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube status
  agentcube status -o json
  agentcube status --data-dir ./data || agentcube up --detach --data-dir ./data

Exits with 3 when it does not run.")]
pub(crate) struct Arguments {
    /// The data directory of the `up` to look at
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let data = match &arguments.data_dir {
        Some(path) => DataDir::new(path),
        None => paths::default_data_dir(environment),
    };
    let running = Running::find(&data)?;
    let mut shown = json!({"running": running.is_some(), "dataDir": data.path()});
    let Some(running) = running else {
        match arguments.output {
            Some(machine) => machine.print(&shown)?,
            None => output::write(
                format!("agentcube does not run on {}: `agentcube up` starts it\n", data.path().display())
                    .as_bytes(),
            )?,
        }
        return Ok(Outcome::Absent);
    };
    let record = &running.record;
    shown["pid"] = json!(record.pid);
    shown["phase"] = json!(record.phase);
    shown["since"] = json!(record.since.to_string());
    shown["version"] = json!(record.version);
    shown["address"] = json!(record.address);
    shown["gateway"] = json!(record.gateway);
    shown["console"] = json!(record.console);
    shown["kubeconfig"] = json!(data.kubeconfig());
    let footprint = Footprint::of(record.pid);
    shown["memory"] = json!(footprint);
    if record.phase == Phase::Ready {
        match tokio::time::timeout(PATIENCE, held(&data)).await {
            Ok(Ok(held)) => {
                shown["pods"] = json!(held.pods);
                shown["tasks"] = json!(held.tasks);
                shown["sessions"] = json!(held.sessions);
            }
            Ok(Err(error)) => shown["problem"] = json!(format!("{error:#}")),
            Err(_) => shown["problem"] = json!(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
    match arguments.output {
        Some(machine) => machine.print(&shown)?,
        None => output::write(render(&shown, footprint, &age::since(record.since)).as_bytes())?,
    }
    Ok(if shown["problem"].is_null() { Outcome::Done } else { Outcome::Failed })
}

/// What the server holds: Pods and Tasks by phase, and sessions.
struct Held {
    pods: BTreeMap<String, usize>,
    tasks: BTreeMap<String, usize>,
    sessions: usize,
}

async fn held(data: &DataDir) -> anyhow::Result<Held> {
    let server = Server::connect(kubeconfig::read_file(&data.kubeconfig())?, None).await?;
    let of_sessions = format!("{}={}", labels::LEASE, labels::LEASE_OF_SESSION);
    let leases =
        format!("/apis/coordination.k8s.io/v1/leases{}", query(&[("labelSelector", Some(&of_sessions))]));
    let sessions = server.get(&leases).await?["items"].as_array().map_or(0, Vec::len);
    Ok(Held {
        pods: phases(&server.get("/api/v1/pods").await?, "Unknown"),
        tasks: phases(&server.get("/apis/agentcube.io/v1alpha1/tasks").await?, "Pending"),
        sessions,
    })
}

fn phases(list: &Value, without: &str) -> BTreeMap<String, usize> {
    let mut phases = BTreeMap::new();
    for object in list["items"].as_array().into_iter().flatten() {
        let phase = object["status"]["phase"].as_str().unwrap_or(without);
        *phases.entry(phase.to_owned()).or_default() += 1;
    }
    phases
}

fn render(shown: &Value, footprint: Footprint, age: &str) -> String {
    let text = |key: &str| shown[key].as_str().unwrap_or_default().to_owned();
    let mut table = Table::plain();
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("status:", format!("{} for {age} (process {})", text("phase"), shown["pid"]));
    row("version:", text("version"));
    row("API:", text("address"));
    row("gateway:", text("gateway"));
    row("console:", text("console"));
    row("data:", text("dataDir"));
    row("kubeconfig:", text("kubeconfig"));
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (total, own) = (mib(footprint.total_bytes), mib(footprint.own_bytes));
    row("memory:", format!("{total} in {} processes, {own} of it its own", footprint.processes));
    for (name, key) in [("Pods:", "pods"), ("Tasks:", "tasks")] {
        let Some(phases) = shown[key].as_object() else { continue };
        let counts: Vec<String> = phases.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
        row(name, if counts.is_empty() { "none".into() } else { counts.join(", ") });
    }
    if let Some(sessions) = shown["sessions"].as_u64() {
        row("sessions:", sessions.to_string());
    }
    if !shown["problem"].is_null() {
        row("problem:", text("problem"));
    }
    table.render()
}
