//! What the controllers of Tasks and TaskGateways write, held to the real definitions of the Gateway API and of Envoy
//! Gateway: every example is served, in every way that the controllers can be set up, on the real kube-apiserver and on
//! the embedded one. Something pretends to be the gateway, since there is no Envoy here. Then everything is installed, run with
//! the rights of its roles, and removed, on both.
//!
//! `--only real|embedded` runs one of them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cases;
mod install;
#[path = "../../../task/tests/stage/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate, which use more of it")]
mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentcube_testkit::cluster::real::Controllers;
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind};
use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use cases::Case;

/// What `cargo xtask setup` has fetched.
const DEFINITIONS: &str = "envoy-gateway-v1.9.1";

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) {
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| options.selects(case.name)).collect();
    let definitions = match definitions(&options.cache.join(DEFINITIONS)) {
        Ok(definitions) => definitions,
        Err(error) => return report.skip("task-controllers", 2 * cases.len(), &format!("{error:#}")),
    };
    if options.wants(Kind::Embedded) {
        run_on(Cluster::embedded().await, &definitions, &cases, report).await;
        installed(Cluster::embedded().await, &definitions, options, report).await;
    }
    if options.wants(Kind::Real) {
        match options.binaries() {
            Err(error) => report.skip("task-controllers on the real one", cases.len(), &format!("{error:#}")),
            Ok(binaries) => {
                let cluster = Cluster::real_with(&binaries, Controllers::Api).await;
                run_on(cluster, &definitions, &cases, report).await;
                let cluster = Cluster::real_with(&binaries, Controllers::Api).await;
                installed(cluster, &definitions, options, report).await;
            }
        }
    }
}

async fn run_on(
    cluster: Result<Cluster>,
    definitions: &[CustomResourceDefinition],
    cases: &[Case],
    report: &mut Report,
) {
    let prepared = async {
        let cluster = cluster?;
        let client = client(&cluster).await?;
        stage::install(&client, agentcube_api::crds()).await;
        stage::install(&client, definitions.to_vec()).await;
        anyhow::Ok((cluster, client))
    };
    let (cluster, client) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => return report.note("a server with the definitions", Err(error)),
    };
    // One after the other: the controllers of each look after all namespaces.
    for case in cases {
        let running = tokio::spawn((case.run)(client.clone()));
        let outcome = running.await.map_err(|error| anyhow::anyhow!("{error}"));
        report.note(&format!("{}/{}", cluster.kind, case.name), outcome);
    }
}

/// What `agentcube install` puts on a server of its own.
async fn installed(
    cluster: Result<Cluster>,
    definitions: &[CustomResourceDefinition],
    options: &Options,
    report: &mut Report,
) {
    if !options.selects("install") {
        return;
    }
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => return report.note("a server to install on", Err(error)),
    };
    let definitions: Result<Vec<Value>, _> = definitions.iter().map(serde_json::to_value).collect();
    let definitions = definitions.expect("a definition is JSON");
    let whole = install::whole(&cluster, &definitions).await;
    report.note(&format!("{}/install", cluster.kind), whole);
    if cluster.kind == Kind::Real {
        report.note("real/install-rights", install::rights(&cluster, options.record).await);
    }
}

async fn client(cluster: &Cluster) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn definitions(directory: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let mut found = Vec::new();
    let files = std::fs::read_dir(directory)
        .with_context(|| format!("{} is missing; run `cargo xtask setup`", directory.display()))?;
    for file in files {
        for document in documents(&file?.path())? {
            if document["kind"] == "CustomResourceDefinition" {
                found.push(serde_json::from_value(document)?);
            }
        }
    }
    Ok(found)
}

/// The documents of a YAML file.
fn documents(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    let documents =
        serde_saphyr::from_multiple::<Value>(&text).with_context(|| path.display().to_string())?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

/// The objects of all examples in a directory.
fn examples(directory: &str) -> Vec<Value> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(directory);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .expect("there are examples")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    files.iter().flat_map(|path| documents(path).expect("an example is YAML")).collect()
}
