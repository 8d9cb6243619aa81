//! `agentcube sandbox ls`.

use agentcube_protos::fastpath::{ListRequest, Sandbox};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::refusal;
use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, say};
use crate::output::{self, Machine, Table, age};

/// Sandboxes that are asked for at once.
const PAGE: i32 = 500;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox ls
  agentcube sandbox ls --pool fast -l app=tests -o json
  agentcube get sandboxes -A            # of all namespaces, from their objects")]
pub(super) struct Arguments {
    /// Only those of this SandboxPool
    #[arg(long)]
    pool: Option<String>,
    /// Only those with these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (mut fast_path, namespace) = arguments.connection.fast_path(environment).await?;
    let mut request = ListRequest {
        namespace,
        pool_ref: arguments.pool.unwrap_or_default(),
        label_selector: arguments.selector.unwrap_or_default(),
        limit: PAGE,
        r#continue: String::new(),
    };
    let mut sandboxes = Vec::new();
    loop {
        let page = fast_path.list_sandboxes(request.clone()).await.map_err(|status| refusal(&status))?;
        let page = page.into_inner();
        sandboxes.extend(page.items);
        if page.r#continue.is_empty() {
            break;
        }
        request.r#continue = page.r#continue;
    }
    match arguments.output {
        Some(machine) => machine.print(&json!(sandboxes.iter().map(machine_form).collect::<Vec<_>>()))?,
        None if sandboxes.is_empty() => say("no sandboxes"),
        None => output::write(table(&sandboxes).as_bytes())?,
    }
    Ok(Outcome::Done)
}

fn time(unix_ms: i64) -> Option<Timestamp> {
    Some(unix_ms).filter(|time| *time != 0).and_then(|time| Timestamp::from_millisecond(time).ok())
}

fn machine_form(sandbox: &Sandbox) -> Value {
    json!({
        "name": sandbox.sandbox_id,
        "namespace": sandbox.namespace,
        "uid": sandbox.uid,
        "phase": sandbox.phase,
        "ready": sandbox.ready,
        "paused": sandbox.paused,
        "reason": sandbox.reason,
        "message": sandbox.message,
        "pool": sandbox.pool_ref,
        "image": sandbox.image,
        "agent": sandbox.agent_pod,
        "node": sandbox.node,
        "run": sandbox.run_id,
        "endpoints": sandbox.endpoints,
        "labels": sandbox.labels,
        "created": time(sandbox.created_unix_ms).map(|time| time.to_string()),
        "expires": time(sandbox.expires_unix_ms).map(|time| time.to_string()),
    })
}

fn state(sandbox: &Sandbox) -> String {
    match (sandbox.phase.as_str(), sandbox.reason.as_str()) {
        _ if sandbox.paused => "Paused".to_owned(),
        ("Running", _) if !sandbox.ready => "Running (not ready)".to_owned(),
        ("Running", _) | (_, "") => sandbox.phase.clone(),
        (phase, reason) => format!("{phase} ({reason})"),
    }
}

fn table(sandboxes: &[Sandbox]) -> String {
    let mut table = Table::with_header(["NAME", "STATE", "POOL", "IMAGE", "ENDPOINTS", "AGE"]);
    for sandbox in sandboxes {
        let endpoints = match sandbox.endpoints.is_empty() {
            true => "<none>".to_owned(),
            false => sandbox.endpoints.join(","),
        };
        table.row([
            sandbox.sandbox_id.clone(),
            state(sandbox),
            sandbox.pool_ref.clone(),
            sandbox.image.clone(),
            endpoints,
            time(sandbox.created_unix_ms).map_or_else(|| "<unknown>".to_owned(), age::since),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_answer_the_first_question() {
        let sandbox = |phase: &str, reason: &str, ready: bool, paused: bool| {
            let (phase, reason) = (phase.to_owned(), reason.to_owned());
            state(&Sandbox { phase, reason, ready, paused, ..Sandbox::default() })
        };
        assert_eq!(sandbox("Running", "Ready", true, false), "Running");
        assert_eq!(sandbox("Running", "", false, false), "Running (not ready)");
        assert_eq!(sandbox("Running", "", true, true), "Paused");
        assert_eq!(sandbox("Failed", "Exited", false, false), "Failed (Exited)");
        assert_eq!(sandbox("Pending", "", false, false), "Pending");
    }
}
