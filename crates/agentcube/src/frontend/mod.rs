//! `agentcube frontend`: front ends from the command line. What is built of them, how that went, and what it said.

mod describe;
mod list;
mod logs;
mod rebuild;

use agentcube_api::FrontendIntegration;
use agentcube_api::conditions::{self, READY};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Error, Server, escape};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube frontend ls -A
  agentcube frontend describe tasks            # its pages, its bundle, its builds and events
  agentcube frontend logs tasks                # what the last build said
  agentcube frontend rebuild tasks --wait

`agentcube apply -f frontend.yaml` makes and changes them, `agentcube delete fi NAME` removes them. More: docs/frontends.md.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List front ends
    Ls(list::Arguments),
    /// Show a front end with its pages, its bundle, its builds and events
    Describe(describe::Arguments),
    /// Build a front end again, though its spec has not changed
    Rebuild(rebuild::Arguments),
    /// Show what the last build of a front end said
    Logs(logs::Arguments),
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Ls(arguments) => list::run(arguments, environment).await,
        Command::Describe(arguments) => describe::run(arguments, environment).await,
        Command::Rebuild(arguments) => rebuild::run(arguments, environment).await,
        Command::Logs(arguments) => logs::run(arguments, environment).await,
    }
}

/// The path of front ends, of those of a namespace, or of one.
fn path(namespace: Option<&str>, name: Option<&str>) -> String {
    let namespace = namespace.map(|name| format!("/namespaces/{}", escape(name))).unwrap_or_default();
    let name = name.map(|name| format!("/{}", escape(name))).unwrap_or_default();
    format!("/apis/frontend-forge.io/v1alpha1{namespace}/frontendintegrations{name}")
}

/// Lists are there, if only empty, unless the server has no such kind.
fn explain(error: Error) -> anyhow::Error {
    match error.is_not_found() {
        true => {
            Absent("the server has no front ends: `agentcube up` and `agentcube install` bring them".into())
                .into()
        }
        false => error.into(),
    }
}

async fn read(server: &Server, name: &str) -> anyhow::Result<Value> {
    match server.get(&path(Some(&server.namespace), Some(name))).await {
        Err(error) if error.is_not_found() => {
            let place = &server.namespace;
            Err(Absent(format!("there is no FrontendIntegration {name} in namespace {place}")).into())
        }
        other => Ok(other?),
    }
}

fn phase(integration: &FrontendIntegration) -> String {
    let phase = integration.status.as_ref().and_then(|status| status.phase).unwrap_or_default();
    format!("{phase:?}")
}

fn is_ready(integration: &FrontendIntegration) -> bool {
    let status = integration.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    ready.is_some_and(|ready| ready.status == conditions::TRUE)
}

/// Where its pages are found in the console.
fn paths(integration: &FrontendIntegration) -> Vec<String> {
    let spec = &integration.spec;
    let one = spec.routing.iter().map(|routing| routing.path.clone());
    let several =
        spec.pages.iter().flatten().map(|page| page.path.clone().unwrap_or_else(|| page.key.clone()));
    one.chain(several).collect()
}

fn machine_form(integration: &FrontendIntegration) -> Value {
    let status = integration.status.clone().unwrap_or_default();
    json!({
        "namespace": integration.metadata.namespace,
        "name": integration.metadata.name,
        "enabled": integration.spec.enabled,
        "paths": paths(integration),
        "phase": phase(integration),
        "ready": is_ready(integration),
        "builds": status.builds.unwrap_or_default(),
        "activeBuild": status.active_build,
        "bundle": status.bundle_ref.map(|bundle| bundle.name),
        "specHash": status.observed_spec_hash,
        "manifestHash": status.observed_manifest_hash,
        "message": status.message,
    })
}
