//! Measures reservations: finding the instance of a bound session in memory, binding an idle instance on a real API
//! server, a hundred cold starts at once: `bench-reserve AGENTCUBE_PROGRAM [--json] [--enforce] [--only PART]`.

mod bind;
mod cold;
mod fixture;
mod kubelet;
mod lookup;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentcube_instance::reserve::{self, Reserver};
use agentcube_instance::timing::Timing;
use agentcube_instance::token::ensure_master_keys;
use agentcube_testkit::suite::Options;
use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Makes this program the router whose memory is measured.
pub(crate) const ROUTER: &str = "__router";

/// What was measured; nothing of what was not asked for.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) lookup: Vec<lookup::Measured>,
    pub(crate) bind: Option<bind::Measured>,
    pub(crate) cold: Option<cold::Measured>,
}

fn main() -> ExitCode {
    let flag = |name: &str| std::env::args().any(|arg| arg == name);
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [ROUTER, kubeconfig, task, uid] => {
            runtime.block_on(lookup::serve(Path::new(kubeconfig), task, uid)).map(|()| ExitCode::SUCCESS)
        }
        _ => runtime
            .block_on(run(&Options::from_environment()))
            .map(|results| report::print(&results, flag("--json"), flag("--enforce"))),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(options: &Options) -> Result<Results> {
    let program = PathBuf::from(options.filter.as_ref().context("name the agentcube program")?);
    let wanted = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    let mut results = Results::default();
    if wanted("lookup") {
        eprintln!("sessions in memory");
        results.lookup = lookup::measure(&program).await?;
    }
    if wanted("bind") {
        eprintln!("idle instances on kube-apiserver");
        results.bind = Some(bind::measure(&options.binaries()?).await?);
    }
    if wanted("cold") {
        eprintln!("cold starts");
        results.cold = Some(Box::pin(cold::measure(&program)).await?);
    }
    Ok(results)
}

async fn connect(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// A router that takes part as all do.
async fn router(client: kube::Client) -> Result<Reserver> {
    let keys = ensure_master_keys(client.clone(), fixture::SYSTEM).await?;
    let (name, namespace) = ("bench".to_owned(), fixture::SYSTEM.to_owned());
    Ok(Reserver::new(client, reserve::Options { name, namespace, keys, timing: Timing::default() }))
}
