//! A containerd of the tests' own: its directories, its socket, its images. It ends with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Where `cargo xtask setup` keeps them.
const CACHED: &str = "containerd-debian";
const LIMIT: Duration = Duration::from_secs(30);

/// Where the programs are; None if they are nowhere.
pub(crate) fn programs() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").unwrap_or_default().join(".cache");
    let cache = variable("AGENTCUBE_CACHE")
        .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = |directory: &PathBuf| {
        ["containerd", "containerd-shim-runc-v2", "ctr", "runc"]
            .iter()
            .all(|name| directory.join(name).is_file())
    };
    std::iter::once(cache.join(CACHED)).chain(std::env::split_paths(&path)).find(all)
}

pub(crate) struct Daemon {
    process: Child,
    programs: PathBuf,
    pub(crate) directory: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start(programs: &Path) -> Result<Self> {
        // A socket's path is short.
        let directory = tempfile::Builder::new().prefix("ctrd").tempdir()?;
        let place = directory.path().display();
        let config = format!(
            "version = 2\nroot = \"{place}/root\"\nstate = \"{place}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = \"{place}/socket\"\n[ttrpc]\naddress = \"{place}/socket.ttrpc\"\n"
        );
        std::fs::write(directory.path().join("config.toml"), config)?;
        let process = Self::spawn(programs, directory.path())?;
        let mut daemon = Self { process, programs: programs.to_owned(), directory };
        daemon.await_answer()?;
        Ok(daemon)
    }

    fn spawn(programs: &Path, directory: &Path) -> Result<Child> {
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log"))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
        Command::new(programs.join("containerd"))
            .arg("--config")
            .arg(directory.join("config.toml"))
            .env("PATH", std::env::join_paths(path)?)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start containerd")
    }

    fn await_answer(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            ensure!(self.process.try_wait()?.is_none(), "containerd has ended: {}", self.log());
            if self.ctr(&["version"]).is_ok() {
                return Ok(());
            }
        }
        bail!("containerd does not answer: {}", self.log())
    }

    /// Ends containerd, and not what it runs, and starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = Self::spawn(&self.programs, self.directory.path())?;
        self.await_answer()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The last that it had to complain about.
    pub(crate) fn complaints(&self) -> String {
        let log = self.log();
        let bad: Vec<&str> = log.lines().filter(|line| line.contains("level=error")).collect();
        bad[bad.len().saturating_sub(5)..].join("\n")
    }

    /// containerd's own client, in the namespace of the tests.
    pub(crate) fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(self.programs.join("ctr"))
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", super::NAMESPACE])
            .args(arguments)
            .stdin(Stdio::null())
            .output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "ctr {arguments:?}: {out}{err}");
        Ok(out.into_owned())
    }

    /// Imports an image with these files; the program of the tests is `/probe`.
    pub(crate) fn import(&self, name: &str, unpack: bool) -> Result<()> {
        let work = tempfile::tempdir()?;
        crate::image::write(work.path(), name)?;
        let archive = work.path().join("image.tar");
        let archive = archive.to_str().context("a path of letters")?;
        match unpack {
            true => self.ctr(&["images", "import", archive]),
            false => self.ctr(&["images", "import", "--no-unpack", archive]),
        }
        .map(drop)
    }

    /// Everything that containerd has of containers: their names, tasks and snapshots of their own.
    pub(crate) fn left(&self) -> Result<Vec<String>> {
        let containers = self.ctr(&["containers", "ls", "-q"])?;
        let tasks = self.ctr(&["tasks", "ls", "-q"])?;
        let snapshots = self.ctr(&["snapshots", "ls"])?;
        let active = snapshots.lines().filter(|line| line.ends_with("Active") || line.contains(" View"));
        Ok(containers.lines().chain(tasks.lines()).chain(active).map(str::to_owned).collect())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for line in self.ctr(&["tasks", "ls", "-q"]).unwrap_or_default().lines() {
            let _ended = self.ctr(&["tasks", "delete", "--force", line]);
        }
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
