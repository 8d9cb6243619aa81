//! Generates files that are committed: `generate definitions|protos|schemas [--check]`. With `--check` nothing is
//! written, and a file that would change is a failure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentcube_testkit::suite::Options;
use agentcube_testkit::{Cluster, openapi};
use anyhow::{Context, Result, bail};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let options = Options::from_environment();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = match options.filter.as_deref() {
        Some("definitions") => definitions(&root),
        Some("protos") => protos(&root)?,
        Some("schemas") => schemas(&root, &options)?,
        other => bail!("nothing is called {other:?}: definitions, protos, schemas"),
    };
    let check = std::env::args().any(|arg| arg == "--check");
    let mut well = true;
    for (path, content) in files {
        if std::fs::read_to_string(&path).unwrap_or_default() == content {
            continue;
        }
        if check {
            eprintln!("    {} is not what would be generated", path.display());
            well = false;
        } else {
            std::fs::create_dir_all(path.parent().context("files are in directories")?)?;
            std::fs::write(&path, content)?;
            eprintln!("    {} written", path.display());
        }
    }
    Ok(well)
}

/// The CustomResourceDefinitions of AgentCube's own kinds.
fn definitions(root: &Path) -> Vec<(PathBuf, String)> {
    let directory = root.join("deploy/crds");
    agentcube_api::crd_files().into_iter().map(|(name, content)| (directory.join(name), content)).collect()
}

/// The messages and services of the fast path. protox reads what protoc would.
fn protos(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let home = root.join("crates/protos");
    let set = protox::compile(["fastpath.proto", "agent.proto"], [home.join("proto")])?;
    let made = tempfile::tempdir()?;
    tonic_prost_build::configure().btree_map(".").out_dir(made.path()).compile_fds(set)?;
    let mut files = Vec::new();
    for file in std::fs::read_dir(made.path())? {
        let file = file?;
        let path = home.join("src/generated").join(file.file_name());
        files.push((path, std::fs::read_to_string(file.path())?));
    }
    Ok(files)
}

/// The schemas of the built-in kinds, as a running kube-apiserver publishes them.
fn schemas(root: &Path, options: &Options) -> Result<Vec<(PathBuf, String)>> {
    let binaries = options.binaries()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let text = runtime.block_on(async {
        let cluster = Cluster::real(&binaries).await?;
        openapi::builtin_schemas(&cluster.http).await
    })?;
    Ok(vec![(root.join("crates/apiserver/src/builtin/schemas.json"), text)])
}
