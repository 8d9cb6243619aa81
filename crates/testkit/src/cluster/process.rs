//! The embedded API server as a process of its own, so that it can be killed and its memory measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;

use super::free_port;
use crate::http_client::{HttpClient, Request};
use crate::supervise::Process;

const READY_LIMIT: Duration = Duration::from_secs(30);

/// Where the server keeps its objects.
#[derive(Clone, Copy)]
pub enum Storage<'a> {
    Memory,
    Directory(&'a Path),
}

/// A running `agentcube apiserver`.
pub struct ServerProcess {
    pub http: HttpClient,
    /// From the start of the process to the first answer that says it is ready.
    pub start_time: Duration,
    process: Process,
    scratch: tempfile::TempDir,
}

impl ServerProcess {
    /// Starts the program on a free port and waits until it is ready.
    pub async fn start(program: &Path, storage: Storage<'_>) -> Result<ServerProcess> {
        let scratch = tempfile::tempdir()?;
        let kubeconfig = scratch.path().join("kubeconfig");
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut args = vec!["apiserver".to_owned(), "--listen".to_owned(), address.clone()];
        args.extend(["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
        match storage {
            Storage::Memory => args.push("--memory".to_owned()),
            Storage::Directory(path) => args.extend(["--data-dir".to_owned(), path.display().to_string()]),
        }
        let begun = Instant::now();
        let process = Process::start(program, &args, &scratch.path().join("log"))?;
        loop {
            match ready(&kubeconfig, &address).await {
                Ok(http) => {
                    let start_time = begun.elapsed();
                    return Ok(ServerProcess { http, start_time, process, scratch });
                }
                Err(error) if begun.elapsed() > READY_LIMIT => {
                    bail!("agentcube is not ready: {error:#}\n{}", process.log_tail())
                }
                Err(_) => tokio::time::sleep(Duration::from_micros(500)).await,
            }
        }
    }

    /// For clients of their own.
    pub fn kubeconfig(&self) -> PathBuf {
        self.scratch.path().join("kubeconfig")
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.process.resident_bytes()
    }

    /// Kills the process with SIGKILL, as a crash would.
    pub fn kill(self) {
        self.process.kill();
    }
}

async fn ready(kubeconfig: &Path, address: &str) -> Result<HttpClient> {
    let http = client(kubeconfig, address)?;
    let reply = http.send(Request::new(Method::GET, "/readyz")).await?;
    ensure!(reply.is_success(), "{}", String::from_utf8_lossy(&reply.bytes));
    Ok(http)
}

/// A client for an address that has the certificate and the token of a kubeconfig of ours.
pub(super) fn client(kubeconfig: &Path, address: &str) -> Result<HttpClient> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let value = |key: &str| -> Result<&str> {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(key))
            .map(str::trim)
            .context("not in the kubeconfig")
    };
    let ca = STANDARD.decode(value("certificate-authority-data:")?)?;
    HttpClient::new(address.parse()?, std::str::from_utf8(&ca)?, value("token:")?)
}

/// The `agentcube` program: the one that `cargo xtask test` has built with the tests, or built now in the profile of the
/// running test.
pub fn build_program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("AGENTCUBE_PROGRAM") {
        return Ok(program.into());
    }
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent).context("a test runs from the target directory")?;
    let release = profile.file_name().is_some_and(|name| name == "release");
    let mut command = Command::new("cargo");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--locked", "-p", "agentcube"]);
    if release {
        command.arg("--release");
    }
    // What `cargo test` says of the test: build scripts that watch these variables would have half of the tree built anew.
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_package.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    ensure!(command.status()?.success(), "agentcube does not build");
    Ok(profile.join("agentcube"))
}
