//! `agentcube forge-runner`: one build of a front end, in the Job that the controllers make for it.

use std::path::PathBuf;

use agentcube_forge::runner::{Error, Runner, Settings};
use anyhow::Context;
use clap::Args;
use kube::config::AuthInfo;

use crate::client;
use crate::environment::{Environment, variables};
use crate::exit::{Outcome, Usage, say};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube forge-runner                     # in a Job; what to do is in the environment

Variables: FI_NAMESPACE, FI_NAME, SPEC_HASH (or MANIFEST_HASH, its old name), JSBUNDLE_NAME, BUILD_SERVICE_BASE_URL,
BUILD_SERVICE_TOKEN, BUILD_SERVICE_TIMEOUT_SECONDS, STALE_CHECK_GRACE_SECONDS; BUILD_JOB, API_BASE_URL if need be.
Exits with 0 when the bundle is written, 1 when it may work another time, 3 when the spec has changed meanwhile, 4 when it cannot
work before the spec changes.")]
pub(crate) struct Arguments {
    /// File to say in what went wrong
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    say: PathBuf,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let all: std::collections::BTreeMap<String, String> = variables().collect();
    let settings = Settings::read(|name| all.get(name).cloned()).map_err(|error| Usage(error.to_string()))?;
    let client = match &settings.api {
        Some(address) => by_gate(address, &settings.token)?,
        None => client::of_cluster(None, None, environment).await?,
    };
    let (name, bundle) = (settings.name.clone(), settings.bundle.clone());
    match (Runner { client, settings }).run().await {
        Ok(()) => {
            crate::output::write(
                format!("FrontendIntegration {name} is built: JSBundle {bundle} is written\n").as_bytes(),
            )?;
            Ok(Outcome::Done)
        }
        Err(error) => {
            tell(&arguments, &error);
            Ok(Outcome::Remote(error.code()))
        }
    }
}

/// The API server in the name of one integration.
fn by_gate(address: &str, token: &str) -> anyhow::Result<kube::Client> {
    let address = address.parse().with_context(|| format!("API_BASE_URL {address:?} is no address"))?;
    let mut config = kube::Config::new(address);
    config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    kube::Client::try_from(config).context("the API server cannot be used")
}

/// For people in the log, for the controller as the last word of the Pod.
fn tell(arguments: &Arguments, error: &Error) {
    say(&format!("error: {error}"));
    let last = serde_json::to_string(&error.failure()).unwrap_or_default();
    if let Err(unsaid) = std::fs::write(&arguments.say, last) {
        say(&format!("cannot write {}: {unsaid}", arguments.say.display()));
    }
}
