//! `agentcube frontend rebuild`: asks for it by the annotation that the controllers obey once.

use std::time::Duration;

use agentcube_api::FrontendIntegration;
use agentcube_api::frontend::integration::IntegrationPhase;
use agentcube_api::labels::FORGE_REBUILD;
use anyhow::bail;
use clap::Args;
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::{machine_form, path, phase, read};
use crate::client::{Connection, Server};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::output::{self, Machine, progress};

const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube frontend rebuild tasks
  agentcube frontend rebuild tasks --wait --timeout 60

With --wait it exits with 0 when the new bundle is there, with 1 when the build failed.")]
pub(super) struct Arguments {
    /// The front end
    #[arg(value_name = "NAME")]
    name: String,
    /// Wait until the build is over, and say how it ended
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let before: FrontendIntegration = serde_json::from_value(read(&server, &arguments.name).await?)?;
    if !before.spec.enabled {
        return Err(
            Usage(format!("{} is switched off: set spec.enabled to true first", arguments.name)).into()
        );
    }
    let wish = Timestamp::now().to_string();
    let patch = json!({ "metadata": { "annotations": { FORGE_REBUILD: wish } } });
    let place = path(Some(&server.namespace), Some(&arguments.name));
    server.send(Method::PATCH, &place, "application/merge-patch+json", &patch).await?;
    if !arguments.wait {
        if let Some(machine) = arguments.output {
            machine.print(&json!({ "name": arguments.name, "rebuild": wish }))?;
        } else {
            output::write(format!("{}: a rebuild is asked for\n", arguments.name).as_bytes())?;
        }
        return Ok(Outcome::Done);
    }
    let waiting = Box::pin(ended(&server, &arguments, &wish));
    let Some(after) = progress::during(environment, "waiting for the build", waiting).await? else {
        bail!(
            "the build is not over after {} s: `agentcube frontend describe {}` says more",
            arguments.timeout,
            arguments.name
        );
    };
    let message = after.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
    // A rebuild that fails leaves the bundle of before; then the message says so.
    let word = phase(&after);
    let failed = word != "Succeeded" || message.contains("is kept");
    match arguments.output {
        Some(machine) => machine.print(&machine_form(&after))?,
        None if failed => say(&format!("error: {}: {word}: {message}", arguments.name)),
        None => output::write(format!("{}: {word}: {message}\n", arguments.name).as_bytes())?,
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

/// The front end when its rebuild is over; `None` when there is no time left.
async fn ended(
    server: &Server,
    arguments: &Arguments,
    wish: &str,
) -> anyhow::Result<Option<FrontendIntegration>> {
    let deadline = Instant::now() + Duration::from_secs(arguments.timeout);
    while Instant::now() < deadline {
        let now: FrontendIntegration = serde_json::from_value(read(server, &arguments.name).await?)?;
        let status = now.status.clone().unwrap_or_default();
        let obeyed = status.observed_rebuild.as_deref() == Some(wish);
        if obeyed && status.phase != Some(IntegrationPhase::Building) {
            return Ok(Some(now));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(None)
}
