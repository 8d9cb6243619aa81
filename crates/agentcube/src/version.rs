//! `agentcube version`: of this program, and of the server if one answers.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, one_line, say};
use crate::output::{self, Machine};

/// How long a server may take before only our own version is told.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube version
  agentcube version --client
  agentcube version -o json")]
pub(crate) struct Arguments {
    /// Do not ask the server
    #[arg(long)]
    client: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let mut shown = json!({"client": {"version": env!("CARGO_PKG_VERSION")}});
    let mut problem = None;
    if !arguments.client {
        match tokio::time::timeout(PATIENCE, server(&arguments.connection, environment)).await {
            Ok(Ok(version)) => shown["server"] = version,
            Ok(Err(error)) => problem = Some(one_line(&error)),
            Err(_) => problem = Some(format!("the server gave no answer within {} s", PATIENCE.as_secs())),
        }
    }
    match arguments.output {
        Some(machine) => machine.print(&shown)?,
        None => output::write(render(&shown).as_bytes())?,
    }
    // Our own version is what was asked for first; that the server is away is worth a word, not a failure.
    if let Some(problem) = problem {
        say(&format!("server: {problem}"));
    }
    Ok(Outcome::Done)
}

async fn server(connection: &Connection, environment: &Environment) -> anyhow::Result<Value> {
    let server = connection.open(environment).await?;
    let version = server.get("/version").await?;
    Ok(json!({
        "version": version["gitVersion"], "address": server.address(), "platform": version["platform"],
    }))
}

fn render(shown: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = format!("agentcube {}\n", text(&shown["client"]["version"]));
    if shown["server"].is_object() {
        lines.push_str(&format!(
            "Kubernetes API {} at {}\n",
            text(&shown["server"]["version"]),
            text(&shown["server"]["address"])
        ));
    }
    lines
}
