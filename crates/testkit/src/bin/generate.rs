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

/// Messages and services: of the fast path, and what is asked of containerd.
fn protos(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files =
        code(&root.join("crates/protos"), &["fastpath.proto", "agent.proto", "middleware.proto"])?;
    let containerd: Vec<String> = std::fs::read_dir(root.join("crates/containerd/proto"))?
        .map(|file| Ok(file?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    files.extend(code(&root.join("crates/containerd"), &containerd)?);
    Ok(files)
}

/// The code of a crate's protos. protox reads what protoc would.
fn code(home: &Path, protos: &[impl AsRef<Path>]) -> Result<Vec<(PathBuf, String)>> {
    let set = protox::compile(protos, [home.join("proto")])?;
    let made = tempfile::tempdir()?;
    let builder = tonic_prost_build::configure().btree_map(".");
    builder.out_dir(made.path()).compile_fds(set)?;
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
